"""What can be wrong with promises and with the node's state, as values: which invariant is violated, where, and what was found; and what
a promise lacks on the machine as it is at present.
"""

import enum

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.promises import MemoryTable


class Invariant(enum.StrEnum):
    """What must hold; the names are stable."""

    HOLDER_IS_ACTIVE = "HolderIsActive"
    HOLDER_IS_IN_ITS_POD = "HolderIsInItsPod"
    ONE_ENTRY_PER_UID = "OneEntryPerUid"
    ONE_ENTRY_PER_NAME = "OneEntryPerName"
    ONE_STATUS_PER_CONTAINER = "OneStatusPerContainer"
    PODS_SHARE_NO_CPUS = "PodsShareNoCpus"
    SHARED_POOL_HAS_THE_REST = "SharedPoolHasTheRest"
    RESERVED_CPUS_ARE_FREE = "ReservedCpusAreFree"
    CPUS_ARE_OF_THE_POD = "CpusAreOfThePod"
    CONTAINERS_SHARE_NO_CPUS = "ContainersShareNoCpus"
    MEMORY_ADDS_UP = "MemoryAddsUp"
    MEMORY_IS_OF_THE_PROMISES = "MemoryIsOfThePromises"
    DEVICES_HAVE_ONE_OWNER = "DevicesHaveOneOwner"
    CLAIMS_ARE_HELD = "ClaimsAreHeld"


class Violation(Struct, frozen=True, kw_only=True):
    """One violated invariant. Which fields are set depends on the invariant; the others keep their defaults."""

    invariant: Invariant
    pod: str = ""
    """Its UID; for ONE_ENTRY_PER_NAME its full name."""
    container: str = ""
    beside: str = ""
    """The other container that holds the same CPUs or device; or the claim."""
    cpus: CpuSet = CpuSet()
    expected_cpus: CpuSet = CpuSet()
    """Everything that the shared pool should have, or that the pod has."""
    statuses: tuple[str, ...] = ()
    expected_statuses: tuple[str, ...] = ()
    node: int | None = None
    resource: str = ""
    table: MemoryTable | None = None
    difference: str = ""
    """How the memory manager's accounting differs, in kubelet's words."""

    @property
    def text(self) -> str:
        """For people."""
        who = f"pod {self.pod}, container {self.container}"
        match self.invariant:
            case Invariant.HOLDER_IS_ACTIVE:
                return f"pod {self.pod} is not active, but holds CPUs, memory or devices"
            case Invariant.HOLDER_IS_IN_ITS_POD:
                return f"pod {self.pod} holds CPUs, memory or devices for container {self.container}, which it doesn't have"
            case Invariant.ONE_ENTRY_PER_UID | Invariant.ONE_ENTRY_PER_NAME:
                return f"pod {self.pod} has two entries"
            case Invariant.ONE_STATUS_PER_CONTAINER:
                found, expected = list(self.statuses), list(self.expected_statuses)
                return f"pod {self.pod}: statuses of containers {found}, expected {expected}"
            case Invariant.PODS_SHARE_NO_CPUS:
                return f"pod {self.pod} holds CPUs {self.cpus} that another pod holds too"
            case Invariant.SHARED_POOL_HAS_THE_REST:
                return f"the shared pool has CPUs {self.cpus}, but no pod holds {self.expected_cpus}"
            case Invariant.RESERVED_CPUS_ARE_FREE:
                return f"reserved CPUs {self.cpus} are held by a pod"
            case Invariant.CPUS_ARE_OF_THE_POD:
                return f"{who}: CPUs {self.cpus} are not all among the pod's {self.expected_cpus}"
            case Invariant.CONTAINERS_SHARE_NO_CPUS:
                return f"{who}: CPUs {self.cpus} are also held by container {self.beside}"
            case Invariant.MEMORY_ADDS_UP:
                assert self.table is not None
                return (
                    f"NUMA node {self.node}: {self.table.reserved} + {self.table.free} bytes of {self.resource} "
                    f"reserved and free, {self.table.allocatable} allocatable"
                )
            case Invariant.MEMORY_IS_OF_THE_PROMISES:
                return self.difference
            case Invariant.CLAIMS_ARE_HELD:
                return f"pod {self.pod}: claim {self.beside} has {self.resource}, which none of its containers holds"
            case Invariant.DEVICES_HAVE_ONE_OWNER:
                return f"{who}: device {self.resource} is also held by {self.beside}"


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


class DevicesGone(Struct, frozen=True):
    """A container holds devices that are not there any more, or not healthy."""

    uid: str
    container: str
    resource: str
    ids: tuple[str, ...]

    @property
    def text(self) -> str:
        which = ", ".join(self.ids)
        return (
            f"pod {self.uid}, container {self.container}: {which} of its {self.resource} is gone or unhealthy: "
            "it stays promised, and is given to nobody else"
        )


Shortfall = CpusOffline | NodesGone | NodeOverdrawn | DevicesGone
