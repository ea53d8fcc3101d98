"""The drawing: exact for a small machine, legible and within 80 columns for large ones, every CPU once, with its owner's mark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.views.topology.text import make_terminal_paint, render_topology


def machine(sockets: int, nodes: int, caches: int, cores: int, threads: int) -> Topology:
    """Nodes per socket, caches per node, cores per cache, threads per core; siblings are numbered as on x86."""
    total = sockets * nodes * caches * cores
    cpus = [
        Cpu(
            core + thread * total,
            core=core,
            socket=core // (nodes * caches * cores),
            numa=core // (caches * cores),
            uncore=core // cores if caches > 1 else None,
        )
        for core in range(total)
        for thread in range(threads)
    ]
    count = sockets * nodes
    numa = [
        NumaNode(n, 64 * 2**30, (("hugepages-2Mi", 2**30),), tuple(10 if n == other else 21 for other in range(count)))
        for n in range(count)
    ]
    groups = [
        CpuSet.from_ids(core + thread * total for core in range(first, first + cores) for thread in range(threads))
        for first in range(0, total, cores)
    ]
    return Topology.of(cpus, numa, l3=groups, offline=CpuSet.of(5000))


def test_small_machine_with_owners() -> None:
    topology = machine(2, 1, 2, 1, 2)
    owner = {
        0: "reserved",
        4: "reserved",
        1: "default/web/main",
        5: "default/web/main",
        2: "shared",
        6: "shared",
        3: "shared",
    }
    assert render_topology(topology, owner) == (
        "8 CPUs in 4 cores, 2 sockets, 2 NUMA nodes, 128.0 GiB, hugepages-2Mi 2.0 GiB\n"
        "\n"
        "socket 0\n"
        "  NUMA node 0: 64.0 GiB, hugepages-2Mi 1.0 GiB\n"
        "    L3 #0, uncore cache 0\n"
        "      [0# 4#]\n"
        "    L3 #1, uncore cache 1\n"
        "      [1A 5A]\n"
        "\n"
        "socket 1\n"
        "  NUMA node 1: 64.0 GiB, hugepages-2Mi 1.0 GiB\n"
        "    L3 #2, uncore cache 2\n"
        "      [2. 6.]\n"
        "    L3 #3, uncore cache 3\n"
        "      [3. 7 ]\n"
        "\n"
        "offline CPUs: 5000\n"
        "\n"
        "distances between NUMA nodes\n"
        "      0   1\n"
        "  0  10  21\n"
        "  1  21  10\n"
        "\n"
        "owners\n"
        "  #  reserved          0,4\n"
        "  .  shared            2-3,6\n"
        "  A  default/web/main  1,5\n"
    )


SHAPES = (
    (1, 1, 1, 2, 1),
    (1, 1, 1, 1, 2),
    (2, 1, 1, 28, 2),
    (1, 4, 2, 8, 2),
    (2, 4, 2, 16, 2),
    (8, 1, 1, 32, 2),
    (16, 1, 1, 16, 2),
    (4, 4, 1, 16, 2),
    (1, 1, 1, 64, 8),
    (1, 1, 1, 1, 64),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("owners", [0, 1, 3, 40])
def test_every_cpu_once_within_80_columns(shape: tuple[int, int, int, int, int], owners: int) -> None:
    topology = machine(*shape)
    owner = {cpu.id: f"default/pod-{cpu.id % owners}/container" for cpu in topology.cpus} if owners else {}
    text = render_topology(topology, owner)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"[ \t]$", text, re.MULTILINE)
    cells = " ".join(re.findall(r"^ {6,}[ \[].*$", text.split("\noffline")[0], re.MULTILINE))
    drawn = [int(number) for number in re.findall(r"[0-9]+", cells)]
    assert sorted(drawn) == [cpu.id for cpu in topology.cpus]
    assert text.count("[") == text.count("]") == len(topology.cores)


@pytest.mark.parametrize("owners", [1, 26, 27, 700])
def test_marks_are_different_and_explained(owners: int) -> None:
    topology = machine(2, 4, 1, 64, 2)
    owner = {cpu.id: f"pod-{cpu.id % owners}" for cpu in topology.cpus}
    legend = render_topology(topology, owner).partition("\nowners\n")[2]
    rows = [line.split() for line in legend.splitlines() if line.strip() and not line.startswith("   ")]
    marks = [row[0] for row in rows]
    assert len(marks) == len(set(marks)) == owners
    assert {label for _, label, *_ in rows} == set(owner.values())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_long_labels_are_whole(width: int) -> None:
    owner = {n: f"default/a-service-with-quite-a-long-name-{n:03} app" for n in range(2)}
    text = render_topology(machine(1, 1, 1, 2, 1), owner, width)
    assert max(map(len, text.splitlines())) <= width
    legend = text.partition("\nowners\n")[2]
    assert ("\n  B " in legend, len(legend.splitlines()) == 2) == (True, width >= 80)
    words = "".join(re.sub(r"  [01]$", "", line).strip() for line in legend.splitlines()).replace(" ", "")
    assert all(label.replace(" ", "") in words for label in owner.values())


def test_what_has_no_place_in_the_drawing() -> None:
    cpus = [Cpu(0, core=0, socket=0, numa=0), Cpu(1, core=1, socket=1, numa=0)]
    topology = Topology.of(cpus, [NumaNode(0, 1023), NumaNode(9, 3 * 2**40)], skipped=CpuSet.of(7))
    text = render_topology(topology)
    assert text.count("NUMA node 0: 1023 B, spans 2 sockets") == 2
    assert "NUMA node 9: 3.0 TiB, no CPUs" in text
    assert "unused CPUs, whose core or NUMA node is unknown: 7" in text
    assert "no L3" in text
    assert "distances" not in text


def test_hybrid_cores_are_drawn_apart() -> None:
    classes = ["performance", "performance", "efficiency"]
    cpus = [Cpu(cpu, core=cpu, socket=0, numa=0, core_class=name) for cpu, name in enumerate(classes)]
    text = render_topology(Topology.of(cpus, [NumaNode(0, 0)], l3=[CpuSet.parse("0-2")]))
    assert "L3 #0, performance cores\n      [0] [1]\n    L3 #0, efficiency cores\n      [2]\n" in text


def test_caches_have_their_size_where_it_is_known() -> None:
    cpus = [Cpu(cpu, core=cpu, socket=0, numa=0, uncore=cpu, l3_bytes=2**25 if cpu else None) for cpu in range(2)]
    text = render_topology(Topology.of(cpus, [NumaNode(0, 0)], l3=[CpuSet.of(0), CpuSet.of(1)]))
    assert "    L3 #0, uncore cache 0\n      [0]\n    L3 #1, 32.0 MiB, uncore cache 1\n      [1]\n" in text


def pair(number: int, *caches: Cache) -> Topology:
    """Give two cores of two threads."""
    cpus = [Cpu(cpu, core=cpu // 2 * 2, socket=0, numa=0) for cpu in range(number)]
    return Topology.of(cpus, [NumaNode(0, 0)], caches=caches)


def test_caches_that_every_core_has_are_reported_once() -> None:
    cores = [CpuSet.parse("0-1"), CpuSet.parse("2-3")]
    caches = [
        Cache(level, kind, core, 2**15)
        for core in cores
        for level, kind in ((1, "instruction"), (1, "data"), (2, "unified"))
    ]
    text = render_topology(pair(4, *caches))
    assert text.startswith(
        "4 CPUs in 2 cores, 1 socket, 1 NUMA node, 0 B\nL2 32.0 KiB, L1d 32.0 KiB and L1i 32.0 KiB per core\n"
    )
    assert "    no L3\n      [0 1] [2 3]\n" in text


def test_cores_that_share_a_cache_are_drawn_together() -> None:
    two = [Cache(2, "unified", CpuSet.parse(cpus), 2**22) for cpus in ("0-3", "4-7")]
    assert "    L2 #0, 4.0 MiB\n      [0 1] [2 3]\n    L2 #1, 4.0 MiB\n      [4 5] [6 7]\n" in render_topology(
        pair(8, *two)
    )


def test_caches_that_differ_are_reported_where_they_are() -> None:
    text = render_topology(
        pair(6, Cache(2, "unified", CpuSet.parse("0-3")), *(Cache(1, "data", CpuSet.of(cpu), 2**14) for cpu in (2, 3)))
    )
    assert "    L2 #0\n      [0 1]\n    L2 #0, L1d 16.0 KiB per CPU\n      [2 3]\n    no L3\n      [4 5]\n" in text


def test_dies_are_named_where_there_are_several() -> None:
    cpus = [Cpu(cpu, core=cpu, socket=0, numa=0, die=cpu) for cpu in range(2)]
    assert "die 0, no L3\n      [0]\n    die 1, no L3\n      [1]\n" in render_topology(
        Topology.of(cpus, [NumaNode(0, 0)])
    )


def test_too_many_nodes_for_a_matrix() -> None:
    assert "too many for this width" in render_topology(machine(40, 1, 1, 1, 1))


def test_colours_change_nothing_but_the_colour() -> None:
    topology = machine(2, 4, 2, 8, 2)
    owner = {cpu.id: f"default/pod-{cpu.id % 11} app" for cpu in topology.cpus if cpu.id % 3} | {
        0: "reserved",
        3: "shared",
    }
    coloured = render_topology(topology, owner, paint=make_terminal_paint(owner))
    assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == render_topology(topology, owner)
    assert coloured.count("\x1b[0m") == len(owner) + len(set(owner.values()))


def test_containers_of_one_pod_have_one_colour() -> None:
    paint = make_terminal_paint({0: "default/web app", 1: "default/web side", 2: "default/db app", 3: "reserved"})
    first, second, third, fourth, none = (
        paint(label, "x") for label in ("default/web app", "default/web side", "default/db app", "reserved", "")
    )
    assert first == second
    assert len({first, third, fourth, none}) == 4
    assert none == "x"


@pytest.mark.parametrize("form", ["text", "json", "svg"])
def test_output_that_cannot_be_written_is_one_error(form: str) -> None:
    words = [sys.executable, "-m", "nodeagent", "topology", "--topology", "2s.2c", "-o", form]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    first, hint = done.stderr.splitlines()
    assert first == "nodeagent: cannot write the output: No space left on device"
    assert hint.startswith("hint: ")


def test_nodes_without_cpus_and_memory_are_one_line() -> None:
    topology = topology_from_spec("2s.2c")
    more = [NumaNode(number, 2**30 if number == 7 else 0) for number in range(2, 34)]
    text = render_topology(Topology.of(topology.cpus, [*topology.numa, *more]))
    assert "NUMA node 7: 1.0 GiB, no CPUs\nNUMA nodes 2-6,8-33: no CPUs and no memory\n" in text
    one = render_topology(Topology.of(topology.cpus, [*topology.numa, NumaNode(2, 0)]))
    assert "NUMA node 2: no CPUs and no memory\n" in one
