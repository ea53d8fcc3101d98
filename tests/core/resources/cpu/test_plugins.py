"""CPU plugins: what each point decides, and that nothing but a right answer counts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    admit,
    in_turn,
    initial,
    remove_pod,
    violations,
)
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.merge_trace import MergeTrace
from nodeagent.core.explain.trace import trace
from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import with_pod
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.cpu.explainer import CpuStep
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, own_set_of
from nodeagent.core.resources.cpu.observing import PluginAnswered
from nodeagent.core.resources.cpu.plugins import HIGHEST, MOST_CHARACTERS, Note, notes_on
from nodeagent.core.resources.cpu.points import PluginFailedError, Point, Question, ReturnedCpus
from nodeagent.core.resources.cpu.shipped import prefer_class, spread_caches
from nodeagent.core.turn.decision import admit_off_orphans
from tests.support.builders import GIB, MACHINE_A, MACHINE_B, PLRM, hybrid, machine, managers, pod
from tests.support.pods import app, exclusive, init

Answer = Callable[..., object]


class Code:
    """A plugin's code without a thread: what it raises is its failure."""

    held_off = ""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        pass

    def __init__(self, answers: dict[Point, Answer]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, object]] = []

    @property
    def points(self) -> frozenset[str]:
        return frozenset(point.value for point in self._answers)

    def ask(self, point: str, *question: object) -> object:
        self.asked.append((point, question[0]))
        return self._answers[Point(point)](*question)


def plugin(name: str = "other", **answers: Answer) -> CpuPlugin:
    return CpuPlugin(name, code=Code({Point[point.upper()]: answer for point, answer in answers.items()}))


def of(made: object, name: str = "shipped") -> CpuPlugin:
    methods = {point: getattr(made, point.method) for point in Point if hasattr(made, point.method)}
    return CpuPlugin(name, code=Code(methods))


def with_plugins(*plugins: CpuPlugin, topology: Topology = MACHINE_A, **more: Any) -> Managers:
    return managers(topology, cpu_plugins=plugins, **more)


def cpus_of(built: Managers, *asking: Pod) -> list[str]:
    """The first container's CPUs of each pod, or why it is refused."""
    promises, found = initial(built), []
    for each in asking:
        decision = admit(built, promises, each)
        promises = decision.promises
        own = own_set_of(promises, each.uid, each.containers[0].name)
        found.append(f"{decision.reason}: {decision.message}" if isinstance(decision, Rejected) else str(own))
    return found


def two(uid: str = "p", cpus: str = "2") -> Pod:
    return pod(uid, app(cpu=cpus, memory="64Mi"))


# What each point decides


def test_without_an_opinion_it_is_the_policys_choice() -> None:
    silent = plugin(
        filter=lambda q: q.free,
        post_filter=lambda _q: None,
        pre_score=lambda _q: {},
        select=lambda _q: None,
        score=lambda _q, _cpus: 0,
        allocate=lambda _q, _cpus: None,
    )
    asking = [two("a"), two("b", "3"), two("c", "8"), two("d", "1")]
    assert cpus_of(with_plugins(silent), *asking) == cpus_of(managers(), *asking)


def test_filter_leaves_what_it_may_have_for_hints_too() -> None:
    away = plugin("away", filter=lambda q: q.free - CpuSet.parse("0-3,8-11"))
    assert cpus_of(with_plugins(away, topology_manager_policy="single-numa-node"), two()) == ["4,12"]
    one_node = with_plugins(away, topology_manager_policy="single-numa-node")
    assert cpus_of(one_node, two(cpus="8"), two("q", "1")) == [
        "4-7,12-15",
        "TopologyAffinityError: Resources cannot be allocated with Topology locality (of the CPUs that away leaves)",
    ]


