"""Discovery of small machines, grown in a directory: counts, ids and leniency of kubelet's rules, and what is an error here."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import structs

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.edge.kernel.sysfs import ATTEMPTS, MAX_FILE_BYTES, VanishedError, read_machine
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_sample import HUGEPAGES, SysfsError, SysfsSample
from tests.support.machine_tree import CPUS, NODES, Cache, Machine
from tests.support.shares import share_of

SMT = ("0,4", "1,5", "2,6", "3,7")
"""4 cores; CPUs c and c+4 are siblings."""
FLAT = tuple(str(cpu) for cpu in range(8))


def discover(root: Path) -> Topology:
    return topology_of(read_machine(str(root)))


@dataclass(frozen=True)
class Case:
    name: str
    machine: Machine
    cpus: int
    cores: int
    sockets: int
    nodes: str
    """CPUs by node, `node: cpus` with blanks between."""
    uncores: str = ""
    """CPUs by uncore id, `id: cpus`; CPUs without one aren't listed."""
    l3: tuple[str, ...] = ()
    reported: int | None = None
    """None: as many as `cpus`."""


ONE = Machine(SMT, ("0-7",), ((0, "0-7"),))
TWO = Machine(SMT, ("0-1,4-5", "2-3,6-7"), ((0, "0-1,4-5"), (1, "2-3,6-7")))
SAME_CORE_ID = tuple((f"{CPUS}/cpu{cpu}/topology/core_id", "7\n") for cpu in range(8))
NO_PACKAGE_ID = tuple((f"{CPUS}/cpu{cpu}/topology/physical_package_id", "-1\n") for cpu in range(2))

