"""What is told of a decision is what was decided: over recorded scenarios, and in tables of machines where each rule shows."""

import gzip
from functools import cache
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, admit, build, initial
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.merge_trace import Candidate, MergeTrace, Opinion, Verdict
from nodeagent.core.explain.remedies import BUDGETS, MAX_ATTEMPTS, remedies
from nodeagent.core.explain.remedy import Remedy, RequestChange
from nodeagent.core.explain.trace import Trace, trace
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import MEMORY, Container, Pod, ResourceRequirements, Resources
from nodeagent.core.model.pod_amounts import MIB
from nodeagent.core.model.pod_resources import with_pod_level_defaults
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.cpu.explainer import CpuStep
from nodeagent.core.resources.cpu.observing import Rule, Source
from nodeagent.core.resources.memory.explainer import MemoryStep
from nodeagent.formats.scenario.scenario import Scenario, scenario_from_text
from tests.support.builders import ALPHA, GIB, MACHINE_B, PLRM, admitted, hybrid, machine, managers, pod
from tests.support.decision_vectors import FILES, FOLDER
from tests.support.pods import app, exclusive, init, shared
from tests.support.shares import share

EVERY = 25
"""Of so many scenarios one is taken: the same ones each time."""


@cache
def decided(errata: Errata) -> tuple[tuple[WhatIf, Trace], ...]:
    """Every pod of some recorded scenarios as it is told, and the node it comes to."""
    found = []
    for scenario in scenarios():
        made = build(scenario.topology, replace(scenario.placement, errata=errata))
        if not isinstance(made, Managers):
            continue
        what_if = WhatIf.of(made, initial(made))
        for step in scenario.steps:
            if step.op == "removePod":
                what_if = what_if.without(frozenset({step.pod_uid}))
            if step.pod is not None:
                what_if = what_if.making_way(step.pod)
                found.append((what_if, trace(what_if, step.pod)))
                what_if = what_if.after(step.pod, what_if.judge(step.pod))
    assert len(found) > 200
    return tuple(found)


@cache
def scenarios() -> tuple[Scenario, ...]:
    lines = []
    for name in FILES:
        with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            lines += list(file)[::EVERY]
    return tuple(scenario_from_text(line, "vectors") for line in lines)


@pytest.mark.parametrize("errata", Errata)
def test_reporting_changes_no_decision(errata: Errata) -> None:
    for what_if, reported in decided(errata):
        assert reported.decision == admit(what_if.managers, what_if.promises, reported.pod)


@pytest.mark.parametrize("errata", Errata)
def test_every_merge_has_the_winner_that_was_chosen_and_a_reason_for_all_others(errata: Errata) -> None:
    seen = set()
    for _, reported in decided(errata):
        for step in reported.steps:
            if isinstance(step, MergeTrace):
                winners = [c.nodes for c in step.candidates if c.verdict is Verdict.WINS]
                assert winners == [step.nodes] if step.nodes is not None else len(winners) <= 1
                seen |= {c.verdict for c in step.candidates}
    assert seen >= set(Verdict) - {Verdict.FARTHER, Verdict.LESS_ALLOCATED, Verdict.MORE_ALLOCATED, Verdict.MORE_NODES}


def test_the_groups_taken_are_the_cpus_given() -> None:
    seen = set()
    for _, reported in decided(Errata.FIXED):
        for step in reported.steps:
            if isinstance(step, CpuStep) and not step.refused:
                groups = [group for choice in step.choices for group in choice.groups]
                union = CpuSet()
                for group in groups:
                    union |= group.cpus
                whole = [choice for choice in step.choices if choice.source is not Source.POD]
                assert union == step.cpus
                assert sum(choice.count for choice in whole) == len(step.cpus)
                seen |= {group.rule for group in groups}
    assert seen == set(Rule) - {Rule.PLUGIN}, "kubelet has no plugins (tests/core/resources/cpu/test_plugins.py)"


