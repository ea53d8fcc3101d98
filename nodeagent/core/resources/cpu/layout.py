"""Structure of the machine: groups of CPUs (cores, caches, NUMA nodes, sockets) as bitmasks, their nesting, and kubelet's average group
sizes. A layout is built once per machine, because the choice of CPUs reads it often.
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from types import MappingProxyType

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask
from nodeagent.core.model.topology import Groups, Topology
from nodeagent.core.numa.hints import masks_by_size


class CpuGroup(Struct, frozen=True):
    """CPUs of one core, uncore cache, NUMA node or socket."""

    id: int
    cpus: CpuMask
    size: int


class NodeSet(Struct, frozen=True):
    """Combination of NUMA nodes that have CPUs."""

    mask: NumaMask
    nodes: int
    """Number of NUMA nodes in this combination."""
    cpus: CpuMask
    size: int
    sockets: int
    """Number of sockets that contain CPUs of these nodes."""


Nesting = Mapping[int, tuple[CpuGroup, ...]]
"""Inner groups (such as cores) by the ID of the outer group (such as a NUMA node), in ascending order. An inner group is listed under each
outer group with which it has a CPU in common.
"""


class CpuLayout(Struct, frozen=True):
    online: CpuMask
    cpu_count: int
    """Number of CPUs as kubelet counts them. On a machine without NUMA directories in /sys, offline CPUs are included."""
    cores: tuple[CpuGroup, ...]
    uncores: tuple[CpuGroup, ...]
    nodes: tuple[CpuGroup, ...]
    """NUMA nodes that have CPUs."""
    sockets: tuple[CpuGroup, ...]
    numa_first: bool
    """Whether NUMA nodes are treated as larger groups than sockets, because the machine has at least as many sockets as NUMA nodes."""
    per_core: int
    per_socket: int
    per_uncore: int
    """Average number of CPUs per uncore cache, rounded down. `per_core` and `per_socket` are the averages of cores and sockets. kubelet
    considers a group whole if it has this many free CPUs, although on asymmetric machines, possibly no group has this size.
    """
    socket_count: int
    nodes_of_sockets: Nesting
    sockets_of_nodes: Nesting
    cores_of_outer: Nesting
    """Cores by socket if `numa_first`, otherwise by NUMA node."""
    uncores_of_nodes: Nesting
    core_size: int | None
    """Number of CPUs of each core. None means that cores differ in size, because the machine has different kinds of cores or
    offline CPUs.
    """
    smallest_large: int
    """Number of CPUs of the smallest NUMA node or socket."""

    @classmethod
    def of(cls, topology: Topology) -> "CpuLayout":
        return cls._from_groups(
            _make_groups(topology.cores),
            _make_groups(topology.uncores),
            _make_groups(topology.nodes),
            _make_groups(topology.sockets),
            cpu_count=topology.reported_cpu_count,
            socket_count=topology.socket_count,
        )

    @classmethod
    def _from_groups(
        cls,
        cores: tuple[CpuGroup, ...],
        uncores: tuple[CpuGroup, ...],
        nodes: tuple[CpuGroup, ...],
        sockets: tuple[CpuGroup, ...],
        *,
        cpu_count: int,
        socket_count: int,
    ) -> "CpuLayout":
        numa_first = socket_count >= len(nodes)
        return cls(
            online=CpuMask(sum(node.cpus for node in nodes)),
            cpu_count=cpu_count,
            cores=cores,
            uncores=uncores,
            nodes=nodes,
            sockets=sockets,
            numa_first=numa_first,
            per_core=_compute_average(cpu_count, len(cores)),
            per_socket=_compute_average(cpu_count, socket_count),
            per_uncore=_compute_average(cpu_count, len(uncores)),
            socket_count=socket_count,
            nodes_of_sockets=_nest_groups(sockets, nodes),
            sockets_of_nodes=_nest_groups(nodes, sockets),
            cores_of_outer=_nest_groups(sockets if numa_first else nodes, cores),
            uncores_of_nodes=_nest_groups(nodes, uncores),
            core_size=cores[0].size if len({core.size for core in cores}) == 1 else None,
            smallest_large=min((group.size for group in (*nodes, *sockets) if group.size), default=0),
        )

    def limited_to(self, cpus: CpuSet) -> "CpuLayout":
        """Return a copy of the layout with only these CPUs. NUMA nodes and sockets without any of them remain as empty groups, because
        hints may contain these nodes.
        """
        return CpuLayout._from_groups(
            tuple(part for part in _limit_groups(self.cores, cpus) if part.size),
            tuple(part for part in _limit_groups(self.uncores, cpus) if part.size),
            _limit_groups(self.nodes, cpus),
            _limit_groups(self.sockets, cpus),
            cpu_count=len(cpus),
            socket_count=self.socket_count,
        )

    def cpus_of_nodes(self, nodes: NumaMask) -> CpuMask:
        """Return the CPUs of all NUMA nodes in the mask."""
        bits = 0
        for node in self.nodes:
            if nodes >> node.id & 1:
                bits |= node.cpus
        return CpuMask(bits)

    def fewest_nodes(self, count: int) -> int:
        """Return the smallest number of NUMA nodes that have `count` CPUs together on an empty machine. If the machine has fewer CPUs,
        return the number of all nodes.
        """
        sums = accumulate(sorted((node.size for node in self.nodes), reverse=True))
        return min(1 + sum(1 for total in sums if total < count), len(self.nodes))

    def node_sets(self) -> tuple[NodeSet, ...]:
        """Return all combinations of NUMA nodes, sorted by the number of nodes, then lexicographically."""
        sets = []
        for mask in masks_by_size([node.id for node in self.nodes]):
            cpus = self.cpus_of_nodes(mask)
            touched = sum(1 for socket in self.sockets if socket.cpus & cpus)
            sets.append(NodeSet(mask, mask.bit_count(), cpus, cpus.bit_count(), touched))
        return tuple(sets)

    def whole_cores(self, cpus: CpuMask) -> CpuMask:
        """Return the CPUs of those cores whose CPUs are all in `cpus`."""
        bits = 0
        for core in self.cores:
            if core.cpus & cpus == core.cpus:
                bits |= core.cpus
        return CpuMask(bits)

    def can_take_whole_cores(self, cpus: CpuMask, count: int) -> bool:
        """Return whether some of the cores in `cpus`, each taken as a whole, have exactly `count` CPUs together."""
        if self.core_size is not None:
            return count % self.core_size == 0 and count <= cpus.bit_count()
        numbers: dict[int, int] = {}
        for core in self.cores:
            if core.cpus & cpus:
                numbers[core.size] = numbers.get(core.size, 0) + 1
        sums = 1
        for size, number in numbers.items():
            left, step = number, 1
            # The set of possible sums, as a number. Bit s of `sums` is set if a sum of s CPUs is possible.
            while left:
                taken = min(step, left)
                sums |= sums << size * taken
                left -= taken
                step *= 2
        return bool(sums >> count & 1)

    def find_whole_count(self, count: int, step: int) -> int | None:
        """Return the number of CPUs closest to `count` that whole cores can provide on an empty machine. Numbers are tried from `count`
        upwards if `step` is 1, or downwards if it is -1. None means that no such number is within the size of the largest core.
        """
        largest = max((core.size for core in self.cores), default=0)
        counts = range(count, max(0, count + step * (largest + 1)), step)
        return next((near for near in counts if near > 0 and self.can_take_whole_cores(self.online, near)), None)

    def with_siblings(self, cpus: CpuMask) -> CpuMask:
        """Return all CPUs of the cores to which the given CPUs belong."""
        bits = 0
        for core in self.cores:
            if core.cpus & cpus:
                bits |= core.cpus
        return CpuMask(bits)


def _make_groups(groups: Groups) -> tuple[CpuGroup, ...]:
    return tuple(CpuGroup(key, cpus.bits, len(cpus)) for key, cpus in sorted(groups.items()))


def _limit_groups(groups: tuple[CpuGroup, ...], cpus: CpuSet) -> tuple[CpuGroup, ...]:
    left = ((group.id, CpuMask(group.cpus & cpus.bits)) for group in groups)
    return tuple(CpuGroup(key, part, part.bit_count()) for key, part in left)


def _nest_groups(outer: Iterable[CpuGroup], inner: Iterable[CpuGroup]) -> Nesting:
    inner = tuple(inner)
    return MappingProxyType({o.id: tuple(i for i in inner if i.cpus & o.cpus) for o in outer})


def _compute_average(total: int, groups: int) -> int:
    return total // groups if groups else 0
