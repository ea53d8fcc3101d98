"""Devices given by number: who gets which, who is refused and in which words, and that nobody else gets it before it is given back."""

import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    admit,
    initial,
    readmit,
    remove_container,
    remove_pod,
    shortfalls,
    violations,
)
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.violations import Invariant
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings, pods_with_devices
from nodeagent.core.resources.devices.manager import MAX_ANSWERS_BYTES
from nodeagent.core.resources.devices.resource import DeviceResource
from nodeagent.core.turn.recovery import RecoveredPod, place_recovered
from nodeagent.formats.checkpoint.device_checkpoint import decode_devices, encode_devices
from tests.support.builders import MACHINE_A, admitted, machine, managers, pod
from tests.support.pods import app, init, sidecar
from tests.support.shares import share_of

GPU = "example.com/gpu"
NIC, DISK = "example.com/nic", "example.com/disk"
SELECTIONS = (
    DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),
    DeviceSelection(DISK, (DeviceSelector(kind=DeviceKind.NVME),)),
)


def card(number: int, node: int | None, kind: DeviceKind = DeviceKind.NETWORK) -> Device:
    return Device(f"0000:{number:02x}:00.0", kind, 0, names=(f"eth{number}",), numa_node=node)


CARDS = (card(0, 0), card(1, 0), card(2, 1), card(3, 1), card(4, 1, DeviceKind.NVME))


def giving(*cards: Device, policy: str = "restricted", **more: Any) -> Managers:
    node = managers(topology_manager_policy=policy, devices=SELECTIONS, **more)
    return knowing(node, *(cards or CARDS))


def knowing(node: Managers, *cards: Device) -> Managers:
    return node.knowing(PlacedDevices.of(cards, node.topology))


def asking(uid: str, count: int = 1, cpu: str | None = "2", **more: Any) -> Pod:
    return pod(uid, app(cpu=cpu, devices={NIC: count}, **more))


def held(promises: Promises, uid: str, name: str = "app") -> list[str]:
    return [device.id for device in promises.of_pod(uid).of(DeviceHoldings).devices_of(name)]


def refusal(node: Managers, promises: Promises, of: Pod) -> tuple[str, str]:
    decision = admit(node, promises, of)
    assert isinstance(decision, Rejected)
    assert decision.promises == promises
    return decision.reason, decision.message


def test_cpus_and_devices_are_on_one_node() -> None:
    node = giving()
    promises = admitted(node, asking("a", 2), asking("b", 2))
    for uid, cards in (("a", CARDS[:2]), ("b", CARDS[2:4])):
        assert held(promises, uid) == [one.address for one in cards]
        own = own_set_of(promises, uid, "app")
        assert own is not None
        assert set(node.topology.numa_of(own)) == {one.numa_node for one in cards}


def test_a_device_is_one_containers_until_its_pod_is_gone() -> None:
    node = giving(card(0, 0))
    promises = admitted(node, asking("a"))
    assert refusal(node, promises, asking("b")) == (
        Reason.TOPOLOGY_AFFINITY,
        "Resources cannot be allocated with Topology locality",
    )
    given_back, _ = remove_pod(node, promises, "a")
    assert given_back == initial(node)
    assert isinstance(admit(node, given_back, asking("b")), Admitted)
    assert remove_container(node, promises, "a", "app")[0].of_pod("a").of(DeviceHoldings).devices == ()


@pytest.mark.parametrize(
    ("cards", "count", "message"),
    [
        ((card(0, 0),), 2, f"requested number of devices unavailable for {NIC}. Requested: 2, Available: 1"),
        ((card(4, 0, DeviceKind.NVME),), 1, f"no healthy devices present; cannot allocate unhealthy devices {NIC}"),
    ],
)
def test_without_alignment_the_device_manager_refuses_in_kubelets_words(
    cards: tuple[Device, ...], count: int, message: str
) -> None:
    node = giving(*cards, policy="none")
    assert refusal(node, initial(node), asking("a", count)) == (
        Reason.UNEXPECTED_ADMISSION,
        f"Allocate failed due to {message}, which is unexpected",
    )


def test_what_nobody_gives_is_refused() -> None:
    """kubelet leaves such resources out, and runs the pod without its device."""
    asked = pod("a", app(devices={"example.com/none": 1}))
    for node in (managers(), giving(policy="none")):
        assert refusal(node, initial(node), asked) == (
            Reason.UNEXPECTED_ADMISSION,
            "Allocate failed due to cannot allocate unregistered device example.com/none, which is unexpected",
        )


