"""Default paths of an installed agent. This module imports nothing, so that commands start fast."""

DEFAULT_CONFIG = "/etc/nodeagent/config.yaml"
DEFAULT_SOCKET = "/run/nodeagent/agent.sock"
DEFAULT_JOB_SOCKET = "/run/nodeagent/jobs.sock"
PODS_CGROUP = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"
"""Default cgroup of the pods' unit, used if neither the configuration nor the launcher names another cgroup."""
