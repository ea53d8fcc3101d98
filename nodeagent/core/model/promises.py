"""Everything promised to pods, as one immutable value: CPUs, memory, hints, and the memory accounting of each NUMA node.

Equal states are equal, however they came about. Only looks things up; decides nothing.
"""

import enum
import re
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.claims import MEMORY_DRIVER, AllocatedDevice, ClaimAllocation, card_name, cpu_name
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaSet
from nodeagent.core.model.podmap import Fold, PodMap

V = TypeVar("V")

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Hint(Struct, frozen=True):
    """What the topology manager stored for a container."""

    mask: NumaSet | None = None
    """None: no NUMA node is better than another ("any")."""
    preferred: bool = False


NO_HINT = Hint()


class Block(Struct, frozen=True):
    """Memory of one type on a group of NUMA nodes."""

    nodes: NumaSet
    resource: str
    """`memory` or `hugepages-<size>`."""
    size_bytes: int


Blocks = tuple[Block, ...]
"""One per resource, sorted by resource."""


class HeldDevice(Struct, frozen=True):
    """A device that is a container's alone: of a resource that is asked for by number, or of a driver that claims name."""

    resource: str
    """The resource, or the driver."""
    id: str
    """Of a discovered one its PCI address."""
    nodes: NumaSet = NumaSet()
    """The NUMA nodes that it was near when it was given. Empty: unknown."""
    kind: str = ""
    """Of a discovered one (core/model/devices.py)."""
    names: tuple[str, ...] = ()
    """What it was called when it was given."""
    claim: str = ""
    """The claim by which several containers may have it. Empty: it is one's alone."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: a PCI function is the same under whatever resource."""
        return ("", self.id) if _PCI_ADDRESS.fullmatch(self.id) else (self.resource, self.id)


class PodPromises(Struct, frozen=True):
    """What one pod holds; every tuple is sorted by container name."""

    cpus: tuple[tuple[str, CpuSet], ...] = ()
    """Exclusive sets. A container without one runs in the shared pool."""
    pod_cpus: CpuSet | None = None
    memory: tuple[tuple[str, Blocks], ...] = ()
    pod_memory: Blocks | None = None
    hints: tuple[tuple[str, Hint], ...] = ()
    devices: tuple[tuple[str, tuple[HeldDevice, ...]], ...] = ()
    """Each container's by resource and id. Those of plain init containers may be those of later ones, too."""
    first_cpus: tuple[tuple[str, CpuSet], ...] = ()
    """Those that containers were admitted with that have others beside them now: they keep these (KEP-5554)."""
    device_answers: tuple[tuple[str, tuple[tuple[str, bytes], ...]], ...] = ()
    """Of device plugins, by resource: what a container needs for its devices (formats/wire/device_plugins.py)."""
    claims: tuple[ClaimAllocation, ...] = ()
    """What the pod's resource claims have got, in the order of the pod; the same is in `cpus`, `memory` and `devices`."""

    def first_set(self, name: str) -> CpuSet | None:
        """Return what is left of the exclusive CPUs that a container was admitted with. None: it has none."""
        own = self.own_set(name)
        first = next((cpus for key, cpus in self.first_cpus if key == name), None)
        return own if own is None or first is None else first & own or own

    def own_set(self, name: str) -> CpuSet | None:
        return next((cpus for key, cpus in self.cpus if key == name), None)

    def blocks(self, name: str) -> Blocks | None:
        return next((blocks for key, blocks in self.memory if key == name), None)

    def hint(self, name: str) -> Hint:
        return next((hint for key, hint in self.hints if key == name), NO_HINT)

    def devices_of(self, name: str, resource: str | None = None) -> tuple[HeldDevice, ...]:
        """Return a container's devices; of one resource, or of all."""
        own = next((devices for key, devices in self.devices if key == name), ())
        return own if resource is None else tuple(device for device in own if device.resource == resource)

    def answer_of(self, name: str, resource: str) -> bytes | None:
        """Return what a device plugin has answered for a container. None: none was asked."""
        own = next((answers for key, answers in self.device_answers if key == name), ())
        return next((answer for key, answer in own if key == resource), None)

    @property
    def holders(self) -> list[str]:
        """The containers that have CPUs, memory or devices, sorted."""
        return sorted({name for part in (self.cpus, self.memory, self.devices) for name, _ in part})

    @property
    def held_claims(self) -> tuple[ClaimAllocation, ...]:
        """What the pod's claims have, as far as its containers still hold it: those that have finished give theirs back."""
        cpus = self.pod_cpus or CpuSet()
        for _, own in self.cpus:
            cpus |= own
        names = {cpu_name(cpu) for cpu in cpus} | {card_name(one.id) for _, own in self.devices for one in own}

        def is_held(one: AllocatedDevice) -> bool:
            return one.device in names if one.driver != MEMORY_DRIVER else bool(self.memory)

        kept = (replace(claim, devices=tuple(filter(is_held, claim.devices))) for claim in self.claims)
        return tuple(claim for claim in kept if claim.devices)

    @property
    def has_resources(self) -> bool:
        """Whether the pod or one of its containers holds CPUs or memory."""
        return bool(self.cpus or self.memory) or self.pod_cpus is not None or self.pod_memory is not None

    @property
    def is_nothing(self) -> bool:
        return self == NOTHING