def test_what_the_node_has_counts_first() -> None:
    node = giving()
    promises = admitted(node, asking("a", 2))
    there = node.with_amounts(Allocatable(10, (("cpu", 1000),)), promises)
    assert there.amounts == (("cpu", 1000), (DISK, 1), (NIC, 4))
    fewer = knowing(node, CARDS[2])
    assert dict(fewer.with_amounts(Allocatable(10, ()), promises).amounts) == {DISK: 0, NIC: 2}, "what is given counts"
    assert managers().with_amounts(Allocatable(10, ()), promises) == Allocatable(10, ())


def test_devices_near_the_affinity_come_first_then_others_then_those_of_unknown_nodes() -> None:
    node = giving(card(0, None), card(1, 1), card(2, 0), card(3, 0), policy="best-effort")
    promises = admitted(node, asking("a", 3))
    assert promises.hint("a", "app").mask == NumaSet.of(0, 1)
    assert held(promises, "a") == [card(n, 0).address for n in (1, 2, 3)]
    only_unknown = giving(card(0, None))
    assert held(admitted(only_unknown, asking("b")), "b") == [card(0, None).address]


def test_later_containers_take_what_init_containers_have_had() -> None:
    node = giving(card(0, 0), card(1, 1))
    one = {NIC: 1}
    promises = admitted(node, pod("a", init(devices=one), app("first", devices=one), app("second", devices=one)))
    assert held(promises, "a", "init") == held(promises, "a", "first") == [card(0, 0).address]
    assert held(promises, "a", "second") == [card(1, 1).address]
    assert violations(node, promises, (pod("a", init(), app("first"), app("second")),)) == ()
    kept = admitted(node, pod("b", sidecar(devices=one), app(devices=one)))
    assert held(kept, "b", "side") != held(kept, "b")


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_pod_that_is_admitted_again_keeps_its_devices(scope: str) -> None:
    node = giving(topology_manager_scope=scope)
    pods = (asking("a", 2), pod("b", app(devices={NIC: 1, DISK: 1})))
    promises = admitted(node, *pods)
    assert len(held(promises, "b")) == 2
    again = readmit(node, promises, pods)
    assert all(isinstance(result, Admitted) for _, result in again.results)
    assert [again.promises.of_pod(p.uid).of(DeviceHoldings).devices for p in pods] == [
        promises.of_pod(p.uid).of(DeviceHoldings).devices for p in pods
    ]
    for each in pods:
        assert isinstance(admit(node, promises, each), Admitted)


def test_a_changed_amount_is_no_other_device() -> None:
    node = giving(policy="none")
    promises = admitted(node, asking("a", 1))
    message = f'pod "a" container "app" changed request for resource "{NIC}" from 1 to 2'
    decision = admit(node, promises, asking("a", 2))
    assert isinstance(decision, Rejected)
    assert message in decision.message


def test_a_device_that_is_gone_stays_promised_and_comes_back() -> None:
    node = giving(card(0, 0), card(1, 0))
    promises = admitted(node, asking("a"))
    fewer = knowing(node, card(1, 0))
    (short,) = shortfalls(fewer, promises)
    assert short.text == (f"0000:00:00.0 of its {NIC} is gone or unhealthy: it stays allocated to this container alone")
    after = admit(fewer, promises, asking("b"))
    assert isinstance(after, Admitted)
    assert held(after.promises, "b") == ["0000:01:00.0"]
    assert violations(fewer, after.promises, (asking("a"), asking("b"))) == ()
    assert shortfalls(node, after.promises) == ()
    assert isinstance(admit(node, after.promises, asking("c")), Rejected)


def test_what_the_configuration_has_come_to_give_no_plugin_gives() -> None:
    """A reload has named a resource of a device plugin that has registered before."""
    node = managers(topology_manager_policy="restricted", devices=SELECTIONS)
    told = tuple(DevicePool(name, (PoolDevice("other"),)) for name in (NIC, "example.com/gpu"))
    node = node.knowing(PlacedDevices.of(CARDS, node.topology), told)
    own = node.providers.find(DeviceResource)
    assert own is not None
    assert [(pool.resource, len(pool.devices)) for pool in own.manager.pools] == [
        (NIC, 4),
        (DISK, 1),
        ("example.com/gpu", 1),
    ]
    assert own.amounts(initial(node)) == {NIC: 4, DISK: 1, "example.com/gpu": 1}


def test_of_another_resource_a_given_device_is_given_too() -> None:
    """The configuration may call it otherwise while a pod has it."""
    node = giving(card(0, 0))
    promises = admitted(node, asking("a"))
    other = managers(
        topology_manager_policy="none", devices=(DeviceSelection("example.com/other", SELECTIONS[0].selectors),)
    )
    other = knowing(other, card(0, 0))
    assert isinstance(admit(other, promises, pod("b", app(devices={"example.com/other": 1}))), Rejected)


