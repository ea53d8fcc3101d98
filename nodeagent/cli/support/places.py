"""Where an installed agent's configuration, socket and cgroup are; imports nothing, so that commands can start fast."""

DEFAULT_CONFIG = "/etc/nodeagent/config.yaml"
DEFAULT_SOCKET = "/run/nodeagent/agent.sock"
DEFAULT_JOB_SOCKET = "/run/nodeagent/jobs.sock"
PODS_CGROUP = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"
"""Of the pods' unit as installed: used if neither configuration nor launcher names another."""