NOTHING = PodPromises()


class LostPod(Struct, frozen=True):
    """A pod that may run, and of which there are records alone: the state that knew it was lost, and its manifest isn't there now."""

    uid: str
    held: PodPromises
    """Its devices and claims, which no cgroup shows. The cards of claims are under no container's name: nobody knows whose they are."""
    name: str = ""
    """As far as a record says it."""


class MemoryTable(Struct, frozen=True):
    """One memory resource of one NUMA node; all in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


class MemoryNode(Struct, frozen=True):
    """The memory manager's accounting of one NUMA node."""

    id: int
    assignments: int
    """Blocks that use it, each counted once per node and resource."""
    cells: NumaSet
    """The group of nodes that it is used in: only itself if free or used alone."""
    tables: tuple[tuple[str, MemoryTable], ...]
    """By resource, sorted."""

    def table(self, resource: str) -> MemoryTable | None:
        return next((table for key, table in self.tables if key == resource), None)


class CpuReuse(Struct, frozen=True):
    """CPUs that later containers of the pod may take over from its init containers. For one pod at a time, never in a file."""

    pod_uid: str
    cpus: CpuSet


class MemoryReuse(Struct, frozen=True):
    """Bytes that later containers of the pod may take over from its init containers. For one pod at a time, never in a file."""

    pod_uid: str
    amounts: tuple[tuple[tuple[NumaSet, str], int], ...] = ()
    """By nodes and resource."""

    def amount(self, nodes: NumaSet, resource: str) -> int:
        return next((size for key, size in self.amounts if key == (nodes, resource)), 0)