def test_memory_blocks_are_what_was_taken_and_what_was_lent() -> None:
    count = 0
    for _, reported in decided(Errata.FIXED):
        for step in reported.steps:
            if isinstance(step, MemoryStep) and not step.refused:
                taken = sum(size for _, _, size in step.taken)
                assert taken <= sum(block.size_bytes for block in step.blocks)
                assert {node for node, _, _ in step.taken} <= set(step.nodes)
                count += 1
    assert count > 50


def test_every_remedy_is_one() -> None:
    """Carried out on the node, each lets the pod in; each kind is found somewhere."""
    seen = set()
    for what_if, reported in decided(Errata.FIXED):
        if isinstance(reported.decision, Admitted):
            continue
        for remedy in remedies(what_if, reported.pod).found:
            assert isinstance(carried_out(remedy, what_if, reported.pod), Admitted), remedy
            seen.add(remedy.change)
    ours = {RequestChange.NODE, RequestChange.CORE_CLASS, RequestChange.DEVICES, RequestChange.CLAIM}
    assert seen == set(RequestChange) - ours, "which ask for what kubelet doesn't know"


@pytest.mark.parametrize("cpus", [3, 7])
def test_another_numa_node_is_a_remedy(cpus: int) -> None:
    node = managers(reserved="0,8")
    there = pod("there", app("c", "6", "1Gi"), numa_node=1)
    before = WhatIf.of(node, admitted(node, there), (there,))
    asking = pod("new", app("c", str(cpus), "1Gi"), numa_node=1)
    (found,) = (remedy for remedy in remedies(before, asking).found if remedy.change is RequestChange.NODE)
    assert (found.before, found.after) == ("1", "0" if cpus == 3 else "")
    assert isinstance(carried_out(found, before, asking), Admitted)


@pytest.mark.parametrize(("cpus", "after"), [(3, ["", "efficiency"]), (5, [""]), (7, [])])
def test_another_class_of_cores_is_a_remedy(cpus: int, after: list[str]) -> None:
    node = managers(hybrid(), reserved="0")
    there = pod("there", app("c", "6", "1Gi"), core_class="performance")
    before = WhatIf.of(node, admitted(node, there), (there,))
    asking = pod("new", app("c", str(cpus), "1Gi"), core_class="performance")
    found = [remedy for remedy in remedies(before, asking).found if remedy.change is RequestChange.CORE_CLASS]
    assert [(remedy.before, remedy.after) for remedy in found] == [("performance", name) for name in after]
    assert all(isinstance(carried_out(remedy, before, asking), Admitted) for remedy in found)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("eth0",), [("eth0",)]),
        (("eth0", "nvme0"), [("eth0",)]),
        (("eth0", "eth1"), [("eth0", "eth1")]),
        (("nvme0", "eth9"), [("eth9",)]),
    ],
)
def test_asking_for_no_device_is_a_remedy(names: tuple[str, ...], found: list[tuple[str, ...]]) -> None:
    devices = tuple(
        Device(address, DeviceKind.NETWORK, 0, names=(name,), numa_node=node)
        for address, name, node in (("a", "eth0", 1), ("b", "eth1", 1), ("c", "nvme0", 0))
    )
    node = managers(topology_manager_policy="restricted")
    node = node.knowing(PlacedDevices.of(devices, node.topology))
    there = pod("there", app("c", "6", "1Gi"), numa_node=1)
    before = WhatIf.of(node, admitted(node, there), (there,))
    asking = pod("new", app("c", "3", "1Gi", near=names), app("d", "100m", near=names))
    these = [remedy for remedy in remedies(before, asking).found if remedy.change is RequestChange.DEVICES]
    assert [remedy.subject for remedy in these] == found
    assert all(isinstance(carried_out(remedy, before, asking), Admitted) for remedy in these)


