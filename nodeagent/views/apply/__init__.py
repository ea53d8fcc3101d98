"""What `apply`, `diff` and `delete` show: what becomes of each manifest, and where its pod lands."""
