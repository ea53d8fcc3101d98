"""numa-allocation-strategy and numa-score-weights by KEP-6007's present text: scores, weights, which of equal sets wins, refused values."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.affinity_score import rank_by_strategy
from nodeagent.core.admission.managers import Admitted, Managers
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import NOTHING, Promises, with_pod
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.numa.hints import DONT_CARE, HintList, MergeRules, merge
from nodeagent.core.numa.topology_manager import Scope, TopologyManager, TopologyPolicy, judge_topology_options
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import Block, MemoryHoldings
from tests.support.builders import GIB, machine, managers, pod
from tests.support.pods import app

ALPHA = (("TopologyManagerPolicyAlphaOptions", True),)
GPU = "nvidia.com/gpu"
POLICIES = ("best-effort", "restricted", "single-numa-node")


def node(topology: Topology, strategy: str, weights: str | None = None, **more: Any) -> Managers:
    options = (("numa-allocation-strategy", strategy), *(() if weights is None else (("numa-score-weights", weights),)))
    given: dict[str, Any] = {
        "gates": ALPHA,
        "topology_manager_policy": "single-numa-node",
        "topology_manager_policy_options": (*options, *more.pop("options", ())),
    }
    return managers(topology, **(given | more))


def placed(of: Managers, *pods: Pod, since: Promises | None = None) -> list[str]:
    """Admit the pods one after the other, and return the NUMA nodes of each, or why it was refused."""
    promises, shown = since or core.initial(of), []
    for one in pods:
        decision = core.admit(of, promises, one)
        promises = decision.promises
        shown.append(str(promises.hint(one.uid, "a").mask) if isinstance(decision, Admitted) else decision.reason.value)
    return shown


# The worked examples of the proposal

PROPOSED = Topology.of(
    machine(nodes=2, cores=64, threads=1).cpus,
    [NumaNode(n, 129 * GIB, (("hugepages-2Mi", 0),), (10, 20)) for n in range(2)],
)
"""64 CPUs that can be allocated and 128 GiB on each of two nodes, less what a test reserves."""


def as_proposed(strategy: str, weights: str | None) -> tuple[Managers, Promises]:
    """48 of 64 CPUs, 64 of 128 GiB and 1 of 4 GPUs on node 0; 16, 32 GiB and 3 on node 1."""
    topology = Topology.of(machine(nodes=2, cores=65, threads=1).cpus, PROPOSED.numa)
    of = node(topology, strategy, weights, reserved="0,65", reserved_memory={0: "1Gi", 1: "1Gi"})
    pools = DevicePool(GPU, tuple(PoolDevice(f"gpu{i}", NumaMask(1 << i // 4)) for i in range(8)))
    of = of.knowing(None, (pools,))
    held = NOTHING.having(
        CpuHoldings(cpus=(("c", CpuSet.parse("1-48,66-81")),)),
        MemoryHoldings(
            memory=(
                ("c", (Block(NumaSet.of(0), "memory", 64 * GIB),)),
                ("d", (Block(NumaSet.of(1), "memory", 32 * GIB),)),
            )
        ),
        DeviceHoldings(
            devices=(("c", tuple(pools.devices[i].held(GPU) for i in (0, 4, 5, 6))),),
        ),
    )
    return of, with_pod(core.initial(of), "other", held)


EVERYWHERE: HintList = ((NumaMask(1), True), (NumaMask(2), True), (NumaMask(3), False))
WEIGHTED = [
    (None, 50, 41),
    ("nvidia.com/gpu=10", 31, 66),
    ("cpu=3,memory=1,nvidia.com/gpu=6", 42, 55),
    ("cpu=5,nvidia.com/gpu=5", 50, 47),
    ("nvidia.com/gpu=10,cpu=0", 27, 70),
    ("cpu=100,memory=100,nvidia.com/gpu=100", 50, 41),
    ("cpu=30,memory=10,nvidia.com/gpu=60", 42, 55),
    ("cpu=0,memory=0,nvidia.com/gpu=0", 0, 0),
]


@pytest.mark.parametrize(("weights", "of_0", "of_1"), WEIGHTED)
@pytest.mark.parametrize(("strategy", "sign"), [("least-allocated", 1), ("most-allocated", -1)])
def test_scores_are_those_of_the_proposals_examples(
    weights: str | None, of_0: int, of_1: int, strategy: str, sign: int
) -> None:
    of, promises = as_proposed(strategy, weights)
    names = ("cpu", "memory", GPU)
    rank = rank_by_strategy(
        of.providers.topology, of.providers.resources, promises, tuple((name, EVERYWHERE) for name in names)
    )
    assert rank is not None
    assert (sign * rank(NumaMask(1)), sign * rank(NumaMask(2))) == (of_0, of_1)


def test_lists_that_accept_any_node_and_devices_asked_to_be_near_have_no_score() -> None:
    of, promises = as_proposed("most-allocated", None)
    lists: tuple[tuple[str, HintList], ...] = (("cpu", DONT_CARE), ("memory", EVERYWHERE), ("eth0", EVERYWHERE))
    rank = rank_by_strategy(of.providers.topology, of.providers.resources, promises, lists)
    assert rank is not None
    assert (rank(NumaMask(1)), rank(NumaMask(2))) == (-50, -25)


def test_without_the_option_nothing_is_scored() -> None:
    for of in (managers(PROPOSED, reserved="0", topology_manager_policy="restricted"), node(PROPOSED, "none")):
        assert rank_by_strategy(of.providers.topology, of.providers.resources, core.initial(of), ()) is None


def test_a_device_near_two_nodes_counts_for_both_together() -> None:
    of = node(machine(nodes=2, cores=4, threads=1), "most-allocated", reserved="0")
    pool = DevicePool(GPU, (PoolDevice("a", NumaMask(3)), PoolDevice("b", NumaMask(1)), PoolDevice("c", NumaMask(1))))
    of = of.knowing(None, (pool,))
    held = NOTHING.having(DeviceHoldings(devices=(("c", tuple(d.held(GPU) for d in pool.devices[:2])),)))
    promises = with_pod(core.initial(of), "other", held)
    rank = rank_by_strategy(of.providers.topology, of.providers.resources, promises, ((GPU, EVERYWHERE),))
    assert rank is not None
    assert (rank(NumaMask(1)), rank(NumaMask(3)), rank(NumaMask(2))) == (-50, -66, 0)


# The merge


def draft(rules: MergeRules, lists: list[HintList], score: Any) -> tuple[int, bool] | None:
    """Merge as the draft does, combination by combination, with the first of equal sets kept. None: no combination is preferred."""
    best: tuple[int, int] | None = None
    for combination in product(*lists):
        masks = [mask for mask, _ in combination if mask is not None]
        if not all(preferred for _, preferred in combination) or len(set(masks)) > 1:
            continue
        mask = masks[0] if masks else rules.default_mask
        of = sum(score(i, m) for i, (m, _) in enumerate(combination) if m is not None) // max(len(masks), 1)
        if best is None or mask.bit_count() < best[0].bit_count():
            best = mask, of
        elif mask.bit_count() == best[0].bit_count() and mask != best[0]:
            unequal = of and best[1] and of != best[1]
            if of < best[1] if unequal else mask < best[0]:
                best = mask, of
    return None if best is None else (best[0], True)


masks_of_three = st.integers(1, 7).map(NumaMask)


@given(
    st.lists(
        st.one_of(st.just(DONT_CARE), st.dictionaries(masks_of_three, st.booleans(), max_size=7)),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(1, 100), min_size=24, max_size=24),
)
def test_among_preferred_sets_the_choice_is_the_drafts(lists: list[Any], scores: list[int]) -> None:
    """Least allocated; a score below 1 doesn't happen for a set that a resource offers."""
    rules = MergeRules(NumaMask(7), single_node=False)
    hints = [each if each is DONT_CARE else tuple(sorted(each.items())) or ((None, False),) for each in lists]

    def score(place: int, mask: int) -> int:
        return scores[8 * place + mask]

    scored = [place for place, each in enumerate(hints) if any(mask is not None for mask, _ in each)]

    def rank(mask: NumaMask) -> int:
        return sum(score(place, mask) for place in scored) // max(len(scored), 1)

    expected = draft(rules, hints, score)
    found = merge(rules, hints, rank_set=rank)
    assert (found.preferred, expected is not None) in {(True, True), (False, False)}
    assert expected is None or found.mask == expected[0]


