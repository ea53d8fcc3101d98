"""Facts that `nodeagent check` reads from a container runtime and from kubelet's pods API."""

from msgspec import Struct

from nodeagent.core.model.nri import Runtime
from nodeagent.formats.config.containerd_config import NriConfig


class PodsApiFacts(Struct, frozen=True):
    """Answer of kubelet's pods API to a request about a pod that doesn't exist."""

    problem: str = ""
    """Problem with the API. Empty means that the API answered."""
    hint: str = ""
    is_absent: bool = False
    """Whether the socket is missing."""
    is_hidden: bool = False
    """Whether only root may use the socket."""


class RuntimeFacts(Struct, frozen=True):
    """Facts about the runtime behind `nriSocket`."""

    found: Runtime | None = None
    """Runtime that has accepted the agent as a plugin. None means that no runtime has accepted it."""
    problem: str = ""
    """Reason why the runtime doesn't accept the agent. Empty means that the runtime accepts the agent, or that the runtime wasn't asked
    because the node is a copy.
    """
    hint: str = ""
    is_hidden: bool = False
    """Whether only root may use the socket."""
    config: NriConfig | None = None
    """NRI settings of containerd. None means that there are no configuration files."""
    config_problem: str = ""
    """Reason why the configuration files can't be read."""
    pods_api: PodsApiFacts | None = None
    """Facts about kubelet's pods API. None means that the API wasn't asked."""
