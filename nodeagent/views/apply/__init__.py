"""What `apply`, `diff` and `delete` show: what happens to each manifest, and where its pod lands."""
