"""Proof from outside that no process of another container runs on an exclusive CPU: the scheduler's own record, judged on the host."""
