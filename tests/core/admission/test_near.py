"""Pods that ask to be near devices: the topology manager is told of these as kubelet's device manager tells it, and of others' nothing."""

import dataclasses

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, build, initial, readmit
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason
from nodeagent.core.numa.hint_family import is_fine_with, preferred_nodes
from nodeagent.core.numa.hints import Merged
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from tests.support.builders import GIB, MACHINE_A, admitted, machine, managers
from tests.support.pods import app, mixed, pod
from tests.support.strategies import Add, Event, happen, lived, lives, nodes

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def device(name: str, node: int | None, kind: DeviceKind = DeviceKind.NETWORK, address: str = "") -> Device:
    return Device(address or f"0000:{sum(name.encode()) % 256:02x}:00.0", kind, 0, names=(name,), numa_node=node)


ETH0 = device("eth0", 1, address="0000:3b:00.0")
DEVICES = (
    ETH0,
    device("eth1", None),
    device("nvme0", 0, DeviceKind.NVME),
    device("nvme1", 1, DeviceKind.NVME),
    device("card0", None, DeviceKind.GPU),
)


def knowing(node: Managers, *devices: Device) -> Managers:
    return node.knowing(PlacedDevices.of(devices or DEVICES, node.topology))


def near(name: str, cpu: str = "2", *names: str) -> Pod:
    return pod(name, app(cpu=cpu, near=names))


def nodes_of(node: Managers, promises: Promises, of: Pod) -> tuple[int, ...]:
    return tuple(node.topology.numa_of(own_set_of(promises, of.uid, "app") or CpuSet()))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), (0,)),
        (("eth0",), (1,)),
        (("0000:3b:00.0",), (1,)),
        (("nvme1",), (1,)),
        (("nvme1n1",), (1,)),
        (("nvme1n1p2",), (1,)),
        (("nvme",), (0,)),
        (("nvme", "eth0"), (1,)),
        (("network",), (1,)),
        (("eth1",), (0,)),
        (("gpu", "eth0"), (1,)),
    ],
)
@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_its_cpus_are_on_the_node_of_the_device(
    names: tuple[str, ...], expected: tuple[int, ...], policy: str, scope: str
) -> None:
    node = knowing(managers(topology_manager_policy=policy, topology_manager_scope=scope))
    asking = near("p", "2", *names)
    decision = admit(node, initial(node), asking)
    assert isinstance(decision, Admitted)
    assert nodes_of(node, decision.promises, asking) == expected


def test_a_kind_is_a_kind_whatever_interfaces_are_called() -> None:
    """Whoever may rename an interface decides nothing about pods that ask for a kind."""
    node = knowing(
        managers(topology_manager_policy="restricted"),
        device("nvme", 0),
        device("nvme1", 1, DeviceKind.NVME),
        device("gpu", 1),
    )
    asking = near("p", "2", "nvme")
    assert nodes_of(node, admitted(node, asking), asking) == (1,)
    assert isinstance(admit(node, initial(node), near("q", "2", "gpu")), Rejected)


def test_memory_is_there_too() -> None:
    node = knowing(
        managers(
            machine(memory=8 * GIB), reserved_memory={0: "100Mi", 1: "100Mi"}, topology_manager_policy="restricted"
        )
    )
    asking = near("p", "2", "eth0")
    promises = admitted(node, asking)
    assert tuple(memory_nodes_of(promises, asking.uid, "app") or ()) == (1,)


def test_under_policy_none_nobody_is_asked() -> None:
    node = knowing(managers())
    asking = near("p", "2", "eth0")
    assert nodes_of(node, admitted(node, asking), asking) == (0,)


@pytest.mark.parametrize(
    ("policy", "expected"), [("best-effort", (0,)), ("restricted", None), ("single-numa-node", None)]
)
def test_where_its_node_is_full_the_policy_decides(policy: str, expected: tuple[int, ...] | None) -> None:
    node = knowing(managers(topology_manager_policy=policy))
    full = admitted(node, near("first", "7", "eth0"))
    asking = near("second", "4", "eth0")
    decision = admit(node, full, asking)
    if expected is None:
        assert isinstance(decision, Rejected)
        assert decision.reason is Reason.TOPOLOGY_AFFINITY
    else:
        assert isinstance(decision, Admitted)
        # Non-preferred: what the two have in common, and then what the CPU manager finds.
        assert expected[0] in nodes_of(node, decision.promises, asking)


