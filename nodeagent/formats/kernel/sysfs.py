"""Derivation of the machine from a sample of /sys and /proc: its CPUs with their cores, caches, NUMA nodes and sockets.

The rules are those of kubelet's cAdvisor v0.56 (utils/sysinfo, utils/sysfs, machine), because its IDs and counts determine allocations. A
deviation that cAdvisor tolerates is tolerated here, too, if it affects these values. A malformed file is an error here, while cAdvisor logs
the error and continues.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from nodeagent.core.model.idset import MAX_ID, CpuSet
from nodeagent.core.model.quantity import Notation, Quantity
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.formats.kernel.sysfs_sample import CPUS, HUGEPAGES, NODES, SysfsSample

_PHYSICAL_ID = re.compile(r"^physical id\s*:\s*[0-9]+$", re.MULTILINE)
_MAX_KERNEL_ID = 2**32 - 1
"""Largest core, package, die and cache ID. The kernel stores them as int or unsigned int, and firmware may choose any
values (on Arm, table offsets or hashes).
"""
_CACHE_TYPES = {"Data": "data", "Instruction": "instruction", "Unified": "unified"}
_PMU_DEVICES = {"performance": ("cpu_core",), "efficiency": ("cpu_atom", "cpu_lowpower")}
"""Intel's PMU devices by class of cores."""
_UNKNOWN = -1
"""Value that the kernel writes for an ID that the architecture doesn't provide (include/linux/topology.h)."""


class _CpuPlace(Struct, frozen=True):
    """IDs of a CPU's core and package. CPUs of a NUMA node with equal IDs are threads of one core."""

    core: int
    package: int
    book: str | None
    drawer: str | None


class _Core(Struct, frozen=True):
    place: _CpuPlace
    cpus: tuple[int, ...]
    """CPUs in text order of their names (cpu10 before cpu2). The first CPU's caches count as the core's caches."""


class _SysfsCache(Struct, frozen=True):
    id: int
    level: int
    cpu_count: int


class _SysfsNode(Struct, frozen=True):
    id: int
    directory: str | None
    """Directory of the NUMA node. None means that the kernel shows no NUMA nodes, and a package takes the node's place."""
    cpus: tuple[int, ...]
    """CPUs in text order of their names."""