def test_filters_narrow_in_order_and_post_filter_has_the_last_word() -> None:
    low = plugin("low", filter=lambda q: q.free & CpuSet.parse("0-3"))
    even = plugin("even", filter=lambda q: CpuSet.from_ids(cpu for cpu in q.free if cpu % 2 == 0))
    assert cpus_of(with_plugins(low, even), two(cpus="1"), two("q")) == [
        "2",
        (
            "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=2, available=0, "
            "which is unexpected (of the CPUs that low and even leaves)"
        ),
    ]
    widen = plugin("widen", post_filter=lambda q: q.free & CpuSet.parse("5-7"))
    assert cpus_of(with_plugins(low, even, widen), two(cpus="1"), two("q")) == ["2", "5-6"]


def test_pre_score_is_summed_and_the_policy_packs_the_best_that_suffice() -> None:
    high = plugin("high", pre_score=lambda q: {cpu: 2 for cpu in q.free if cpu in {5, 13, 6, 14}})
    not_six = plugin("not-six", pre_score=lambda q: dict.fromkeys(q.free & CpuSet.parse("6,14"), -1))
    built = with_plugins(high, not_six)
    assert cpus_of(built, two(cpus="2"), two("q", "2"), two("r", "2")) == ["5,13", "6,14", "4,12"]
    assert cpus_of(built, two(cpus="4")) == ["5-6,13-14"]
    assert cpus_of(built, two(cpus="14")) == ["1-7,9-15"]


def test_the_first_selection_counts_and_where_plugins_score_the_best() -> None:
    seven = plugin("seven", select=lambda q: CpuSet.parse("7,15") if q.count == 2 else None)
    three = plugin("three", select=lambda q: CpuSet.parse("3,11") if q.count == 2 else None)
    assert cpus_of(with_plugins(seven, three), two(), two("q", "1")) == ["7,15", "1"]
    lowest = plugin("lowest", score=lambda _q, cpus: -min(cpus))
    assert cpus_of(with_plugins(seven, three, lowest), two()) == ["1,9"]
    assert cpus_of(with_plugins(seven, three, plugin("all-alike", score=lambda _q, _cpus: 5)), two()) == ["7,15"]


def test_select_is_asked_for_the_hints_part_and_then_for_the_rest() -> None:
    asked: list[tuple[str, int]] = []

    def select(question: Question) -> CpuSet:
        asked.append((str(question.free), question.count))
        return CpuSet.from_ids(sorted(question.free)[-question.count :])

    built = with_plugins(plugin(select=select), topology_manager_policy="best-effort")
    assert cpus_of(built, two(cpus="8")) == ["4-7,12-15"]
    assert asked == [("4-7,12-15", 8)]


def test_scores_are_not_a_plugins_to_change() -> None:
    def select(question: Question) -> CpuSet:
        scores: Any = question.scores
        scores.clear()
        return CpuSet.parse("7,15")

    scoring = plugin("scoring", pre_score=lambda _q: {5: 1})
    with pytest.raises(AttributeError, match="mappingproxy"):
        cpus_of(with_plugins(scoring, plugin("greedy", select=select)), two())


def test_allocate_refuses_with_its_words() -> None:
    strict = plugin("strict", allocate=lambda _q, cpus: "not these" if 1 in cpus else None)
    assert cpus_of(with_plugins(strict), two()) == ["CPUPluginRefused: CPU plugin strict refuses CPUs 1,9: not these"]


def test_a_pod_with_pod_level_resources_is_asked_about_as_a_whole_and_select_divides() -> None:
    asked = []

    def select(question: Question) -> CpuSet:
        asked.append((question.container, question.count))
        return CpuSet.from_ids(sorted(question.free)[-question.count :])

    built = with_plugins(
        plugin(select=select), topology_manager_policy="restricted", topology_manager_scope="pod", gates=PLRM
    )
    own = pod(
        "p",
        app("a", cpu="2", memory="64Mi"),
        app("b", cpu="1", memory="64Mi"),
        resources=exclusive(cpu="4", memory="1Gi"),
    )
    decision = admit(built, initial(built), own)
    assert isinstance(decision, Rejected) or asked[0] == (None, 4)
    assert isinstance(decision, Admitted), decision
    assert asked == [(None, 4), ("a", 2), ("b", 1)]
    assert decision.promises.of_pod("p").of(CpuHoldings).pod_cpus is not None


