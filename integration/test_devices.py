"""Devices of pods' own, on a machine with two network cards whose NUMA nodes the kernel knows from the firmware's tables."""

import json

import pytest

from integration.guest.guest import Guest
from integration.node import ROOT as CGROUPS, Document, Node, container, pod
from scripts.shown import DOCS, ON_A_NODE, blocks

pytestmark = [pytest.mark.configures, pytest.mark.long]

SLEEP = ["sleep", "infinity"]
NIC = "example.com/nic"
GIVING = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
interruptIsolation: affinity
devices:
  - resource: example.com/nic
    select: [{kind: network, numaNode: 0}, {kind: network, numaNode: 1}]
"""


def asking(name: str, count: int = 1) -> Document:
    made = pod(name, container("app", SLEEP, cpu="2"))
    made["spec"]["containers"][0]["resources"]["limits"][NIC] = count
    return made


def devices_of(node: Node, name: str) -> list[Document]:
    found: list[Document] = node.state()["promises"]["pods"][f"uid-{name}"].get("devices", {}).get("app", [])
    return found


def numa_of(node: Node, name: str) -> str:
    own: str = node.state()["promises"]["pods"][f"uid-{name}"]["cpus"]["app"]
    return str(int(own.partition("-")[0].partition(",")[0]) // 8)


def test_each_pod_has_a_card_of_its_own_on_its_node(two_cards: Guest) -> None:
    node = Node(two_cards)
    node.configure(GIVING)
    node.apply(asking("first"), asking("second"), asking("third"))
    node.wait_running("first", "second", refused=["third"])
    cards = [devices_of(node, name) for name in ("first", "second")]
    assert len({one["id"] for own in cards for one in own}) == 2
    assert [[numa_of(node, name)] for name in ("first", "second")] == [[one["nodes"] for one in own] for own in cards]
    reason, message, _ = node.entry("third")["refusal"]
    assert (reason, message.partition(",")[0]) == (f"OutOf{NIC}", f"Node didn't have enough resource: {NIC}")
    (pid,) = node.pids(f"{CGROUPS}/poduid-first/app")
    environment = node.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout
    assert f"NODEAGENT_DEVICES={cards[0][0]['id']}\n" in environment
    assert f"NODEAGENT_DEVICES_EXAMPLE_COM_NIC={cards[0][0]['id']}\n" in environment
    shown = json.loads(node.run("nodeagent topology --devices -o json").stdout)["devices"]
    owners = {one["address"]: [each["pod"] for each in one["owners"]] for one in shown}
    assert owners[cards[0][0]["id"]] == ["default/first"]
    node.run("systemctl restart nodeagent")
    node.wait_running("first", "second", refused=["third"])
    assert [devices_of(node, name) for name in ("first", "second")] == cards, "a restart gives nothing anew"
    node.delete("first")
    node.wait_gone("first")
    node.run("nodeagent retry default/third")
    node.wait_running("second", "third")
    assert [one["id"] for one in devices_of(node, "third")] == [cards[0][0]["id"]]


def test_a_card_without_its_place_stays_promised(two_cards: Guest) -> None:
    """The kernel takes it away, as when it is pulled out; and finds it again."""
    node = Node(two_cards)
    node.configure(GIVING)
    node.apply(asking("holder"))
    node.wait_running("holder")
    (card,) = devices_of(node, "holder")
    node.run(f"echo 1 >/sys/bus/pci/devices/{card['id']}/remove")

    def is_told() -> bool | None:
        return any(card["id"] in problem for problem in node.inspect()["node"]["problems"]) or None

    node.until(is_told, lambda: str(node.inspect()["node"]["problems"]))
    assert devices_of(node, "holder") == [card]
    node.run("echo 1 >/sys/bus/pci/rescan")
    node.until(lambda: is_told() is None or None, lambda: str(node.inspect()["node"]["problems"]))


def test_the_page_goes_as_it_is_written(two_cards: Guest) -> None:
    page = blocks((DOCS / "how-to" / "devices.md").read_text())
    files = {block.title: block.text for block in page if block.is_file}
    node = Node(two_cards)
    node.configure(files["config.yaml"])
    node.guest.put("/root/forwarder.yaml", files["forwarder.yaml"])
    typed = [shown.command for block in page if block.title == ON_A_NODE for shown in block.commands()]
    assert len(typed) >= 4
    # without line breaks
    said = [" ".join(node.run(f"cd /root && {command}").stdout.split()) for command in typed]
    assert "example.com/nic, NUMA" in said[1]
    assert "of default/forwarder app as example.com/nic" in said[2]
    assert "which devices? 0000:" in said[3]
