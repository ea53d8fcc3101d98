"""`nodeagent topology -o resourceslice`: what an API server would take, with the attributes that the field's drivers have."""

import pytest
from msgspec.structs import replace

from nodeagent.core.model.devices import Device, DeviceKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.tools.export.resource_slices import resource_slices
from tests.support.builders import machine
from tests.support.resource_slice_rules import checked
from tests.support.world import MACHINE, SMALL

CARD = Device(
    "0000:3b:00.0",
    DeviceKind.NETWORK,
    0x020000,
    0x8086,
    0x1592,
    "ice",
    ("eth0", "rdma0"),
    1,
    CpuSet.parse("4-7,20-23"),
    root="pci0000:3a",
)
BARE = Device("0001:ff:1f.7", DeviceKind.GPU, 0x030200)


def test_cpus_have_what_dra_driver_cpu_says_of_each() -> None:
    cpus = checked(resource_slices("node01", MACHINE, CpuSet.parse("0,16"), ()))["dra.cpu"]
    assert len(cpus) == 30, "the reserved ones are nobody's"
    assert cpus["cpudev021"] == {
        "dra.cpu/coreID": 5,
        "dra.cpu/coreType": "standard",
        "dra.cpu/cpuID": 21,
        "dra.cpu/numaNodeID": 1,
        "dra.cpu/smtEnabled": True,
        "dra.cpu/socketID": 0,
        "resource.kubernetes.io/numaNode": 1,
    }


def test_memory_is_by_numa_node_and_size_of_pages() -> None:
    memory = checked(resource_slices("node01", MACHINE, CpuSet(), ()))["dra.memory"]
    assert {name for name in memory if name.startswith("memory-")} == {f"memory-{node}" for node in range(4)}
    for node in MACHINE.numa:
        zone = memory[f"memory-{node.id}"]
        assert zone["dra.memory/size"] == node.memory_bytes
        assert (zone["dra.memory/numaNode"], zone["dra.memory/hugeTLB"]) == (node.id, False)


def test_cards_are_named_by_their_address() -> None:
    cards = checked(resource_slices("node01", MACHINE, CpuSet(), (CARD, BARE)))["nodeagent.io"]
    assert cards["pci-0000-3b-00-0"] == {
        "nodeagent.io/driver": "ice",
        "nodeagent.io/interface": "eth0",
        "nodeagent.io/kind": "network",
        "nodeagent.io/model": "1592",
        "nodeagent.io/vendor": "8086",
        "resource.kubernetes.io/numaNode": 1,
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
    }
    assert "resource.kubernetes.io/numaNode" not in cards["pci-0001-ff-1f-7"], "nobody knows it"


@pytest.mark.parametrize("topology", [SMALL, MACHINE, machine(nodes=8, cores=64)], ids=["8", "32", "1024"])
def test_no_slice_is_larger_than_an_api_server_takes(topology: Topology) -> None:
    slices = resource_slices("node01.example.org", topology, CpuSet(), ())
    assert len(checked(slices)["dra.cpu"]) == len(topology.cpus)
    assert next(one["metadata"]["name"] for one in slices) == "node01.example.org-dra.cpu-0"


def test_lists_and_mappings_are_printed_only_for_a_cluster_that_takes_them() -> None:
    """An API server without the gates drops the lists, and then refuses the slice."""
    plain = resource_slices("node01", MACHINE, CpuSet(), (CARD,))
    assert [name for one in plain for name in one["spec"]["devices"] if "nodeAllocatableResources" in name] == []
    slices = resource_slices("node01", MACHINE, CpuSet(), (CARD, BARE), has_lists=True, maps_cpus=True)
    found = checked(slices)
    assert found["dra.cpu"]["cpudev021"]["resource.kubernetes.io/pcieRoot"] == ["pci0000:3a"]
    assert found["dra.cpu"]["cpudev021"]["resource.kubernetes.io/numaNode"] == 1
    assert found["nodeagent.io"]["pci-0000-3b-00-0"]["resource.kubernetes.io/numaNode"] == [1, 0]
    assert "resource.kubernetes.io/numaNode" not in found["nodeagent.io"]["pci-0001-ff-1f-7"]
    devices = {device["name"]: device for one in slices for device in one["spec"]["devices"]}
    mapping = {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
    assert devices["cpudev021"]["nodeAllocatableResources"] == mapping
    assert {name for name, one in devices.items() if "nodeAllocatableResources" in one} == {*found["dra.cpu"]}


def test_a_list_too_long_for_an_api_server_is_left_out() -> None:
    roots = tuple(replace(CARD, address=f"{n:04x}:3b:00.0", root=f"pci{n:04x}:3a") for n in range(33))
    for count, has_roots in ((32, True), (33, False)):
        found = checked(resource_slices("node01", MACHINE, CpuSet(), roots[:count], has_lists=True))
        assert ("resource.kubernetes.io/pcieRoot" in found["dra.cpu"]["cpudev021"]) is has_roots
