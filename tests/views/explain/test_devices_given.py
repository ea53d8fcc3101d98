"""What an explanation says of devices that a pod asks for by number."""

from typing import Any

import pytest

from nodeagent.core.admission.managers import remove_pod
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.replay_decision import replay_decision
from nodeagent.core.model.config import Config
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.pod import Pod, QosClass
from nodeagent.core.model.state import ContainerStatus, NodeState, Origin, PodEntry
from nodeagent.views.explain.text import render_explanation
from tests.support.builders import admitted, managers
from tests.support.explained_pods import explained_pod
from tests.support.pods import app, pod

NIC = "example.com/nic"
GIVES = (DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),)
CARD = Device("0000:3b:00.0", DeviceKind.NETWORK, 0x020000, names=("eth0",), numa_node=1)
FUNCTIONS = tuple(
    Device(f"0000:3b:{number // 8:02x}.{number % 8}", DeviceKind.NETWORK, 0x020000, numa_node=number // 24)
    for number in range(48)
)


def said(
    of: Pod,
    *there: Pod,
    allocatable: Allocatable | None = None,
    cards: tuple[Device, ...] = (CARD,),
    **placement: Any,
) -> str:
    node = managers(reserved="0", devices=GIVES, **placement)
    node = node.knowing(PlacedDevices.of(cards, node.topology))
    what_if = WhatIf.of(node, admitted(node, *there), there, allocatable)
    return " ".join(render_explanation(explained_pod(what_if, of, Config(node.placement))).split())


def asking(name: str, count: int = 1) -> Pod:
    return pod(name, app(cpu="2", memory="1Gi", devices={NIC: count}))


def test_the_hints_and_the_choice_are_steps() -> None:
    text = said(asking("new"), topology_manager_policy="restricted")
    assert "container app: which NUMA nodes? NUMA 1, preferred by all" in text
    assert f"container app: which devices? 0000:3b:00.0 eth0 ({NIC}, NUMA 1)" in text
    assert "app exclusive 4,12 NUMA 1" in text


def test_what_is_taken_is_what_is_missing() -> None:
    text = said(asking("new"), asking("there"), topology_manager_policy="restricted")
    assert "TopologyAffinityError" in text
    assert f"not enough {NIC}" in text
    none = said(asking("new"), asking("there"))
    assert f"requested number of devices unavailable for {NIC}. Requested: 1, Available: 0" in none
    room = Allocatable(10, (("cpu", 16_000), ("memory", 2**40)))
    whole = said(asking("new", 2), asking("there"), allocatable=room)
    assert f"OutOf{NIC}" in whole
    assert f"the pod requests 2 {NIC}; of 1 for pods, 0 left: 2 short" in whole


PAIRS = tuple(
    Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0x020000, numa_node=number // 2) for number in range(4)
)


def test_a_merge_that_fails_for_devices_says_so() -> None:
    one_of_each = (pod("x", app(cpu="2", devices={NIC: 1})), pod("y", app(cpu="6", devices={NIC: 1})))
    text = said(asking("new", 2), *one_of_each, cards=PAIRS, topology_manager_policy="restricted")
    assert "TopologyAffinityError" in text
    assert f"{NIC}: enough are free only on NUMA 0-1, while an empty machine would need fewer nodes" in text
    text = said(asking("new", 4), *one_of_each, cards=PAIRS, topology_manager_policy="restricted")
    assert f"{NIC}: too few are free on all NUMA nodes together" in text


def test_what_would_help_is_fewer_of_them_or_whose_end() -> None:
    text = said(asking("new", 2), topology_manager_policy="restricted")
    assert f"* let container app request {NIC} 1 instead of 2" in text
    sharing = pod("there", app(devices={NIC: 1}))
    text = said(asking("new"), sharing, topology_manager_policy="restricted")
    assert f"* let container app request {NIC} 0 instead of 1" in text
    assert "* end pod default/there" in text
    room = Allocatable(10, (("cpu", 16_000), ("memory", 2**40)))
    text = said(pod("new", app("a", "1", devices={NIC: 1}), app("b", "1", devices={NIC: 1})), allocatable=room)
    assert f"* let container a request {NIC} 0 instead of 1" in text
    assert f"* let container b request {NIC} 0 instead of 1" in text


@pytest.mark.parametrize(
    ("count", "policy", "fits"), [(50, "none", 48), (100, "none", 48), (30, "single-numa-node", 24)]
)
def test_the_most_of_many_is_named(count: int, policy: str, fits: int) -> None:
    text = said(asking("new", count), cards=FUNCTIONS, topology_manager_policy=policy)
    assert f"* let container app request {NIC} {fits} instead of {count}" in text


def test_a_decision_that_gives_another_device_is_not_the_same() -> None:
    """The end of the first pod has freed its device, and the pod isn't known any more."""
    of = managers(reserved="0", devices=GIVES)
    of = of.knowing(PlacedDevices.of(FUNCTIONS[:2], of.topology))
    first, second = (pod(name, app(cpu="100m", devices={NIC: 1})) for name in ("first", "second"))
    entry = PodEntry(second, QosClass.BURSTABLE, Origin("second.yaml"), 1, containers=(ContainerStatus("app"),))
    with_the_second_device, _ = remove_pod(of, admitted(of, first, second), first.uid)
    reproduced = [
        replay_decision(WhatIf.of(of, promises, (second,)), NodeState(promises, (entry,)), entry).reproduced
        for promises in (with_the_second_device, admitted(of, second))
    ]
    assert reproduced == [False, True]
