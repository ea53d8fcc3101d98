"""The machine as a value. CPUs are grouped by core, uncore cache, NUMA node and socket. Each NUMA node has its memory, huge pages and
distances.

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
    """An online logical CPU."""

    id: int
    core: int
    """Lowest CPU number among the core's CPUs on the same NUMA node. The kernel's core_id isn't used, because it repeats across sockets."""
    socket: int
    """ID of the socket (physical_package_id)."""
    numa: int
    uncore: int | None = None
    """ID of the CPU's uncore cache. As in kubelet, this is the first last-level cache that isn't shared by the whole NUMA node. None means
    that the CPU has no such cache.
    """
    die: int | None = None
    core_class: str | None = None
    """Core class on hybrid machines, one of CORE_CLASSES. None means that the machine has only one kind of core."""
    capacity: int | None = None
    """cpu_capacity according to the kernel, 1024 for the fastest core. None means that the kernel doesn't report it (mostly Arm machines
    do). Decisions don't use it.
    """
    l3_bytes: int | None = None
    """Size of the CPU's level-3 cache. None means that the machine doesn't report it. Decisions don't use it."""


class NumaNode(Struct, frozen=True):
    id: int
    memory_bytes: int
    hugepages: tuple[tuple[str, int], ...] = ()
    """Pairs of resource name (such as `hugepages-2Mi`) and bytes, sorted by name. If a page size has no pages, its value is 0."""
    distances: tuple[int, ...] | None = None
    """Distances to all nodes as reported by the kernel, in ascending order of node IDs. None means that the kernel doesn't report them."""


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
        """Return the cache's usual name, such as L2, L1d or L1i."""
        return f"L{self.level}{'' if self.type == 'unified' else self.type[0]}"


Groups = Mapping[int, CpuSet]


class Topology(Struct, frozen=True, dict=True):  # dict=True, because cached properties are stored in __dict__
    """Online CPUs and NUMA nodes, in ascending order. `Topology.of` builds a topology."""

    cpus: tuple[Cpu, ...]
    numa: tuple[NumaNode, ...]
    offline: CpuSet = field(default_factory=CpuSet)
    l3: tuple[CpuSet, ...] = ()
    """Groups of online CPUs that share a level-3 cache, sorted by lowest CPU. There are none if the machine doesn't report these caches."""
    caches: tuple[Cache, ...] = ()
    """Caches of other levels, the highest level first, then by type and lowest CPU. There are none if the machine doesn't report these
    caches.
    """
    socket_count: int = 0
    """Number of sockets as counted by kubelet, preferably from the distinct `physical id` lines of /proc/cpuinfo."""
    reported_cpu_count: int = 0
    """Number of CPUs as counted by kubelet. It differs from the number of online CPUs only on machines without NUMA directories."""
    skipped: CpuSet = field(default_factory=CpuSet)
    """Online CPUs that kubelet doesn't see, because they have no topology files or are in no NUMA node's directory. They are never
    allocated.
    """
    isolated: CpuSet = field(default_factory=CpuSet)
    """CPUs excluded from the kernel's load balancing since boot (kernel parameter isolcpus)."""
    nohz_full: CpuSet = field(default_factory=CpuSet)
    """CPUs without a timer tick while they run a single task (kernel parameter nohz_full)."""
    memory_bytes: int = 0
    """Memory of the whole machine in bytes according to /proc/meminfo. If it wasn't reported, this is the sum over the nodes."""
    hugepages: tuple[tuple[str, int], ...] = ()
    """Huge pages of the whole machine, in the form of `NumaNode.hugepages`. If they weren't reported, these are the sums over the nodes."""

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
        """Return the CPUs by the ID of their uncore cache. As in kubelet, CPUs without an uncore cache are listed under their socket's
        ID.
        """
        return _group_cpus((c.socket if c.uncore is None else c.uncore, c.id) for c in self.cpus)

    @cached_property
    def core_classes(self) -> Mapping[str, CpuSet]:
        """Return the CPUs by core class, the fastest class first. The result is empty if the machine has only one kind of core."""
        by_name = {name: CpuSet.from_ids(c.id for c in self.cpus if c.core_class == name) for name in CORE_CLASSES}
        return MappingProxyType({name: cpus for name, cpus in by_name.items() if cpus})

    def classes_of(self, cpus: CpuSet) -> tuple[str, ...]:
        """Return the core classes of these CPUs. The result is empty if the machine has only one kind of core."""
        return tuple(name for name, members in self.core_classes.items() if not members.isdisjoint(cpus))

    @cached_property
    def cores_of_nodes(self) -> Mapping[int, tuple[CpuSet, ...]]:
        """Return the whole cores of each NUMA node. A core belongs to each node on which it has a CPU."""
        return _list_members((c.numa, self.cores[c.core]) for c in self.cpus)

    @cached_property
    def uncores_of_nodes(self) -> Mapping[int, tuple[CpuSet, ...]]:
        """Return the whole uncore caches of each NUMA node. A cache belongs to each node on which it has a CPU."""
        return _list_members((c.numa, self.uncores[c.uncore]) for c in self.cpus if c.uncore is not None)

    @cached_property
    def node_ids(self) -> NumaSet:
        """Return all NUMA nodes, including nodes without CPUs."""
        return NumaSet.from_ids(n.id for n in self.numa)

    @cached_property
    def memory_nodes(self) -> NumaSet:
        """Return the NUMA nodes that have memory. There may be none if the machine is only described, for example for a test."""
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
        """Build a topology. All parts are sorted, and counts that weren't measured are computed."""
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
