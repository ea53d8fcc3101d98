"""The node follows the machine: what is looked at, and what becomes of reserved CPUs."""

from pathlib import Path

import pytest

from nodeagent.core.admission.managers import Admitted, admit, initial, resume, shortfalls
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.violations import CpusOffline
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.daemon.start.node_builder import load_node
from nodeagent.daemon.start.startup import StartError
from nodeagent.daemon.turn.machine import Machine
from nodeagent.edge.kernel.sysfs import read_fingerprint_files, read_machine
from nodeagent.formats.kernel.machine_fingerprint import fingerprint_of
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from tests.support.machine_tree import CPUS, NODES, Machine as Tree
from tests.support.pods import app, pod

TREE = Tree(cores=("0,4", "1,5", "2,6", "3,7"), packages=("0-7",), nodes=((0, "0-7"),))
NODE_FILES = {
    f"{NODES}/node0/cpulist": "0-7\n",
    f"{NODES}/node0/meminfo": "Node 0 MemTotal:       2097152 kB\nNode 0 MemFree:        1000 kB\n",
    f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
    "proc/meminfo": "MemTotal:       2097152 kB\nMemFree:        1000 kB\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    TREE.grow(tmp_path)
    for path, text in NODE_FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        (f"{CPUS}/online", "0-7", "0-6"),
        (f"{NODES}/node0/cpulist", "0-7", "0-6"),
        (f"{NODES}/node0/meminfo", "2097152", "2097148"),
        (f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages", "4", "5"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4", "5"),
        ("proc/meminfo", "2097152", "2097148"),
    ],
)
def test_each_change_shows_in_the_witness(root: Path, path: str, before: str, after: str) -> None:
    was = fingerprint_of(read_fingerprint_files(str(root)))
    text = (root / path).read_text()
    assert before in text
    (root / path).write_text(text.replace(before, after))
    assert fingerprint_of(read_fingerprint_files(str(root))) != was


def test_free_memory_is_no_change(root: Path) -> None:
    was = fingerprint_of(read_fingerprint_files(str(root)))
    for path in ("proc/meminfo", f"{NODES}/node0/meminfo"):
        (root / path).write_text((root / path).read_text().replace("1000", "999"))
    assert fingerprint_of(read_fingerprint_files(str(root))) == was


def test_an_unchanged_machine_is_not_read_again(root: Path) -> None:
    machine = Machine(str(root))
    topology = topology_of(read_machine(str(root)))
    assert machine.look(topology) == topology
    (root / f"{CPUS}/cpu0/topology/core_id").unlink()  # only a full reading would see it
    assert machine.look(topology) is topology


def test_a_reading_that_failed_is_done_again(root: Path) -> None:
    machine = Machine(str(root))
    core = root / f"{CPUS}/cpu0/topology/core_id"
    text = core.read_text()
    core.write_text("none\n")
    known = Topology.of([], [])
    with pytest.raises(SysfsError, match="core_id"):
        machine.look(known)
    core.write_text(text)
    assert machine.look(known).online == CpuSet.parse("0-7")


def on(
    root: Path, offline: str, config: Config, reserved: CpuSet | None = None
) -> NodeSetup | tuple[StartRefused, ...]:
    whole = topology_of(read_machine(str(root)))
    gone = CpuSet.parse(offline)
    topology = Topology.of((c for c in whole.cpus if c.id not in gone), whole.numa, offline=gone)
    return on_machine(config, topology, reserved)


def static(reserved: str) -> Config:
    return Config(placement=Placement(cpu_manager_policy="static", reserved_system_cpus=CpuSet.parse(reserved)))


def test_reserved_cpus_go_and_come_back_and_no_others_take_their_place(root: Path) -> None:
    start = on(root, "", static("0,4"))
    assert isinstance(start, NodeSetup)
    less = on(root, "4", start.config, start.reserved)
    assert isinstance(less, NodeSetup)
    assert less.managers.reserved == CpuSet.parse("0")
    assert less.reserved == CpuSet.parse("0,4"), "what is reserved when all are there"
    again = on(root, "", less.config, less.reserved)
    assert isinstance(again, NodeSetup)
    assert again.managers.reserved == CpuSet.parse("0,4")


def test_a_start_without_a_reserved_cpu_that_is_offline(root: Path) -> None:
    node = on(root, "4", static("0,4"))
    assert isinstance(node, NodeSetup)
    assert node.managers.reserved == CpuSet.parse("0")


@pytest.mark.parametrize(
    ("reserved", "text"),
    [
        ("4", "all reserved CPUs (4) are offline"),
        ("0,99", "reserved-cpus: 0,99 is not a subset of online-cpus: 0-3,5-7"),
    ],
)
def test_reserved_cpus_that_cannot_be(root: Path, reserved: str, text: str) -> None:
    found = on(root, "4", static(reserved))
    assert isinstance(found, tuple)
    (refused,) = found
    assert refused.message == text
    assert refused.about == "reservedSystemCPUs"


def test_where_only_reserved_cpus_are_left_online_the_agent_goes_on_and_starts(root: Path) -> None:
    for reserved in (None, CpuSet.parse("0,4")):
        assert isinstance(on(root, "1-3,5-7", static("0,4"), reserved), NodeSetup)
    refused = on(root, "1-3,5-7", static("0-7"))
    assert isinstance(refused, tuple)
    assert [each.about for each in refused] == ["reservedSystemCPUs"]


def test_an_amount_that_is_reserved_stays_where_it_was(root: Path) -> None:
    start = on(root, "", static("0,4"))
    assert isinstance(start, NodeSetup)
    decision = admit(start.managers, initial(start.managers), pod("a", app(cpu="2"), uid="a"))
    assert isinstance(decision, Admitted)
    promises = decision.promises
    assert own_set_of(promises, "a", "app") == CpuSet.parse("1,5")
    less = on(root, "0,1", start.config, start.reserved)
    assert isinstance(less, NodeSetup)
    assert less.managers.reserved == CpuSet.parse("4")
    after = resume(less.managers, promises)
    assert not isinstance(after, StartRefused)
    assert own_set_of(after, "a", "app") == CpuSet.parse("1,5"), "it stays promised"
    assert default_set(after) == CpuSet.parse("2-4,6,7")
    assert shortfalls(less.managers, after) == (CpusOffline("a", "app", CpuSet.parse("1"), CpuSet.parse("1,5")),)


def test_all_that_the_machine_refuses_is_reported_at_once_with_lines(root: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "cpuManagerPolicy: static\n"
        "systemReserved: {cpu: '100'}\n"
        "topologyManagerPolicy: restricted\n"
        "topologyManagerPolicyOptions: {no-such: 'true'}\n"
        "memoryManagerPolicy: Static\n"
        "reservedMemory:\n- numaNode: 7\n  limits: {memory: 1Gi}\n"
    )
    with pytest.raises(StartError) as refused:
        load_node(str(config), str(root))
    lines = refused.value.message.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{config}:2", "systemReserved"],
        [f"{config}:4", "topologyManagerPolicyOptions[no-such]"],
        [f"{config}:6", "reservedMemory"],
        [f"{config}:7", "reservedMemory[0]"],
    ]
    assert "cannot reserve 100 CPUs" in lines[0]