def test_sort_is_the_order_of_those_that_wait_and_who_cannot_be_sorted_is_refused() -> None:
    def sort(one: Pod) -> int:
        if one.uid == "bad":
            raise PluginFailedError("by-size", Point.SORT, "it raises")
        return -sum(int(c.resources.requests.get("cpu").value()) for c in one.containers)

    built = with_plugins(plugin("by-size", sort=sort))
    waiting = [two("a", "1"), two("bad", "1"), two("b", "4"), two("c", "1")]
    assert [each.uid for each in in_turn(built, waiting, lambda one: one)] == ["b", "a", "c", "bad"]
    assert cpus_of(built, waiting[1]) == ["CPUPluginFailed: CPU plugin by-size, Sort: it raises"]
    assert [each.uid for each in in_turn(managers(), waiting, lambda one: one)] == ["a", "bad", "b", "c"]


def test_deallocate_hears_what_is_given_back_and_refuses_nothing() -> None:
    def deallocate(returned: ReturnedCpus) -> str | None:
        if returned.pod_uid == "b":
            raise PluginFailedError("told", Point.DEALLOCATE, "it raises")
        return f"{returned.cpus} of {returned.container}, {default_set(returned.promises)} are shared now"

    plugins = (plugin("told", deallocate=deallocate),)
    built = with_plugins(*plugins)
    full = initial(built)
    for each in (two("a"), two("b"), two("c")):
        full = admit(built, full, each).promises
    after = remove_pod(built, remove_pod(built, full, "a")[0], "b")[0]
    assert notes_on(plugins, built.topology, full, after) == [
        Note("told", "a", "app", "1,9 of app, 0-2,4-10,12-15 are shared now"),
        Note("told", "b", "app", "CPU plugin told, Deallocate: it raises", has_failed=True),
    ]
    assert notes_on(plugins, built.topology, after, after) == []
    moved = with_pod(
        full, "a", full.of_pod("a").having(replace(full.of_pod("a").of(CpuHoldings), cpus=(("app", CpuSet.of(1, 5)),)))
    )
    assert [note.text.partition(",")[0] for note in notes_on(plugins, built.topology, full, moved)] == ["9 of app"], (
        "one CPU for another, in one save"
    )


# Answers that are none


class _Odd(CpuSet, frozen=True):
    pass


LIES = [
    ({"filter": lambda q: q.free | CpuSet.of(0)}, "Filter: CPUs 0 are not among the CPUs offered to it"),
    ({"filter": lambda _q: CpuSet.of(99)}, "Filter: CPUs 99 do not exist, or are offline"),
    ({"filter": lambda _q: [1, 2]}, "Filter: it answers with list, not CpuSet"),
    ({"filter": lambda _q: _Odd(2)}, "Filter: it answers with _Odd, not CpuSet"),
    ({"filter": lambda _q: CpuSet(-1)}, "Filter: its answer is not a set of CPUs"),
    ({"filter": lambda _q: CpuSet(1 << 8192)}, "Filter: its answer is not a set of CPUs"),
    ({"filter": lambda _q: None}, "Filter: it answers with NoneType, not CpuSet"),
    ({"filter": lambda _q: CpuSet(), "post_filter": lambda _q: CpuSet.of(0, 8)}, "PostFilter: CPUs 0,8 are not"),
    ({"pre_score": lambda _q: {0: 1}}, "PreScore: it scores CPUs that were not offered to it"),
    ({"pre_score": lambda _q: {"1": 1}}, "PreScore: it scores CPUs that were not offered to it"),
    ({"pre_score": lambda _q: {1: True}}, "PreScore: it answers with bool, not int"),
    ({"pre_score": lambda _q: {1: HIGHEST + 1}}, "PreScore: its scores must be between"),
    ({"pre_score": lambda _q: {1: 0.5}}, "PreScore: it answers with float, not int"),
    ({"select": lambda _q: CpuSet.of(1)}, "Select: it selects 1 CPUs (1), but was asked for 2"),
    ({"select": lambda _q: CpuSet.of(1, 2, 3)}, "Select: it selects 3 CPUs (1-3), but was asked for 2"),
    ({"select": lambda _q: CpuSet.of(0, 1)}, "Select: CPUs 0 are not among the CPUs offered to it (1-3,9-11)"),
    ({"score": lambda _q, _c: None, "select": lambda _q: CpuSet.of(1, 2)}, "Score: it answers with NoneType, not int"),
    ({"allocate": lambda _q, _c: ""}, "Allocate: its text must be one line"),
    ({"allocate": lambda _q, _c: "a\nb"}, "Allocate: its text must be one line"),
    ({"allocate": lambda _q, _c: "x" * (MOST_CHARACTERS + 1)}, "Allocate: its text must be one line"),
    ({"allocate": lambda _q, _c: False}, "Allocate: it answers with bool, not str"),
    ({"sort": lambda _p: "first"}, "Sort: it answers with str, not int"),
]