def test_what_came_to_nothing_is_no_step() -> None:
    node = managers(hybrid(), reserved="0", topology_manager_policy="restricted")
    before = WhatIf.of(node, initial(node))
    for cpus, available, core_class in ((4, "1-7", "performance"), (8, "1-11", None)):
        found = trace(before, pod("new", app("c", str(cpus), "1Gi"), preferred_core_class="performance"))
        assert found.demand.core_class == core_class
        assert [type(step) for step in found.steps] == [MergeTrace, CpuStep]
        assert isinstance(step := found.steps[1], CpuStep)
        assert [str(choice.available) for choice in step.choices] == [available]
        assert len(step.cpus) == cpus


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_little_more_memory_than_a_remedy_allows_is_refused(nodes: int) -> None:
    """Else it would not be the smallest change."""
    built = managers(
        machine(nodes=nodes), reserved="0", reserved_memory={0: "100Mi"}, topology_manager_policy="restricted"
    )
    count = 0
    for before, cpus, gib in share(list(product((None, 2, 5), range(1, 8 * nodes), (3, 9, 14, 17, 26, 40)))):
        what_if = WhatIf.of(built, initial(built))
        if before is not None:
            there = pod("there", app("c", str(before), f"{before}Gi"))
            what_if = what_if.after(there, what_if.judge(there))
        new = pod("new", app("c", str(cpus), f"{gib}Gi"))
        if isinstance(what_if.judge(new), Admitted):
            continue
        for remedy in remedies(what_if, new).found:
            if [amount.resource for amount in remedy.amounts] == [MEMORY]:
                (amount,) = remedy.amounts
                after = Quantity.of_bytes(Quantity.parse(amount.after).value() + MIB)
                more = replace(remedy, amounts=(replace(amount, after=str(after)),))
                assert not isinstance(carried_out(more, what_if, new), Admitted), remedy
                count += 1
    assert count > 10


def carried_out(remedy: Remedy, what_if: WhatIf, new: Pod) -> object:
    """Do what the remedy says, in another way than the search does."""
    match remedy.change:
        case RequestChange.REMOVAL:
            gone = {each.uid for each in what_if.pods if each.full_name in remedy.subject}
            return what_if.without(frozenset(gone)).judge(new)
        case RequestChange.CONFIGURATION:
            other = what_if.under(configured(what_if.managers.placement, remedy))
            assert isinstance(other, WhatIf)
            return other.judge(new)
        case RequestChange.NODE:
            return what_if.judge(replace(new, numa_node=int(remedy.after) if remedy.after else None))
        case RequestChange.CORE_CLASS:
            name = remedy.after or None
            wish = None if remedy.after else remedy.before
            return what_if.judge(replace(new, core_class=name, preferred_core_class=wish))
        case RequestChange.DEVICES:
            kept = (tuple(name for name in one.near if name not in remedy.subject) for one in new.containers)
            near = zip(new.containers, kept, strict=True)
            return what_if.judge(replace(new, containers=tuple(replace(one, near=names) for one, names in near)))
        case RequestChange.REQUEST:
            return what_if.judge(requesting(new, remedy))


def configured(placement: Placement, remedy: Remedy) -> Placement:
    field, _, option = remedy.subject[0].partition(".")
    if option:
        left = tuple(item for item in placement.cpu_manager_policy_options if item[0] != option)
        return replace(placement, cpu_manager_policy_options=left)
    names = {
        "topologyManagerPolicy": "topology_manager_policy",
        "topologyManagerScope": "topology_manager_scope",
        "memoryManagerPolicy": "memory_manager_policy",
        "isolatedCPUs": "isolated_cpus",
    }
    changes: dict[str, Any] = {names[field]: remedy.after}
    return replace(placement, **changes)


def requesting(new: Pod, remedy: Remedy) -> Pod:
    wanted: dict[str | None, dict[str, Quantity]] = {}
    for each in remedy.amounts:
        wanted.setdefault(each.container, {})[each.resource] = Quantity.parse(each.after)

    def less(resources: Any, wanted: dict[str, Quantity]) -> Any:
        requests, limits = (
            Resources.of({name: wanted.get(name, old) for name, old in part})
            for part in (resources.requests, resources.limits)
        )
        return ResourceRequirements(requests, limits)

    if not remedy.subject:
        return replace(new, resources=less(new.resources, wanted[None]))
    return replace(
        new,
        containers=tuple(
            replace(c, resources=less(c.resources, wanted[c.name])) if c.name in remedy.subject else c
            for c in new.containers
        ),
    )


# Tables