def topology_of(sample: SysfsSample) -> Topology:
    """Derive the machine from a sample.

    Raises:
        SysfsError: a file is malformed, or CPUs were not found.
    """
    present = sample.identified(CPUS, "cpu")
    online = _read_online(sample, present)
    if f"{CPUS}/online" in sample.files:
        offline = CpuSet.from_ids(present) - online
    else:
        offline = CpuSet.from_ids(cpu for cpu in present if sample.number(f"{CPUS}/cpu{cpu}/online", 0, 1) == 0)
    places = _read_cpu_places(sample, (cpu for cpu in present if cpu in online))
    nodes = _read_nodes(sample, present, places)
    if not any(node.cpus for node in nodes):
        raise sample.error(
            CPUS,
            "found no online CPU with a known core and socket",
            hint="--root needs a directory with sys/ and proc/",
        )
    classes = _find_core_classes(sample, online)
    levels = {cpu: _read_cache_levels(sample, cpu) for cpu in online}
    l3 = {cpu: [path for path, level in paths.items() if level == 3] for cpu, paths in levels.items()}
    cpus: list[Cpu] = []
    for node in nodes:
        # CPUs with equal IDs are threads of the same core. Cores are sorted by their first CPU.
        threads: dict[_CpuPlace, list[int]] = {}
        for cpu in node.cpus:
            threads.setdefault(places[cpu], []).append(cpu)
        cores = tuple(_Core(place, tuple(members)) for place, members in threads.items())
        uncores = _find_uncore_ids(sample, cores)
        for core in cores:
            cpus += (_read_cpu(sample, cpu, core, node.id, uncores.get(core), classes, l3[cpu]) for cpu in core.cpus)
    has_nodes = any(node.directory is not None for node in nodes)
    distances = _read_distances(sample, nodes)
    # If there are no NUMA directories, cAdvisor reports neither memory nor huge pages nor distances. A node without a meminfo file has no
    # memory.
    numa_nodes = [
        NumaNode(node.id, memory_bytes=0)
        if node.directory is None
        else NumaNode(
            id=node.id,
            memory_bytes=sample.total_memory_bytes(f"{node.directory}/meminfo") or 0,
            hugepages=_read_hugepages(sample, f"{node.directory}/hugepages"),
            distances=distances.get(node.id),
        )
        for node in nodes
    ]
    sockets = set(_PHYSICAL_ID.findall(sample.files.get("proc/cpuinfo", ""))) or {
        sample.files.get(f"{CPUS}/cpu{cpu}/topology/physical_package_id", "0").strip() for cpu in online
    }
    # Without the boot parameter, the kernel writes "(null)" or, before 4.15, a NUL.
    has_nohz_full = sample.files.get(f"{CPUS}/nohz_full", "").strip(" \n\0") not in {"", "(null)"}
    return Topology.of(
        cpus,
        numa_nodes,
        offline=offline,
        l3=_group_by_l3(sample, online, l3),
        caches=_find_other_caches(sample, online, levels),
        socket_count=len(sockets),
        # If there are no NUMA directories, cAdvisor counts directories of CPUs, including offline CPUs.
        reported_cpu_count=len(cpus) if has_nodes else len(present),
        skipped=online - offline - CpuSet.from_ids(c.id for c in cpus),
        isolated=sample.cpu_list(f"{CPUS}/isolated"),
        nohz_full=sample.cpu_list(f"{CPUS}/nohz_full") if has_nohz_full else None,
        memory_bytes=sample.total_memory_bytes("proc/meminfo"),
        hugepages=_read_hugepages(sample, HUGEPAGES) or None,
    )


def _read_online(sample: SysfsSample, present: Iterable[int]) -> CpuSet:
    path = f"{CPUS}/online"
    online = sample.cpu_list(path)
    if online is None:  # the kernel has no CPU hotplug, so all CPUs are online
        return CpuSet.from_ids(present)
    if not online:
        raise sample.error(path, "expected at least one CPU", value="")
    return online


def _read_cpu_places(sample: SysfsSample, online: Iterable[int]) -> dict[int, _CpuPlace]:
    """Read the core and package of each online CPU. CPUs without topology files are ignored, as in kubelet."""
    ordered = tuple(online)
    # only machines of the architecture s390 have books
    mainframe = any(f"{CPUS}/cpu{cpu}/topology/book_id" in sample.files for cpu in ordered)
    found = {cpu: _read_cpu_place(sample, cpu, mainframe=mainframe) for cpu in ordered}
    packages = {place.package for place in found.values() if place is not None} - {_UNKNOWN}
    # kubelet would continue with socket -1 (and NUMA node -1, which no mask can contain). A separate socket number has the same effect.
    unnamed = max(packages) + 1 if packages else 0
    places = {
        cpu: place if place.package != _UNKNOWN else _CpuPlace(place.core, unnamed, place.book, place.drawer)
        for cpu, place in found.items()
        if place is not None
    }
    # No CPU has topology files. kubelet's CPU table would be empty, and its static policy would fail. Here, the machine
    # has one socket, and its cores are the thread siblings or single CPUs.
    return places or {cpu: _CpuPlace(_find_lowest_sibling(sample, cpu), 0, None, None) for cpu in ordered}


def _read_cpu_place(sample: SysfsSample, cpu: int, *, mainframe: bool) -> _CpuPlace | None:
    directory = f"{CPUS}/cpu{cpu}/topology"
    core = sample.number(f"{directory}/core_id", _UNKNOWN, _MAX_KERNEL_ID)
    package = sample.number(f"{directory}/physical_package_id", _UNKNOWN, _MAX_KERNEL_ID)
    if core is None or package is None:
        return None
    if not mainframe:
        return _CpuPlace(core, package, None, None)
    book, drawer = (sample.files.get(f"{directory}/{name}") for name in ("book_id", "drawer_id"))
    return None if book is None or drawer is None else _CpuPlace(core, package, book.strip(), drawer.strip())


