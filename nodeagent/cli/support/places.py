"""Where an installed agent's configuration, socket and cgroup are; imports nothing, so that whoever has to start fast may ask."""

DEFAULT_CONFIG = "/etc/nodeagent/config.yaml"
DEFAULT_SOCKET = "/run/nodeagent/agent.sock"
PODS_CGROUP = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"
"""Of the pods' unit as installed: where to look when neither configuration nor launcher says."""
