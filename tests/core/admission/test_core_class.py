"""Pods that ask for a class of cores, or prefer one: what is promised to them is of it, or they are refused; others see none of it."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.asked_for import limit_to_pod
from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    admit,
    build,
    gauges,
    initial,
    readmit,
    remove_pod,
    violations,
)
from nodeagent.core.cgroups.desired_cgroups import Kernel, desired_cgroups, shared_pool
from nodeagent.core.metrics.manager_metrics import CPU_PER_NUMA, set_gauge
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.config import Config, Errata, Placement
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod, QosClass
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.state import NodeState, Origin, PodEntry
from nodeagent.core.model.topology import CORE_CLASSES, Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.cpu.resource import CpuResource
from tests.support.builders import ALPHA, MACHINE_A, PLRM, admitted, hybrid, managers
from tests.support.pods import app, exclusive, init, mixed, pod, sidecar
from tests.support.strategies import Add, Event, lived, lives, nodes

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SMALL = hybrid()
"""CPUs 0-7 in four performance cores, 8-11 in four efficiency cores."""


def held(promises: Promises, of: Pod) -> CpuSet:
    cpus = promises.of_pod(of.uid).of(CpuHoldings).pod_cpus or CpuSet()
    for _, own in promises.of_pod(of.uid).of(CpuHoldings).cpus:
        cpus |= own
    return cpus


def refused(node: Managers, new: Pod, promises: Promises | None = None) -> Rejected:
    decision = admit(node, promises or initial(node), new)
    assert isinstance(decision, Rejected)
    return decision


@st.composite
def hybrid_nodes(draw: st.DrawFn) -> Managers:
    topology = hybrid(
        nodes=draw(st.integers(1, 3)), performance=draw(st.integers(1, 4)), efficiency=draw(st.integers(1, 6))
    )
    options = draw(
        st.sampled_from([(), ("full-pcpus-only",), ("distribute-cpus-across-numa",), ("distribute-cpus-across-cores",)])
    )
    return managers(
        topology,
        options=options,
        gates=ALPHA,
        reserved=str(draw(st.sampled_from(list(topology.online)))),
        topology_manager_policy=draw(st.sampled_from(POLICIES)),
        topology_manager_scope=draw(st.sampled_from(["container", "pod"])),
        exclusive_core_class=draw(st.sampled_from(["any", *CORE_CLASSES])),
    )


@st.composite
def classed_pods(draw: st.DrawFn) -> tuple[Pod, ...]:
    made = []
    for number in range(draw(st.integers(1, 6))):
        containers = [app(f"c{c}", cpu=str(draw(st.integers(1, 5)))) for c in range(draw(st.integers(1, 2)))]
        required, preferred = draw(
            st.sampled_from(
                [(None, None), *((name, None) for name in CORE_CLASSES), *((None, n) for n in CORE_CLASSES)]
            )
        )
        made.append(pod(f"p{number}", *containers, core_class=required, preferred_core_class=preferred))
    return tuple(made)


@given(hybrid_nodes(), classed_pods(), st.data())
def test_what_is_required_holds_and_what_is_preferred_refuses_nobody(
    node: Managers, arriving: tuple[Pod, ...], data: st.DataObject
) -> None:
    promises, there = initial(node), []
    for new in arriving:
        plain = replace(new, core_class=None, preferred_core_class="any")
        without = admit(node, promises, plain)
        decision = admit(node, promises, new)
        wish = new.preferred_core_class or node.placement.exclusive_core_class
        if new.core_class is None and wish != "any":
            required = admit(node, promises, replace(plain, core_class=wish))
            expected = required if isinstance(required, Admitted) else without
        elif new.core_class is None:
            expected = without
        else:
            expected = decision
        assert type(decision) is type(expected)
        assert decision.promises == expected.promises
        if isinstance(decision, Admitted):
            of_class = node.topology.core_classes[new.core_class] if new.core_class else node.topology.online
            assert held(decision.promises, new) <= of_class - node.reserved
            promises, there = decision.promises, [*there, new]
            assert violations(node, promises, tuple(there)) == ()
        else:
            assert decision.promises == promises, "a refusal changes nothing"
        if there and data.draw(st.integers(0, 3)) == 0:
            gone = there.pop(data.draw(st.integers(0, len(there) - 1)))
            promises, _ = remove_pod(node, promises, gone.uid)
    again = readmit(node, promises, tuple(there))
    assert again.promises == promises
    assert all(isinstance(result, Admitted) for _, result in again.results)


@given(nodes(), lives(), st.sampled_from(CORE_CLASSES), st.sampled_from(CORE_CLASSES))
def test_where_all_cores_are_alike_nothing_is_decided_differently(
    node: Managers, life: list[Event], exclusive_class: str, shared_class: str
) -> None:
    placement = replace(node.placement, exclusive_core_class=exclusive_class, shared_core_class=shared_class)
    other = build(node.topology, placement)
    assert isinstance(other, Managers)
    wishing: list[Event] = [
        dataclasses.replace(event, pod=replace(event.pod, preferred_core_class=exclusive_class))
        if isinstance(event, Add)
        else event
        for event in life
    ]
    for mine, theirs in zip(lived(node, life), lived(other, wishing), strict=True):
        assert mine.after == theirs.after
        assert shared_pool(node, mine.after, node.topology.online) == shared_pool(
            other, theirs.after, node.topology.online
        )


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", POLICIES)
def test_containers_of_each_kind_are_on_them(policy: str, scope: str) -> None:
    node = managers(hybrid(nodes=2), reserved="0", topology_manager_policy=policy, topology_manager_scope=scope)
    containers = (init(cpu="2"), sidecar(cpu="1"), app(cpu="2"), app("helper", cpu="500m"))
    for name in CORE_CLASSES:
        new = pod("new", *containers, core_class=name)
        cpus = held(admitted(node, new), new)
        assert len(cpus) == 3
        assert cpus <= node.topology.core_classes[name]


def test_a_pod_with_one_set_for_all_and_a_mixed_one_are_on_them() -> None:
    node = managers(SMALL, gates=PLRM, reserved="0", topology_manager_policy="restricted", topology_manager_scope="pod")
    whole = pod("new", app(cpu="1"), app("beside"), resources=exclusive("3", "1Gi"), core_class="efficiency")
    assert held(admitted(node, whole), whole) == CpuSet.parse("8-10")
    some = pod("some", mixed(cpu="1500m", own=1), core_class="efficiency")
    assert held(admitted(node, some), some) == CpuSet.of(8)


def test_hints_count_that_class_alone() -> None:
    """Six CPUs would fit one node, but not six of one class: two nodes are the fewest that could ever hold them."""
    two = hybrid(nodes=2, performance=2, efficiency=6)
    asking = pod("new", app(cpu="6"), core_class="performance")
    found = managers(two, reserved="4", topology_manager_policy="restricted")
    assert held(admitted(found, asking), asking) == CpuSet.parse("0-3,10-11")
    alone = refused(managers(two, reserved="4", topology_manager_policy="single-numa-node"), asking)
    assert alone.reason is Reason.TOPOLOGY_AFFINITY
    assert alone.message.endswith(" (only performance cores, which it requires)")
    one = pod("new", app(cpu="4"), core_class="performance")
    taken = admitted(found, pod("first", app(cpu="1"), core_class="performance", numa_node=0))
    decision = admit(found, taken, one)
    assert isinstance(decision, Admitted)
    assert held(decision.promises, one) == CpuSet.parse("10-13"), "the node with enough of them"


def test_a_node_and_a_class_together() -> None:
    node = managers(hybrid(nodes=2), reserved="0", topology_manager_policy="best-effort")
    both = pod("new", app(cpu="3"), core_class="efficiency", numa_node=1)
    assert held(admitted(node, both), both) == CpuSet.parse("20-22")


def test_whole_cores_are_those_of_the_class() -> None:
    node = managers(SMALL, reserved="0", options=("full-pcpus-only",))
    odd = refused(node, pod("new", app(cpu="3"), core_class="performance"))
    assert odd.reason is Reason.SMT_ALIGNMENT
    assert "requested 3 cpus not multiple cpus per core = 2" in odd.message
    three = pod("new", app(cpu="3"), core_class="efficiency")
    assert held(admitted(node, three), three) == CpuSet.parse("8-10")


def test_equal_shares_of_nodes_are_shares_of_the_class() -> None:
    spread = ("distribute-cpus-across-numa", "full-pcpus-only")
    node = managers(hybrid(nodes=2), reserved="8", options=spread, topology_manager_policy="best-effort")
    new = pod("new", app(cpu="12"), core_class="performance")
    halves = [held(admitted(node, new), new) & node.topology.nodes[number] for number in (0, 1)]
    assert [len(half) for half in halves] == [6, 6]


def test_too_few_of_the_class_say_so() -> None:
    found = refused(managers(SMALL, reserved="0"), pod("new", app(cpu="5"), core_class="efficiency"))
    assert found.reason is Reason.UNEXPECTED_ADMISSION
    assert "requested=5, available=4" in found.message
    assert found.message.endswith(" (only efficiency cores, which it requires)")


def test_what_is_nowhere_is_refused_whatever_the_policy() -> None:
    shares = "it requires efficiency cores, but requests no exclusive CPUs: the shared pool is on cores of any class"
    slow = SMALL.without(CpuSet.parse("0-7"))
    for policy in POLICIES:
        node = managers(SMALL, reserved="0", topology_manager_policy=policy)
        for sharing in (app(cpu="1500m"), app()):
            found = refused(node, pod("new", sharing, core_class="efficiency"))
            assert (found.reason, found.message) == (Reason.CORE_CLASS, shares)
        alike = refused(managers(topology_manager_policy=policy), pod("new", app(cpu="2"), core_class="performance"))
        assert alike.message == "it requires performance cores, but all cores of this machine are of one kind"
        gone = refused(
            managers(slow, reserved="8", topology_manager_policy=policy),
            pod("new", app(cpu="2"), core_class="performance"),
        )
        assert gone.message == "it requires performance cores, but this machine has only efficiency cores"
    off = build(SMALL, Placement())
    assert isinstance(off, Managers)
    assert refused(off, pod("new", app(cpu="2"), core_class="efficiency")).message == shares


def test_a_pod_that_runs_keeps_what_it_has() -> None:
    node = managers(SMALL, reserved="0")
    there = pod("there", app(cpu="2"), core_class="performance")
    promises = admitted(node, replace(there, core_class="efficiency"))
    (again,) = (result for _, result in readmit(node, promises, (there,)).results)
    assert isinstance(again, Admitted)
    assert again.promises.of_pod(there.uid).of(CpuHoldings).cpus == promises.of_pod(there.uid).of(CpuHoldings).cpus


def test_others_are_decided_by_the_same_managers() -> None:
    node = managers(SMALL, reserved="0")
    assert limit_to_pod(node.providers, demand_of(node.rules, pod("other", app(cpu="2")))) is node.providers
    assert managers(MACHINE_A).providers.of(CpuResource).manager.classes == ()


def test_the_nodes_wish_is_the_default_and_the_pods_own_comes_first() -> None:
    node = managers(SMALL, reserved="8", exclusive_core_class="performance")
    kubelet = managers(SMALL, reserved="8")
    plain = pod("new", app(cpu="2"))
    assert held(admitted(kubelet, plain), plain) == CpuSet.parse("9-10"), "small cores first, as kubelet has no classes"
    assert held(admitted(node, plain), plain) == CpuSet.parse("0-1")
    for wish, cpus in (("efficiency", "9-10"), ("any", "9-10"), ("performance", "0-1")):
        own = replace(plain, preferred_core_class=wish)
        assert held(admitted(node, own), own) == CpuSet.parse(cpus)
    strict = replace(plain, core_class="efficiency")
    assert held(admitted(node, strict), strict) == CpuSet.parse("9-10")


def test_a_wish_that_cannot_be_had_moves_no_counter() -> None:
    node = managers(SMALL, reserved="8", exclusive_core_class="efficiency", topology_manager_policy="restricted")
    many = pod("new", app(cpu="6"))
    wishing, plain = (
        admit(node, initial(node), many),
        admit(managers(SMALL, reserved="8", topology_manager_policy="restricted"), initial(node), many),
    )
    assert isinstance(wishing, Admitted)
    assert isinstance(plain, Admitted)
    assert wishing.deltas == plain.deltas
    assert wishing.report.core_class is None


def test_gauges_are_about_the_whole_machine() -> None:
    two = hybrid(nodes=2, performance=2, efficiency=2)
    first = pod("first", app(cpu="2"), core_class="performance", numa_node=1)
    node = managers(two, reserved="0")
    promises = admitted(node, first)
    second = admit(node, promises, pod("second", app(cpu="1"), core_class="efficiency", numa_node=1))
    assert isinstance(second, Admitted)
    per_node = [value for series, value in gauges(node, second.promises) if series.name == CPU_PER_NUMA]
    assert per_node == [0, 3]
    drifting = managers(two, reserved="0", errata=Errata.KUBELET_1_36)
    started = admit(
        drifting, admitted(drifting, first), pod("second", app(cpu="1"), core_class="efficiency", numa_node=1)
    )
    assert set_gauge(CPU_PER_NUMA, 3, numa_node="1") in started.deltas


def test_the_shared_pool_is_on_its_class_while_it_has_any() -> None:
    node = managers(SMALL, reserved="0", exclusive_core_class="efficiency", shared_core_class="efficiency")
    online = node.topology.online
    pools, promises = [], initial(node)
    for number in range(4):
        pools.append(str(shared_pool(node, promises, online)))
        decision = admit(node, promises, pod(f"p{number}", app(cpu="1")))
        assert isinstance(decision, Admitted)
        promises = decision.promises
    assert pools == ["8-11", "9-11", "10-11", "11"]
    assert str(shared_pool(node, promises, online)) == "0-7", "all that is left"
    none = build(SMALL, Placement(shared_core_class="performance"))
    assert isinstance(none, Managers)
    assert str(shared_pool(none, initial(none), online)) == "0-7"


def test_the_kernel_keeps_those_who_share_on_their_class() -> None:
    node = managers(SMALL, reserved="0,8", shared_core_class="efficiency")
    new = pod("new", mixed(cpu="1500m", own=1), app("helper", memory="64Mi"), core_class="performance")
    entry = PodEntry(new, QosClass.BURSTABLE, Origin("new.yaml"), 0)
    state = NodeState(admitted(node, new), (entry,), 1)
    cgroups = desired_cgroups(Config(placement=node.placement), node, Kernel.of(node.topology, 4096, {}), state)
    leaves = {one.path.rpartition("/")[2]: one for one in cgroups if one.is_leaf}
    assert str(leaves.pop("pool").get(Attribute.CPUSET_CPUS)) == "8-11"
    cpus = {name: str(one.get(Attribute.CPUSET_CPUS)) for name, one in leaves.items()}
    assert cpus == {"app": "1,8-11", "helper": "8-11"}


def test_classes_of_a_machine() -> None:
    assert {name: str(cpus) for name, cpus in SMALL.core_classes.items()} == {
        "performance": "0-7",
        "efficiency": "8-11",
    }
    assert MACHINE_A.core_classes == {}
    for earlier, later in pairwise(CORE_CLASSES):
        assert min(SMALL.core_classes[earlier]) < min(SMALL.core_classes[later])
    only: Topology = SMALL.without(CpuSet.parse("8-11"))
    assert list(only.core_classes) == ["performance"]
