"""The machine as a value: CPUs in cores, uncore caches, NUMA nodes and sockets, and the memory, huge pages and distances of each node.

All properties that decisions need are attributes, computed once. This module doesn't read /sys (see formats/kernel/sysfs.py) and doesn't
depend on a policy.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuMask, CpuSet, NumaSet

CORE_CLASSES = ("performance", "efficiency")
"""Core classes of machines with several kinds of cores, the fastest class first."""


class Cpu(Struct, frozen=True):
    """One online logical CPU."""

    id: int
    core: int
    """Lowest CPU number of the core within the CPU's NUMA node. The kernel's core_id isn't used, because it repeats across sockets."""
    socket: int
    """ID of the socket (physical_package_id)."""
    numa: int
    uncore: int | None = None
    """ID of the CPU's uncore cache. As in kubelet, this is the first last-level cache that isn't shared by the whole NUMA node. None means
    that the CPU has no such cache.
    """
    die: int | None = None
    core_class: str | None = None
    """Core class on hybrid machines, one of CORE_CLASSES. None means that all cores are alike."""
    capacity: int | None = None
    """The kernel's cpu_capacity, 1024 for the fastest core. None if it isn't reported (mostly Arm reports it). Decisions don't use it."""
    l3_bytes: int | None = None
    """Size of the CPU's level-3 cache, if the machine reports it. Decisions don't use it."""


class NumaNode(Struct, frozen=True):
    id: int
    memory_bytes: int
    hugepages: tuple[tuple[str, int], ...] = ()
    """Pairs of resource name (such as `hugepages-2Mi`) and bytes, sorted by name. The value is 0 for a page size without pages."""
    distances: tuple[int, ...] | None = None
    """Distance to each node, in ascending order of node ids, as the kernel reports it. None if the kernel doesn't report distances."""


class Cache(Struct, frozen=True):
    """Cache of a level other than 3, as the machine reports it. Decisions don't use it."""

    level: int
    type: str
    """Cache type: `data`, `instruction` or `unified`."""
    cpus: CpuSet
    """Online CPUs that share the cache."""
    size_bytes: int | None = None

    @property
    def name(self) -> str:
        """Return the usual name: L2, L1d, L1i."""
        return f"L{self.level}{'' if self.type == 'unified' else self.type[0]}"


Groups = Mapping[int, CpuSet]


