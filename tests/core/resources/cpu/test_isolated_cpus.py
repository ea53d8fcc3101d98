"""CPUs isolated at boot: which of them exclusive containers get under `isolatedCPUs`."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, build, initial
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.topology.topology_json import topology_document, topology_from_document
from nodeagent.views.topology.text import render_topology
from tests.support.machine_tree import CPUS, Machine
from tests.support.pods import app, pod

MACHINE = Topology.of(
    (Cpu(id=c, core=c % 8, socket=c % 8 // 4, numa=c % 8 // 4) for c in range(16)), (NumaNode(n, 2**30) for n in (0, 1))
)
"""2 sockets, each a NUMA node of 4 cores; siblings are c and c+8."""


def made(isolated: str, rule: str, **more: Any) -> Managers:
    topology = replace(MACHINE, isolated=CpuSet.parse(isolated))
    given: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": CpuSet.of(0)} | more
    found = build(topology, Placement(isolated_cpus=rule, **given))
    assert isinstance(found, Managers), found
    return found


def given(managers: Managers, *counts: int) -> list[str]:
    """The CPUs of pods that come one after the other; a refusal is its reason."""
    promises, sets = initial(managers), []
    for number, count in enumerate(counts):
        decision = admit(managers, promises, pod(f"p{number}", app(cpu=str(count)), uid=f"u{number}"))
        promises = decision.promises
        if isinstance(decision, Rejected):
            sets.append(str(decision.reason))
        else:
            assert isinstance(decision, Admitted)
            sets.append(str(own_set_of(promises, f"u{number}", "app")))
    return sets


@pytest.mark.parametrize(
    ("rule", "counts", "expected"),
    [
        ("ignore", (2, 4), ["1,9", "2-3,10-11"]),
        ("prefer", (2, 4), ["6,14", "4-5,12-13"]),
        ("prefer", (2, 2, 2), ["6,14", "7,15", "4,12"]),
        ("only", (2, 4), ["6,14", "UnexpectedAdmissionError"]),
        ("only", (4, 1), ["6-7,14-15", "UnexpectedAdmissionError"]),
    ],
)
def test_who_gets_isolated_cpus(rule: str, counts: tuple[int, ...], expected: list[str]) -> None:
    assert given(made("6-7,14-15", rule), *counts) == expected


def test_nearness_is_worth_more_than_isolation() -> None:
    """Node 0 has CPUs 0-3 and 8-11, and 2 isolated ones; node 1 has 1: two CPUs of one node are taken on node 0."""
    managers = made("2,10,6", "prefer", topology_manager_policy="single-numa-node")
    assert given(managers, 2, 2) == ["2,10", "1,9"]


def test_hints_know_what_may_be_given() -> None:
    managers = made("2,10,6,14", "only", topology_manager_policy="single-numa-node")
    assert given(managers, 2, 2, 2) == ["2,10", "6,14", "TopologyAffinityError"]
    assert given(managers, 4) == ["TopologyAffinityError"]


def test_whole_cores_stay_whole() -> None:
    managers = made("2,10,6", "prefer", cpu_manager_policy_options=(("full-pcpus-only", "true"),))
    assert given(managers, 2, 2) == ["2,10", "1,9"], "half a core is not preferred"


def test_a_reserved_cpu_is_given_to_nobody_though_it_is_isolated() -> None:
    assert given(made("0,1", "only"), 1, 1) == ["1", "UnexpectedAdmissionError"]


@pytest.mark.parametrize(("text", "cpus"), [("6-7\n", "6-7"), ("\n", ""), (" (null)\n", ""), ("\0\n", "")])
def test_the_kernels_files_are_read(tmp_path: Path, text: str, cpus: str) -> None:
    Machine(cores=("0,4", "1,5", "2,6", "3,7"), packages=("0-7",), nodes=((0, "0-7"),)).grow(tmp_path)
    (tmp_path / CPUS / "nohz_full").write_text(text)
    (tmp_path / CPUS / "isolated").write_text(text.replace(" (null)", "").replace("\0", ""))
    topology = topology_of(read_machine(str(tmp_path)))
    assert (topology.isolated, topology.nohz_full) == (CpuSet.parse(cpus), CpuSet.parse(cpus))
    assert topology_from_document(topology_document(topology)) == topology
    assert ("isolated CPUs (isolcpus): 6-7" in render_topology(topology, None)) == bool(cpus)


def test_a_machine_says_nothing_of_them_by_default() -> None:
    assert Topology.of([], []).isolated == CpuSet()
