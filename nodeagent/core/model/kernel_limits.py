"""Limits of the kernel's configuration. This module has no imports, so that the command `job` starts quickly."""

MOST_CPUS = 8192
"""Largest possible value of the kernel's CONFIG_NR_CPUS."""