def traced_last(made: Managers, *pods: Pod) -> Trace:
    """Decide on pods one after the other; tell of the last one."""
    what_if = WhatIf.of(made, initial(made))
    for each in pods[:-1]:
        decision = what_if.judge(each)
        assert isinstance(decision, Admitted), decision
        what_if = what_if.after(each, decision)
    return trace(what_if, pods[-1])


def groups(reported: Trace) -> list[tuple[str, str, str]]:
    """Source, rule and CPUs of every group."""
    return [
        (choice.source.value, group.rule.value, str(group.cpus))
        for step in reported.steps
        if isinstance(step, CpuStep)
        for choice in step.choices
        for group in choice.groups
    ]


def wants(name: str, cpu: str, memory: str = "1Gi") -> Pod:
    return pod(name, app("app", cpu, memory))


LARGE = machine(nodes=4, cores=4, sockets=2, cores_per_uncore=2)
CACHES = managers(MACHINE_B, options=("prefer-align-cpus-by-uncorecache",))
RULES = [
    ("whole core", managers(), ("4",), [("anywhere", "whole core", "1-2,9-10")]),
    ("odd", managers(), ("3",), [("anywhere", "whole core", "1,9"), ("anywhere", "single CPU", "2")]),
    ("node", managers(reserved="0"), ("9",), [("anywhere", "whole NUMA node", "4-7,12-15"), ("anywhere", "single CPU", "8")]),
    ("socket", managers(LARGE, reserved="0,16"), ("18",), [("anywhere", "whole socket", "8-15,24-31"), ("anywhere", "whole core", "1,17")]),
    ("cache", CACHES, ("6",), [("anywhere", "whole uncore cache", "2-3,10-11"), ("anywhere", "same uncore cache", "1,9")]),
    ("across cores", managers(options=("distribute-cpus-across-cores",), gates=ALPHA), ("3",), [("anywhere", "single CPU", "1-3")]),
    ("hint", managers(topology_manager_policy="best-effort"), ("8",), [("hint", "whole NUMA node", "4-7,12-15")]),
    ("elsewhere", managers(topology_manager_policy="best-effort"), ("6", "7", "1"), [("hint", "single CPU", "15")]),
]  # fmt: skip


@pytest.mark.parametrize(("made", "counts", "expected"), [row[1:] for row in RULES], ids=[row[0] for row in RULES])
def test_the_rule_behind_each_group(made: Managers, counts: tuple[str, ...], expected: list[tuple[str, ...]]) -> None:
    assert groups(traced_last(made, *(wants(f"p{n}", count) for n, count in enumerate(counts)))) == expected


def test_equal_shares_name_their_node_and_what_they_left_over() -> None:
    made = managers(reserved="0,4", options=("distribute-cpus-across-numa",))
    (step,) = traced_last(made, wants("p", "9")).steps
    assert isinstance(step, CpuStep)
    shares = [(g.share_of, g.is_remainder, len(g.cpus)) for choice in step.choices for g in choice.groups]
    assert sum(size for *_, size in shares) == 9
    assert {node for node, *_ in shares} == {0, 1}
    assert sum(size for _, is_remainder, size in shares if is_remainder) == 1


def test_cpus_of_init_containers_are_reported_as_reused() -> None:
    reported = traced_last(managers(), pod("p", init("first", "4"), app("app", "2")))
    first, second = (step for step in reported.steps if isinstance(step, CpuStep))
    assert (first.container, str(first.cpus), str(first.reused)) == ("first", "1-2,9-10", "")
    assert (second.container, str(second.cpus), str(second.reused)) == ("app", "1,9", "1,9")


def test_memory_of_init_containers_is_not_taken_twice() -> None:
    made = managers(reserved_memory={0: "1Gi"}, topology_manager_policy="single-numa-node")
    reported = traced_last(made, pod("p", init("first", "2", "2Gi"), app("app", "2", "3Gi")))
    first, second = (step for step in reported.steps if isinstance(step, MemoryStep))
    assert first.taken == ((0, "memory", 2 * GIB),)
    assert (second.nodes, second.taken) == (NumaSet.of(0), ((0, "memory", GIB),))


