"""Discovery of captured machines, against what hwloc makes of them. Groups are compared, not ids: kernels number as they like."""

import argparse
import json
import os
import re
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.commands import topology as command
from nodeagent.cli.main import main
from nodeagent.cli.support.exit_status import EXIT_REFUSED
from nodeagent.core.model.devices import find_node_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quantity import Quantity
from nodeagent.edge.kernel.sysfs import read_devices, read_machine
from nodeagent.formats.kernel.pci_devices import devices_of
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.topology.topology_json import topology_from_document
from tests.support import json_schema
from tests.support.hwloc_rules import checked, mask

MACHINES = Path(__file__).resolve().parents[4] / "shared" / "machines"

if not MACHINES.is_dir():
    if os.environ.get("CI"):
        raise FileNotFoundError(f"the captured machines must be in {MACHINES}")
    pytest.skip(f"no captured machines in {MACHINES}", allow_module_level=True)

NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))
NEEDED = (
    "sys/devices/system/cpu",
    "sys/devices/system/node",
    "sys/devices/cpu_",
    "sys/kernel/mm/hugepages",
    "proc/cpuinfo",
    "proc/meminfo",
    "sys/bus/pci/",
    "sys/devices/pci",
)


@dataclass(frozen=True, slots=True)
class Deviation:
    machine: str
    field: str
    value: object
    """What discovery finds instead."""
    rule: str


CORE = "kubelet: CPUs of a node with equal core_id, physical_package_id, book_id and drawer_id are one core"
SOCKET = "kubelet: a socket is a physical_package_id; -1 is one too"
EVERY_SOCKET = "every CPU has a socket: where nothing is known, they share one"
NO_NODE = "kubelet: a CPU in no NUMA node's directory doesn't exist"
MEMORY_ONLY = "kubelet: a node has the CPUs in its directory, not those next to it"
MEMORY_OF_NODES = (
    "kubelet: without NUMA directories packages stand for nodes, without memory (the machine's is told apart)"
)
EXTRA_NODES = "kubelet: every node directory is a node, memory of accelerators too"

S390 = [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14], [15], [16], [17, 18, 19]]
ODD = [5, 7, 9, 11, 13, 15, 17, 19]
HETERO = [0, 1, 2, 3, *range(8, 24)]

DEVIATIONS = (
    Deviation("20s390-2g6s4c", "cores", S390, CORE),
    Deviation("20s390-2g6s4c", "packages", [list(range(20))], SOCKET),
    Deviation("20s390-2g6s4c", "numa.0.memory", 0, MEMORY_OF_NODES),
    Deviation("20s390-2g6s4c", "numa.0.hugepages", {}, MEMORY_OF_NODES),
    Deviation("256ppc-8n8s4t", "packages", [list(range(256))], SOCKET),
    Deviation("2i386-2c-nohugepage", "numa.0.memory", 0, MEMORY_OF_NODES),
    Deviation("2i386-2t-hugepagesizecount", "numa.0.memory", 0, MEMORY_OF_NODES),
    Deviation("2i386-2t-hugepagesizecount", "numa.0.hugepages", {}, MEMORY_OF_NODES),
    Deviation("2ps3-2t", "packages", [[0, 1]], EVERY_SOCKET),
    Deviation("fakeheterocpunuma", "cpus", HETERO, NO_NODE),
    Deviation("fakeheterocpunuma", "cores", [[cpu, cpu + 1] for cpu in HETERO[::2]], NO_NODE),
    Deviation("fakeheterocpunuma", "packages", [[0, 1, 2, 3, 8, 9, 10, 11], list(range(12, 24))], NO_NODE),
    Deviation("fakeheterocpunuma", "numa.2.cpus", [], MEMORY_ONLY),
    Deviation("fakeheterocpunuma", "numa.extra", "4-5", EXTRA_NODES),
    Deviation("fakeheteromemtiers", "numa.4.cpus", [], MEMORY_ONLY),
    Deviation("fakeheteromemtiers", "numa.6.cpus", [], MEMORY_ONLY),
    Deviation("fakeheteromemtiers", "numa.8.cpus", [], MEMORY_ONLY),
    Deviation("fakeheteromemtiers", "numa.9.cpus", [], MEMORY_ONLY),
    Deviation("nvidiagpunumanodes", "numa.extra", "250-255", EXTRA_NODES),
    Deviation("offline-cpu0-node0", "cpus", ODD, NO_NODE),
    Deviation("offline-cpu0-node0", "cores", [[cpu] for cpu in ODD], NO_NODE),
    Deviation("offline-cpu0-node0", "packages", [ODD], NO_NODE),
)
"""Every difference from hwloc's view, with its rule. One that no longer occurs fails the test."""