# Admission


@pytest.mark.parametrize("errata", list(Errata))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("none", ["0", "0", "0", "0"]),
        ("", ["0", "0", "0", "0"]),
        ("most-allocated", ["0", "0", "0", "0"]),
        ("least-allocated", ["0", "1", "2", "0"]),
    ],
)
def test_pods_gather_or_spread(errata: Errata, policy: str, strategy: str, expected: list[str]) -> None:
    of = node(machine(nodes=3, cores=9, threads=1), strategy, reserved="0,9,18", topology_manager_policy=policy, errata=errata)  # fmt: skip
    assert placed(of, *(pod(f"p{i}", app("a", "2", "1Gi")) for i in range(4))) == expected


def test_pods_gather_beside_what_is_there() -> None:
    topology = machine(nodes=3, cores=9, threads=1)
    expected = {"most-allocated": ["2", "2"], "least-allocated": ["0", "1"], "none": ["0", "0"]}
    for strategy, nodes in expected.items():
        of = node(topology, strategy, reserved="0,9,18")
        held = NOTHING.having(CpuHoldings(cpus=(("c", CpuSet.parse("19-22")),)))
        since = with_pod(core.initial(of), "other", held)
        assert placed(of, pod("x", app("a", "2", "1Gi")), pod("y", app("a", "2", "1Gi")), since=since) == nodes