@pytest.mark.parametrize(("answers", "why"), LIES, ids=[why[:50] for _, why in LIES])
def test_who_lies_refuses_that_pod_by_name_and_leaves_the_node_as_it_was(answers: dict[str, Answer], why: str) -> None:
    built = with_plugins(plugin("liar", **answers), topology_manager_policy="restricted")
    before = initial(built)
    decision = admit(built, before, two())
    assert isinstance(decision, Rejected)
    assert decision.reason == "CPUPluginFailed"
    assert decision.message.startswith(f"CPU plugin liar, {why}")
    assert decision.promises == before


class Once:
    """It fails when it is asked for the first time, and never again."""

    def __init__(self) -> None:
        self.asked = 0

    def filter(self, question: Question) -> CpuSet:
        self.asked += 1
        if self.asked == 1:
            raise PluginFailedError("once", Point.FILTER, "it raises")
        return question.free


def test_a_failure_is_not_forgiven_where_a_pod_is_tried_twice() -> None:
    preferring = pod("p", app(cpu="2", memory="64Mi"))
    classes = with_plugins(of(Once(), "once"), topology=hybrid(), reserved="0", exclusive_core_class="efficiency")
    assert cpus_of(classes, preferring) == ["CPUPluginFailed: CPU plugin once, Filter: it raises"]
    beside = with_plugins(of(Once(), "once"))
    before = initial(beside)
    decision = admit_off_orphans(beside, before, two(), CpuSet.of(1))
    assert isinstance(decision, Rejected)
    assert (decision.reason, decision.promises) == ("CPUPluginFailed", before)
    assert decision.attempted == before


def test_who_objects_to_cpus_may_have_others() -> None:
    """Allocate's objection is an opinion on what was chosen, unlike a failure: it is asked about the next choice."""
    slow = plugin("slow", allocate=lambda _q, cpus: "too hot" if 2 in cpus else None)
    built = with_plugins(slow, topology=hybrid(), reserved="0", exclusive_core_class="performance")
    assert cpus_of(built, two()) == ["8-9"]


def test_select_keeps_cores_whole_where_full_pcpus_only_asks_for_that() -> None:
    halves = plugin("halves", select=lambda _q: CpuSet.of(1, 2))
    built = with_plugins(halves, options=("full-pcpus-only",))
    (said,) = cpus_of(built, two())
    assert (
        said
        == "CPUPluginFailed: CPU plugin halves, Select: CPUs 1-2 are not whole cores, which full-pcpus-only asks for"
    )


def test_a_failure_at_a_later_container_takes_everything_back() -> None:
    def select(question: Question) -> CpuSet | None:
        if question.container == "second":
            raise PluginFailedError("late", Point.SELECT, "it has not answered")
        return None

    built = with_plugins(plugin("late", select=select))
    before = initial(built)
    both = pod("p", app("first", cpu="2", memory="1Mi"), app("second", cpu="2", memory="1Mi"))
    decision = admit(built, before, both)
    assert isinstance(decision, Rejected)
    assert decision.promises == before