def test_each_container_asks_for_itself() -> None:
    node = knowing(managers(topology_manager_policy="restricted"))
    asking = pod("p", app("a", "2", near=("nvme0",)), app("b", "2", near=("eth0",)))
    promises = admitted(node, asking)
    found = [tuple(node.topology.numa_of(own_set_of(promises, asking.uid, name) or CpuSet())) for name in ("a", "b")]
    assert found == [(0,), (1,)]
    whole = knowing(managers(topology_manager_policy="restricted", topology_manager_scope="pod"))
    assert isinstance(admit(whole, initial(whole), asking), Rejected), "no node is near both"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (PlacedDevices(), "but this machine has no devices of any kind"),
        (PlacedDevices(problem="cannot read it"), "but the devices of this machine are unknown: cannot read it"),
        (
            PlacedDevices.of(DEVICES, MACHINE_A),
            "but this machine has only eth0 (network), eth1 (network), nvme0 (nvme), nvme1 (nvme), card0 (gpu)",
        ),
    ],
)
def test_what_there_is_not_refuses(policy: str, devices: PlacedDevices, why: str) -> None:
    node = managers(topology_manager_policy=policy).knowing(devices)
    decision = admit(node, initial(node), near("p", "2", "eth9"))
    assert isinstance(decision, Rejected)
    assert (decision.reason, decision.message) == (Reason.DEVICE, f"it asks to be near eth9, {why}")
    assert decision.promises == initial(node)


def test_a_refusal_names_no_more_than_a_person_reads() -> None:
    node = knowing(managers(), *(device(f"eth{number}", 0) for number in range(40)))
    decision = admit(node, initial(node), near("p", "2", "nvme0"))
    assert isinstance(decision, Rejected)
    assert decision.message.endswith("eth11 (network) and 28 more")


def test_whatever_names_say_a_refusal_is_a_line_that_can_be_printed() -> None:
    many = replace(device("eth0", 0), names=tuple(f"eth{number}" for number in range(300)))
    odd = replace(device("odd", 0), names=("\x1b[2J\udcff", "x" * 10_000))
    unknown = PlacedDevices(problem="it is\nbroken " + "y" * 10_000)
    for node in (knowing(managers(), many, odd), managers().knowing(unknown)):
        decision = admit(node, initial(node), near("p", "2", "nvme0", *(f"tap{number}" for number in range(300))))
        assert isinstance(decision, Rejected)
        assert decision.message.isprintable()
        assert len(decision.message) < 1000
        assert "near nvme0 and tap0 and tap1" in decision.message
        assert "tap10 and 289 more" in decision.message
    node = knowing(managers(), many, odd)
    decision = admit(node, initial(node), near("p", "2", "nvme0"))
    assert isinstance(decision, Rejected)
    assert "only eth0 eth1 eth2 and 297 more (network), \\x1b[2J\\udcff xxxx" in decision.message


def test_a_virtual_function_is_a_device_as_any_other() -> None:
    function = replace(device("eth0v1", 1, address="0000:3b:00.2"), physical_function="0000:3b:00.0")
    node = knowing(managers(topology_manager_policy="restricted"), device("eth5", 0), function)
    for name in ("eth0v1", "0000:3b:00.2"):
        asking = near("p", "2", name)
        assert nodes_of(node, admitted(node, asking), asking) == (1,)


def test_what_runs_keeps_what_it_has_when_its_device_has_gone() -> None:
    node = knowing(managers(topology_manager_policy="restricted"))
    asking = pod("p", app(cpu="2", near=("eth0",)), mixed("b", near=("eth0",)))
    promises = admitted(node, asking)
    for later in (managers(topology_manager_policy="restricted"), knowing(node, device("eth7", 0))):
        again = readmit(later, promises, (asking,))
        assert isinstance(again.results[0][1], Admitted)
        assert again.promises == promises


def asking_for(life: list[Event], *names: str) -> list[Event]:
    return [
        dataclasses.replace(
            event,
            pod=replace(event.pod, containers=tuple(replace(one, near=names) for one in event.pod.containers)),
        )
        if isinstance(event, Add)
        else event
        for event in life
    ]


