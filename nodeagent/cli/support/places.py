"""Default paths of an installed agent. This module imports nothing, so that commands that load it start fast."""

DEFAULT_CONFIG = "/etc/nodeagent/config.yaml"
DEFAULT_SOCKET = "/run/nodeagent/agent.sock"
DEFAULT_JOB_SOCKET = "/run/nodeagent/jobs.sock"
PODS_CGROUP = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"
"""Default cgroup of the pods' unit. It is used if neither the configuration nor the launcher names a cgroup."""