def test_sets_of_several_nodes_are_compared_after_their_distances() -> None:
    """Nodes 0 and 1 are near each other, and so are 2 and 3. Two sets are as close: the one with less allocated wins."""
    rows = ((10, 12, 30, 30), (12, 10, 30, 30), (30, 30, 10, 12), (30, 30, 12, 10))
    topology = machine(nodes=4, cores=5, threads=1)
    topology = Topology.of(topology.cpus, [NumaNode(n, GIB, (("hugepages-2Mi", 0),), rows[n]) for n in range(4)])
    closest = (("prefer-closest-numa-nodes", "true"),)
    wide = pod("wide", app("a", "6", "1Gi"))
    for options, expected in ((closest, "2-3"), ((), "1-2")):
        of = node(
            topology, "least-allocated", reserved="0,5,10,15", topology_manager_policy="restricted", options=options
        )
        held = NOTHING.having(CpuHoldings(cpus=(("c", CpuSet.parse("1-2")), ("d", CpuSet.parse("16")))))
        since = with_pod(core.initial(of), "other", held)
        assert placed(of, wide, since=since) == [expected]


def test_container_scope_looks_at_the_containers_before_and_pod_scope_asks_once() -> None:
    """The proposal: under least-allocated, containers of one pod tend to different nodes in container scope."""
    both = pod("p", app("a", "2", "1Gi"), app("b", "2", "1Gi"))
    for scope, expected in (("container", ["0", "1"]), ("pod", ["0", "0"])):
        of = node(machine(nodes=2, cores=9, threads=1), "least-allocated", reserved="0,9", topology_manager_scope=scope)
        decision = core.admit(of, core.initial(of), both)
        assert isinstance(decision, Admitted)
        assert [str(decision.promises.hint("p", name).mask) for name in "ab"] == expected


def test_scores_in_whole_percent_below_one_change_nothing() -> None:
    """Two CPUs of 128 are 1.56 %, which scores 1, as an empty node does."""
    of = node(machine(nodes=2, cores=129, threads=1), "least-allocated", reserved="0,129")
    assert placed(of, *(pod(f"p{i}", app("a", "1", "1Gi")) for i in range(4))) == ["0", "0", "0", "1"]


@pytest.mark.parametrize("count", [6, 12, 16, 34])
@pytest.mark.parametrize("policy", POLICIES)
def test_machines_with_many_nodes_spread_as_well(count: int, policy: str) -> None:
    of = node(
        machine(nodes=count, cores=3, threads=1),
        "least-allocated",
        reserved="0",
        topology_manager_policy=policy,
        options=(("max-allowable-numa-nodes", "64"),),
    )
    pods = [pod(f"p{i}", app("a", "1", "1Gi")) for i in range(count + 1)]
    assert placed(of, *pods) == [str(i) for i in range(count)] + ["1"]


