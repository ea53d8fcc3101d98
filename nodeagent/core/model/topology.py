"""The machine as an immutable value. CPUs are grouped by core, uncore cache, NUMA node and socket. NUMA nodes have memory, huge pages and
distances.

Values that decisions need are computed once and cached. formats/kernel/sysfs.py reads the machine from /sys.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuMask, CpuSet, NumaSet

CORE_CLASSES = ("performance", "efficiency")
"""Core classes of machines that have several kinds of cores, the fastest class first."""


class Cpu(Struct, frozen=True):
    """One logical CPU that is online."""

    id: int
    core: int
    """Number of the core: the lowest CPU number among its CPUs on the same NUMA node. The kernel's core_id would be ambiguous, because it
    repeats across sockets.
    """
    socket: int
    """Socket number (the kernel's physical_package_id)."""
    numa: int
    uncore: int | None = None
    """ID of the CPU's uncore cache. As in kubelet, this is the first cache of level 3 or higher that not all CPUs of the NUMA node share.
    None means that there is no such cache.
    """
    die: int | None = None
    core_class: str | None = None
    """Core class of the CPU on a hybrid machine, one of CORE_CLASSES. None means that the machine has only one kind of core."""
    capacity: int | None = None
    """Relative speed (the kernel's cpu_capacity), which is 1024 for the fastest core. None means that the kernel doesn't report it; mostly
    Arm machines do. Decisions don't use it.
    """
    l3_bytes: int | None = None
    """Size of the level-3 cache that the CPU uses. None means that the machine doesn't report it. Decisions don't use it."""


class NumaNode(Struct, frozen=True):
    id: int
    memory_bytes: int
    hugepages: tuple[tuple[str, int], ...] = ()
    """Pairs of huge page resource (such as `hugepages-2Mi`) and bytes, sorted by resource. A page size without pages has 0 bytes."""
    distances: tuple[int, ...] | None = None
    """Distances from this node to each node, in ascending order of node IDs (SLIT). None means that the kernel doesn't report them."""


class Cache(Struct, frozen=True):
    """One cache of a level other than 3, shared by certain CPUs. Decisions don't use it."""

    level: int
    type: str
    """Type of the cache's content: `data`, `instruction` or `unified`."""
    cpus: CpuSet
    """Online CPUs that share this cache."""
    size_bytes: int | None = None

    @property
    def name(self) -> str:
        """Return the usual short name of the cache, such as L2, L1d or L1i."""
        return f"L{self.level}{'' if self.type == 'unified' else self.type[0]}"


Groups = Mapping[int, CpuSet]


class Topology(Struct, frozen=True, dict=True):  # dict=True, because cached properties are stored in __dict__
    """Topology of the machine: its online CPUs and its NUMA nodes, in ascending order. Use `Topology.of` to build one."""

    cpus: tuple[Cpu, ...]
    numa: tuple[NumaNode, ...]
    offline: CpuSet = field(default_factory=CpuSet)
    l3: tuple[CpuSet, ...] = ()
    """Groups of online CPUs that share a level-3 cache, sorted by lowest CPU. Empty means that the machine doesn't report level-3
    caches.
    """
    caches: tuple[Cache, ...] = ()
    """Caches of levels other than 3, sorted by descending level, then by type and lowest CPU. Empty means that the machine doesn't report
    these caches.
    """
    socket_count: int = 0
    """Number of sockets by kubelet's count, which uses the different `physical id` lines of /proc/cpuinfo if there are any."""
    reported_cpu_count: int = 0
    """Number of CPUs by kubelet's count. It differs from the number of online CPUs only on machines that have no NUMA directories in
    /sys.
    """
    skipped: CpuSet = field(default_factory=CpuSet)
    """Online CPUs that kubelet doesn't know, because they lack topology files or are in no NUMA node's directory. No container gets
    them.
    """
    isolated: CpuSet = field(default_factory=CpuSet)
    """CPUs that the kernel parameter isolcpus excludes from load balancing."""
    nohz_full: CpuSet = field(default_factory=CpuSet)
    """CPUs on which the kernel stops the timer tick while a single task runs (kernel parameter nohz_full)."""
    memory_bytes: int = 0
    """Memory of the machine in bytes, from /proc/meminfo. If that is unknown, it is the sum over the NUMA nodes."""
    hugepages: tuple[tuple[str, int], ...] = ()
    """Huge pages of the machine, as pairs of resource and bytes. If the machine's total is unknown, it is the sum over the NUMA nodes."""

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
        """Return the CPUs of each NUMA node. Nodes without CPUs are left out."""
        return _group_cpus((c.numa, c.id) for c in self.cpus)

    @cached_property
    def sockets(self) -> Groups:
        return _group_cpus((c.socket, c.id) for c in self.cpus)

    @cached_property
    def uncores(self) -> Groups:
        """Return the CPUs of each uncore cache, by the cache's ID. As in kubelet, CPUs without an uncore cache are listed under the ID of
        their socket.
        """
        return _group_cpus((c.socket if c.uncore is None else c.uncore, c.id) for c in self.cpus)

    @cached_property
    def core_classes(self) -> Mapping[str, CpuSet]:
        """Return the CPUs of each core class, the fastest class first. The result is empty if the machine has only one kind of core."""
        by_name = {name: CpuSet.from_ids(c.id for c in self.cpus if c.core_class == name) for name in CORE_CLASSES}
        return MappingProxyType({name: cpus for name, cpus in by_name.items() if cpus})

    def classes_of(self, cpus: CpuSet) -> tuple[str, ...]:
        """Return the core classes to which these CPUs belong. The result is empty if the machine has only one kind of core."""
        return tuple(name for name, members in self.core_classes.items() if not members.isdisjoint(cpus))

    @cached_property
    def cores_of_nodes(self) -> Mapping[int, tuple[CpuSet, ...]]:
        """Return the cores of each NUMA node, each core with all its CPUs. A core that spans two nodes is listed under both."""
        return _list_members((c.numa, self.cores[c.core]) for c in self.cpus)

    @cached_property
    def uncores_of_nodes(self) -> Mapping[int, tuple[CpuSet, ...]]:
        """Return the uncore caches of each NUMA node, each cache with all its CPUs. A cache that spans two nodes is listed under both."""
        return _list_members((c.numa, self.uncores[c.uncore]) for c in self.cpus if c.uncore is not None)

    @cached_property
    def node_ids(self) -> NumaSet:
        """Return all NUMA nodes, including nodes without CPUs."""
        return NumaSet.from_ids(n.id for n in self.numa)

    @cached_property
    def memory_nodes(self) -> NumaSet:
        """Return the NUMA nodes that have memory. The result is empty for an incomplete description of a machine, as in tests."""
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
        """Build a topology from CPUs and NUMA nodes in any order. Missing counts and sums are computed from them."""
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
        """Return a copy of the machine in which these CPUs are offline."""
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
        """Return the NUMA nodes to which these CPUs belong. CPUs that the machine doesn't have are ignored."""
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
