"""How much work decisions take, counted in steps: never what multiplying lists out, or listing all sets of nodes, would take."""

from math import comb, sqrt
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.one_pod import MergeReport
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.podmap import Fold, PodMap
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState, UnitKey
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.numa import topology_manager
from nodeagent.core.numa.hint_family import MAX_STEPS, HintFamily
from nodeagent.core.numa.hints import HintList, MergeRules, masks_by_size, merge
from nodeagent.core.numa.node_search import MORE_STEPS, Steps
from nodeagent.core.resources.cpu import distribution as cpu_distribution
from nodeagent.core.resources.memory import groups as memory_groups
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from nodeagent.formats.checkpoint import node_state
from nodeagent.formats.checkpoint.node_state import StateEncoder
from tests.support.builders import GIB, machine, managers
from tests.support.node_model import started
from tests.support.pods import app, pod
from tests.support.world import node as world_node

# The merge of lists


class CountedMask(int):
    """A mask that counts how often it is intersected with another."""

    intersections = 0

    def __and__(self, other: int) -> "CountedMask":
        CountedMask.intersections += 1
        return CountedMask(int(self) & int(other))

    __rand__ = __and__


@pytest.mark.parametrize("lists", [1, 2, 3, 4, 6])
def test_lists_are_not_multiplied_out(lists: int) -> None:
    """What kubelet compares are 31^n combinations; distinct intersections are 31 at most, however many lists there are."""
    every: HintList = tuple((CountedMask(mask), False) for mask in masks_by_size(range(5)))
    CountedMask.intersections = 0
    merged = merge(MergeRules(CountedMask(0b11111), single_node=False), [every] * lists)
    assert (merged.mask, merged.preferred) == (1, False)
    assert CountedMask.intersections <= lists * 31 * 31


# Many NUMA nodes, four hint providers: CPUs, memory and two sizes of huge pages

PAGES = {"hugepages-2Mi": 8 * GIB, "hugepages-1Gi": 16 * GIB}


def node_of(
    nodes: int, policy: str, *, scope: str = "container", options: tuple[str, ...] = (), uneven: bool = False
) -> Managers:
    topology = machine(nodes=nodes, cores=4, memory=64 * GIB, hugepages=PAGES)
    if uneven:
        # No two nodes are alike.
        numa = [
            replace(
                n,
                memory_bytes=n.memory_bytes - n.id * 701 * 2**20,
                hugepages=tuple((r, s - n.id % 7 * GIB) for r, s in n.hugepages),
            )
            for n in topology.numa
        ]
        topology = Topology.of(topology.cpus, numa)
    return managers(
        topology,
        reserved="0",
        reserved_memory={0: "1Gi"},
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        topology_manager_policy_options=(("max-allowable-numa-nodes", "64"), *((option, "true") for option in options)),
    )