def test_the_strategy_also_chooses_the_node_of_cpus_that_devices_contradict() -> None:
    manager = TopologyManager(
        TopologyPolicy.BEST_EFFORT, Scope.CONTAINER, MergeRules(NumaMask(7), single_node=False), prefer_cpus_node=True
    )
    device: HintList = ((NumaMask(4), True),)
    for rank_set, expected in ((None, 1), (lambda mask: -mask, 2)):
        found = manager.despite_devices([device], EVERYWHERE, [], rank_set)
        assert found is not None
        assert (found.mask, found.preferred) == (expected, True)


# The configuration


def judge(*options: tuple[str, str], gates: tuple[tuple[str, bool], ...] = ALPHA) -> list[str]:
    placement = Placement(
        topology_manager_policy="restricted", topology_manager_policy_options=options, feature_gates=gates
    )
    return [each.message for each in judge_topology_options(placement)[1]]


def test_unknown_strategies_are_refused_in_the_drafts_words() -> None:
    (message,) = judge(("numa-allocation-strategy", "packed"))
    values = '["least-allocated" "most-allocated" "none"]'
    assert message == f'bad value for option "numa-allocation-strategy": "packed" must be one of {values}'
    assert judge(("numa-allocation-strategy", "none"), ("numa-score-weights", "")) == []


@pytest.mark.parametrize(
    "text", ["cpu", "cpu=", "=1", "cpu=-1", "cpu=1.5", "cpu=101", "cpu=1,", "cpu=1,cpu=2", "cpu= 1", "cpu=\u0661"]
)
def test_malformed_weights_are_refused(text: str) -> None:
    (message,) = judge(("numa-allocation-strategy", "most-allocated"), ("numa-score-weights", text))
    assert message.startswith("numa-score-weights must be resource=weight pairs with commas in between")


def test_both_options_are_alpha() -> None:
    options = (("numa-allocation-strategy", "most-allocated"), ("numa-score-weights", "cpu=0,nvidia.com/gpu=100"))
    assert judge(*options) == []
    alpha = 'Topology Manager Policy Alpha-level Options not enabled, but option "{}" provided'
    assert judge(*options, gates=()) == [alpha.format(name) for name, _ in options]


def test_the_two_forms_of_the_proposal_exclude_each_other() -> None:
    old = ("prefer-most-allocated-numa-node", "true")
    (message,) = judge(("numa-allocation-strategy", "least-allocated"), old)
    assert message.startswith("numa-allocation-strategy and prefer-most-allocated-numa-node exclude each other")
    assert judge(("numa-allocation-strategy", "none"), old) == []
    assert judge(("numa-allocation-strategy", "most-allocated"), (old[0], "false")) == []


@given(
    st.integers(2, 4),
    st.integers(2, 5),
    st.integers(1, 4),
    st.integers(1, 20),
    st.sampled_from(POLICIES),
    st.sampled_from(["least-allocated", "most-allocated"]),
)
def test_equal_pods_are_balanced_over_equal_nodes_or_fill_one_after_the_other(
    nodes: int, cores: int, cpus: int, count: int, policy: str, strategy: str
) -> None:
    """Least allocated: no node has two pods more than another. Most allocated: at most one node in use has room for another pod."""
    reserved = ",".join(str(node * cores) for node in range(nodes))
    topology = machine(nodes=nodes, cores=cores, threads=1)
    of = node(topology, strategy, reserved=reserved, topology_manager_policy=policy)
    most = (cores - 1) // cpus
    fitting = [pod(f"p{number}", app("a", cpu=str(cpus))) for number in range(min(count, nodes * most))]
    found = placed(of, *fitting)
    numbers = [found.count(str(each)) for each in range(nodes)]
    assert sum(numbers) == len(fitting)
    if strategy == "least-allocated":
        assert max(numbers) - min(numbers) <= 1
    else:
        assert sum(0 < number < most for number in numbers) <= 1
