"""What holds for every node, whatever pods come and go: under `fixed` all of it, under `kubelet-1.36` a weaker list."""

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.records import Records, start
from nodeagent.core.model.config import Errata
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import CpuBooks, default_set, exclusive_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import MemoryBooks, memory_accounts
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state, policies_of
from nodeagent.formats.scenario.scenario import scenario_from_text
from nodeagent.views.simulate.scenario_replay import encode_cpu_file, encode_memory_file, replay
from tests.support.decision_vectors import FILES, vectors
from tests.support.invariants import (
    INIT,
    core_errors,
    memory_errors,
    pool_errors,
    settled,
    shared_cpus,
    size_errors,
)
from tests.support.shares import share_of
from tests.support.strategies import Add, Event, even_machines, happen, lived, lives, nodes, without

examples = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def none_of(found: Iterable[object]) -> None:
    listed = list(found)
    assert listed == []


# Under `fixed`


@examples
@given(nodes(), lives())
def test_no_cpu_is_usable_by_two_containers_that_may_run_at_once(node: Managers, events: list[Event]) -> None:
    """Unless both are in the node's shared pool, or in one pod's."""
    for moment in lived(node, events):
        none_of(shared_cpus(node, moment.after, moment.pods))


@examples
@given(nodes(), lives())
def test_the_shared_pool_is_what_nobody_has(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        none_of(pool_errors(node, moment.after))


@examples
@given(nodes(), lives())
def test_everybody_has_what_was_asked_for(node: Managers, events: list[Event]) -> None:
    full_cores = node.providers.of(CpuResource).manager.options.full_pcpus_only
    for moment in lived(node, events):
        none_of(size_errors(node, moment.after, moment.pods))
        none_of(core_errors(node, moment.after) if full_cores else ())


@examples
@given(nodes(), lives())
def test_memory_taken_is_memory_promised_in_every_group(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        none_of(memory_errors(node, moment.after))


@examples
@given(nodes(), lives())
def test_a_refusal_changes_nothing(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        if isinstance(moment.decision, Rejected):
            assert moment.after == moment.before


@examples
@given(nodes(), lives())
def test_adding_and_removing_leaves_no_trace(node: Managers, events: list[Event]) -> None:
    """But for where in a group of NUMA nodes the others' bytes lie, which nobody can tell."""
    for moment in lived(node, events):
        if isinstance(moment.event, Add) and isinstance(moment.decision, Admitted):
            back, _ = core.remove_pod(node, moment.after, moment.event.pod.uid)
            assert settled(back) == settled(moment.before)
    for one in moment.pods:
        back, _ = core.remove_pod(node, moment.after, one.uid)
        moment = replace(moment, after=back)
    assert moment.after == core.initial(node)


def stored(node: Managers, promises: Promises) -> Promises:
    """What the agent's own file keeps."""
    content = encode_state(NodeState(promises), policies_of(node.placement))
    return decode_state(content).state.promises


def from_kubelet_files(node: Managers, promises: Promises, active: tuple[Pod, ...]) -> Promises:
    """Start from the two files that kubelet would have left, and admit the running pods again."""
    pod_level = node.rules.gates.pod_level_managers
    records = Records(
        decode_cpu_state(encode_cpu_file(node, promises), pod_level=pod_level, initial={}),
        decode_memory_state(encode_memory_file(node, promises), pod_level=pod_level),
    )
    started = start(node, records)
    assert isinstance(started, Promises), started
    readmitted = core.readmit(node, started, active)
    refused = [(uid, result.message) for uid, result in readmitted.results if isinstance(result, Rejected)]
    assert refused == []
    return readmitted.promises


def without_hints(promises: Promises) -> Promises:
    """kubelet's files have none."""
    for uid, held in promises.pods:
        promises = with_pod(promises, uid, replace(held, hints=()))
    return promises


@examples
@given(nodes(), lives())
def test_a_restart_anywhere_changes_nothing(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        assert core.resume(node, stored(node, moment.after)) == moment.after


@examples
@given(nodes(), lives())
def test_nor_does_a_restart_from_kubelet_s_files(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        again = from_kubelet_files(node, moment.after, moment.pods)
        assert without_hints(again) == without_hints(moment.after)
        assert from_kubelet_files(node, again, moment.pods) == again


@examples
@given(nodes(), lives(), st.lists(st.frozensets(st.integers(0, 47), max_size=4), min_size=8, max_size=8))
def test_cpus_may_come_and_go_at_any_time(whole: Managers, events: list[Event], offline: list[frozenset[int]]) -> None:
    """Promises stay, nothing is doubled, and with all CPUs back everything is as if nothing had been."""
    node, promises = whole, core.initial(whole)
    active: tuple[Pod, ...] = ()
    for event, gone in zip(events, offline, strict=False):
        built = core.build(without(whole.topology, gone - frozenset(whole.reserved)), whole.placement)
        assert isinstance(built, Managers), built
        resumed = core.resume(built, promises)
        assert isinstance(resumed, Promises), resumed
        assert resumed.pods == promises.pods
        node = built
        promises, active, _ = happen(node, resumed, active, event)
        none_of(shared_cpus(node, promises, active))
        none_of(pool_errors(node, promises))
        none_of(memory_errors(node, promises))
        none_of(core.violations(node, promises, active))
    resumed = core.resume(whole, promises)
    assert isinstance(resumed, Promises), resumed
    for one in active:
        resumed, _ = core.remove_pod(whole, resumed, one.uid)
    assert resumed == core.initial(whole)


@examples
@given(nodes(), lives())
def test_the_project_s_own_invariants_hold(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        none_of(core.violations(node, moment.after, moment.pods))


@examples
@given(nodes(), lives())
def test_gauges_agree_with_the_promises(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        values = {str(series): value for series, value in core.gauges(node, moment.after)}
        pool = default_set(moment.after) - node.reserved
        exclusive = exclusive_cpus(moment.after)
        assert values["kubelet_cpu_manager_shared_pool_size_millicores"] == 1000 * len(pool)
        assert values["kubelet_cpu_manager_exclusive_cpu_allocation_count"] == len(exclusive)
        per_node = {name: v for name, v in values.items() if "per_numa" in name}
        assert sum(per_node.values()) == len(exclusive)


# Under `kubelet-1.36`: on even machines (Erratum 9), without restarts (1, 2, 4) and with new UIDs only (10)


def forgetful(promises: Promises) -> Promises:
    """Without reuse sets, which outlive their pod (Erratum 10)."""
    return settled(
        promises.having(replace(promises.of(CpuBooks), reuse=None), replace(promises.of(MemoryBooks), reuse=None))
    )


def is_within_budget(event: Event) -> bool:
    """As the API server sees to it: what a pod-level pod's containers ask for together, it has."""
    if not isinstance(event, Add) or event.pod.resources is None:
        return True
    for resource, whole in event.pod.resources.requests:
        requests = [c.resources.requests.get(resource) for c in event.pod.containers if c.kind is not INIT]
        if sum(request.nano for request in requests if request is not None) > whole.nano:
            return False
    return True


KUBELET_NODES = nodes(Errata.KUBELET_1_36, even_machines)
KUBELET_LIVES = lives(uids_return=False).map(lambda events: [e for e in events if is_within_budget(e)])


@examples
@given(KUBELET_NODES, KUBELET_LIVES)
def test_kubelet_shares_nothing_but_pools(node: Managers, events: list[Event]) -> None:
    """Init containers of a pod-level pod may meet a sidecar in the pod's pool (Erratum 24); nothing else overlaps."""
    for moment in lived(node, events):
        apart = [replace(p, containers=tuple(c for c in p.containers if c.kind is not INIT)) for p in moment.pods]
        none_of(shared_cpus(node, moment.after, apart))


@examples
@given(KUBELET_NODES, KUBELET_LIVES)
def test_kubelet_keeps_its_pool_and_gives_what_was_asked_for(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        none_of(pool_errors(node, moment.after))
        none_of(size_errors(node, moment.after, moment.pods))


@examples
@given(KUBELET_NODES, KUBELET_LIVES)
def test_kubelet_balances_the_books_of_each_node(node: Managers, events: list[Event]) -> None:
    """Of each node, not of each group (Erratum 12)."""
    for moment in lived(node, events):
        for each in memory_accounts(moment.after):
            for resource, table in each.tables:
                assert table.reserved + table.free == table.allocatable, (each.id, resource)
                assert 0 <= table.reserved <= table.allocatable, (each.id, resource)


@examples
@given(KUBELET_NODES, KUBELET_LIVES)
def test_kubelet_takes_back_what_it_gave(node: Managers, events: list[Event]) -> None:
    for moment in lived(node, events):
        if isinstance(moment.decision, Rejected):
            assert forgetful(moment.after) == forgetful(moment.before)


@examples
@given(nodes(topologies=even_machines), lives(uids_return=False))
def test_modes_differ_by_errata_only(node: Managers, events: list[Event]) -> None:
    """Without pod-level pods, memory and full cores no erratum is left on an even machine of up to four NUMA nodes."""
    plain: list[Event] = [e for e in events if not (isinstance(e, Add) and e.pod.resources is not None)]
    options = tuple(o for o in node.placement.cpu_manager_policy_options if o[0] != "full-pcpus-only")
    placement = replace(
        node.placement,
        cpu_manager_policy_options=options,
        memory_manager_policy="None",
        reserved_memory=(),
        same_numa_nodes=False,
        spread_huge_pages=False,
    )
    fixed = core.build(node.topology, placement)
    kubelet = core.build(node.topology, replace(placement, errata=Errata.KUBELET_1_36))
    assert isinstance(fixed, Managers)
    assert isinstance(kubelet, Managers)
    assert [forgetful(m.after) for m in lived(fixed, plain)] == [forgetful(m.after) for m in lived(kubelet, plain)]


# The order of keys


def turned(value: Any, order: Any) -> Any:
    """The same document with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = sorted(value)
        order.shuffle(keys)
        return {key: turned(value[key], order) for key in keys}
    return [turned(item, order) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("errata", list(Errata))
@settings(max_examples=share_of(5))
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(errata: Errata, order: Any) -> None:
    """Of pods, machines, configuration and checkpoint files: one scenario in fifty of each kind."""
    name = order.choice(FILES)
    for vector in list(vectors(name))[order.randrange(50) :: 50]:
        document = vector["scenario"]
        document["config"]["errata"] = errata.value
        straight, shuffled = (
            replay(scenario_from_text(json.dumps(each), name)) for each in (document, turned(document, order))
        )
        assert shuffled == straight


PROGRAM = """
import json, sys
from nodeagent.formats.scenario.scenario import scenario_from_text
from nodeagent.views.simulate.scenario_replay import replay
for line in sys.stdin:
    print(json.dumps(replay(scenario_from_text(line, "stdin"))))
"""


def test_the_hash_seed_changes_nothing() -> None:
    """Sets and dicts of texts are walked in another order in every process."""
    lines = "\n".join(json.dumps(vector["scenario"]) for vector in list(vectors("all"))[::20])
    first, *others = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed},  # and no PYTHONUNBUFFERED: with it, what a signal cuts short is lost
            input=lines,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "2", "3")
    )
    for other in others:
        assert other == first