def _find_lowest_sibling(sample: SysfsSample, cpu: int) -> int:
    siblings = sample.cpu_list(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list") or CpuSet()
    return next(iter(siblings | CpuSet.of(cpu)))


def _read_nodes(sample: SysfsSample, present: Iterable[int], places: Mapping[int, _CpuPlace]) -> tuple[_SysfsNode, ...]:
    ids = sample.identified(NODES, "node")
    if not ids:
        return _create_nodes_from_packages(sample, present, places)
    directories = {node: f"{NODES}/node{node}" for node in ids}
    members = {node: sample.identified(directory, "cpu") for node, directory in directories.items()}
    if not any(members.values()):
        # A copied root may lack the links from nodes to their CPUs, but the lists of CPUs have the same content. A
        # CPU in the lists of two nodes belongs to the first node.
        taken = CpuSet()
        for node, directory in directories.items():
            listed = sample.cpu_list(f"{directory}/cpulist")
            if listed is None:
                listed = sample.cpu_map(f"{directory}/cpumap") or CpuSet()
            members[node] = tuple(sorted(listed - taken, key=str))
            taken |= listed
    owner: dict[int, int] = {}
    for node, cpus in members.items():
        for cpu in cpus:
            if owner.setdefault(cpu, node) != node:
                raise sample.error(f"{directories[node]}/cpu{cpu}", f"the CPU is in {directories[owner[cpu]]} already")
    return tuple(
        _SysfsNode(node, directories[node], tuple(cpu for cpu in members[node] if cpu in places)) for node in ids
    )


def _create_nodes_from_packages(
    sample: SysfsSample, present: Iterable[int], places: Mapping[int, _CpuPlace]
) -> tuple[_SysfsNode, ...]:
    """Return a node for each package, numbered like the package, for kernels without NUMA nodes."""
    members: dict[int, list[int]] = {}
    for cpu in present:
        if cpu in places:
            package = places[cpu].package
            if package > MAX_ID:
                path = f"{CPUS}/cpu{cpu}/topology/physical_package_id"
                raise sample.error(
                    path, f"expected at most {MAX_ID}, since packages replace NUMA nodes here", value=str(package)
                )
            members.setdefault(package, []).append(cpu)
    return tuple(_SysfsNode(package, None, tuple(cpus)) for package, cpus in members.items())


def _find_uncore_ids(sample: SysfsSample, cores: tuple[_Core, ...]) -> dict[_Core, int]:
    """Return the uncore caches of a node's cores. Cores without such a cache are left out.

    An uncore cache has level 3 or higher. By cAdvisor's count, such a cache isn't shared by all cores of the node.
    """
    found: dict[_Core, int] = {}
    for core in cores:
        caches = _read_caches(sample, core.cpus[0])
        if caches is None:  # if one cache can't be read, the search in this node ends
            return found
        node_wide = len(cores) * len(core.cpus)
        for cache in caches:
            if cache.level >= 3 and cache.cpu_count != node_wide:
                found[core] = cache.id
                break
    return found


def _read_caches(sample: SysfsSample, cpu: int) -> tuple[_SysfsCache, ...] | None:
    """Read a CPU's caches in text order of their directories. None means that the directory or a file is missing."""
    directory = f"{CPUS}/cpu{cpu}/cache"
    if sample.names(directory) is None:
        return None
    caches = []
    for name, _ in sample.numbered(directory, "index"):
        path = f"{directory}/{name}"
        cache_id = sample.number(f"{path}/id", 0, _MAX_KERNEL_ID)
        size_kib = _read_size_kib(sample, f"{path}/size")
        level = sample.number(f"{path}/level", 0, 255)
        kind = sample.files.get(f"{path}/type")
        cpus = sample.cpu_map(f"{path}/shared_cpu_map")
        if cache_id is None or size_kib is None or level is None or kind is None or cpus is None:
            return None
        caches.append(_SysfsCache(cache_id, level, len(cpus)))
    return tuple(caches)


def _read_size_kib(sample: SysfsSample, path: str) -> int | None:
    text = sample.files.get(path)
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,18})K", text.strip())
    if match is None:
        raise sample.error(path, "expected a size such as 32K", value=text.strip())
    return int(match[1])