def test_slices_of_a_pods_own_set_name_their_container() -> None:
    made = managers(topology_manager_policy="best-effort", topology_manager_scope="pod", gates=PLRM)
    reported = traced_last(made, pod("p", app("a", "2"), shared("b"), resources=exclusive("4", "4Gi")))
    (step,) = (step for step in reported.steps if isinstance(step, CpuStep))
    assert (step.container, len(step.cpus)) == (None, 4)
    assert [(c.source, c.container, c.count) for c in step.choices] == [(Source.HINT, None, 4), (Source.POD, "a", 2)]


def test_a_look_at_isolated_cpus_that_came_to_nothing_is_not_reported() -> None:
    isolated = replace(machine(), isolated=CpuSet.parse("6,14"))
    made = managers(isolated, isolated_cpus="prefer")
    assert [c.isolated for c in cpu_step(traced_last(made, wants("p", "2"))).choices] == [True]
    assert [c.isolated for c in cpu_step(traced_last(made, wants("p", "4"))).choices] == [False]


def cpu_step(reported: Trace) -> CpuStep:
    return next(step for step in reported.steps if isinstance(step, CpuStep))


def candidates(reported: Trace) -> dict[str, Candidate]:
    step = next(step for step in reported.steps if isinstance(step, MergeTrace))
    return {str(candidate.nodes): candidate for candidate in step.candidates}


def test_closer_nodes_win_where_distances_count() -> None:
    distances = [(10, 30, 12, 30), (30, 10, 30, 30), (12, 30, 10, 30), (30, 30, 30, 10)]
    made = managers(
        machine(nodes=4, cores=2, distances=distances),
        reserved="0,8",
        topology_manager_policy="restricted",
        topology_manager_policy_options=(("prefer-closest-numa-nodes", "true"),),
    )
    found = candidates(traced_last(made, wants("p", "6")))
    assert found["0,2"].verdict is Verdict.WINS
    assert found["0-1"].verdict is Verdict.FARTHER


def test_the_fuller_node_wins_where_that_counts() -> None:
    made = managers(
        reserved="0-2,8-10",
        gates=(("TopologyManagerPolicyAlphaOptions", True),),
        topology_manager_policy="single-numa-node",
        topology_manager_policy_options=(("prefer-most-allocated-numa-node", "true"),),
    )
    found = candidates(traced_last(made, wants("first", "4"), wants("second", "2")))
    assert {nodes: c.verdict for nodes, c in found.items()} == {
        "0": Verdict.LESS_ALLOCATED,
        "1": Verdict.WINS,
        "0-1": Verdict.SEVERAL_NODES,
    }


@pytest.mark.parametrize(
    ("strategy", "wins", "loses", "why"),
    [("most-allocated", "1", "0", Verdict.LESS_ALLOCATED), ("least-allocated", "0", "1", Verdict.MORE_ALLOCATED)],
)
def test_the_allocation_strategy_is_named_as_the_reason(strategy: str, wins: str, loses: str, why: Verdict) -> None:
    made = managers(
        reserved="0-2,8-10",
        gates=(("TopologyManagerPolicyAlphaOptions", True),),
        topology_manager_policy="restricted",
        topology_manager_policy_options=(("numa-allocation-strategy", strategy),),
    )
    found = candidates(traced_last(made, wants("first", "4"), wants("second", "2")))
    assert {nodes: c.verdict for nodes, c in found.items()} == {
        wins: Verdict.WINS,
        loses: why,
        "0-1": Verdict.NOT_PREFERRED,
    }


def test_what_some_prefer_and_others_lack_is_reported_by_resource() -> None:
    made = managers(reserved_memory={0: "1Gi"}, topology_manager_policy="restricted")
    found = candidates(traced_last(made, wants("first", "6", "1Gi"), wants("second", "2", "7Gi")))
    assert found.keys() == {"1", "0-1"}, "nobody offers node 0, which has too little of both"
    assert found["1"].opinions == (("cpu", Opinion.PREFERRED), ("memory", Opinion.PREFERRED))
    assert found["0-1"].opinions == (("cpu", Opinion.POSSIBLE), ("memory", Opinion.NO))
    assert (found["0-1"].verdict, found["0-1"].because_of) == (Verdict.NO_ROOM, ("memory",))


