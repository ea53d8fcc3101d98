"""Data that `nodeagent check` gets from a container runtime and from kubelet's pods API."""

from msgspec import Struct

from nodeagent.core.model.nri import Runtime
from nodeagent.formats.config.containerd_config import NriConfig


class PodsApiFacts(Struct, frozen=True):
    """Answer of kubelet's pods API to a test request, which names a pod that doesn't exist."""

    problem: str = ""
    """Reason why the API can't be used. Empty means that the API answered."""
    hint: str = ""
    is_absent: bool = False
    """Whether the API's socket is missing."""
    is_hidden: bool = False
    """Whether only root may use the API's socket."""


class RuntimeFacts(Struct, frozen=True):
    """Data about the container runtime that `nriSocket` connects to."""

    found: Runtime | None = None
    """Runtime that accepted the agent as an NRI plugin. None means that no runtime accepted it."""
    problem: str = ""
    """Reason why the runtime doesn't accept the agent as a plugin. Empty means that the runtime accepts the agent, or that the node is a
    copy, whose runtime can't be asked.
    """
    hint: str = ""
    is_hidden: bool = False
    """Whether only root may use the runtime's socket."""
    config: NriConfig | None = None
    """NRI settings in containerd's configuration files. None means that there are no such files."""
    config_problem: str = ""
    """Reason why containerd's configuration files can't be read. Empty means that they can be read."""
    pods_api: PodsApiFacts | None = None
    """Answer of kubelet's pods API. None means that the API wasn't asked."""
