"""Whatever pods hold and whatever the node has become: promises made anew break no invariant, and who needn't move doesn't."""

from typing import Any

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, build, resume, violations
from nodeagent.core.admission.node_rules import count_lacking_cpus
from nodeagent.core.model.demand import Gates
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Hint, PodPromises, Promises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, exclusive_sets, own_set_of
from nodeagent.core.resources.memory.holdings import Block, MemoryHoldings, memory_accounts
from nodeagent.core.turn.recovery import PlacedPods, RecoveredPod, place_recovered
from tests.support import invariants
from tests.support.shares import share_of
from tests.support.strategies import Event, lived, lives, nodes, pods

EXAMPLES = settings(max_examples=share_of(150))


def claims_of(promises: Promises, active: tuple[Pod, ...], running: frozenset[int]) -> tuple[RecoveredPod, ...]:
    return tuple(RecoveredPod(pod, promises.of_pod(pod.uid), n in running) for n, pod in enumerate(active))


def expect_nothing_new(claim: RecoveredPod, promises: Promises) -> None:
    after = promises.of_pod(claim.pod.uid)
    assert all(
        cpus <= (claim.held.of(CpuHoldings).own_set(name) or CpuSet()) for name, cpus in after.of(CpuHoldings).cpus
    )
    assert after.of(CpuHoldings).pod_cpus in {None, claim.held.of(CpuHoldings).pod_cpus}
    assert set(after.of(MemoryHoldings).memory) <= set(claim.held.of(MemoryHoldings).memory)
    assert after.of(MemoryHoldings).pod_memory in {None, claim.held.of(MemoryHoldings).pod_memory}


def lived_through(node: Managers, events: list[Event]) -> tuple[Promises, tuple[Pod, ...]]:
    *_, last = lived(node, events)
    return last.after, last.pods


def expect_sound(node: Managers, claims: tuple[RecoveredPod, ...], made: PlacedPods) -> tuple[Pod, ...]:
    """Give the pods that were kept."""
    refused = {uid for uid, _ in made.refused}
    assert all(not claim.stays for claim in claims if claim.pod.uid in refused), "who runs is never refused"
    assert all(not claim.ends for claim in claims if claim.pod.uid in refused), "nor who ends"
    kept = tuple(claim.pod for claim in claims if claim.pod.uid not in refused)
    assert violations(node, made.promises, kept) == ()
    assert [*invariants.shared_cpus(node, made.promises, kept)] == []
    assert [*invariants.pool_errors(node, made.promises)] == []
    ending = {claim.pod.uid: claim for claim in claims if claim.ends}
    for claim in ending.values():
        expect_nothing_new(claim, made.promises)
        assert all(difference.pod != claim.pod for difference in made.differences)
    for pod in kept:
        for container in pod.containers:
            own = own_set_of(made.promises, pod.uid, container.name)
            wanted = invariants.wanted_cpus(_generous(node), pod, container)
            assert len(own or ()) <= max(wanted, len(made.promises.of_pod(pod.uid).of(CpuHoldings).pod_cpus or ()))
            if pod.uid in ending:
                continue
            reported = [
                d for d in made.differences if (d.pod, d.container, d.what.resource) == (pod, container.name, "CPUs")
            ]
            before = next(c.held.of(CpuHoldings).own_set(container.name) for c in claims if c.pod is pod)
            assert bool(reported) >= (own != before), "what is not as it was is told"
            if count_lacking_cpus(node, made.promises, pod, container.name):
                assert any("degraded" in d.what.why for d in reported)
    return kept


def _generous(node: Managers) -> Managers:
    """The node as it may have been when a pod was given what it keeps."""
    placement = replace(node.placement, topology_manager_scope="container")
    return replace(node, rules=replace(node.rules, gates=Gates(True, True)), placement=placement)


def with_gate(node: Managers, *, is_on: bool) -> Managers:
    """The same node with the gate PodLevelResourceManagers turned on or off."""
    gates = (*node.placement.feature_gates, ("PodLevelResourceManagers", is_on))
    built = build(node.topology, replace(node.placement, feature_gates=tuple(dict(gates).items())))
    assert isinstance(built, Managers)
    return built


