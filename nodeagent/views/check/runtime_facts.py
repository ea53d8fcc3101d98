"""What `nodeagent check` finds out of a container runtime, and of kubelet's pods API beside it."""

from msgspec import Struct

from nodeagent.core.model.nri import Runtime
from nodeagent.formats.config.containerd_config import NriConfig


class PodsApiFacts(Struct, frozen=True):
    """What kubelet's pods API did when it was asked about a pod that there isn't."""

    problem: str = ""
    """Empty: it answered."""
    hint: str = ""
    is_absent: bool = False
    """There is no socket."""
    is_hidden: bool = False
    """Only root may ask it."""


class RuntimeFacts(Struct, frozen=True):
    """What was found out where `nriSocket` is set."""

    found: Runtime | None = None
    """It takes the agent as its plugin."""
    problem: str = ""
    """Why it doesn't. Empty: it was not asked, as this is a copy of a node."""
    hint: str = ""
    is_hidden: bool = False
    """Only root may ask it."""
    config: NriConfig | None = None
    """Of containerd; None: there are no files of it."""
    config_problem: str = ""
    """Why they can't be read."""
    pods_api: PodsApiFacts | None = None
    """None: it was not asked."""