def test_two_owners_are_a_violation() -> None:
    node = giving()
    promises = admitted(node, asking("a"))
    of_a = promises.of_pod("a").of(DeviceHoldings).devices
    twice = with_pod(
        promises, "b", promises.of_pod("b").having(replace(promises.of_pod("b").of(DeviceHoldings), devices=of_a))
    )
    found = violations(node, twice, (asking("a"), asking("b")))
    assert [each.invariant for each in found] == [Invariant.DEVICES_HAVE_ONE_OWNER]
    assert found[0].text == "pod a, container app: device 0000:00:00.0 is also held by pod b, container app"
    claimed = tuple((name, tuple(replace(one, claim="c") for one in own)) for name, own in of_a)
    shared = with_pod(
        with_pod(
            promises,
            "a",
            promises.of_pod("a").having(replace(promises.of_pod("a").of(DeviceHoldings), devices=claimed)),
        ),
        "b",
        promises.of_pod("b").having(replace(promises.of_pod("b").of(DeviceHoldings), devices=claimed)),
    )
    assert violations(node, shared, (asking("a"), asking("b"))) == ()
    nobodys = violations(node, promises, ())
    assert {each.invariant for each in nobodys} >= {Invariant.HOLDER_IS_ACTIVE}


def test_a_recovery_leaves_devices_where_they_are() -> None:
    node = giving()
    pods = (asking("a", 1), asking("b", 2), asking("c", 1, None))
    promises = admitted(node, *pods)
    claims = [RecoveredPod(each, promises.of_pod(each.uid), stays=True) for each in pods]
    placed = place_recovered(knowing(node, *CARDS[1:]), claims)
    assert [held(placed.promises, each.uid) for each in pods] == [held(promises, each.uid) for each in pods]
    both = place_recovered(node, [claims[0], RecoveredPod(asking("z"), promises.of_pod("a"), stays=True)])
    assert set(held(both.promises, "a")).isdisjoint(held(both.promises, "z")), "the first has it"


@settings(max_examples=share_of(60), deadline=None)
@given(
    nodes=st.sampled_from([1, 2, 4]),
    places=st.lists(st.none() | st.integers(0, 3), max_size=6),
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    scope=st.sampled_from(["container", "pod"]),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=6),
    gone=st.sets(st.integers(0, 5), max_size=3),
)
def test_whatever_comes_and_goes_no_device_has_two_owners(
    nodes: int,
    places: list[int | None],
    policy: str,
    scope: str,
    asked: list[tuple[int, int, bool]],
    gone: set[int],
) -> None:
    cards = tuple(card(n, None if place is None else place % nodes) for n, place in enumerate(places))
    node = managers(
        machine(nodes=nodes),
        reserved="0",
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        devices=SELECTIONS,
    )
    empty = initial(node)
    promises, there = empty, []
    for number, (of_init, of_app, goes) in enumerate(asked):
        every = knowing(node, *(one for n, one in enumerate(cards) if number % 2 or n not in gone))
        new = pod(f"p{number}", init(devices={NIC: of_init}), app(cpu="1", devices={NIC: of_app}))
        decision = admit(every, promises, new)
        promises = decision.promises
        if isinstance(decision, Admitted):
            there.append(new)
            held_now = promises.of_pod(new.uid)
            assert len(held_now.of(DeviceHoldings).devices_of("app")) == of_app
            assert len(held_now.of(DeviceHoldings).devices_of("init")) == of_init
        if goes and there:
            promises, _ = remove_pod(every, promises, there.pop(0).uid)
        assert violations(every, promises, tuple(there)) == ()
    for left in there:
        promises, _ = remove_pod(node, promises, left.uid)
    assert promises == empty


LISTS = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.tuples(st.none() | st.sets(st.integers(0, 4), max_size=3), st.booleans(), st.booleans()),
    max_size=6,
)
"""A plugin's list: the nodes of each device, whether -1 is among them, and whether it is healthy."""