def as_it_is(promises: Promises) -> object:
    pods = {uid: replace(held, hints=()) for uid, held in promises.pods}
    settled_books = invariants.settled(promises)
    return default_set(promises), pods, memory_accounts(settled_books)


RUNNING = st.frozensets(st.integers(0, 7))


@EXAMPLES
@given(nodes(), lives(), RUNNING)
def test_on_the_same_node_nothing_changes(node: Managers, events: list[Event], running: frozenset[int]) -> None:
    promises, active = lived_through(node, events)
    claims = claims_of(promises, active, running | frozenset(range(8)))
    made = place_recovered(node, claims)
    expect_sound(node, claims, made)
    before, after = as_it_is(promises), as_it_is(made.promises)
    assert before == after or [d for d in made.differences if d.what.before not in {"shared", "any"}] == []
    kept = {(uid, name): cpus for uid, name, cpus in exclusive_sets(promises)}
    assert {key: own_set_of(made.promises, *key) for key in kept} == kept


@EXAMPLES
@given(node=nodes(), events=lives(), was_on=st.booleans())
def test_a_gate_that_is_turned_moves_nobody(node: Managers, events: list[Event], *, was_on: bool) -> None:
    was, now = (with_gate(node, is_on=on) for on in (was_on, not was_on))
    promises, active = lived_through(was, events)
    assert resume(now, promises) == promises
    assert violations(now, promises, active) == ()
    if was_on:
        made = place_recovered(now, claims_of(promises, active, frozenset(range(8))))
        assert made.differences == ()
        assert as_it_is(made.promises) == as_it_is(promises)


@EXAMPLES
@given(nodes(), lives(), nodes(), RUNNING, RUNNING)
def test_on_any_other_node_the_promises_are_sound(
    was: Managers, events: list[Event], now: Managers, running: frozenset[int], ending: frozenset[int]
) -> None:
    promises, active = lived_through(was, events)
    claims = tuple(
        replace(claim, ends=not claim.stays and n in ending)
        for n, claim in enumerate(claims_of(promises, active, running))
    )
    made = place_recovered(now, claims)
    kept = expect_sound(now, claims, made)
    left = (claim for claim in claims if claim.pod in kept)
    again = place_recovered(
        now,
        tuple(replace(c, held=made.promises.of_pod(c.pod.uid), stays=not c.ends) for c in left),
    )
    sets = {(uid, name): cpus for uid, name, cpus in exclusive_sets(made.promises)}
    assert {key: own_set_of(again.promises, *key) for key in sets} == sets, "once made anew, they stay"


@st.composite
def hostile_claims(draw: Any) -> tuple[RecoveredPod, ...]:
    """Claims that no admission would have made: sets of any size and place, two pods on the same, nodes that are not there."""
    sets = st.none() | st.integers(0, 2**12 - 1).map(CpuSet)
    groups = st.integers(0, 31).map(NumaSet)
    blocks = st.lists(
        st.builds(Block, groups, st.sampled_from(["memory", "hugepages-2Mi", "odd"]), st.integers(0, 2**36)), max_size=2
    ).map(tuple)
    claims = []
    for number in range(draw(st.integers(1, 4))):
        pod = draw(pods(f"p{number}"))
        names = [*(c.name for c in pod.containers), "unknown"]
        chosen = sorted(draw(st.sets(st.sampled_from(names))))
        own = tuple((name, cpus) for name in chosen if (cpus := draw(sets)) is not None)
        memory = tuple((name, draw(blocks)) for name in chosen if draw(st.booleans()))
        hints = tuple((name, Hint(draw(st.none() | groups), draw(st.booleans()))) for name in chosen)
        held = PodPromises(hints=hints if draw(st.booleans()) else ()).having(
            CpuHoldings(cpus=own, pod_cpus=draw(sets)),
            MemoryHoldings(memory=memory, pod_memory=draw(st.none() | blocks)),
        )
        stays, ends = draw(st.sampled_from([(True, False), (False, False), (False, True)]))
        claims.append(RecoveredPod(pod, held, stays, ends))
    return tuple(claims)


@EXAMPLES
@given(nodes(), hostile_claims())
def test_claims_that_cannot_be_are_taken_apart(node: Managers, claims: tuple[RecoveredPod, ...]) -> None:
    expect_sound(node, claims, place_recovered(node, claims))