@pytest.mark.parametrize("nodes", [6, 8, 12, 34])
def test_machines_with_many_nodes_are_reported_within_bounds(nodes: int) -> None:
    options = () if nodes <= 8 else (("max-allowable-numa-nodes", "64"),)
    made = managers(
        machine(nodes=nodes, cores=2, threads=2),
        reserved="0",
        reserved_memory={0: "1Gi"},
        topology_manager_policy="restricted",
        topology_manager_policy_options=options,
    )
    reported = traced_last(made, wants("p", "6", "9Gi"))
    step = reported.steps[0]
    assert isinstance(step, MergeTrace)
    assert step.all_sets is (nodes <= 8)
    assert len(step.candidates) <= 255
    assert [c.nodes for c in step.candidates if c.verdict is Verdict.WINS] == [step.nodes]


# Remedies


def helped(made: Managers, *pods: Pod) -> set[tuple[str, tuple[str, ...], str]]:
    """Changes that would admit the last of these pods: (change, subject, after)."""
    return helped_on(WhatIf.of(made, initial(made)), *pods)


def helped_on(what_if: WhatIf, *pods: Pod) -> set[tuple[str, tuple[str, ...], str]]:
    for each in pods[:-1]:
        what_if = what_if.after(each, what_if.judge(each))
    return {
        (r.change.value, r.subject, r.after or " ".join(a.after for a in r.amounts))
        for r in remedies(what_if, pods[-1]).found
    }


def test_the_smallest_changes_are_the_next_amounts_rules_and_pods() -> None:
    made = managers(options=("full-pcpus-only",), topology_manager_policy="single-numa-node")
    assert helped(made, wants("a", "4"), wants("b", "6"), wants("c", "4")) == {
        ("request", ("app",), "2"),
        ("configuration", ("topologyManagerPolicy",), "best-effort"),
        ("removal", ("default/a",), ""),
    }


def test_whole_cores_are_offered_above_and_below() -> None:
    made = managers(options=("full-pcpus-only",))
    assert {("request", ("app",), "2"), ("request", ("app",), "4")} <= helped(made, wants("odd", "3"))


def test_less_memory_is_offered_to_the_mebibyte() -> None:
    made = managers(reserved_memory={0: "1Gi"}, topology_manager_policy="single-numa-node")
    found = helped(made, wants("a", "2", "8Gi"), wants("b", "2", "7500Mi"))
    assert ("request", ("app",), "7Gi") in found
    assert ("configuration", ("memoryManagerPolicy",), "None") in found


def test_where_one_pod_is_not_enough_several_are_named_and_none_too_many() -> None:
    made = managers()
    pods = [wants(f"p{n}", "2") for n in range(7)]
    (subject,) = (s for change, s, _ in helped(made, *pods, wants("big", "6")) if change == "removal")
    assert len(subject) == 3


def test_containers_that_ask_for_too_much_together_are_bounded_alike() -> None:
    made = managers(topology_manager_policy="single-numa-node", topology_manager_scope="pod")
    found = helped(made, pod("p", app("a", "8"), app("b", "8"), app("c", "1")))
    assert ("request", ("a", "b"), "3 3") in found


def test_a_pod_whose_containers_leave_nothing_to_share_is_offered_more_of_all_that_is_short() -> None:
    made = managers(
        topology_manager_policy="best-effort", topology_manager_scope="pod", gates=PLRM, reserved_memory={0: "1Gi"}
    )
    containers = (app("a", "3", "1Gi"), app("b", "1", "1Gi"), shared("c"))
    assert ("request", (), "5 2049Mi") in helped(made, pod("p", *containers, resources=exclusive("4", "2Gi")))
    found = helped(made, pod("p", *containers, resources=exclusive("4", "3Gi")))
    assert {("request", (), "5"), ("request", ("a",), "2")} <= found