CASES = (
    Case("one L3 per node is no uncore cache", replace(ONE, caches=(Cache(3, 3, "0-7", 0),)), 8, 4, 1, "0: 0-7", "", ("0-7",)),
    Case(
        "two L3 in a node are uncore caches",
        replace(ONE, caches=(Cache(3, 3, "0-1,4-5", 8), Cache(3, 3, "2-3,6-7", 9))),
        *(8, 4, 1, "0: 0-7", "8: 0-1,4-5 9: 2-3,6-7", ("0-1,4-5", "2-3,6-7")),
    ),
    Case(
        "four L3 in a node",
        replace(ONE, caches=tuple(Cache(3, 3, core, index) for index, core in enumerate(SMT))),
        *(8, 4, 1, "0: 0-7", "0: 0,4 1: 1,5 2: 2,6 3: 3,7", SMT),
    ),
    Case(
        "sub-NUMA clustering: one L3 over two nodes is one uncore cache",
        Machine(SMT, ("0-7",), ((0, "0-1,4-5"), (1, "2-3,6-7")), (Cache(3, 3, "0-7", 5),)),
        *(8, 4, 1, "0: 0-1,4-5 1: 2-3,6-7", "5: 0-7", ("0-7",)),
    ),
    Case("no L3", replace(ONE, caches=(Cache(2, 2, "0-7", 1),)), 8, 4, 1, "0: 0-7"),
    Case("no cache directory", ONE, 8, 4, 1, "0: 0-7"),
    Case("a level 4 cache is one too", replace(ONE, caches=(Cache(4, 4, "0,4", 3),)), 8, 4, 1, "0: 0-7", "3: 0,4"),
    Case("SMT off: siblings offline", replace(ONE, offline="4-7"), 4, 4, 1, "0: 0-3"),
    Case(
        "SMT off: an L3 of the whole node is seen as such, offline siblings not counted",
        replace(ONE, offline="4-7", caches=(Cache(3, 3, "0-7", 0),)),
        *(4, 4, 1, "0: 0-3", "", ("0-3",)),
    ),
    Case(
        "one sibling offline: the L3 counts as shared by part of the node",  # 7 CPUs, 4 cores, 2 or 1 CPUs in the core: 8 or 4
        replace(ONE, offline="7", caches=(Cache(3, 3, "0-7", 0),)),
        *(7, 4, 1, "0: 0-6", "0: 0-6", ("0-6",)),
    ),
    Case("siblings in two nodes are two cores", Machine(SMT, ("0-7",), ((0, "0-3"), (1, "4-7"))), 8, 8, 1, "0: 0-3 1: 4-7"),
    Case("two sockets", TWO, 8, 4, 2, "0: 0-1,4-5 1: 2-3,6-7"),
    Case(
        "one node over two sockets: core ids repeat", replace(TWO, nodes=((0, "0-7"),)), 8, 4, 2, "0: 0-7"
    ),
    Case("no NUMA directories: a node per package", replace(TWO, nodes=()), 8, 4, 2, "0: 0-1,4-5 1: 2-3,6-7"),
    Case(
        "no NUMA directories: offline CPUs are counted",
        replace(TWO, nodes=(), offline="7"),
        *(7, 4, 2, "0: 0-1,4-5 1: 2-3,6"),
        reported=8,
    ),
    Case("no cpuinfo: sockets by package id", replace(TWO, cpuinfo=False), 8, 4, 2, "0: 0-1,4-5 1: 2-3,6-7"),
    Case(
        "no online file: CPUs without topology are left out", replace(ONE, offline="6", online_file=False), 7, 4, 1, "0: 0-5,7"
    ),
    Case("memory-only node", replace(ONE, nodes=((0, "0-7"), (2, ""))), 8, 4, 1, "0: 0-7 2:"),
    Case(
        "sparse ids",
        Machine(("16,40", "17,41"), ("16-17,40-41",), ((8, "16,40"), (252, "17,41"))),
        *(4, 2, 1, "8: 16,40 252: 17,41"),
    ),
    Case(
        "s390: equal core ids in other books are other cores",
        Machine(SMT, ("0-7",), ((0, "0-7"),), books=("0-1,4-5", "2-3,6-7"), extra=SAME_CORE_ID),
        *(8, 2, 1, "0: 0-7"),
    ),
    Case(
        "elsewhere equal core ids are one core",
        replace(ONE, extra=SAME_CORE_ID),
        *(8, 1, 1, "0: 0-7"),
    ),
    Case(
        "package -1 is a socket of its own, and a node where there are none",
        Machine(FLAT[:2], ("0-1",), extra=NO_PACKAGE_ID),
        *(2, 2, 1, "0: 0-1"),
    ),
)  # fmt: skip


