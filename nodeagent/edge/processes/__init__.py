"""Processes of the host: who runs where, who owns a job, and the launcher that starts them."""