def _read_cpu(
    sample: SysfsSample,
    cpu: int,
    core: _Core,
    node: int,
    uncore: int | None,
    classes: Mapping[str, CpuSet],
    l3: Sequence[str],
) -> Cpu:
    die = sample.number(f"{CPUS}/cpu{cpu}/topology/die_id", _UNKNOWN, _MAX_KERNEL_ID)
    return Cpu(
        id=cpu,
        core=min(core.cpus),
        socket=core.place.package,
        numa=node,
        uncore=uncore,
        die=None if die == _UNKNOWN else die,
        core_class=next((name for name, members in classes.items() if cpu in members), None),
        capacity=sample.number(f"{CPUS}/cpu{cpu}/cpu_capacity"),
        l3_bytes=_read_size_bytes(sample, l3[0]) if l3 else None,
    )


def _read_size_bytes(sample: SysfsSample, cache: str) -> int | None:
    size_kib = _read_size_kib(sample, f"{cache}/size")
    return None if size_kib is None else size_kib * 1024


def _read_cache_levels(sample: SysfsSample, cpu: int) -> dict[str, int]:
    """Return the levels of a CPU's caches by directory, in text order. On real machines, a CPU has one cache of
    each level and type.
    """
    directory = f"{CPUS}/cpu{cpu}/cache"
    paths = [f"{directory}/{name}" for name, _ in sample.numbered(directory, "index")]
    return {path: level for path in paths if (level := sample.number(f"{path}/level", 0, 255)) is not None}


def _find_core_classes(sample: SysfsSample, online: CpuSet) -> dict[str, CpuSet]:
    """Return the CPUs of a hybrid machine by class, or nothing if all cores have the same class.

    Intel's PMU devices list the CPUs of each class (Documentation/ABI/testing/sysfs-bus-event_source-devices). On other machines (Arm,
    AMD, guests, copied roots), the first available data decides that a core is an efficiency core:

    - Its capacity is below three quarters of the largest. Favoured cores differ by less.
    - Its base and top frequencies are both lower. Speed Select lowers only the base frequency, and favoured cores have
      only a higher top frequency.
    - Without base frequencies: its highest performance is below three quarters of the largest, and its nominal
      performance is lower, too. A ranking of equal cores changes only the highest performance.
    """
    listed = {
        name: [sample.cpu_list(f"sys/devices/{device}/cpus") or CpuSet() for device in devices]
        for name, devices in _PMU_DEVICES.items()
    }
    if any(any(sets) for sets in listed.values()):
        return {name: CpuSet.from_ids(cpu for cpus in sets for cpu in cpus) for name, sets in listed.items()}
    capacity = _read_numbers(sample, online, "cpu_capacity")
    base, top = (_read_numbers(sample, online, f"cpufreq/{name}") for name in ("base_frequency", "cpuinfo_max_freq"))
    small = _find_far_below_largest(capacity)
    if not small and base.keys() == top.keys() == set(online):
        highest_base = max(base.values())
        lowest_top = min(top[cpu] for cpu, number in base.items() if number == highest_base)
        small = {cpu for cpu in online if base[cpu] < highest_base and top[cpu] < lowest_top}
    elif not small and not base:
        highest, nominal = (_read_numbers(sample, online, f"acpi_cppc/{name}_perf") for name in ("highest", "nominal"))
        if highest.keys() == nominal.keys() == set(online):
            largest = max(nominal.values())
            small = {cpu for cpu in _find_far_below_largest(highest) if nominal[cpu] < largest}
    efficiency = CpuSet.from_ids(small)
    return {"performance": online - efficiency, "efficiency": efficiency} if small else {}


