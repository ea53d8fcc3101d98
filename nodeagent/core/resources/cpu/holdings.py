"""Records of the CPU manager: CPUs that pods hold, and CPUs that no container has exclusively."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.config import Placement
from nodeagent.core.model.holdings import remove_item
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.topology import Topology


class CpuHoldings(Struct, frozen=True):
    """CPUs that one pod holds. All tuples are sorted by container name."""

    cpus: tuple[tuple[str, CpuSet], ...] = ()
    """Exclusive CPUs of each container. A container that isn't listed runs in the shared pool."""
    pod_cpus: CpuSet | None = None
    """CPU set of a pod with pod-level resources. None means that CPUs are allocated to the containers separately."""
    first_cpus: tuple[tuple[str, CpuSet], ...] = ()
    """CPUs that containers got at their admission, for those containers that got more CPUs by a resize since then. A container keeps these
    CPUs if its request is lowered later (KEP-5554).
    """

    @property
    def holders(self) -> Iterator[str]:
        return (name for name, _ in self.cpus)

    @property
    def size(self) -> int:
        return len(self.every_cpu)

    def without(self, container: str) -> "CpuHoldings":
        return CpuHoldings(remove_item(self.cpus, container), self.pod_cpus, remove_item(self.first_cpus, container))

    def own_set(self, name: str) -> CpuSet | None:
        """Return a container's exclusive CPUs. None means that the container runs in the shared pool."""
        for key, cpus in self.cpus:
            if key == name:
                return cpus
        return None

    def remaining_first_set(self, name: str) -> CpuSet | None:
        """Return the exclusive CPUs that a container has had since its admission, without those added by resizes. None means that the
        container has no exclusive CPUs.
        """
        own = self.own_set(name)
        first = next((cpus for key, cpus in self.first_cpus if key == name), None)
        return own if own is None or first is None else first & own or own

    @property
    def every_cpu(self) -> CpuSet:
        """Return all CPUs that the pod as a whole or one of its containers holds."""
        bits = 0 if self.pod_cpus is None else self.pod_cpus.bits
        for _, cpus in self.cpus:
            bits |= cpus.bits
        return CpuSet(CpuMask(bits))


class CpuReuse(Struct, frozen=True):
    """CPUs of a pod's init containers that later containers of this pod may reuse. The record is removed at the end of the pod's admission
    or, with Erratum.REUSE_OUTLIVES_POD, when the next pod gets CPUs. There is therefore at most one.
    """

    pod_uid: str
    cpus: CpuSet


class CpuBooks(Struct, frozen=True):
    """Node-wide records of the CPU manager."""

    default: CpuSet = CpuSet()
    """CPUs that no container has exclusively, which are the shared pool (kubelet's defaultCpuSet). Reserved CPUs are included, unless
    `strict-cpu-reservation` is set.
    """
    reuse: CpuReuse | None = None


def default_set(promises: Promises) -> CpuSet:
    """Return the CPUs that no container has exclusively."""
    return promises.of(CpuBooks).default


def grantable_cpus(topology: Topology, placement: Placement, reserved: CpuSet) -> CpuMask:
    """Return the CPUs that the configuration permits to be allocated exclusively, whether they are allocated now or not.

    Args:
        topology: the machine.
        placement: the part of the configuration that affects allocations.
        reserved: CPUs that are never allocated exclusively.
    """
    if not placement.has_static_cpus:
        return CpuMask(0)
    isolated = (topology.isolated & topology.online).bits if placement.isolated_cpus == "only" else -1
    return CpuMask(isolated & ~reserved.bits)


def free_cpus(promises: Promises, grantable: CpuMask) -> CpuSet:
    """Return the CPUs that can be allocated exclusively and aren't allocated yet."""
    return CpuSet(CpuMask(default_set(promises).bits & grantable))


def with_default_set(promises: Promises, default: CpuSet) -> Promises:
    """Return a copy of the promises with this default set (the CPUs that no container has exclusively)."""
    return promises.having(CpuBooks(default, promises.of(CpuBooks).reuse))


def own_set_of(promises: Promises, uid: str, name: str) -> CpuSet | None:
    """Return a container's exclusive CPUs. None means that the container runs in the shared pool."""
    return promises.of_pod(uid).of(CpuHoldings).own_set(name)


def exclusive_cpus(promises: Promises) -> CpuSet:
    """Return all CPUs that some container has exclusively."""
    return CpuSet(CpuMask(promises.pods.fold(_OWN_SETS)))


def exclusive_sets(promises: Promises) -> Iterator[tuple[str, str, CpuSet]]:
    """Yield each container's exclusive CPUs as (pod UID, container name, CPUs), in sorted order."""
    return ((uid, name, cpus) for uid, pod in promises.pods for name, cpus in pod.of(CpuHoldings).cpus)


def _collect_cpus_of_pod(_uid: str, pod: PodPromises) -> int:
    bits = 0
    for _, cpus in pod.of(CpuHoldings).cpus:
        bits |= cpus.bits
    return bits


_OWN_SETS: Fold[PodPromises, int] = Fold(0, _collect_cpus_of_pod, int.__or__)
