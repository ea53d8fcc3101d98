"""A pod for a unit that another one stands for: foreseen, explained, and what would admit it."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.remedies import remedies
from nodeagent.core.explain.remedy import Remedy, RequestChange
from nodeagent.core.explain.trace import trace
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import Origin
from nodeagent.views.explain.words import explain_refusal
from tests.support.pods import app, pod, unit
from tests.support.world import SMALL, empty_state, node

NODE = node(SMALL)
NEW = pod("new", unit("db.service", "1"), unit("web.service", "1"))
TAKEN = UnitTaken("db.service", "default/a")


def beside(*pods: Pod, idle: tuple[Pod, ...] = ()) -> WhatIf:
    empty = WhatIf.of(NODE.managers, empty_state(NODE).promises, (), NODE.allocatable, idle)
    for one in pods:
        empty = empty.after(one, empty.judge(one))
    return empty


def test_it_is_refused_before_the_managers_are_asked_and_all_holders_have_to_end() -> None:
    what_if = beside(pod("a", unit("db.service", "1")), pod("b", unit("web.service", "1")), pod("c", app(cpu="1")))
    found = trace(what_if, NEW)
    assert (found.decision, found.steps) == (TAKEN, ())
    assert explain_refusal(what_if, found) == [
        "a unit has only one pod, and db.service already belongs to pod default/a"
    ]
    assert remedies(what_if, NEW).found == (Remedy(RequestChange.REMOVAL, ("default/a", "default/b")),)
    assert what_if.after(NEW, TAKEN) == what_if


def test_a_pod_that_has_given_back_its_cpus_has_its_unit_all_the_same() -> None:
    what_if = beside(idle=(pod("a", unit("db.service", "1"), gives_back=True),))
    assert what_if.judge(NEW) == TAKEN
    assert remedies(what_if, NEW).found == (Remedy(RequestChange.REMOVAL, ("default/a",)),)


def test_a_unit_of_another_domain_may_have_the_same_name() -> None:
    other = pod("a", unit("db.service", "1"), unit("web.service", "1"))
    what_if = replace(beside(other), origins={other.uid: Origin("a", domain="supervisor")})
    assert isinstance(what_if.judge(NEW), Admitted)
    same = replace(what_if, origins={one.uid: Origin(one.name, domain="supervisor") for one in (other, NEW)})
    assert same.judge(NEW) == TAKEN


def test_without_room_no_end_of_theirs_is_enough() -> None:
    what_if = beside(pod("a", unit("db.service", "1")), pod("c", app(cpu="6")))
    assert what_if.judge(NEW) == TAKEN
    assert remedies(what_if, NEW).found == ()


def test_pods_that_are_changed_together_may_have_each_others() -> None:
    a, b = pod("a", unit("db.service", "1")), pod("b", unit("web.service", "1"))
    moved = pod("a", unit("web.service", "1"), uid="a2")
    what_if = beside(a, b)
    assert what_if.making_way(moved).judge(moved) == UnitTaken("web.service", "default/b")
    together = replace(what_if, moving=frozenset({b.uid}))
    assert isinstance(together.making_way(moved).judge(moved), Admitted)