class Promises(Struct, frozen=True):
    default: CpuSet = CpuSet()
    """kubelet's defaultCpuSet: the CPUs that nobody holds exclusively. Includes the reserved ones unless they are strictly reserved."""
    pods: PodMap[PodPromises] = field(default_factory=PodMap)
    """Every pod that holds something; other pods are not in it."""
    memory: tuple[MemoryNode, ...] = ()
    """Ascending by node; empty under memory manager policy None."""
    cpu_reuse: CpuReuse | None = None
    memory_reuse: MemoryReuse | None = None
    lost_pods: tuple[LostPod, ...] = ()
    """What they have is nobody else's."""

    def of_pod(self, uid: str) -> PodPromises:
        pod = self.pods.get(uid)
        return NOTHING if pod is None else pod

    def own_set(self, uid: str, name: str) -> CpuSet | None:
        """The CPUs stored for the container; None: it runs in the shared pool."""
        return self.of_pod(uid).own_set(name)

    def pod_set(self, uid: str) -> CpuSet | None:
        """The CPUs stored for a pod with pod-level resources."""
        return self.of_pod(uid).pod_cpus

    def hint(self, uid: str, name: str) -> Hint:
        return self.of_pod(uid).hint(name)

    def memory_nodes(self, uid: str, name: str) -> NumaSet | None:
        """NUMA nodes that the container's memory must come from; None: it may come from anywhere."""
        nodes = NumaSet()
        for block in self.of_pod(uid).blocks(name) or ():
            nodes |= block.nodes
        return nodes or None

    def exclusive(self) -> CpuSet:
        """The union of all exclusive sets."""
        return CpuSet(CpuMask(self.pods.fold(_OWN_SETS)))

    def taken_devices(self) -> frozenset[tuple[str, str]]:
        """The keys of all devices that somebody has."""
        taken: frozenset[tuple[str, str]] = self.pods.fold(_DEVICES)
        return taken.union(*(_devices(one.uid, one.held) for one in self.lost_pods)) if self.lost_pods else taken

    def claims(self) -> frozenset[tuple[str, str]]:
        """All resource claims that pods have: `namespace/name`, and the pod's UID."""
        claims: frozenset[tuple[str, str]] = self.pods.fold(_CLAIMS)
        return claims.union(*(_claims(one.uid, one.held) for one in self.lost_pods)) if self.lost_pods else claims

    def claims_of(self, uid: str) -> tuple[ClaimAllocation, ...]:
        """Return what a pod's claims have got, be it known or lost."""
        lost = next((one.held.claims for one in self.lost_pods if one.uid == uid), ())
        return self.of_pod(uid).claims or lost

    def with_devices(self) -> Iterator[tuple[str, PodPromises]]:
        """Return all pods that may have devices, lost ones too, sorted by UID."""
        if not self.taken_devices():
            return iter(())
        lost = [(one.uid, one.held) for one in self.lost_pods]
        return iter(sorted((*self.pods, *lost), key=itemgetter(0)) if lost else self.pods)

    def devices_given(self) -> dict[str, int]:
        """How many devices of each resource somebody has. What claims have is of none."""
        given: dict[str, set[str]] = {}
        for _, held in self.with_devices():
            for _, devices in held.devices:
                for device in devices:
                    if device.claim:
                        continue
                    given.setdefault(device.resource, set()).add(device.id)
        return {resource: len(ids) for resource, ids in given.items()}

    @property
    def containers(self) -> Iterator[tuple[str, str, CpuSet]]:
        """All exclusive sets as (pod UID, container name, CPUs), sorted."""
        return ((uid, name, cpus) for uid, pod in self.pods for name, cpus in pod.cpus)


def _own_sets(_uid: str, pod: PodPromises) -> int:
    bits = 0
    for _, cpus in pod.cpus:
        bits |= cpus.bits
    return bits


_OWN_SETS: Fold[PodPromises, int] = Fold(0, _own_sets, int.__or__)


def _devices(_uid: str, pod: PodPromises) -> frozenset[tuple[str, str]]:
    return frozenset(device.key for _, devices in pod.devices for device in devices)


_DEVICES: Fold[PodPromises, frozenset[tuple[str, str]]] = Fold(frozenset(), _devices, frozenset.__or__)


def _claims(uid: str, pod: PodPromises) -> frozenset[tuple[str, str]]:
    return frozenset((claim.claim, uid) for claim in pod.claims)


_CLAIMS: Fold[PodPromises, frozenset[tuple[str, str]]] = Fold(frozenset(), _claims, frozenset.__or__)


def put(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Replace or insert one item of a tuple sorted by container name."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def dropped(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """The tuple without the item of that container."""
    return tuple(item for item in items if item[0] != name)


class Isolation(enum.StrEnum):
    """Which containers share a container's CPUs."""

    HOST = "host"
    POD = "pod"
    MIXED = "mixed"
    """Nobody shares its exclusive CPUs; beside them it has the shared pool."""
    CONTAINER = "container"

    @property
    def has_own_cpus(self) -> bool:
        """Whether the container has CPUs on which no other one runs."""
        return self in {Isolation.MIXED, Isolation.CONTAINER}


def with_pod(promises: Promises, uid: str, pod: PodPromises) -> Promises:
    """Replace what a pod holds; a pod that holds nothing is removed."""
    return replace(promises, pods=promises.pods.without(uid) if pod == NOTHING else promises.pods.put(uid, pod))