def test_the_search_ends() -> None:
    """256 CPUs and 60 pods that are all in the way: no more decisions than allowed."""
    made = managers(machine(nodes=2, cores=64), reserved="0,128")
    tried = 0
    what_if = WhatIf.of(made, initial(made))
    for n in range(60):
        new = wants(f"p{n}", "4", "1Mi")
        what_if = what_if.after(new, what_if.judge(new))

    class Counted(WhatIf):
        """Counts what it is asked."""

        def judge(self, *words: Any) -> Any:
            nonlocal tried
            tried += 1
            return super().judge(*words)

    counted = Counted(what_if.managers, what_if.promises, what_if.pods, None, what_if.usage)
    assert remedies(counted, wants("huge", "254")).found
    assert tried <= MAX_ATTEMPTS + 1


def test_no_kind_of_change_is_left_out_because_another_takes_long() -> None:
    """Three containers of 200 CPUs on nodes of 128: every smaller request of each was tried, and then nothing else."""
    made = managers(
        machine(nodes=8, cores=64, sockets=4),
        reserved="0",
        topology_manager_policy="single-numa-node",
        topology_manager_scope="pod",
    )
    found = helped(made, pod("wide", app("a", "200"), app("b", "200"), app("c", "200")))
    assert found == {
        ("request", ("a", "b", "c"), "42 42 42"),
        ("configuration", ("topologyManagerPolicy",), "restricted"),
    }


def test_fewer_cpus_are_found_where_more_need_another_number_of_nodes() -> None:
    """Two nodes with 25 CPUs free each: restricted admits 49 CPUs, on two, and neither 64, nor 48, which one node could hold."""
    made = managers(machine(nodes=2, cores=24), reserved="0,48", topology_manager_policy="restricted")
    nodes = [wants("a", "22"), wants("b", "23")]
    assert ("request", ("app",), "49") in helped(made, *nodes, wants("big", "90"))


def test_what_was_not_tried_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = managers(topology_manager_policy="single-numa-node")
    what_if = WhatIf.of(made, initial(made))
    assert remedies(what_if, wants("big", "12")).all_tried
    monkeypatch.setitem(BUDGETS, RequestChange.REQUEST, 2)
    assert not remedies(what_if, wants("big", "12")).all_tried


def removed(found: set[tuple[str, tuple[str, ...], str]]) -> set[tuple[str, ...]]:
    return {subject for change, subject, _ in found if change == "removal"}


PODS = [("p10", "10"), ("p6", "6"), ("p4", "4"), ("p4b", "4"), ("p7", "7")]


def test_of_several_pods_those_are_named_that_hold_least() -> None:
    """31 CPUs are held; p10 and p7 hold 17, p7 and p6 only 13."""
    made = managers(machine(nodes=2, cores=8), reserved="0")
    pods = [wants(name, cpu, "1Mi") for name, cpu in PODS]
    assert removed(helped(made, *pods, wants("new", "12"))) == {("default/p6", "default/p7")}


def test_of_too_many_sets_of_pods_one_is_improved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.core.explain.pods_to_end.MOST_SETS", 0)
    made = managers(machine(nodes=2, cores=8), reserved="0")
    what_if = WhatIf.of(made, initial(made))
    for name, cpu in PODS:
        what_if = what_if.after(wants(name, cpu), what_if.judge(wants(name, cpu)))
    found = remedies(what_if, wants("new", "12"))
    assert [r.subject for r in found.found if r.change is RequestChange.REMOVAL] == [("default/p6", "default/p7")]
    assert not found.all_tried


def counting(made: Managers, cpu: int, memory: str = "64Gi") -> WhatIf:
    """A node that counts what is requested of it as a whole; cpu in thousandths."""
    return WhatIf.of(
        made, initial(made), (), Allocatable(110, (("cpu", cpu), ("memory", Quantity.parse(memory).value())))
    )


def asks(name: str, cpu: str, memory: str = "1Gi") -> Pod:
    """A Burstable pod: it holds no CPU and no memory of its own."""
    return pod(name, Container("app", resources=ResourceRequirements(exclusive(cpu, memory).requests)))