def _find_far_below_largest(numbers: Mapping[int, int]) -> set[int]:
    largest = max(numbers.values(), default=0)
    return {cpu for cpu, number in numbers.items() if number * 4 < largest * 3}


def _read_numbers(sample: SysfsSample, online: CpuSet, name: str) -> dict[int, int]:
    numbers = ((cpu, sample.number(f"{CPUS}/cpu{cpu}/{name}")) for cpu in online)
    return {cpu: number for cpu, number in numbers if number is not None}


def _group_by_l3(sample: SysfsSample, online: CpuSet, paths: Mapping[int, Sequence[str]]) -> tuple[CpuSet, ...]:
    """Group the online CPUs by shared level-3 cache, whether or not the cache counts as an uncore cache. A CPU is in at
    most one group.
    """
    groups = []
    grouped = CpuSet()
    for cpu in online:
        if cpu in grouped or not paths[cpu] or (sharers := _read_sharers(sample, paths[cpu][0])) is None:
            continue
        group = ((sharers | CpuSet.of(cpu)) & online) - grouped
        grouped |= group
        groups.append(group)
    return tuple(groups)


def _find_other_caches(sample: SysfsSample, online: CpuSet, levels: Mapping[int, Mapping[str, int]]) -> Iterator[Cache]:
    """Yield the caches of each level except 3. A CPU has at most one cache of each level and type."""
    served: dict[tuple[int, str], CpuSet] = {}
    for cpu in online:
        for path, level in levels[cpu].items():
            kind_text = None if level == 3 else sample.files.get(f"{path}/type")
            if kind_text is None:
                continue
            kind = _CACHE_TYPES.get(kind_text.strip())
            if kind is None:
                raise sample.error(
                    f"{path}/type", f"expected one of {', '.join(_CACHE_TYPES)}", value=kind_text.strip()
                )
            if cpu in (earlier := served.get((level, kind), CpuSet())):
                continue
            sharers = _read_sharers(sample, path)
            if sharers is not None:
                cpus = ((sharers | CpuSet.of(cpu)) & online) - earlier
                served[level, kind] = earlier | cpus
                yield Cache(level, kind, cpus, _read_size_bytes(sample, path))


def _read_sharers(sample: SysfsSample, cache: str) -> CpuSet | None:
    # shared_cpu_map comes first, because it is older than shared_cpu_list, and kubelet's rules use it
    sharers = sample.cpu_map(f"{cache}/shared_cpu_map")
    return sample.cpu_list(f"{cache}/shared_cpu_list") if sharers is None else sharers


def _read_distances(sample: SysfsSample, nodes: Sequence[_SysfsNode]) -> dict[int, tuple[int, ...]]:
    """Return the distances of each node to all nodes in order of their IDs. The result is empty if the kernel or an old capture has no
    distances.

    A row has one value per online node, because online nodes have directories. A captured machine may
    have values for all possible nodes, although some of them have no directory.
    """
    rows = {node: sample.numbers(f"{node.directory}/distance") for node in nodes if node.directory is not None}
    if all(row is None for row in rows.values()):
        return {}
    ids = sorted(node.id for node in rows)
    distances = {}
    for node, row in rows.items():
        path = f"{node.directory}/distance"
        if row is None:
            raise sample.error(path, "the file is missing, although other nodes have one")
        columns = ids if len(row) == len(ids) else list(sample.cpu_list(f"{NODES}/possible") or ())
        if len(row) != len(columns) or not set(ids) <= set(columns):
            wanted = f"expected one distance to each of {len(ids)} nodes"
            raise sample.error(path, wanted, value=sample.files[path].strip())
        distances[node.id] = tuple(value for id_, value in zip(columns, row, strict=True) if id_ in ids)
    return distances


def _read_hugepages(sample: SysfsSample, directory: str) -> tuple[tuple[str, int], ...]:
    pages = sample.hugepage_bytes(directory)
    sizes = ((str(Quantity(page_bytes * 10**9, Notation.BINARY_SI)), amount) for page_bytes, amount in pages)
    return tuple(sorted((f"hugepages-{size}", amount_bytes) for size, amount_bytes in sizes))