@given(nodes(), lives(), st.sampled_from([(), ("card0",), ("card0", "eth1")]))
def test_devices_that_nobody_asks_for_or_of_which_the_node_is_unknown_decide_nothing(
    node: Managers, life: list[Event], names: tuple[str, ...]
) -> None:
    unknown = Device("0000:01:00.0", DeviceKind.GPU, 0x030000, names=("card0",))
    other = Device("0000:02:00.0", DeviceKind.NETWORK, 0x020000, names=("eth1",))
    known = Device("0000:03:00.0", DeviceKind.NETWORK, 0x020000, names=("eth0",), numa_node=node.topology.numa[-1].id)
    if len(node.topology.numa) == 1:
        names = ()  # then the node is known
    there = knowing(node, unknown, other, known)
    for mine, theirs in zip(lived(node, life), lived(there, asking_for(life, *names)), strict=True):
        assert mine.after == theirs.after
        assert (mine.decision is None) == (theirs.decision is None)


@given(nodes(), lives(), st.data())
def test_whoever_is_preferred_near_a_device_is_there(node: Managers, life: list[Event], data: st.DataObject) -> None:
    where = data.draw(st.sampled_from([each.id for each in node.topology.numa]))
    there = knowing(node, device("eth0", where))
    for moment in lived(there, asking_for(life, "eth0")):
        if isinstance(moment.decision, Admitted):
            for merge in moment.decision.report.merges:
                assert not merge.merged.preferred or merge.merged.mask in {1 << where, None}


def preferring_cpus(node: Managers, *, on: bool = True) -> Managers:
    made = build(node.topology, replace(node.placement, prefer_cpus_numa_node=on))
    assert isinstance(made, Managers)
    return made.knowing(node.providers.devices)


@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_where_its_node_is_full_its_cpus_may_count_for_more(policy: str, scope: str) -> None:
    node = preferring_cpus(knowing(managers(topology_manager_policy=policy, topology_manager_scope=scope)))
    full = admitted(node, near("first", "7", "eth0"))
    asking = near("second", "4", "eth0", "eth1")
    decision = admit(node, full, asking)
    assert isinstance(decision, Admitted)
    assert nodes_of(node, decision.promises, asking) == (0,)
    (merge,) = decision.report.merges
    assert (merge.merged, merge.admitted, merge.overruled) == (Merged(0b01, preferred=True), True, ("eth0",))
    hint = decision.promises.of_pod(asking.uid).hints[0][1]
    assert (hint.mask, hint.preferred) == (NumaSet.of(0), True)


@pytest.mark.parametrize("same", [False, True])
def test_a_node_for_cpus_and_memory_is_not_left_for_the_devices_that_it_overrules(*, same: bool) -> None:
    """Of node 1, where the device is, only two CPUs may be used."""
    reserved = {"reserved": "4-6,12-14", "reserved_memory": {0: "1Gi", 1: "1Gi"}}
    node = knowing(managers(topology_manager_policy="restricted", same_numa_nodes=same, **reserved))
    asking = pod("p", app(cpu="4", memory="1Gi", near=("eth0",)))
    decision = admit(preferring_cpus(node), initial(node), asking)
    (merge,) = decision.report.merges
    assert (merge.merged, merge.overruled, merge.instead_of) == (Merged(0b01, preferred=True), ("eth0",), None)
    assert nodes_of(node, decision.promises, asking) == (0,)


@given(nodes(), lives(), st.sampled_from([(), ("eth0",), ("eth0", "nvme0"), ("card0",)]), st.data())
def test_it_changes_nothing_but_merges_that_devices_spoil(
    node: Managers, life: list[Event], names: tuple[str, ...], data: st.DataObject
) -> None:
    ids = [each.id for each in node.topology.numa]
    eth, disk = data.draw(st.sampled_from(ids)), data.draw(st.sampled_from(ids))
    there = knowing(node, device("eth0", eth), device("nvme0", disk, DeviceKind.NVME), device("card0", None))
    on = preferring_cpus(there)
    promises, active = initial(on), ()
    for event in asking_for(life, *names):
        if isinstance(event, Add) and all(one.uid != event.pod.uid for one in active):
            usual, decision = admit(there, promises, event.pod), admit(on, promises, event.pod)
            if not any(merge.overruled for merge in decision.report.merges):
                assert decision == usual
            for merge in decision.report.merges:
                if merge.overruled:
                    assert on.placement.topology_manager_policy in {"best-effort", "restricted"}
                    mask = merge.merged.mask
                    assert merge.merged.preferred
                    assert mask is not None
                    assert mask.bit_count() == 1
                    hints = dict(merge.hints)
                    assert mask in preferred_nodes(hints["cpu"])
                    others = [each for name, each in merge.hints if name not in names]
                    assert all(is_fine_with(each, mask) for each in others)
                    assert not on.providers.topology.merge(list(hints.values()), lambda _a, _b: None).preferred
        promises, active, _ = happen(on, promises, active, event)