def test_without_its_code_nothing_is_decided_and_what_runs_stays() -> None:
    built = with_plugins(CpuPlugin("elsewhere"))
    (said,) = cpus_of(built, two())
    assert said == (
        "CPUPluginFailed: CPU plugin elsewhere: it is not installed here, and nothing can be decided without it"
    )
    held = admit(managers(), initial(managers()), two()).promises
    assert isinstance(admit(built, held, two()), Admitted)


def test_a_pod_that_asks_for_no_cpus_is_no_concern_of_plugins() -> None:
    def none(*_question: object) -> object:
        raise AssertionError

    never = plugin(filter=none, pre_score=none, select=none, score=none, allocate=none)
    built = with_plugins(never)
    assert cpus_of(built, pod("p", app(cpu="500m", memory="1Mi"))) == ["None"]


answered_sets = st.sets(st.integers(-1, 20), max_size=8).map(lambda ids: CpuSet.from_ids(i for i in ids if i >= 0))


@given(st.data())
def test_whatever_it_answers_the_promises_hold(data: st.DataObject) -> None:
    def some(question: Question) -> CpuSet:
        return data.draw(answered_sets) if data.draw(st.booleans()) else question.free

    def few(question: Question) -> CpuSet | None:
        ids = sorted(question.free)
        return data.draw(
            st.sampled_from([None, CpuSet.from_ids(ids[: question.count]), CpuSet.from_ids(ids[-question.count :])])
            | answered_sets
        )

    hostile = plugin(
        filter=some,
        post_filter=some,
        pre_score=lambda q: {cpu: data.draw(st.integers(-3, 3)) for cpu in q.free},
        select=few,
        score=lambda _q, _c: data.draw(st.integers(-3, 3)),
    )
    policy = data.draw(st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]))
    options = data.draw(st.sampled_from([(), ("full-pcpus-only",), ("distribute-cpus-across-numa",)]))
    built = with_plugins(hostile, topology_manager_policy=policy, options=options)
    promises, active = initial(built), []
    for number in range(data.draw(st.integers(1, 4))):
        kinds = data.draw(st.sampled_from([(app,), (init, app), (app, app)]))
        wanted = pod(
            f"p{number}",
            *(kind(f"c{at}", cpu=str(data.draw(st.integers(1, 4))), memory="1Mi") for at, kind in enumerate(kinds)),
        )
        before = promises
        decision = admit(built, promises, wanted)
        promises = decision.promises
        if isinstance(decision, Admitted):
            active.append(wanted)
        else:
            assert promises == before
        assert violations(built, promises, tuple(active)) == ()


# What explain says


def test_the_trace_has_each_answer_and_whose_choice_it_is() -> None:
    answers = plugin(
        "mine",
        filter=lambda q: q.free - CpuSet.of(1),
        pre_score=lambda _q: {7: 3, 15: 3},
        select=lambda _q: CpuSet.of(7, 15),
        score=lambda _q, cpus: min(cpus),
    )
    built = with_plugins(answers, plugin("second", select=lambda _q: CpuSet.of(5, 13)))
    found = trace(WhatIf.of(built, initial(built)), two())
    (step,) = [one for one in found.steps if isinstance(one, CpuStep)]
    assert [(each.plugin, each.point, str(each.cpus), each.score) for each in step.answers] == [
        ("mine", "Filter", "2-7,9-15", None),
        ("mine", "PreScore", "7,15", 3),
        ("mine", "Select", "7,15", None),
        ("second", "Select", "5,13", None),
        ("mine", "Score", "7,15", 7),
        ("mine", "Score", "5,13", 5),
        ("mine", "Score", "7,15", 7),
    ]
    assert [(group.rule, group.plugin, str(group.cpus)) for choice in step.choices for group in choice.groups] == [
        ("plugin", "mine", "7,15")
    ]
    lowest = plugin("lowest", score=lambda _q, cpus: -min(cpus), select=lambda _q: CpuSet.of(7, 15))
    found = trace(WhatIf.of(other := with_plugins(lowest), initial(other)), two())
    (step,) = [one for one in found.steps if isinstance(one, CpuStep)]
    assert [(group.rule, group.plugin, str(group.cpus)) for choice in step.choices for group in choice.groups] == [
        ("whole core", None, "1,9")
    ]