def asking(name: str, cpu: int, memory: str) -> Pod:
    return pod(name, app("c", str(cpu), memory, hugepages_2Mi="1Gi", hugepages_1Gi="2Gi"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Steps]:
    """All counters of searches that are begun."""
    begun: list[Steps] = []

    def begin(limit: int) -> Steps:
        begun.append(Steps(limit))
        return begun[-1]

    monkeypatch.setattr(topology_manager, "Steps", begin)
    monkeypatch.setattr(memory_groups, "Steps", begin)
    return begun


def admitted_one_by_one(of: Managers, pods: list[Pod]) -> list[Admitted | Rejected]:
    promises, decisions = core.initial(of), []
    for one in pods:
        decisions.append(core.admit(of, promises, one))
        promises = decisions[-1].promises
    return decisions


def only_merge(decision: Admitted | Rejected) -> MergeReport:
    (report,) = decision.report.merges
    return report


REQUESTS = {"one node": (4, "8Gi"), "CPUs of three nodes, memory of one": (20, "8Gi"), "four nodes": (26, "200Gi")}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("policy", ["single-numa-node", "best-effort", "restricted"])
@pytest.mark.parametrize("nodes", [8, 16, 34])
def test_steps_grow_with_the_nodes_not_with_their_sets(
    counted: list[Steps], nodes: int, policy: str, request_: tuple[int, str]
) -> None:
    decisions = admitted_one_by_one(node_of(nodes, policy), [asking(f"p{i}", *request_) for i in range(3)])
    assert sum(steps.taken for steps in counted) <= len(decisions) * (12 * nodes + MORE_STEPS)
    hints = [hints for _, hints in only_merge(decisions[0]).hints]
    assert len(hints) == 4
    assert all(isinstance(each, HintFamily) and len(each.listed) <= nodes for each in hints)


@pytest.mark.parametrize("options", [(), ("prefer-closest-numa-nodes",)], ids=["", "closest"])
@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_nodes_that_are_all_different_are_searched_exactly(
    counted: list[Steps], policy: str, options: tuple[str, ...]
) -> None:
    pods = [
        asking(f"p{i}", cpu, memory) for i, (cpu, memory) in enumerate([(4, "8Gi"), (20, "150Gi"), (9, "90Gi")] * 2)
    ]
    decisions = admitted_one_by_one(node_of(34, policy, options=options, uneven=True), pods)
    assert any(isinstance(decision, Admitted) for decision in decisions)
    assert all(steps.taken < MAX_STEPS for steps in counted), "no search was given up"


def test_memory_nodes_without_cpus() -> None:
    """Two nodes with CPUs and 32 of accelerators (kubernetes#135541): kubelet never gets through their 2^34 sets."""
    two = machine(nodes=2, cores=36, memory=480 * GIB, distances=[(10,) * 34] * 2)
    accelerators = [NumaNode(n, 0, (), (10,) * 34) for n in range(2, 34)]
    topology = Topology.of(two.cpus, [*two.numa, *accelerators])
    for policy in ("best-effort", "restricted", "single-numa-node"):
        of = managers(
            topology,
            reserved="0",
            reserved_memory={0: "1Gi"},
            topology_manager_policy=policy,
            topology_manager_policy_options=(("max-allowable-numa-nodes", "64"),),
        )
        decision = core.admit(of, core.initial(of), pod("p", app("c", "40", "100Gi")))
        assert isinstance(decision, Admitted)
        assert (only_merge(decision).merged.mask, only_merge(decision).merged.preferred) == (0b01, True)


def test_a_search_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restricted then refuses and best-effort admits, in bounded work."""
    monkeypatch.setattr(topology_manager, "MAX_STEPS", 3)
    one = asking("p", 20, "150Gi")
    assert isinstance(core.admit(node_of(34, "best-effort"), core.initial(node_of(34, "best-effort")), one), Admitted)
    refused = core.admit(node_of(34, "restricted"), core.initial(node_of(34, "restricted")), one)
    assert isinstance(refused, Rejected)
    assert refused.reason.value == "TopologyAffinityError"


# Distribution across NUMA nodes


@pytest.mark.parametrize("nodes", [8, 16, 34])
def test_nodes_that_are_alike_are_combined_once(monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    compared = 0

    def counting(variance: float) -> float:
        nonlocal compared
        compared += 1
        return sqrt(variance)

    monkeypatch.setattr(cpu_distribution, "sqrt", counting)
    of = managers(machine(nodes=nodes, cores=8), reserved="0", options=("distribute-cpus-across-numa",))
    decisions = admitted_one_by_one(of, [pod(f"p{i}", app("c", "65")) for i in range(2 if nodes > 8 else 1)])
    assert all(isinstance(decision, Admitted) for decision in decisions)
    assert compared <= 200 < comb(34, 5)


# Growth with the pods that are there (D24)


TOPOLOGY_ALPHA = (("TopologyManagerPolicyAlphaOptions", True),)


def crowd(present: int) -> tuple[Managers, Promises]:
    of = managers(machine(nodes=4, cores=160), reserved="0")
    promises = core.initial(of)
    for number in range(present):
        promises = core.admit(of, promises, pod(f"p{number:04}", app("c", "1"))).promises
    return of, promises


@pytest.mark.parametrize("present", [10, 1000])
def test_one_pod_more_spells_one_pod_and_joins_a_path(present: int) -> None:
    leaves = joins = 0

    def leaf(uid: str, _value: object) -> tuple[str, ...]:
        nonlocal leaves
        leaves += 1
        return (uid,)

    def join(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
        nonlocal joins
        joins += 1
        return a + b

    fold: Fold[object, tuple[str, ...]] = Fold((), leaf, join)
    of, promises = crowd(present)
    assert len(promises.pods.fold(fold)) == present
    leaves = joins = 0
    for number in range(20):
        promises = core.admit(of, promises, pod(f"p{number * 37 % 1000:04}-more", app("c", "1"))).promises
        assert len(promises.pods.fold(fold)) == present + number + 1
    assert leaves == 20
    # A path of a treap of n pods is about 2 ln n nodes long, with two joins each.
    assert joins <= 20 * 2 * 35


def looks(monkeypatch: pytest.MonkeyPatch, empty: object) -> list[str]:
    """Pods that are looked at, as they are, by the summary that begins with this."""
    looked: list[str] = []
    original, counting = PodMap.fold, {}

    def fold(pods: PodMap[Any], by: Fold[Any, Any]) -> object:
        def leaf(uid: str, held: object) -> object:
            looked.append(uid)
            return by.leaf(uid, held)

        if by.empty == empty and by not in counting:
            counting[by] = replace(by, leaf=leaf)
        return original(pods, counting.get(by, by))

    monkeypatch.setattr(PodMap, "fold", fold)
    return looked


def test_the_fuller_node_is_found_without_a_look_at_the_pods_there(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = looks(monkeypatch, {})
    of = managers(
        machine(nodes=4, cores=160), reserved="0", topology_manager_policy="single-numa-node", gates=TOPOLOGY_ALPHA,
        topology_manager_policy_options=(("prefer-most-allocated-numa-node", "true"),), reserved_memory={0: "1Gi"},
    )  # fmt: skip
    promises = core.initial(of)
    for number in range(60):
        decision = core.admit(of, promises, pod(f"p{number * 7 % 60:02}", app("c", "1", "1Mi")))
        assert isinstance(decision, Admitted)
        promises = decision.promises
    assert memory_nodes_of(promises, "uid-p00", "c") == memory_nodes_of(promises, "uid-p59", "c")
    assert len(looked) == len(set(looked)) == 59, "each once; nobody has been decided on after the last"


def test_a_state_saved_again_spells_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    spelt: list[str] = []
    promised = looks(monkeypatch, ())
    spell = node_state.pod_to_document

    def spelling(of: Pod) -> dict[str, object]:
        spelt.append(of.uid)
        return spell(of)

    node = world_node()
    pods = [pod(f"p{number}", app(cpu="1")) for number in range(12)]
    states = [started(node, *pods[:count])[1].state for count in (10, 12)]
    monkeypatch.setattr(node_state, "pod_to_document", spelling)
    assert {"uid-p0", "uid-p9"} <= {*promised}
    promised.clear()
    encoder = StateEncoder()
    first = encoder.encode(states[0], {})
    # What the pods are promised was spelt when the agent saved the state.
    assert spelt == [f"uid-p{number}" for number in range(10)]
    spelt.clear()
    assert encoder.encode(states[0], {}) == first
    assert spelt == []
    more = replace(states[0], entries=(*states[0].entries, *states[1].entries[10:]))
    encoder.encode(more, {})
    assert spelt == ["uid-p10", "uid-p11"]
    assert promised == []


def test_a_pod_that_stands_for_no_unit_asks_no_other_for_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise many pods that come at once would each ask all others."""
    asked = 0
    own = NodeState.unit_holders

    def counted(state: NodeState) -> tuple[tuple[str, frozenset[UnitKey]], ...]:
        nonlocal asked
        asked += 1
        return own(state)

    monkeypatch.setattr(NodeState, "unit_holders", counted)
    pods = [pod(f"p{number:02}", app(cpu="1")) for number in range(40)]
    _, agent = started(world_node(machine(nodes=1, cores=32)), *pods)
    assert len(agent.state.entries) == len(pods)
    assert asked == 0


def test_the_admission_of_a_new_pod_looks_through_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of many pods that come at once would grow with the square of their number."""

    def refuse(_state: NodeState, uid: str) -> NodeState:
        raise AssertionError(uid)

    monkeypatch.setattr(NodeState, "without", refuse)
    pods = [pod(f"p{number:02}", app(cpu="1")) for number in range(20)]
    _, agent = started(world_node(machine(nodes=1, cores=32)), *pods)
    assert all(one.is_active for one in agent.state.entries)
    assert len(agent.state.entries) == len(pods)


@pytest.mark.parametrize("empty", [{}, (CpuSet(), CpuSet())], ids=["memory", "CPUs"])
def test_invariants_look_at_the_pods_that_have_changed(monkeypatch: pytest.MonkeyPatch, empty: object) -> None:
    looked = looks(monkeypatch, empty)
    of = managers(machine(nodes=2, cores=40), reserved="0", reserved_memory={0: "1Gi"})
    pods = [pod(f"p{number:02}", app("c", "1", "1Mi")) for number in range(20)]
    promises = core.initial(of)
    for one in pods[:-1]:
        promises = core.admit(of, promises, one).promises
    assert core.violations(of, promises, tuple(pods[:-1])) == ()
    assert len(looked) == len(set(looked)) == 19
    promises = core.admit(of, promises, pods[-1]).promises
    assert core.violations(of, promises, tuple(pods)) == ()
    assert looked[19:] == ["uid-p19"]