def test_where_the_node_is_short_the_pod_is_named_that_requests_least_of_that() -> None:
    made = managers(machine(nodes=2, cores=8), reserved="0")
    on_cpu = (wants("own", "2"), asks("a", "20"), asks("b", "4"), asks("c", "4"))
    assert removed(helped_on(counting(made, 31000), *on_cpu, wants("new", "4"))) == {("default/b",), ("default/c",)}
    on_memory = (wants("a", "1", "40Gi"), wants("b", "3", "20Gi"))
    found = removed(helped_on(counting(made, 31000), *on_memory, wants("new", "1", "7Gi")))
    assert found == {("default/b",)}


@pytest.mark.parametrize(
    ("left", "wanted", "less"),
    [(300, asks("new", "500m"), "300m"), (2400, asks("new", "2500m"), "2400m"), (2400, wants("new", "2500m"), "2400m")],
)
def test_shared_cpus_are_offered_in_thousandths(left: int, wanted: Pod, less: str) -> None:
    made = managers(machine(nodes=2, cores=8), reserved="0")
    assert ("request", ("app",), less) in helped_on(counting(made, 4000 + left), asks("there", "4"), wanted)


def test_cpus_of_its_own_are_offered_whole() -> None:
    made = managers(machine(nodes=2, cores=8), reserved="0")
    assert ("request", ("app",), "2") in helped_on(counting(made, 6400), wants("there", "4"), wants("new", "3"))
    none = build(made.topology, replace(made.placement, cpu_manager_policy="none"))
    assert isinstance(none, Managers)
    assert ("request", ("app",), "2400m") in helped_on(counting(none, 6400), wants("there", "4"), wants("new", "3"))


def test_cpus_of_a_pod_whose_own_amounts_the_managers_leave_alone_are_shared() -> None:
    made = managers(machine(nodes=2, cores=8), reserved="0")
    new = pod("new", app("app", "1"), resources=exclusive("3", "2Gi"))
    assert ("request", (), "2400m") in helped_on(counting(made, 6400), wants("there", "4"), new)


def test_a_pod_as_a_whole_is_offered_less_but_not_less_than_its_containers_request() -> None:
    made = managers(machine(nodes=2, cores=8), reserved="0")
    new = pod("new", app("app", "1", "1Gi"), resources=exclusive("3", "5Gi"))
    found = helped_on(counting(made, 31000, "7Gi"), wants("there", "4", "3Gi"), new)
    assert ("request", (), "4Gi") in found
    found = helped_on(counting(made, 31000, "7Gi"), wants("there", "4", "6656Mi"), new)
    assert {each for each in found if each[0] == "request"} == {("request", ("app",), "512Mi 512Mi")}


@pytest.mark.parametrize(
    ("whole", "container", "less"),
    [
        pytest.param("8", "4", "3 3", id="the container's amount is the pod's"),
        pytest.param("4", "4", "3 3", id="both are equal"),
        pytest.param("3500m", "3500m", "3 3", id="parts of CPUs"),
    ],
)
def test_a_pods_own_amount_falls_with_its_containers_where_one_alone_is_not_enough(
    whole: str, container: str, less: str
) -> None:
    node = counting(managers(machine(nodes=1, cores=4), reserved="0"), 3000)
    limits = Resources.of({"cpu": Quantity.parse(whole), "memory": Quantity.parse("1Gi")})
    new = pod("new", app("app", container, "64Mi"), resources=ResourceRequirements(limits=limits))
    assert ("request", ("app",), less) in helped_on(node, with_pod_level_defaults(new))


def test_containers_that_ask_for_parts_of_cores_are_each_offered_their_own_whole_ones() -> None:
    made = managers(machine(nodes=2, cores=8), reserved="0", options=("full-pcpus-only",))
    found = helped(made, pod("odd", app("a", "3"), app("b", "5"), app("c", "8"), app("d", "1")))
    assert {r for r in found if r[0] == "request"} == {
        ("request", ("a", "b", "d"), "2 4 2"),
        ("request", ("a", "b", "d"), "4 6 2"),
    }
    found = helped(made, pod("odd", app("a", "1"), app("b", "1")))
    assert {r for r in found if r[0] == "request"} == {("request", ("a", "b"), "2 2")}
