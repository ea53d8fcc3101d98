"""Decisions on known pods, taken again: what comes out as it did, what doesn't, and on which node it is looked at."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, remove_pod
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.replay_decision import ReplayedDecision, replay_decision
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import Phase
from nodeagent.core.resources.cpu.holdings import own_set_of
from tests.support.builders import GIB, machine
from tests.support.inspected_nodes import World
from tests.support.pods import app, pod

PLACEMENT = Placement("static", reserved_system_cpus=CpuSet.of(0), topology_manager_policy="single-numa-node")


def wanting(name: str, cpu: str) -> Pod:
    return pod(name, app("app", cpu=cpu, memory="1Mi"))


def world(*pods: Pod) -> World:
    made = World(machine(nodes=2, cores=2, threads=2, memory=GIB), PLACEMENT)
    for each in pods:
        made.add(each)
    return made


def gone(made: World, name: str) -> World:
    """The pod has ended, and its manifest is gone."""
    promises, _ = remove_pod(made.managers, made.state.promises, f"uid-{name}")
    entries = tuple(e for e in made.state.entries if e.pod.name != name)
    made.state = replace(made.state, promises=promises, entries=entries)
    return made


def again(made: World, name: str) -> ReplayedDecision:
    what_if = WhatIf.of(made.managers, made.state.promises, made.state.holding_pods())
    entry = next(e for e in made.state.entries if e.pod.name == name)
    return replay_decision(what_if, made.state, entry)


def test_a_pod_is_decided_on_without_those_that_came_later() -> None:
    made = world(wanting("a", "2"), wanting("b", "2"), wanting("c", "1"))
    found = again(made, "a")
    assert (found.reproduced, found.left_out) == (True, ("default/b", "default/c"))
    assert isinstance(found.trace.decision, Admitted)
    assert found.before.pods == ()
    assert [each.name for each in again(made, "b").before.pods] == ["a"]


def test_what_cannot_be_reproduced_is_decided_on_the_node_as_it_is() -> None:
    """`b` took what `a` had left; `a` has gone since, and `c` is there."""
    made = world(wanting("a", "2"), wanting("b", "2"), wanting("c", "2"))
    held = own_set_of(made.state.promises, "uid-c", "app")
    found = again(gone(made, "a"), "c")
    assert found.reproduced is False
    assert found.left_out == ()
    assert isinstance(found.trace.decision, Admitted)
    assert own_set_of(found.trace.decision.promises, "uid-c", "app") != held
    assert [each.name for each in found.before.pods] == ["b"]


def test_a_refusal_is_looked_at_on_the_node_as_it_is_now() -> None:
    made = world(wanting("a", "4"), wanting("big", "4"), wanting("later", "2"))
    found = again(made, "big")
    assert isinstance(found.trace.decision, Rejected)
    assert found.reproduced is True
    assert [each.name for each in found.before.pods] == ["a", "later"]


def test_a_refused_pod_that_would_be_admitted_by_now_is_said_to_be() -> None:
    made = world(wanting("a", "4"), wanting("big", "4"))
    found = again(gone(made, "a"), "big")
    assert isinstance(found.trace.decision, Admitted)
    assert found.reproduced is False


def test_a_pod_that_has_ended_is_decided_on_as_if_it_came_now() -> None:
    made = world(wanting("a", "2")).add(wanting("done", "2"), outcome=Phase.SUCCEEDED).add(wanting("b", "2"))
    found = again(made, "done")
    assert found.reproduced is None
    assert [each.name for each in found.before.pods] == ["a", "b"]
