"""A fifth resource goes through everything that the four go through, and nothing else had to be touched for it."""

from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission import managers as core, resource_kinds
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.node_capacity import Allocatable, Usage, insufficient
from nodeagent.core.admission.resize import changed_amounts, is_resize, resized
from nodeagent.core.admission.resource_kinds import ResourceKind
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.metrics.totals import MetricTotals
from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuSet, NumaMask
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import NotResized, Reason, Refusal
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.resource import Allocation, ResourceFailedError
from nodeagent.core.turn.recovery import RecoveredPod, place_recovered
from nodeagent.daemon.reports.exposition import Exposition
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state
from nodeagent.views.explain.text import render_explanation
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render_in_full
from nodeagent.views.simulate.pods import Simulation, describe_run
from nodeagent.views.simulate.pods_text import render_run
from tests.extension.licences.resource import GIVEN, LICENCE, Counts, LicenceHoldings, Licences
from tests.support.builders import GIB, admitted, machine, managers
from tests.support.explained_pods import explained_pod
from tests.support.inspected_nodes import World
from tests.support.pods import app, pod

OF_THE_NODE: Counts = ((None, 4),)
BY_NUMA_NODE: Counts = ((0, 2), (1, 3))
RESIZABLE = frozenset({LICENCE})
BUILT_IN = resource_kinds.RESOURCES
ROOM = Allocatable(10, (("cpu", 64_000), ("memory", 2**40)))


class LicenceBooks(Struct, frozen=True):
    """What the node has lent elsewhere, in books of their own."""

    lent: int = 0


@pytest.fixture(params=[OF_THE_NODE, BY_NUMA_NODE], ids=["of the node", "by NUMA node"], autouse=True)
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counts:
    found: Counts = request.param
    register(monkeypatch, found)
    return found


def register(monkeypatch: pytest.MonkeyPatch, there: Counts) -> None:
    """Add the line of registration."""
    kind = ResourceKind(
        "licences",
        LicenceHoldings,
        lambda *_: Licences(there),
        LicenceBooks,
        describe=lambda held, name: held.of(LicenceHoldings).describe(name),
        metrics=(GIVEN,),
        resizable=RESIZABLE,
    )
    monkeypatch.setattr(resource_kinds, "RESOURCES", (*BUILT_IN, kind))


def node(policy: str = "restricted") -> Managers:
    return managers(topology_manager_policy=policy)


def asking(name: str, count: int = 1, cpu: str | None = "2") -> Pod:
    return pod(name, app("app", cpu, devices={LICENCE: count}))


def held(promises: Promises, of: Pod) -> Counts:
    return promises.of_pod(of.uid).of(LicenceHoldings).of_container("app")


def test_it_is_given_where_the_cpus_are_and_given_back(pool: Counts) -> None:
    one, two = asking("one", 3), asking("two")
    here = node()
    promises = admitted(here, one, two)
    where, other = (1, 0) if pool is BY_NUMA_NODE else (None, None)
    assert (held(promises, one), held(promises, two)) == (((where, 3),), ((other, 1),))
    if pool is BY_NUMA_NODE:
        assert promises.hint(one.uid, "app").mask == here.topology.node_ids & type(here.topology.node_ids).of(1)
    assert core.violations(here, promises, (one, two)) == ()
    left, _ = core.remove_pod(here, promises, one.uid)
    assert held(left, one) == ()
    assert core.remove_pod(here, left, two.uid)[0] == core.initial(here), "nothing is left of it"


def test_a_pod_that_has_it_is_admitted_again_without_having_it_twice() -> None:
    one = asking("one", 2)
    here = node()
    promises = admitted(here, one)
    again = core.admit(here, promises, one)
    assert isinstance(again, Admitted)
    assert again.promises == promises