def test_the_trace_has_what_was_left_for_hints_with_the_merge_that_it_decides() -> None:
    asked = []

    def pre_score(question: Question) -> dict[int, int]:
        asked.append(question.count)
        return {}

    away = plugin("away", filter=lambda q: q.free & CpuSet.parse("1,5"), pre_score=pre_score)
    built = with_plugins(away, topology_manager_policy="single-numa-node")
    found = trace(WhatIf.of(built, initial(built)), two())
    (step,) = found.steps
    assert isinstance(step, MergeTrace)
    assert not step.admitted
    assert [*step.events] == [PluginAnswered("away", "Filter", CpuSet.parse("1,5"), None, is_for_hints=True)]
    assert asked == [], "hints know no scores"
    both = trace(WhatIf.of(built, initial(built)), two(cpus="1"))
    events = [
        one.events if isinstance(one, MergeTrace) else one.answers
        for one in both.steps
        if isinstance(one, MergeTrace | CpuStep)
    ]
    assert [[each.point for each in own if isinstance(each, PluginAnswered)] for own in events] == [["Filter"]] * 2
    assert asked == [1]


# What ships


def caches(count: int, cores: int) -> Topology:
    """One NUMA node with so many last-level caches of so many cores of two threads."""
    total = count * cores
    cpus = [
        Cpu(core + thread * total, core=core, socket=0, numa=0, uncore=core // cores)
        for thread in range(2)
        for core in range(total)
    ]
    return Topology.of(cpus, [NumaNode(0, 8 * GIB)])


def test_spread_caches_takes_each_core_from_the_cache_of_which_the_least_is_promised() -> None:
    spread = of(spread_caches.make({}))
    built = with_plugins(spread, topology=caches(4, 4), reserved="0,16")
    assert cpus_of(built, two("a", "4"), two("b", "4"), two("c", "8"), two("d", "3")) == [
        "1,4,17,20",
        "8,12,24,28",
        "2,5,9,13,18,21,25,29",
        "3,6,19",
    ]
    assert cpus_of(built, two("all", "30")) == ["1-15,17-31"]
    plain = managers(machine(nodes=1, threads=1), reserved="0")
    one_cache = with_plugins(spread, topology=machine(nodes=1, threads=1), reserved="0")
    assert cpus_of(one_cache, two()) == cpus_of(plain, two())


def test_spread_caches_stays_on_the_nodes_of_the_hint() -> None:
    built = with_plugins(of(spread_caches.make({})), topology=MACHINE_B, topology_manager_policy="single-numa-node")
    ((said),) = cpus_of(built, two("a", "8"))
    assert said == "4-7,12-15"


def test_prefer_class_gives_its_class_while_there_is_enough_of_it() -> None:
    def prefer(name: str) -> Managers:
        return with_plugins(of(prefer_class.make({"class": name})), topology=hybrid(), reserved="0")

    assert cpus_of(prefer("efficiency"), two("a", "2"), two("b", "2"), two("c", "2")) == ["8-9", "10-11", "2-3"]
    assert cpus_of(prefer("performance"), two("a", "6")) == ["2-7"]
    assert cpus_of(with_plugins(of(prefer_class.make({"class": "performance"}))), two()) == ["1,9"]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (spread_caches.make, {"x": "1"}),
        (prefer_class.make, {}),
        (prefer_class.make, {"class": "fast"}),
        (prefer_class.make, {"class": "performance", "x": ""}),
    ],
)
def test_options_are_judged_by_the_plugin(make: Callable[[dict[str, str]], object], options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="it has"):
        make(options)