CACHES = {
    "128arm-2pa2n8cluster4co": "128 L1d of 1 CPU 64K, 128 L1i of 1 CPU 64K, 128 L2 of 1 CPU 512K",
    "16amd64-8n2c": "16 L1d of 1 CPU 64K, 16 L1i of 1 CPU 64K, 16 L2 of 1 CPU 1024K",
    "16em64t-4s2c2t": "8 L1d of 2 CPU 16K, 8 L2 of 2 CPU 1024K",
    "16em64t-4s2c2t-offlines": "2 L1d of 1 CPU 16K, 5 L1d of 2 CPU 16K, 2 L2 of 1 CPU 1024K, 5 L2 of 2 CPU 1024K",
    "20em64t-hybrid-1p6c2t+2ca4co1t": "8 L1d of 1 CPU 32K, 6 L1d of 2 CPU 48K, 8 L1i of 1 CPU 64K, 6 L1i of 2 CPU 32K, "
    "6 L2 of 2 CPU 1280K, 2 L2 of 4 CPU 2048K",
    "20s390-2g6s4c": "",
    "256ppc-8n8s4t": "64 L1d of 4 CPU 32K, 64 L1i of 4 CPU 32K, 64 L2 of 4 CPU 256K",
    "2i386-2c-nohugepage": "2 L1d of 1 CPU 32K, 2 L1i of 1 CPU 32K, 1 L2 of 2 CPU 4096K",
    "2i386-2t-hugepagesizecount": "1 L1d of 2 CPU 16K, 1 L2 of 2 CPU 2048K",
    "2ps3-2t": "",
    "40intel64-2g2n4c+pcilocality": "40 L1d of 1 CPU 32K, 40 L1i of 1 CPU 32K, 40 L2 of 1 CPU 256K",
    "48amd64-4pa2n6c-sparse": "48 L1d of 1 CPU 64K, 48 L1i of 1 CPU 64K, 48 L2 of 1 CPU 512K",
    "64amd64-4s2n4ca2co": "64 L1d of 1 CPU 16K, 32 L1i of 2 CPU 64K, 32 L2 of 2 CPU 2048K",
    "64fake-4n2s2ca2c2t": "32 L1d of 2 CPU 32K, 32 L1i of 2 CPU 32K, 16 L2 of 4 CPU 256K",
    "8em64t-2s4c-asymcaches": "5 L1d of 1 CPU 32K, 5 L1i of 1 CPU 32K, 3 L2 of 2 CPU 4096K",
    "96em64t-4no4pa3ca2co": "96 L1d of 1 CPU 32K, 96 L1i of 1 CPU 32K, 48 L2 of 2 CPU 3072K",
    "fakeheterocpunuma": "",
    "fakeheteromemtiers": "6 L1d of 1 CPU 32K, 6 L1i of 1 CPU 32K, 6 L2 of 1 CPU 4096K",
    "memorysidecaches": "40 L1d of 2 CPU 32K, 40 L1i of 2 CPU 32K, 40 L2 of 2 CPU 1024K",
    "nvidiagpunumanodes": "8 L1d of 4 CPU 32K, 8 L1i of 4 CPU 32K, 4 L2 of 8 CPU 512K",
    "offline-cpu0-node0": "17 L1d of 1 CPU 32K, 17 L1i of 1 CPU 32K, 17 L2 of 1 CPU 256K",
}
"""What lstopo 2.9 shows of caches beside those of level 3: how many serve so many CPUs."""


HYBRID = "20em64t-hybrid-1p6c2t+2ca4co1t"
KINDS = {
    HYBRID: ("12-19", "0-11"),
    "128arm-2pa2n8cluster4co": ("0-127",),
    "48amd64-4pa2n6c-sparse": ("0-47",),
    "fakeheterocpunuma": ("12-23", "0-7", "8-11"),
}
"""What lstopo --cpukinds 2.9 shows, slow ones first; of other machines nothing."""
KIND_DEVIATIONS = (
    Deviation(
        "fakeheterocpunuma",
        "kinds",
        [[0, 1, 2, 3, 8, 9, 10, 11], list(range(12, 24))],
        "capacity says more than frequencies do: hwloc, for which both count, can't say which of these are slow",
    ),
)