def test_it_is_refused_with_an_explanation(pool: Counts) -> None:
    first, second = asking("first", 3), asking("second", 3, cpu=None)
    here = node("best-effort")
    promises = admitted(here, first)
    refused = core.admit(here, promises, second)
    assert isinstance(refused, Rejected)
    free = sum(count for _, count in pool) - 3
    assert f"3 licences are requested, and {free} are free" in refused.message
    document = explained_pod(WhatIf.of(here, promises, (first,)), second, Config(here.placement))
    text = " ".join(render_explanation(document).split())
    assert "container app: which licences? refused" in text
    assert f"3 licences are requested, and {free} are free" in text
    given = explained_pod(WhatIf.of(here, promises, (first,)), asking("third"), Config(here.placement))
    assert given["pods"][0]["further"]["app"]["licences"].startswith("1")
    assert "container app: which licences? 1" in " ".join(render_explanation(given).split())


def test_the_node_s_capacity_counts_it(pool: Counts) -> None:
    here = node()
    there = here.with_amounts(ROOM, core.initial(here))
    total = sum(count for _, count in pool)
    assert dict(there.amounts)[LICENCE] == total
    short = insufficient(asking("greedy", total + 1), Usage(), there)
    assert short is not None
    assert short.reason == f"OutOf{LICENCE}"
    assert insufficient(asking("modest", total), Usage(), there) is None
    unknown = core.admit(here, core.initial(here), pod("x", app("app", devices={"example.com/other": 1})))
    assert isinstance(unknown, Rejected)
    assert "unregistered device example.com/other" in unknown.message


def test_it_is_resized_while_the_pod_runs(pool: Counts) -> None:
    was, more, less, most = asking("one", 2), asking("one", 3), asking("one", 1), asking("one", 9)
    here = node("best-effort")
    promises = admitted(here, was)

    def after(new: Pod) -> Promises | NotResized:
        assert is_resize(was, new)
        return resized(here, promises, was, new, usage=Usage(), allocatable=None)

    for new, count in ((more, 3), (less, 1)):
        answer = after(new)
        assert isinstance(answer, Promises)
        assert sum(each for _, each in held(answer, new)) == count
        assert core.violations(here, answer, (new,)) == ()
    refused = after(most)
    assert isinstance(refused, NotResized)
    assert refused.is_deferred
    assert f"9 licences are requested, and {sum(count for _, count in pool)} are free" in refused.message


def test_it_is_saved_and_read_back() -> None:
    one = asking("one", 2)
    state = NodeState(admitted(node(), one))
    content = encode_state(state, {})
    assert b'"licences":' in content
    assert decode_state(content).state == state
    damaged = content.replace(b'"licences":[["app"', b'"licences":[["app",7')
    with pytest.raises(Exception, match="licences"):
        decode_state(damaged, judge=False)


def test_its_books_are_saved_and_read_back() -> None:
    state = NodeState(admitted(node(), asking("one")).having(LicenceBooks(lent=3)))
    assert decode_state(encode_state(state, {})).state == state


def test_the_amounts_of_its_resize_are_told() -> None:
    changed = list(changed_amounts(asking("one", 2), asking("one", 9)))
    assert [(change.resource, change.before, change.after) for change in changed] == [(LICENCE, "2", "9")]