def grouped(text: str) -> dict[int, CpuSet]:
    words = text.replace(": ", ":").split()
    return {int(key): CpuSet.parse(cpus) for key, _, cpus in (word.partition(":") for word in words)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_counts(case: Case, tmp_path: Path) -> None:
    topology = discover(case.machine.grow(tmp_path))
    nodes = grouped(case.nodes)
    uncores: dict[int, CpuSet] = {}
    for cpu in topology.cpus:
        if cpu.uncore is not None:
            uncores[cpu.uncore] = uncores.get(cpu.uncore, CpuSet()) | CpuSet.of(cpu.id)
    assert len(topology.cpus) == case.cpus
    assert len(topology.cores) == case.cores
    assert all(core == min(cpus) for core, cpus in topology.cores.items())
    assert topology.socket_count == case.sockets
    assert dict(topology.nodes) == {node: cpus for node, cpus in nodes.items() if cpus}
    assert set(topology.node_ids) == set(nodes)
    assert uncores == grouped(case.uncores)
    assert topology.l3 == tuple(map(CpuSet.parse, case.l3))
    assert topology.reported_cpu_count == (case.cpus if case.reported is None else case.reported)
    assert topology.offline == CpuSet.parse(case.machine.offline) or not case.machine.online_file
    assert bool(topology.skipped) == (not case.machine.online_file)


def test_memory_hugepages_and_distances(tmp_path: Path) -> None:
    extra = (
        (f"{NODES}/node0/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
        (f"{NODES}/node0/hugepages/hugepages-64kB/nr_hugepages", "3\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1030\n"),
    )
    topology = discover(replace(TWO, extra=extra).grow(tmp_path))
    first, second = topology.numa
    assert first.memory_bytes == second.memory_bytes == 8 * 2**30
    assert first.hugepages == (("hugepages-1Gi", 0), ("hugepages-2Mi", 2**30), ("hugepages-64Ki", 3 * 65_536))
    assert second.hugepages == (("hugepages-2Mi", 2**30),)
    assert (first.distances, second.distances) == ((10, 21), (21, 10))
    assert topology.memory_bytes == 16 * 2**30
    assert topology.hugepages == (("hugepages-2Mi", 1030 * 2**21),)


def test_distances_of_every_possible_node_are_told_apart_by_the_list_of_those(tmp_path: Path) -> None:
    """As a captured machine has them, one of whose two nodes is offline."""
    extra = (
        (f"{NODES}/possible", "0-2\n"),
        *((f"{NODES}/node{n}/distance", row) for n, row in ((0, "10 30 21"), (2, "21 30 10"))),
    )
    topology = discover(replace(TWO, nodes=((0, "0-1,4-5"), (2, "2-3,6-7")), extra=extra).grow(tmp_path))
    assert [node.distances for node in topology.numa] == [(10, 21), (21, 10)]


def test_distances_that_only_some_nodes_have_are_an_error_and_none_at_all_are_none(tmp_path: Path) -> None:
    root = TWO.grow(tmp_path)
    (root / NODES / "node1/distance").unlink()
    with pytest.raises(SysfsError, match="node1/distance: the file is missing, although other nodes have one"):
        discover(root)
    (root / NODES / "node0/distance").unlink()
    assert [node.distances for node in discover(root).numa] == [None, None]


def test_a_node_without_meminfo_has_no_memory_as_in_cadvisor(tmp_path: Path) -> None:
    root = TWO.grow(tmp_path)
    (root / NODES / "node1/meminfo").unlink()
    assert [node.memory_bytes for node in discover(root).numa] == [8 * 2**30, 0]


def test_without_numa_directories_nodes_have_no_memory(tmp_path: Path) -> None:
    topology = discover(replace(TWO, nodes=()).grow(tmp_path))
    assert [(node.memory_bytes, node.hugepages, node.distances) for node in topology.numa] == [(0, (), None)] * 2
    assert topology.memory_bytes == 16 * 2**30


def test_no_topology_directory_anywhere(tmp_path: Path) -> None:
    root = replace(ONE, nodes=()).grow(tmp_path)
    for cpu in range(8):
        for file in (root / CPUS / f"cpu{cpu}/topology").iterdir():
            file.unlink()
        (root / CPUS / f"cpu{cpu}/topology").rmdir()
    topology = discover(root)
    assert [(c.id, c.core, c.socket, c.numa) for c in topology.cpus] == [(cpu, cpu, 0, 0) for cpu in range(8)]


def test_thread_siblings_alone_make_cores(tmp_path: Path) -> None:
    root = ONE.grow(tmp_path)
    for cpu in range(8):
        (root / CPUS / f"cpu{cpu}/topology/core_id").unlink()
    assert dict(discover(root).cores) == {core: CpuSet.of(core, core + 4) for core in range(4)}


def test_a_cpu_without_topology_files_is_skipped(tmp_path: Path) -> None:
    root = ONE.grow(tmp_path)
    (root / CPUS / "cpu6/topology/physical_package_id").unlink()
    topology = discover(root)
    assert topology.online == CpuSet.parse("0-5,7")
    assert topology.skipped == CpuSet.of(6)


def test_a_cpu_in_no_node_is_skipped(tmp_path: Path) -> None:
    topology = discover(replace(ONE, nodes=((0, "0-2,4-6"),)).grow(tmp_path))
    assert topology.online == CpuSet.parse("0-2,4-6")
    assert topology.skipped == CpuSet.parse("3,7")


def test_nodes_without_links_to_their_cpus_use_their_lists(tmp_path: Path) -> None:
    root = TWO.grow(tmp_path)
    for link in (root / NODES).glob("node*/cpu[0-9]*"):
        link.unlink()
    (root / NODES / "node1/cpulist").unlink()  # then its map
    assert dict(discover(root).nodes) == {0: CpuSet.parse("0-1,4-5"), 1: CpuSet.parse("2-3,6-7")}


# Order: kubelet walks names in text order, which decides whose caches stand for a core, and which cache is the first.


def test_first_uncore_cache_in_text_order_of_the_entries(tmp_path: Path) -> None:
    machine = replace(ONE, caches=(Cache(2, 3, "0-3", 20), Cache(10, 3, "0-1,4-5", 10)))
    assert {cpu.id: cpu.uncore for cpu in discover(machine.grow(tmp_path)).cpus} == {
        0: 10,
        4: 10,
        1: 10,
        5: 10,
        2: 20,
        6: 20,
        3: 20,
        7: 20,
    }


def test_first_cpu_of_a_core_in_text_order_of_the_links(tmp_path: Path) -> None:
    # `cpu10` comes before `cpu2`: the caches of CPU 10 stand for the core.
    machine = Machine(
        ("2,10", "3,11"), ("2-3,10-11",), ((0, "2-3,10-11"),), (Cache(3, 3, "2,3", 2), Cache(3, 3, "10", 10))
    )
    topology = discover(machine.grow(tmp_path))
    assert {cpu.id: cpu.uncore for cpu in topology.cpus} == {2: 10, 10: 10, 3: None, 11: None}
    assert topology.cpu[10].core == 2


def test_nodes_in_text_order_and_numbers_sorted(tmp_path: Path) -> None:
    machine = Machine(FLAT, ("0-7",), tuple((node, str(cpu)) for cpu, node in enumerate((0, 1, 2, 3, 9, 10, 11, 20))))
    root = machine.grow(tmp_path)
    assert read_machine(str(root)).directories[NODES] == tuple(f"node{n}" for n in (0, 1, 10, 11, 2, 20, 3, 9))
    assert [node.id for node in discover(root).numa] == [0, 1, 2, 3, 9, 10, 11, 20]


# The cache survey of a node ends at the first file that isn't there; other nodes go on.

QUAD = Machine(
    FLAT,
    ("0-7",),
    ((0, "0-3"), (1, "4-7")),
    tuple(Cache(3, 3, pair, index) for index, pair in enumerate(("0-1", "2-3", "4-5", "6-7"))),
)


@pytest.mark.parametrize("name", ["id", "level", "size", "type", "shared_cpu_map"])
def test_an_absent_cache_file_ends_the_survey_of_the_node(name: str, tmp_path: Path) -> None:
    root = QUAD.grow(tmp_path)
    (root / CPUS / f"cpu2/cache/index3/{name}").unlink()
    assert [cpu.uncore for cpu in discover(root).cpus] == [0, 0, None, None, 2, 2, 3, 3]


def test_an_absent_cache_directory_ends_the_survey_too(tmp_path: Path) -> None:
    machine = replace(QUAD, caches=tuple(cache for cache in QUAD.caches if cache.cpus != "4-5"))
    assert [cpu.uncore for cpu in discover(machine.grow(tmp_path)).cpus] == [0, 0, 1, 1, None, None, None, None]


def test_l3_groups_need_no_ids(tmp_path: Path) -> None:
    machine = replace(QUAD, caches=tuple(replace(cache, id=None) for cache in QUAD.caches))
    topology = discover(machine.grow(tmp_path))
    assert topology.l3 == tuple(map(CpuSet.parse, ("0-1", "2-3", "4-5", "6-7")))
    assert {cpu.uncore for cpu in topology.cpus} == {None}


def test_caches_of_the_other_levels(tmp_path: Path) -> None:
    own = tuple(
        Cache(index, 1, core, type=kind, size="48K")
        for core in SMT
        for index, kind in enumerate(("Data", "Instruction"))
    )
    shared = tuple(Cache(2, 2, cpus, size="2048K") for cpus in ("0-1,4-5", "2-3,6-7"))
    topology = discover(replace(ONE, offline="7", caches=(*own, *shared, Cache(3, 3, "0-7"))).grow(tmp_path))
    assert [(cache.name, str(cache.cpus), cache.size_bytes) for cache in topology.caches] == [
        ("L2", "0-1,4-5", 2**21),
        ("L2", "2-3,6", 2**21),
        *((name, cpus, 48 * 1024) for name in ("L1d", "L1i") for cpus in ("0,4", "1,5", "2,6", "3")),
    ]


def test_what_is_not_known_of_a_cache_is_not_guessed(tmp_path: Path) -> None:
    root = replace(ONE, caches=tuple(Cache(2, 2, core, index) for index, core in enumerate(SMT))).grow(tmp_path)
    for cpu, name in ((0, "type"), (4, "type"), (1, "level"), (5, "level"), (2, "size"), (6, "size")):
        (root / CPUS / f"cpu{cpu}/cache/index2/{name}").unlink()
    assert [(str(cache.cpus), cache.size_bytes) for cache in discover(root).caches] == [("2,6", None), ("3,7", 2**25)]


def test_a_cache_of_a_type_that_no_kernel_writes(tmp_path: Path) -> None:
    root = replace(ONE, caches=(Cache(2, 2, "0-7", type="Trace"),)).grow(tmp_path)
    with pytest.raises(SysfsError, match=r"index2/type: expected one of Data, Instruction, Unified, not .?Trace"):
        discover(root)


def pmus(**cpus: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"sys/devices/cpu_{kind}/cpus", f"{listed}\n") for kind, listed in cpus.items())


def cppc(*, highest: tuple[int, int], nominal: tuple[int, int]) -> tuple[tuple[str, str], ...]:
    """Of six CPUs, and of two."""
    values = {"highest": highest, "nominal": nominal}
    return tuple(
        (f"{CPUS}/cpu{cpu}/acpi_cppc/{name}_perf", f"{pair[cpu > 5]}\n")
        for name, pair in values.items()
        for cpu in range(8)
    )


def frequencies(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{CPUS}/cpu{cpu}/cpufreq/{name}", "2000000\n") for cpu in range(8))


@pytest.mark.parametrize(
    ("extra", "efficiency"),
    [
        (pmus(core="0-3", atom="4-7"), "4-7"),
        (tuple((f"{CPUS}/cpu{cpu}/cpu_capacity", "1024\n" if cpu > 5 else "446\n") for cpu in range(8)), "0-5"),
        (tuple((f"{CPUS}/cpu{cpu}/cpu_capacity", "1024\n" if cpu > 5 else "1009\n") for cpu in range(8)), ""),
        (pmus(core="0-1", atom="2-5", lowpower="6-7"), "2-7"),
        (cppc(highest=(166, 231), nominal=(90, 120)), "0-5"),
        (cppc(highest=(166, 231), nominal=(120, 120)), ""),
        (cppc(highest=(200, 231), nominal=(90, 120)), ""),
        ((*cppc(highest=(166, 231), nominal=(90, 120)), *frequencies("base_frequency"), *frequencies("cpuinfo_max_freq")), ""),
        (cppc(highest=(166, 231), nominal=(90, 120))[1:], ""),
    ],
    ids=[
        "PMU lists",
        "capacities far apart",
        "favoured cores",
        "a third kind",
        "performance far apart",
        "ranking of equal cores",
        "close performance",
        "equal frequencies say more",
        "one that does not say",
    ],
)  # fmt: skip
def test_core_classes(extra: tuple[tuple[str, str], ...], efficiency: str, tmp_path: Path) -> None:
    topology = discover(replace(QUAD, extra=extra).grow(tmp_path))
    assert CpuSet.from_ids(c.id for c in topology.cpus if c.core_class == "efficiency") == CpuSet.parse(efficiency)
    assert CpuSet.from_ids(c.id for c in topology.cpus if c.core_class == "performance") == (
        CpuSet.parse("0-7") - CpuSet.parse(efficiency) if efficiency else CpuSet()
    )


def test_what_the_firmware_does_not_answer_is_not_known(tmp_path: Path) -> None:
    root = replace(QUAD, extra=cppc(highest=(166, 231), nominal=(90, 120))).grow(tmp_path)
    silent = root / CPUS / "cpu3/acpi_cppc/highest_perf"
    silent.unlink()
    silent.symlink_to("/proc/self/mem")  # reading its beginning fails
    assert {cpu.core_class for cpu in discover(root).cpus} == {None}


def test_dies(tmp_path: Path) -> None:
    topology = discover(replace(QUAD, dies=("0-3", "4-7")).grow(tmp_path))
    assert [cpu.die for cpu in topology.cpus] == [0] * 4 + [1] * 4


# What isn't the kernel's is an error that names the file and its value.

GARBAGE = "\x00\x7fELF\x01"
MALFORMED = (
    (f"{CPUS}/online", "0-"),
    (f"{CPUS}/online", ""),
    (f"{CPUS}/online", "0-99999999999"),
    (f"{CPUS}/online", GARBAGE),
    (f"{CPUS}/cpu1/topology/core_id", "one"),
    (f"{CPUS}/cpu1/topology/core_id", ""),
    (f"{CPUS}/cpu1/topology/core_id", "-2"),
    (f"{CPUS}/cpu1/topology/core_id", "1\x00"),
    (f"{CPUS}/cpu1/topology/physical_package_id", "99999999999999999999999"),
    (f"{CPUS}/cpu1/topology/die_id", "0x1"),
    (f"{CPUS}/cpu1/cpu_capacity", "fast"),
    (f"{CPUS}/cpu1/cache/index3/id", "4294967296"),
    (f"{CPUS}/cpu1/cache/index3/level", "three"),
    (f"{CPUS}/cpu0/cache/index3/size", "32 K"),
    (f"{CPUS}/cpu0/cache/index3/shared_cpu_map", "0000000g"),
    (f"{CPUS}/cpu0/cache/index3/shared_cpu_map", "f" * 100_000),
    (f"{CPUS}/cpu0/cache/index3/shared_cpu_map", ",".join(["ffffffff"] * 4000)),
    (f"{NODES}/node0/meminfo", "MemTotal: lots"),
    (f"{NODES}/node0/meminfo", "MemTotal: 99999999999999999999 kB"),
    (f"{NODES}/node0/distance", "10 twenty"),
    (f"{NODES}/node0/distance", ""),
    (f"{NODES}/node0/distance", "10"),
    (f"{NODES}/node1/distance", "21 10 21"),
    (f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages", "-1"),
    (f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages", "9223372036854775807"),
    (f"{CPUS}/cpu70000/online", "1"),
    (f"{NODES}/node70000/meminfo", "MemTotal: 1 kB"),
    ("proc/meminfo", GARBAGE),
    ("sys/devices/cpu_atom/cpus", "x"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "text"), MALFORMED, ids=[f"{path.rpartition('/')[2]} {text[:20]!r}" for path, text in MALFORMED]
)
def test_malformed_files_are_named(path: str, text: str, tmp_path: Path) -> None:
    root = QUAD.grow(tmp_path)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    with pytest.raises(SysfsError) as caught:
        discover(root)
    named = f"{root}/{path}"
    assert named == caught.value.path or named.startswith(f"{caught.value.path}/")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400 + len(str(root))
    assert caught.value.hint


def test_a_cpu_in_two_nodes_is_named(tmp_path: Path) -> None:
    root = replace(TWO, nodes=((0, "0-7"), (1, "3"))).grow(tmp_path)
    with pytest.raises(SysfsError, match=r"node1/cpu3: the CPU is in .*node0 already"):
        discover(root)


@pytest.mark.parametrize(
    ("directory", "name"),
    [(f"{NODES}/node0", "cpu4"), (CPUS, "cpu4"), (NODES, "node1"), (HUGEPAGES, "hugepages-2048kB")],
)
def test_a_name_that_an_edited_capture_lists_twice_is_named(directory: str, name: str, tmp_path: Path) -> None:
    sample = read_machine(str(TWO.grow(tmp_path)))
    listed = {**sample.directories, directory: (*sample.directories.get(directory, ()), name, name)}
    edited = SysfsSample(sample.files, listed, "node.json")
    with pytest.raises(SysfsError, match=f"node.json/{directory}/{name}: two names have the same number"):
        topology_of(edited)


def test_packages_that_are_nodes_need_node_numbers(tmp_path: Path) -> None:
    root = replace(ONE, nodes=(), extra=((f"{CPUS}/cpu3/topology/physical_package_id", "70000\n"),)).grow(tmp_path)
    with pytest.raises(SysfsError, match="cpu3/topology/physical_package_id: expected at most 65535"):
        discover(root)


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        ("empty", "empty/sys/devices/system/cpu: found no online CPU"),
        ("absent", "absent: there is no such directory"),
        ("file", "file: it is not a directory"),
    ],
)
def test_no_machine_here(root: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(SysfsError, match=problem) as caught:
        discover(tmp_path / root)
    assert "--root" in (caught.value.hint or "")


BASE = Machine(
    SMT[:2],
    ("0-1,4-5",),
    ((0, "0,4"), (1, "1,5")),
    (Cache(2, 2, "0-1,4-5", 0), Cache(3, 3, "0,4", 0), Cache(3, 3, "1,5", 1)),
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SysfsSample:
    return read_machine(str(BASE.grow(tmp_path_factory.mktemp("base"))))


VALUES = st.one_of(
    st.text(max_size=12), st.text(alphabet="0123456789-,xK \n\x00", max_size=12), st.integers(-5, 2**70).map(str)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share_of(200), deadline=None)
@given(choices=st.lists(st.tuples(st.integers(0, 10**6), st.none() | VALUES), min_size=1, max_size=4))
def test_any_file_may_hold_anything(sample: SysfsSample, choices: list[tuple[int, str | None]]) -> None:
    files = dict(sample.files)
    paths = sorted(files)
    for number, text in choices:
        path = paths[number % len(paths)]
        if text is None:
            files.pop(path, None)
        else:
            files[path] = text
    try:
        topology = topology_of(structs.replace(sample, files=MappingProxyType(files)))
    except SysfsError as err:
        assert err.path  # noqa: PT017  either answer is right, another exception isn't
    else:
        assert topology.online <= CpuSet.parse("0-1,4-5")
        assert all(cache.cpus <= CpuSet.parse("0-1,4-5") for cache in topology.caches)


# Reading: real directories and errnos.


@pytest.mark.parametrize(
    ("path", "spoil", "message"),
    [
        (f"{CPUS}/online", lambda file: file.mkdir(), "expected a regular file"),
        (f"{CPUS}/online", os.mkfifo, "expected a regular file"),
        (f"{CPUS}/online", lambda file: file.symlink_to("online"), os.strerror(errno.ELOOP)),
        (f"{CPUS}/online", lambda file: file.symlink_to("/dev/full"), "expected a regular file"),
        ("proc/cpuinfo", lambda file: file.mkdir(), "expected a regular file"),
        (f"{CPUS}/cpu0/cache", lambda file: file.write_text(""), os.strerror(errno.ENOTDIR)),
        (
            "proc/meminfo",
            lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), MAX_FILE_BYTES + 1),
            "at most",
        ),
    ],
    ids=["directory", "pipe", "loop", "device", "directory in /proc", "no directory", "huge"],
)
def test_unreadable_files_are_named(path: str, spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    root = TWO.grow(tmp_path)
    file = root / path
    file.unlink(missing_ok=True)
    spoil(file)
    with pytest.raises(SysfsError, match=message) as caught:
        read_machine(str(root))
    assert caught.value.path == str(file)


def test_absent_files_are_absent(tmp_path: Path) -> None:
    root = TWO.grow(tmp_path)
    for path in ("proc/cpuinfo", "proc/meminfo", f"{CPUS}/online"):
        (root / path).unlink()
    assert (
        not {"proc/cpuinfo", "proc/meminfo", f"{CPUS}/online", f"{CPUS}/cpu0/online"}
        & read_machine(str(root)).files.keys()
    )


def test_links_without_target_are_absent(tmp_path: Path) -> None:
    root = TWO.grow(tmp_path)
    (root / CPUS / "cpu0/cpufreq").symlink_to("../cpufreq/policy0")
    assert f"{CPUS}/cpu0/cpufreq" not in read_machine(str(root)).directories
    assert len(discover(root).cpus) == 8


Hook = Callable[[str], None]
_hooks: list[Hook] = []


def _audit(event: str, args: tuple[object, ...]) -> None:
    if _hooks and event in ("open", "os.listdir") and isinstance(args[0], str):
        hooks = _hooks[:]
        _hooks.clear()  # what the hook opens isn't its business
        for hook in hooks:
            hook(args[0])
        _hooks[:] = hooks


@cache
def _install_audit_hook() -> None:
    sys.addaudithook(_audit)  # can't be removed; it does nothing without hooks


@contextmanager
def on_access(hook: Hook) -> Iterator[None]:
    """Run the hook just before each file or directory is opened: hotplug at any chosen moment, on real directories."""
    _install_audit_hook()
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.clear()


def unplug(root: Path, cpu: int) -> None:
    """Take a CPU offline in the kernel's order: caches, online mask, topology."""
    directory = root / CPUS / f"cpu{cpu}"
    for part in ("cache", "topology"):
        for file in sorted((directory / part).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (directory / part).rmdir()
    online = CpuSet.parse((root / CPUS / "online").read_text().strip())
    (root / CPUS / "online").write_text(f"{online - CpuSet.of(cpu)}\n")


MOMENTS = (
    f"{CPUS}/online",
    f"{CPUS}/cpu0/topology/core_id",
    f"{CPUS}/cpu5/cache/index3/level",
    f"{CPUS}/cpu5/topology",
    f"{NODES}/node1",
)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("occurrence", [1, 2, 3])
def test_a_cpu_goes_offline_while_we_read(moment: str, occurrence: int, tmp_path: Path) -> None:
    root = BASE.grow(tmp_path)
    before, seen = discover(root), 0

    def hook(path: str) -> None:
        nonlocal seen
        seen += path == f"{root}/{moment}"
        if path == f"{root}/{moment}" and seen == occurrence:
            unplug(root, 5)

    with on_access(hook):
        topology = discover(root)
    after = discover(root)
    assert topology in (before, after)
    if occurrence == 1:  # later ones are beyond the end of what is read, for some moments
        assert topology == after != before


def test_a_machine_that_never_settles(tmp_path: Path) -> None:
    root = BASE.grow(tmp_path)
    texts, reads = ("0-1,4-5\n", "0-1,4\n"), 0

    def flap(path: str) -> None:
        nonlocal reads
        if path == f"{root}/{CPUS}/online":
            reads += 1
            (root / CPUS / "online").write_text(texts[reads % 3 % 2])

    with (
        on_access(flap),
        pytest.raises(
            SysfsError,
            match=f"cpu/online: CPUs went online or offline during each of {ATTEMPTS} attempts to read the machine",
        ),
    ):
        read_machine(str(root))
    assert reads == ATTEMPTS * 3


def test_a_file_that_is_listed_and_never_there(tmp_path: Path) -> None:
    root = BASE.grow(tmp_path)
    file = root / CPUS / "cpu4/topology/core_id"

    def hide(path: str) -> None:
        if path == str(file):
            file.unlink(missing_ok=True)
        else:
            file.write_text("1\n")

    with on_access(hide), pytest.raises(VanishedError) as caught:
        read_machine(str(root))
    assert caught.value.path == str(file)
