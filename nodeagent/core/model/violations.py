"""Findings of checks: violated invariants of the promises or the state (`Violation`), allocations that the machine can't provide now
(`Shortfall`), and changes of the machine since the state was saved (`MachineChange`).
"""

import enum
from typing import Protocol

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet


class Invariant(enum.StrEnum):
    """Invariants of the promises and of the state. Their names never change, because tools may rely on them."""

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
    """Violation of an invariant. The invariant determines which fields are set; the others have their defaults."""

    invariant: Invariant | str
    """Violated invariant: a member of `Invariant`, or the name of an invariant that a resource defines itself."""
    pod: str = ""
    """UID of the pod concerned. For the invariant ONE_ENTRY_PER_NAME, this is the pod's namespace and name."""
    container: str = ""
    beside: str = ""
    """Other party of the violation: another container with the same CPUs or device, or the claim of a device."""
    cpus: CpuSet = CpuSet()
    expected_cpus: CpuSet = CpuSet()
    """CPUs that the shared pool or the pod should have according to the invariant."""
    statuses: tuple[str, ...] = ()
    expected_statuses: tuple[str, ...] = ()
    node: int | None = None
    resource: str = ""
    difference: str = ""
    """Difference in the memory manager's books, in the words of kubelet's message."""

    @property
    def text(self) -> str:
        """Return a sentence about the violation for users."""
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
            case Invariant.CLAIMS_ARE_HELD:
                return f"pod {self.pod}: claim {self.beside} has {self.resource}, which none of its containers holds"
            case Invariant.DEVICES_HAVE_ONE_OWNER:
                return f"{who}: device {self.resource} is also held by {self.beside}"
            case _:
                return self.difference


class CpusOffline(Struct, frozen=True):
    """Shortfall: some of a container's exclusive CPUs are offline."""

    uid: str
    container: str
    offline: CpuSet
    held: CpuSet

    @property
    def holder(self) -> tuple[str, str | None]:
        return (self.uid, self.container)

    @property
    def text(self) -> str:
        return f"CPUs {self.offline} of {self.held} are offline"


class NodesGone(Struct, frozen=True):
    """Shortfall: memory is allocated on NUMA nodes that the machine doesn't have any more."""

    uid: str
    container: str | None
    """Container to which the memory is allocated. None means that it is allocated to the pod as a whole."""
    resource: str
    nodes: NumaSet

    @property
    def holder(self) -> tuple[str, str | None]:
        return (self.uid, self.container)

    @property
    def text(self) -> str:
        return f"{self.resource} is allocated on NUMA nodes {self.nodes}, which are gone"


class NodeOverdrawn(Struct, frozen=True):
    """Shortfall: more memory is allocated on a NUMA node than the node now has. It concerns all pods with memory on this node."""

    node: int
    resource: str
    missing_bytes: int

    @property
    def holder(self) -> None:
        return None

    @property
    def text(self) -> str:
        return f"NUMA node {self.node}: {self.missing_bytes} more bytes of {self.resource} are allocated than it has"


class DevicesGone(Struct, frozen=True):
    """Shortfall: devices of a container have disappeared or are unhealthy."""

    uid: str
    container: str
    resource: str
    ids: tuple[str, ...]

    @property
    def holder(self) -> tuple[str, str | None]:
        return (self.uid, self.container)

    @property
    def text(self) -> str:
        which = ", ".join(self.ids)
        return f"{which} of its {self.resource} is gone or unhealthy: it stays allocated to this container alone"


class Shortage(Struct, frozen=True):
    """Shortfall of a whole node rather than of one container. The resource concerned provides the text."""

    text: str
    holder: None = None


class Shortfall(Protocol):
    """Protocol of a shortfall, that is, an allocation that the machine can't provide now. Implementations are frozen structs."""

    @property
    def holder(self) -> tuple[str, str | None] | None:
        """Return the pod UID and the container name of the allocation's holder. None means that no single container is the holder."""

    @property
    def text(self) -> str:
        """Return the text for users. It follows the name of the holder."""


class MachineChange(Struct, frozen=True):
    """A property of the machine or configuration whose value differs from the one in the saved state."""

    what: str
    before: str
    after: str
    is_ordinary: bool = False
    """Whether the change is usual after a reboot, so that it is no reason for a warning."""

    def __str__(self) -> str:
        return f"{self.what}: {self.before} → {self.after}"