DEVICES = {
    "40intel64-2g2n4c+pcilocality": (
        "0000:02:00.0 0200 0-39 eth0, 0000:02:00.1 0200 0-39 eth1, 0000:03:00.0 0200 0-39 eth2, 0000:03:00.1 0200 0-39 eth3, "
        "0000:09:03.0 0300 0-39, 0000:43:00.0 0c06 0-39 ib0 qib0"
    ),
    "nvidiagpunumanodes": (
        "0004:05:00.0 0300 0-15, 0004:06:00.0 0300 0-15, 0006:00:00.0 0300 0-15, "
        "0007:00:00.0 0300 88-103, 0035:04:00.0 0300 88-103, 0035:05:00.0 0300 88-103"
    ),
}
"""What lstopo --whole-io 2.9 shows of devices of the kinds that count: class, CPUs of the box that it is in, network and InfiniBand names.
Of other machines nothing.
"""
NODES_OF_DEVICES = {
    "40intel64-2g2n4c+pcilocality": "0000:43:00.0 2 other local CPUs",
    "nvidiagpunumanodes": (
        "0004:05:00.0 0 by its local CPUs, 0004:06:00.0 0 by its local CPUs, 0006:00:00.0 0 by its local CPUs, "
        "0007:00:00.0 8 by its local CPUs, 0035:04:00.0 8 by its local CPUs, 0035:05:00.0 8 by its local CPUs"
    ),
}
"""Where the kernel's numa_node says more than hwloc, which goes by local CPUs alone; and where these are one node's."""


@pytest.fixture(scope="module", params=NAMES)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Name and root of an unpacked machine."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("machine")
    with tarfile.open(MACHINES / f"{name}.tar.bz2") as archive:
        wanted = [member for member in archive if member.name.partition("/")[2].startswith(NEEDED)]
        archive.extractall(folder, wanted, filter="data")
    (root,) = folder.iterdir()
    return name, root


