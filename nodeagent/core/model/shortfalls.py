"""What a promise can lack on the machine as it is at present, as values: whose promise, and what is missing."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet


class CpusOffline(Struct, frozen=True):
    """A container holds CPUs that are offline."""

    uid: str
    container: str
    offline: CpuSet
    held: CpuSet

    @property
    def text(self) -> str:
        return f"pod {self.uid}, container {self.container}: CPUs {self.offline} of {self.held} are offline"


class NodesGone(Struct, frozen=True):
    """Memory is promised on NUMA nodes that are gone."""

    uid: str
    container: str | None
    """None: it is promised to the pod."""
    resource: str
    nodes: NumaSet

    @property
    def text(self) -> str:
        who = f"pod {self.uid}, container {self.container}" if self.container else f"pod {self.uid}"
        return f"{who}: {self.resource} is promised on NUMA nodes {self.nodes}, which are gone"


class NodeOverdrawn(Struct, frozen=True):
    """More is promised on a NUMA node than it has; all pods share the lack."""

    node: int
    resource: str
    missing_bytes: int

    @property
    def text(self) -> str:
        return f"NUMA node {self.node}: {self.missing_bytes} more bytes of {self.resource} are promised than it has"


Shortfall = CpusOffline | NodesGone | NodeOverdrawn