@settings(max_examples=share_of(80), deadline=None)
@given(
    nodes=st.sampled_from([1, 2, 3]),
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    scope=st.sampled_from(["container", "pod"]),
    steps=st.lists(
        st.tuples(st.none() | LISTS, st.lists(st.integers(0, 2), min_size=3, max_size=3), st.booleans()), max_size=6
    ),
)
def test_whatever_plugins_list_each_device_has_one_owner_and_is_given_back(
    nodes: int, policy: str, scope: str, steps: list[tuple[Any, list[int], bool]]
) -> None:
    node = managers(machine(nodes=nodes), reserved="0", topology_manager_policy=policy, topology_manager_scope=scope)
    promises, there = initial(node), list[Pod]()
    for number, (devices, (of_init, of_side, of_app), goes) in enumerate(steps):
        pool = DevicePool(
            GPU,
            tuple(
                PoolDevice(
                    name,
                    None if ids is None else NumaMask(sum(1 << id_ for id_ in ids)),
                    is_healthy=healthy,
                    lists_minus_one=minus_one and ids is not None,
                )
                for name, (ids, minus_one, healthy) in sorted((devices or {}).items())
            ),
        )
        now = node.knowing(None, () if devices is None else (pool,), has_devices=True)
        new = pod(
            f"p{number}",
            init(devices={GPU: of_init}),
            sidecar(devices={GPU: of_side}),
            app(cpu="1", devices={GPU: of_app}),
        )
        decision = admit(now, promises, new)
        if isinstance(decision, Rejected):
            assert decision.promises == promises
        else:
            there.append(new)
            healthy = {one.id for one in pool.healthy}
            assert {*held(decision.promises, new.uid), *held(decision.promises, new.uid, "side")} <= healthy
            assert len(held(decision.promises, new.uid, "side")) == of_side
            assert len(held(decision.promises, new.uid)) == of_app
        promises = decision.promises
        assert violations(now, promises, tuple(there)) == ()
        assert {
            uid: pod_held.of(DeviceHoldings).devices
            for uid, pod_held in decode_devices(encode_devices(promises)).items()
        } == {uid: own.devices for uid, own in pods_with_devices(promises) if own.devices}
        again = readmit(now, promises, tuple(there))
        assert all(isinstance(result, Admitted) for _, result in again.results)
        assert [held(again.promises, each.uid) for each in there] == [held(promises, each.uid) for each in there]
        if goes and there:
            promises, _ = remove_pod(now, promises, there.pop(0).uid)
    for left in there:
        promises, _ = remove_pod(node.knowing(None, (), has_devices=True), promises, left.uid)
    assert promises == initial(node)


def test_a_node_that_gives_no_devices_decides_as_before() -> None:
    plain = managers(MACHINE_A, topology_manager_policy="restricted")
    assert admitted(plain, pod("a", app(cpu="2"))) == admitted(giving(), pod("a", app(cpu="2")))


class Preferring:
    """A plugin that prefers the last of what it is offered."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.offered: tuple[str, ...] = ()
        self.required: tuple[str, ...] = ()

    def describe_wait(self, _pod_uid: str) -> str:
        return ""

    def preferred(self, _pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        self.offered, self.required = available, must
        return (*must, *available[len(must) - size :])

    def allocate(self, _pod_uid: str, _ids: tuple[str, ...]) -> bytes:
        return self.answer


def test_the_answers_that_pods_hold_are_bounded_by_plugin() -> None:
    pools = tuple(
        DevicePool(resource, tuple(PoolDevice(f"d{n}") for n in range(3)), Preferring(bytes(size)))
        for resource, size in ((GPU, MAX_ANSWERS_BYTES // 2), (NIC, 100))
    )
    node = managers().knowing(None, pools)
    promises = admitted(node, *(pod(uid, app(cpu="1", devices={GPU: 1})) for uid in ("a", "b")))
    refused = admit(node, promises, pod("c", app(cpu="1", devices={GPU: 1})))
    assert isinstance(refused, Rejected)
    assert f"the device plugin of {GPU}: its stored answers for all pods would have 6291456 bytes" in refused.message
    other = admit(node, promises, pod("c", app(cpu="1", devices={NIC: 1})))
    assert isinstance(other, Admitted), "another plugin's answers count on their own"
    promises, _ = remove_pod(node, other.promises, "a")
    assert isinstance(admit(node, promises, pod("d", app(cpu="1", devices={GPU: 1}))), Admitted)


def test_a_preference_among_as_many_devices_as_a_plugin_may_have_takes_no_more_than_a_look_at_each() -> None:
    plugin = Preferring()
    devices = tuple(PoolDevice(f"d{n:05}", NumaMask(1 << n % 2)) for n in range(16_384))
    pool = DevicePool(GPU, devices, plugin)
    began = time.process_time()
    node = managers(topology_manager_policy="none").knowing(None, (pool,))
    promises = admitted(node, pod("p", app(devices={GPU: 12_000})))
    assert time.process_time() - began < 1.0, "comparing each with each takes more than 4 s"
    ids = [one.id for one in devices]
    assert plugin.required == ()
    assert plugin.offered == tuple(ids)
    assert held(promises, "p") == ids[-12_000:]