def expected(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((MACHINES / f"{name}.json").read_text())
    return document


def groups(cpus: list[dict[str, Any]], key: str) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for cpu in cpus:
        if key in cpu:
            found.setdefault(cpu[key], []).append(cpu["id"])
    return sorted(sorted(members) for members in found.values())


def hugepages(page_types: dict[str, int]) -> dict[int, int]:
    """Bytes by page size, without the base pages."""
    sizes = {int(size): count for size, count in page_types.items()}
    return {size: size * count for size, count in sizes.items() if size != min(sizes)}


def by_size(amounts: dict[str, int]) -> dict[int, int]:
    return {Quantity.parse(name.removeprefix("hugepages-")).value(): amount for name, amount in amounts.items()}


def view(document: dict[str, Any]) -> dict[str, object]:
    """The printed document, field by field, in the form of hwloc's view."""
    cpus = document["topology"]["cpus"]
    fields: dict[str, object] = {
        "cpus": sorted(cpu["id"] for cpu in cpus),
        "cores": groups(cpus, "core"),
        "packages": groups(cpus, "socket"),
        "l3": sorted(list(CpuSet.parse(text)) for text in document["l3"]),
    }
    for node in document["numa"]:
        fields[f"numa.{node['id']}.cpus"] = sorted(cpu["id"] for cpu in cpus if cpu["numa"] == node["id"])
        fields[f"numa.{node['id']}.memory"] = node["memory"]
        fields[f"numa.{node['id']}.hugepages"] = by_size(node["hugepages"])
    return fields


def hwloc_view(document: dict[str, Any]) -> dict[str, object]:
    fields: dict[str, object] = {key: sorted(document[key]) for key in ("cpus", "cores", "packages", "l3")}
    for number, node in document["numa"].items():
        fields[f"numa.{number}.cpus"] = sorted(node["cpus"])
        fields[f"numa.{number}.memory"] = node["memory"]
        fields[f"numa.{number}.hugepages"] = hugepages(node["page_types"])
    return fields


def differences(name: str, document: dict[str, Any]) -> dict[str, object]:
    ours, theirs = view(document), hwloc_view(expected(name))
    known = {int(number) for number in expected(name)["numa"]}
    extra = CpuSet.from_ids(node["id"] for node in document["numa"] if node["id"] not in known)
    found = {field: ours.get(field) for field, value in theirs.items() if ours.get(field) != value}
    return found | ({"numa.extra": str(extra)} if extra else {})


def printed(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--root", str(root), "-o", "json", *words])) == 0
    answer = capsys.readouterr()
    assert answer.err == ""
    document: dict[str, Any] = json.loads(answer.out)
    return document


def test_machine_is_discovered_as_hwloc_has_it(machine: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, root = machine
    document = printed(root, capsys)
    assert differences(name, document) == {row.field: row.value for row in DEVIATIONS if row.machine == name}


def test_printed_document_is_the_machine(machine: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, root = machine
    document = printed(root, capsys)
    assert topology_from_document(document) == topology_of(read_machine(str(root)))
    json_schema.check(document, "topology")


def test_caches_are_as_lstopo_shows_them(machine: tuple[str, Path]) -> None:
    name, root = machine
    caches = topology_of(read_machine(str(root))).caches
    found = Counter((cache.name, len(cache.cpus), (cache.size_bytes or 0) // 1024) for cache in caches)
    words = (f"{count} {kind} of {cpus} CPU {size}K" for (kind, cpus, size), count in sorted(found.items()))
    assert ", ".join(words) == CACHES[name]


def test_memory_of_the_whole_machine(machine: tuple[str, Path]) -> None:
    name, root = machine
    topology = topology_of(read_machine(str(root)))
    if not (root / "sys/devices/system/node").is_dir():
        node = expected(name)["numa"]["0"]
        assert topology.memory_bytes == node["memory"]
        assert by_size(dict(topology.hugepages)) == hugepages(node["page_types"])
    else:
        assert topology.memory_bytes > 0


@pytest.mark.parametrize("output", ["text", "yaml"])
def test_drawing_fits_80_columns_and_shows_every_cpu(
    machine: tuple[str, Path], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, root = machine
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--root", str(root), "-o", output])) == 0
    text = capsys.readouterr().out
    if output == "text":
        assert max(map(len, text.splitlines())) <= 80
        words = text.replace("[", " ").replace("]", " ").split()
        assert {str(cpu.id) for cpu in topology_of(read_machine(str(root))).cpus} <= set(words)
    else:
        assert text.startswith("caches:")


def test_lstopo_is_given_what_hwloc_demands(machine: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, root = machine
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--root", str(root), "-o", "hwloc-xml"])) == 0
    written = checked(capsys.readouterr().out)
    topology = topology_of(read_machine(str(root)))
    assert sum(box.get("type") == "PU" for box in written.iter("object")) == len(topology.cpus)
    assert sum(box.get("type") == "NUMANode" for box in written.iter("object")) == len(topology.numa)
    shown = [box for box in written.iter("object") if re.fullmatch(r"L[12]i?Cache", box.get("type", ""))]
    assert {(mask(box.get("cpuset", "")), box.get("depth"), box.get("cache_size")) for box in shown} == {
        (cpus.bits, str(cache.level), str(cache.size_bytes))
        for cache in topology.caches
        if (cpus := cache.cpus & topology.online)
    }


def test_picture_shows_every_cpu(machine: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, root = machine
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--root", str(root), "-o", "svg"])) == 0
    text = capsys.readouterr().out
    topology = topology_of(read_machine(str(root)))
    drawn = [int(number) for number in re.findall(r"<title>CPU (\d+): ", text)]
    assert sorted(drawn) == sorted(topology.online | topology.offline)


def test_deviations_are_about_machines_that_exist() -> None:
    assert {row.machine for row in DEVIATIONS} <= set(NAMES)
    assert len(NAMES) >= 20
    assert len({(row.machine, row.field) for row in DEVIATIONS}) == len(DEVIATIONS)


def test_devices_are_where_lstopo_has_them(machine: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, root = machine
    topology, devices = topology_of(read_machine(str(root))), devices_of(read_devices(str(root)))
    shown = []
    for device in devices:
        assert device.local_cpus is not None
        words = (
            device.address,
            f"{device.class_code >> 8:04x}",
            str(device.local_cpus & topology.online),
            *device.names,
        )
        shown.append(" ".join(words))
    assert ", ".join(shown) == DEVICES.get(name, "")
    places = {device.address: find_node_of(device, topology) for device in devices}
    said = (f"{at} {place.node} {place.doubt}" for at, place in places.items() if place.node is not None)
    assert ", ".join(said) == NODES_OF_DEVICES.get(name, "")
    document = printed(root, capsys, "--devices")
    json_schema.check(document, "topology")
    assert [each["address"] for each in document["devices"]] == [device.address for device in devices]
    assert topology_from_document(document) == topology, "what else is in it doesn't matter"


@pytest.mark.parametrize("output", ["text", "svg"])
def test_each_device_is_drawn(machine: tuple[str, Path], output: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, root = machine
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--root", str(root), "-o", output, "--devices"])) == 0
    text = capsys.readouterr().out
    drawn = set(re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text))
    assert drawn == {device.address for device in devices_of(read_devices(str(root)))}
    assert ("devices: none" in text) is (name not in DEVICES)
    if output == "text":
        assert max(map(len, text.splitlines())) <= 80


def classes(root: Path) -> list[list[int]]:
    """CPUs by class, slow ones first; those of a machine with one kind of cores are together."""
    topology = topology_of(read_machine(str(root)))
    found = [[c.id for c in topology.cpus if c.core_class == name] for name in (None, "efficiency", "performance")]
    return [cpus for cpus in found if cpus]


def test_kinds_of_cores_are_hwlocs(machine: tuple[str, Path]) -> None:
    name, root = machine
    ours = classes(root)
    kinds = [list(CpuSet.parse(text)) for text in KINDS.get(name, ())]
    deviation = next((row for row in KIND_DEVIATIONS if row.machine == name), None)
    if deviation is not None:
        assert ours != kinds
        assert ours == deviation.value
    elif kinds:
        assert ours == kinds
    else:
        assert len(ours) == 1, "hwloc knows of no kinds"


CLASSED = """\
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {nodeagent.io/%s: %s}}
spec: {containers: [{name: app, resources: {limits: {cpu: "%d", memory: 1Gi}}}]}
---
"""


def test_pods_are_simulated_on_the_hybrid_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(MACHINES / f"{HYBRID}.tar.bz2") as archive:
        archive.extractall(tmp_path, filter="data")
    config, pods = tmp_path / "config.yaml", tmp_path / "pods.yaml"
    config.write_text(
        "cpuManagerPolicy: static\nreservedSystemCPUs: '12'\ntopologyManagerPolicy: single-numa-node\ncheckAllocatable: false\n"
        "exclusiveCoreClass: performance\nsharedCoreClass: efficiency\n"
    )
    asked = [
        ("fast", "core-class", "performance", 8),
        ("faster", "core-class", "performance", 8),
        ("wishes", "preferred-core-class", "performance", 4),
        ("small", "core-class", "efficiency", 3),
        ("smaller", "preferred-core-class", "efficiency", 4),
        ("late", "preferred-core-class", "performance", 2),
    ]
    pods.write_text("".join(CLASSED % each for each in asked))
    words = ["simulate", "-f", str(pods), "--root", str(tmp_path / HYBRID), "--config", str(config), "-o", "json"]
    assert main(words) == EXIT_REFUSED
    document = json.loads(capsys.readouterr().out)
    json_schema.check(document, "simulation")
    given = {p["name"]: [(c["cpus"], c["coreClasses"]) for c in p["containers"]] for p in document["pods"]}
    assert given == {
        "fast": [("0-7", ["performance"])],
        "faster": [],
        "wishes": [("8-11", ["performance"])],
        "small": [("13-15", ["efficiency"])],
        "smaller": [("16-19", ["efficiency"])],
        "late": [],
    }
    assert document["shared"] == "12"


def test_a_hybrid_machine_is_known_by_its_performance_too(tmp_path: Path) -> None:
    """Guests and copied roots lack the frequencies that hwloc goes by."""
    with tarfile.open(MACHINES / f"{HYBRID}.tar.bz2") as archive:
        archive.extractall(tmp_path, filter="data")
    for file in (tmp_path / HYBRID).glob("sys/devices/system/cpu/cpufreq/policy*/base_frequency"):
        file.unlink()
    assert classes(tmp_path / HYBRID) == [list(CpuSet.parse(text)) for text in KINDS[HYBRID]]
