"""Pods near network cards whose NUMA nodes the kernel knows from the firmware's tables."""

import json

import pytest

from integration.guest.guest import Guest
from integration.node import Document, Node, container, pod

pytestmark = [pytest.mark.configures, pytest.mark.long]

SLEEP = ["sleep", "infinity"]
NODE_OF_CPU = {str(cpu): str(cpu // 8) for cpu in range(16)}
ALIGNED = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: {policy}
{more}
"""


def cards(node: Node) -> dict[int, Document]:
    """The network cards, by NUMA node, with their driver, which guests don't load by themselves."""
    node.run("modprobe virtio_net; udevadm settle")
    found = json.loads(node.run("nodeagent topology --root / --devices -o json").stdout)["devices"]
    return {one["numaNode"]: one for one in found if one["kind"] == "network" and one["numaNodeOfKernel"] is not None}


def near(name: str, device: str, cpu: str = "2") -> Document:
    made = pod(name, container("app", SLEEP, cpu=cpu))
    made["metadata"]["annotations"] = {"nodeagent.io/near": device}
    return made


def node_of(state: Document, name: str) -> str:
    own: str = state["promises"]["pods"][f"uid-{name}"]["cpus"]["app"]
    return NODE_OF_CPU[own.partition("-")[0].partition(",")[0]]


def test_each_is_on_the_node_of_its_card(two_cards: Guest) -> None:
    node = Node(two_cards)
    node.configure(ALIGNED.format(policy="restricted", more=""))
    found = cards(node)
    assert sorted(found) == [0, 1]
    (interface,) = found[1]["names"]
    # The first by its name, and the second by its address, which it has without a driver, too.
    node.apply(near("one", interface), near("zero", found[0]["address"]), near("nowhere", "eth77"))
    state = node.wait_running("one", "zero", refused=["nowhere"])
    assert (node_of(state, "one"), node_of(state, "zero")) == ("1", "0")
    reason, message, _ = node.entry("nowhere")["refusal"]
    assert reason == "DeviceUnavailable"
    assert "it asks to be near eth77, but this machine has only " in message
    assert f"{interface} (network)" in message
    explained = node.run("nodeagent explain default/one").stdout
    assert f"it prefers to be near {interface} (NUMA 1)" in explained


def test_a_full_node_refuses_unless_cpus_count_for_more(two_cards: Guest) -> None:
    node = Node(two_cards)
    node.configure(ALIGNED.format(policy="restricted", more=""))
    address = cards(node)[1]["address"]
    node.apply(near("first", address, "7"), near("second", address, "4"))
    state = node.wait_running("first", refused=["second"])
    assert node_of(state, "first") == "1"
    node.configure(ALIGNED.format(policy="restricted", more="preferCPUsNumaNode: true"))
    node.apply(near("first", address, "7"), near("second", address, "4"))
    state = node.wait_running("first", "second")
    assert (node_of(state, "first"), node_of(state, "second")) == ("1", "0")


def test_a_job_is_near_its_card(two_cards: Guest) -> None:
    node = Node(two_cards)
    node.configure(ALIGNED.format(policy="single-numa-node", more=""))
    address = cards(node)[1]["address"]
    command = f"nodeagent job --cpus 2 --memory 16Mi --near {address} -- cat /proc/self/status"
    status = node.run(command).stdout
    (cpus,) = (line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    assert NODE_OF_CPU[cpus.partition("-")[0].partition(",")[0]] == "1"