def test_what_runs_keeps_it_over_a_start_and_what_is_gone_is_told(
    pool: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = asking("one"), asking("two")
    before = admitted(node(), one, two)
    known = tuple(RecoveredPod(each, before.of_pod(each.uid), stays=True) for each in (one, two))
    same = place_recovered(node(), known)
    assert (same.promises, same.differences) == (before, ())
    lost = tuple(
        RecoveredPod(each, type(each_held)(), stays=True) for each, each_held in ((p.pod, p.held) for p in known)
    )
    assert all(held(place_recovered(node(), lost).promises, each) for each in (one, two)), (
        "given anew where no record is left"
    )
    register(monkeypatch, ((pool[0][0], 1),))
    fewer = place_recovered(node(), known)
    assert [bool(held(fewer.promises, each)) for each in (one, two)] == [True, False]
    (difference,) = fewer.differences
    assert str(difference).startswith("pod default/two, container app: licences 1")
    assert "→ none" in str(difference)


def test_what_the_node_no_longer_has_is_a_shortfall_and_what_it_never_had_a_violation(pool: Counts) -> None:
    one = asking("one", 2)
    here = node()
    promises = admitted(here, one)
    smaller = replace(here, providers=here.providers.having(Licences(((held(promises, one)[0][0], 1),))))
    assert [short.text for short in core.shortfalls(smaller, promises)] == [
        "1 more licences are promised than there are"
    ]
    elsewhere = replace(here, providers=here.providers.having(Licences(((7, 9),))))
    (found,) = core.violations(elsewhere, promises, (one,))
    assert found.text.startswith("there are no licences on NUMA node")


def test_it_is_in_the_metrics() -> None:
    here = node()
    totals = MetricTotals().snapshot(dict(core.gauges(here, admitted(here, asking("one", 2)))))
    text = Exposition(totals).text().decode()
    assert "# TYPE example_licences_allocated gauge" in text
    assert "example_licences_allocated 2.0" in text


def test_inspect_and_simulate_show_it(pool: Counts) -> None:
    one = asking("one", 1)
    world = World(placement=Placement("static", reserved_system_cpus=CpuSet.of(0))).add(one)
    shown = " ".join(render_in_full(inspect_node(world.view(), frozenset({one.uid}))).split())
    said = "1" if pool is OF_THE_NODE else "1 (NUMA 0)"
    assert f"licences {said}" in shown
    here = node("none")
    before = WhatIf.of(here, core.initial(here))
    decision = core.admit(here, before.promises, one)
    assert isinstance(decision, Admitted)
    after = WhatIf.of(here, decision.promises, (one,))
    run = Simulation(Config(here.placement), "config.yaml", before, after, ((one, decision),))
    text = " ".join(render_run(describe_run(run, "a machine")).split())
    assert f"default/one, container app: licences {said}" in text


class ServerFailedError(ResourceFailedError):
    """The server of the licences doesn't answer."""

    reason = Reason.UNEXPECTED_ADMISSION


class ServedLicences(Licences, frozen=True):
    """Licences of a server, for pods on one NUMA node."""

    def fits_on_each(
        self, promises: Promises, pod: PodDemand, container: ContainerDemand | None, nodes: NumaMask
    ) -> bool:
        return nodes.bit_count() == 1

    def add_limits(self, refusal: Refusal, pod: PodDemand) -> Refusal:
        return replace(refusal, message=f"{refusal.message} (of one server)")

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        if pod.uid == "uid-unlucky":
            raise ServerFailedError("the server is gone")
        return super().allocate_container(promises, pod, container)


def test_what_a_decision_asks_of_a_resource_it_asks_of_this_one(pool: Counts) -> None:
    of = managers(
        machine(nodes=3, memory=8 * GIB),
        reserved="0",
        topology_manager_policy="best-effort",
        reserved_memory=dict.fromkeys(range(3), "1Gi"),
        same_numa_nodes=True,
    )
    served = replace(of, providers=of.providers.having(ServedLicences(pool)))
    full = admitted(of, pod("a", app(cpu="5", memory="9Gi")), pod("b", app(cpu="8", memory="1Gi")))
    wide = [core.admit(each, full, pod("wide", app(cpu="3", memory="3Gi"))).report.merges for each in (of, served)]
    assert [(one.merged.mask, one.instead_of is None) for (one,) in wide] == [(0b11, False), (0b01, True)], (
        "nodes 0 and 1 have its memory, and both a part of its CPUs: they are taken unless a resource can't be on both"
    )
    for name, count, reason in (("greedy", 9, "9 licences are requested"), ("unlucky", 1, "the server is gone")):
        decision = core.admit(served, core.initial(served), asking(name, count))
        assert isinstance(decision, Rejected)
        assert reason in decision.message
        assert decision.message.endswith(" (of one server)")


def test_it_is_one_small_folder() -> None:
    folder = Path(__file__).parent / "licences"
    assert sum(len(path.read_text().splitlines()) for path in folder.glob("*.py")) <= 200
