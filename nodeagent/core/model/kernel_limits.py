"""Limits set by the kernel's build configuration. The module imports nothing, so that `nodeagent job` starts quickly."""

MOST_CPUS = 8192
"""Largest number of CPUs for which a kernel can be built (CONFIG_NR_CPUS)."""