class Topology(Struct, frozen=True, dict=True):  # dict=True, because cached properties are stored in __dict__
    """Online CPUs and NUMA nodes, in ascending order. Build it with `Topology.of`."""

    cpus: tuple[Cpu, ...]
    numa: tuple[NumaNode, ...]
    offline: CpuSet = field(default_factory=CpuSet)
    l3: tuple[CpuSet, ...] = ()
    """Groups of online CPUs that share a level-3 cache, ordered by lowest CPU. Empty if the machine doesn't report these caches."""
    caches: tuple[Cache, ...] = ()
    """Caches of other levels, highest level first, then by type and lowest CPU. Empty if the machine doesn't report these caches."""
    socket_count: int = 0
    """Number of sockets as counted by kubelet (distinct `physical id` lines of /proc/cpuinfo first)."""
    reported_cpu_count: int = 0
    """Number of CPUs as counted by kubelet. This number differs from the number of online CPUs only on machines without NUMA
    directories.
    """
    skipped: CpuSet = field(default_factory=CpuSet)
    """Online CPUs that kubelet doesn't see: CPUs without topology files, or in no NUMA node's directory. Such CPUs are never allocated."""
    isolated: CpuSet = field(default_factory=CpuSet)
    """CPUs excluded from the kernel's load balancing since boot (kernel parameter isolcpus)."""
    nohz_full: CpuSet = field(default_factory=CpuSet)
    """CPUs without a timer tick while they run a single task (kernel parameter nohz_full)."""
    memory_bytes: int = 0
    """Memory of the whole machine according to /proc/meminfo, or else the sum over the nodes."""
    hugepages: tuple[tuple[str, int], ...] = ()
    """Huge pages of the whole machine, in the form of `NumaNode.hugepages`, or else the sums over the nodes."""

    @cached_property
    def online(self) -> CpuSet:
        return CpuSet.from_ids(c.id for c in self.cpus)

    @cached_property
    def cpu(self) -> Mapping[int, Cpu]:
        return MappingProxyType({c.id: c for c in self.cpus})

    @cached_property
    def cores(self) -> Groups:
        return _group_cpus((c.core, c.id) for c in self.cpus)

    @cached_property
    def nodes(self) -> Groups:
        """Return the CPUs of each NUMA node that has CPUs."""
        return _group_cpus((c.numa, c.id) for c in self.cpus)

    @cached_property
    def sockets(self) -> Groups:
        return _group_cpus((c.socket, c.id) for c in self.cpus)

    @cached_property
    def uncores(self) -> Groups:
        """Return the CPUs by uncore id. A CPU without an uncore cache counts under its socket's id, as in kubelet."""
        return _group_cpus((c.socket if c.uncore is None else c.uncore, c.id) for c in self.cpus)

    @cached_property
    def core_classes(self) -> Mapping[str, CpuSet]:
        """Return the CPUs by core class, the fastest class first. Empty if all cores are of one kind."""
        by_name = {name: CpuSet.from_ids(c.id for c in self.cpus if c.core_class == name) for name in CORE_CLASSES}
        return MappingProxyType({name: cpus for name, cpus in by_name.items() if cpus})

    def classes_of(self, cpus: CpuSet) -> tuple[str, ...]:
        """Return the core classes of these CPUs. Empty if all cores are of one kind."""
        return tuple(name for name, members in self.core_classes.items() if not members.isdisjoint(cpus))

    @cached_property
    def cores_of_nodes(self) -> Mapping[int, tuple[CpuSet, ...]]:
        """Return, for each NUMA node, the whole cores that have a CPU on the node."""
        return _list_members((c.numa, self.cores[c.core]) for c in self.cpus)

    @cached_property
    def uncores_of_nodes(self) -> Mapping[int, tuple[CpuSet, ...]]:
        """Return, for each NUMA node, the whole uncore caches that have a CPU on the node."""
        return _list_members((c.numa, self.uncores[c.uncore]) for c in self.cpus if c.uncore is not None)

    @cached_property
    def node_ids(self) -> NumaSet:
        """Return all NUMA nodes, including nodes without CPUs."""
        return NumaSet.from_ids(n.id for n in self.numa)

    @cached_property
    def memory_nodes(self) -> NumaSet:
        """Return the NUMA nodes that have memory. A machine that exists only as a description may have no such node."""
        return NumaSet.from_ids(n.id for n in self.numa if n.memory_bytes > 0)

    @classmethod
    def of(
        cls,
        cpus: Iterable[Cpu],
        numa: Iterable[NumaNode],
        *,
        offline: CpuSet | None = None,
        l3: Iterable[CpuSet] = (),
        caches: Iterable[Cache] = (),
        socket_count: int | None = None,
        reported_cpu_count: int | None = None,
        skipped: CpuSet | None = None,
        isolated: CpuSet | None = None,
        nohz_full: CpuSet | None = None,
        memory_bytes: int | None = None,
        hugepages: Iterable[tuple[str, int]] | None = None,
    ) -> "Topology":
        """Build a topology. All parts are sorted, and counts that weren't measured are derived."""
        sorted_cpus = tuple(sorted(cpus, key=lambda c: c.id))
        assert len({c.id for c in sorted_cpus}) == len(sorted_cpus), "a CPU is listed twice"
        sorted_numa = tuple(sorted(numa, key=lambda n: n.id))
        assert len({n.id for n in sorted_numa}) == len(sorted_numa), "a NUMA node is listed twice"
        return cls(
            cpus=sorted_cpus,
            numa=sorted_numa,
            offline=offline or CpuSet(),
            l3=tuple(sorted(l3, key=lambda group: next(iter(group)))),
            caches=tuple(sorted(caches, key=lambda cache: (-cache.level, cache.type, next(iter(cache.cpus))))),
            socket_count=len({c.socket for c in sorted_cpus}) if socket_count is None else socket_count,
            reported_cpu_count=len(sorted_cpus) if reported_cpu_count is None else reported_cpu_count,
            skipped=skipped or CpuSet(),
            isolated=isolated or CpuSet(),
            nohz_full=nohz_full or CpuSet(),
            memory_bytes=sum(n.memory_bytes for n in sorted_numa) if memory_bytes is None else memory_bytes,
            hugepages=_sum_hugepages(sorted_numa) if hugepages is None else tuple(sorted(hugepages)),
        )

    def without(self, withheld: CpuSet) -> "Topology":
        """Return the machine as if these CPUs were offline."""
        if not withheld & self.online:
            return self
        cpus = tuple(cpu for cpu in self.cpus if cpu.id not in withheld)
        offline = self.offline | (withheld & self.online)
        l3 = tuple(group for shared in self.l3 if (group := shared - withheld))
        caches = tuple(replace(c, cpus=left) for c in self.caches if (left := c.cpus - withheld))
        counts_online = self.reported_cpu_count == len(self.cpus)
        reported = len(cpus) if counts_online else self.reported_cpu_count
        return replace(self, cpus=cpus, offline=offline, l3=l3, caches=caches, reported_cpu_count=reported)

    def numa_of(self, cpus: CpuSet) -> NumaSet:
        """Return the NUMA nodes of these CPUs. Unknown CPUs are ignored."""
        return NumaSet.from_ids(node for node, members in self.nodes.items() if members.bits & cpus.bits)


def _sum_hugepages(numa: Iterable[NumaNode]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = {}
    for node in numa:
        for name, size_bytes in node.hugepages:
            sums[name] = sums.get(name, 0) + size_bytes
    return tuple(sorted(sums.items()))


def _group_cpus(pairs: Iterable[tuple[int, int]]) -> Groups:
    masks: dict[int, int] = {}
    for group, cpu in pairs:
        masks[group] = masks.get(group, 0) | 1 << cpu
    return MappingProxyType({group: CpuSet(CpuMask(masks[group])) for group in sorted(masks)})


def _list_members(pairs: Iterable[tuple[int, CpuSet]]) -> Mapping[int, tuple[CpuSet, ...]]:
    found: dict[int, dict[CpuSet, None]] = {}
    for group, members in pairs:
        found.setdefault(group, {})[members] = None
    return MappingProxyType({group: tuple(found[group]) for group in sorted(found)})
