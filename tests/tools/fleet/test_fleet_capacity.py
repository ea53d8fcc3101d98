"""Where pods would fit: what each node says is what its agent would decide, again and again."""

from hypothesis import given, settings, strategies as st

from nodeagent.cli.support.node.what_if import create_what_if_node
from nodeagent.core.explain.capacity_search import search_capacity
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.tools.fleet.capacity import describe_capacity
from nodeagent.tools.fleet.text import render_capacity
from tests.support import json_schema
from tests.support.fleets import node, with_pods
from tests.support.pods import app, pod
from tests.support.shares import share_of

TWO = pod("new", app("app", cpu="2", memory="64Mi"))


def capacity(nodes, *pods: Pod):
    found = [(one, search_capacity(create_what_if_node(one.view).what_if, pods)) for one in nodes]
    document = describe_capacity(found, pods)
    json_schema.check(document, "fleet-capacity")
    return document


def fleet():
    return [node("empty"), node("half", world=with_pods(2, 2)), node("full", world=with_pods(4, 3))]


def test_each_node_says_how_many_and_where_the_first_would_be() -> None:
    document = capacity(fleet(), TWO)
    assert [(one["name"], one["copies"]) for one in document["nodes"]] == [("empty", 3), ("half", 1), ("full", 0)]
    places = [[c["cpus"] for p in one["first"] for c in p["containers"]] for one in document["nodes"]]
    assert places[2] == []
    for one, (place,) in zip(fleet(), places[:2], strict=False):
        free = CpuSet.parse("1-7") - exclusive_cpus(one.view.state.promises)
        assert len(CpuSet.parse(place)) == 2
        assert CpuSet.parse(place) <= free
    assert document["summary"] == {"nodes": 3, "fitting": 2, "copies": 4, "complete": True}
    assert document["of"] == ["default/new"]


def test_several_pods_count_together() -> None:
    document = capacity(fleet(), TWO, pod("beside", app("app", cpu="1", memory="64Mi")))
    assert [one["copies"] for one in document["nodes"]] == [2, 1, 0]
    assert [placed["pod"] for placed in document["nodes"][0]["first"]] == ["default/new", "default/beside"]
    assert "all of them together would fit on 2 of 3 nodes" in " ".join(render_capacity(document).split())


def test_reasons_are_said_once_for_nodes_that_share_them() -> None:
    text = render_capacity(capacity(fleet(), TWO))
    assert (
        text
        == """\
default/new: the pod would fit on 2 of 3 nodes; 4 copies in all

NODE   COPIES  THE FIRST ONE       WHERE   MEMORY
empty      3   app: exclusive 1,5  NUMA 0
half       1   app: exclusive 3,7  NUMA 1
full       0   refused: OutOfcpu

Why no more fit (nodeagent explain -f FILE --machine FILE says what would help)
  empty: UnexpectedAdmissionError: Allocate failed due to not enough cpus
    available to satisfy request: requested=2, available=1, which is unexpected
  half, full: OutOfcpu; half: Node didn't have enough resource: cpu, requested:
    2000, used: 6500, capacity: 8000
"""
    )


@settings(max_examples=share_of(25))
@given(st.lists(st.integers(1, 3), max_size=3), st.integers(1, 4))
def test_it_is_what_the_node_would_admit_one_after_the_other(there: list[int], asked: int) -> None:
    world = with_pods(*there)
    one = node("n", world=world)
    new = pod("new", app("app", cpu=str(asked), memory="1Mi"))
    (found,) = capacity([one], new)["nodes"]
    what_if = create_what_if_node(one.view).what_if
    for number in range(found["copies"] + 1):
        copy = pod(f"copy-{number}", app("app", cpu=str(asked), memory="1Mi"))
        decision = what_if.judge(copy)
        assert (type(decision).__name__ == "Admitted") == (number < found["copies"])
        what_if = what_if.after(copy, decision)
