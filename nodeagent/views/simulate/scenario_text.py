"""Text of a replayed scenario: the result of each step, the final placement, and the remaining resources of each NUMA node.

Names in scenarios aren't validated, so they are escaped and shortened.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.promises import Isolation
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.errors import printable
from nodeagent.formats.scenario.scenario import Scenario
from nodeagent.views.explain.document import describe_configuration, describe_machine
from nodeagent.views.explain.text import format_head
from nodeagent.views.simulate.pods import describe_remaining
from nodeagent.views.simulate.pods_text import format_placed, format_placements, format_remaining
from nodeagent.views.simulate.scenario_replay import ReplayResult
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_count

Document = Mapping[str, Any]
WIDTH = 80
BRIEF_NOTE = """\
The following lines are brief: pods admitted, refused and left at the end; free
CPUs of each NUMA node, and the share of them in partly used cores."""
"""Explanation, for users, of the lines that `render_line` returns."""
_MAX_NAME = 100
_NOT_STARTED = "the managers did not start"


class ScenarioTotals(Struct, frozen=True):
    """Totals over the results of several scenarios."""

    scenarios: int = 0
    admitted: int = 0
    refused: int = 0
    not_started: int = 0
    """Number of scenarios in which the managers refused to start or restart."""

    def with_result(self, replayed: ReplayResult) -> "ScenarioTotals":
        """Return the totals with one more scenario's result added."""
        steps = replayed.result["steps"]
        decisions = [step["admitted"] for step in steps if step["op"] == "add" and "error" not in step]
        return ScenarioTotals(
            self.scenarios + 1,
            self.admitted + decisions.count(True),
            self.refused + decisions.count(False),
            self.not_started + (replayed.end is None),
        )


def render_scenario(scenario: Scenario, replayed: ReplayResult, number: int, where: str, width: int = WIDTH) -> str:
    """Format one scenario in full.

    Args:
        scenario: the replayed scenario.
        replayed: the result.
        number: the scenario's line number.
        where: a short description of the machine.
        width: the limit on a line's length.
    """
    result, end = replayed.result, replayed.end
    lines = break_text(f"scenario {number}: {_format_name(scenario.id)}", width)
    # if the managers did not start, they reserve no CPUs, so the configured CPUs are shown
    asked = scenario.placement.reserved_system_cpus if "startError" in result else CpuSet.parse(result["reservedCPUs"])
    described = describe_machine(scenario.topology, asked, where)
    lines += [
        *format_head(
            {"machine": described, "configuration": describe_configuration(Config(scenario.placement))}, width
        ),
        "",
    ]
    if "startError" in result:
        lines += break_text(f"{_NOT_STARTED}: {_shorten(result['startError'])}", width)
        return _join_lines(lines)
    lines += [*break_text(_format_decisions(ScenarioTotals().with_result(replayed)), width), ""]
    names = _index_names(scenario)
    rows = [["STEP", "EVENT", "POD", "OUTCOME"]]
    # If a restart was refused, the result has fewer steps than the scenario.
    for step_number, (step, shown) in enumerate(zip(scenario.steps, result["steps"], strict=False), start=1):
        pod = "" if step.op == "restart" else names.get(step.pod_uid, _format_name(step.pod_uid))
        event = step.op if step.container is None else f"{step.op} {_format_name(step.container)}"
        rows.append([str(step_number), event, pod, _format_outcome(scenario, step.pod_uid, shown, names)])
    if scenario.steps:
        lines += [*format_table(rows, width), ""]
    if end is None:
        return _join_lines(lines[:-1])
    lines += [*(_format_placement(scenario, result, end, width) or ["No pod is left at the end."]), ""]
    nodes, free, largest = describe_remaining(end)
    summary = {"freeCpus": free, "largestFreeNode": largest}
    return _join_lines([*lines, *format_remaining({"nodes": nodes, "summary": summary}, width)])


def render_line(scenario: Scenario, replayed: ReplayResult, number: int, width: int = WIDTH) -> str:
    """Format one scenario briefly, in a single line if the width allows."""
    result, end = replayed.result, replayed.end
    text = f"scenario {number}: {_format_name(scenario.id)}: "
    if "startError" in result:
        return _join_lines(break_text(f"{text}{_NOT_STARTED}: {_shorten(result['startError'])}", width))
    totals = ScenarioTotals().with_result(replayed)
    text += f"{totals.admitted} admitted, {totals.refused} refused, "
    if end is None:
        text += f"then {_NOT_STARTED}"
    else:
        left = [
            f"{node['node']}: {node['freeCount']} ({node['fragmentationPercent']}%)"
            for node in describe_remaining(end)[0]
        ]
        text += f"{len(end.pods)} left; free {', '.join(left)}"
    return _join_lines(break_text(text, width))


def render_totals(totals: ScenarioTotals, width: int = WIDTH) -> str:
    """Format the totals of all scenarios."""
    text = f"{format_count(totals.scenarios, 'scenario')}: {_format_decisions(totals)}"
    if totals.not_started:
        text += f"; {_NOT_STARTED} in {totals.not_started}"
    return _join_lines(break_text(text, width))


def render_times(times: Document, number: int, width: int = WIDTH) -> str:
    """Format how long a scenario's admissions took.

    Args:
        times: document with the scenario's `id`, the number of its `adds`, and durations in nanoseconds. Without adds, the durations are
            null.
        number: the scenario's line number.
        width: the limit on a line's length.
    """
    text = f"scenario {number}: {_format_name(times['id'])}: {format_count(times['adds'], 'admission')}"
    if times["adds"]:
        median, most = (f"{times[name] / 1000:.0f} µs" for name in ("medianNsPerAdd", "p90NsPerAdd"))
        text += f", of which half take at most {median}, nine of ten at most {most}"
    return _join_lines(break_text(text, width))


def _join_lines(lines: list[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _format_decisions(totals: ScenarioTotals) -> str:
    return f"{format_count(totals.admitted, 'pod')} admitted, {totals.refused} refused"


def _format_outcome(scenario: Scenario, uid: str, shown: Document, names: Mapping[str, str]) -> str:
    if "error" in shown:
        return f"{_NOT_STARTED}: {_shorten(shown['error'])}" if shown["op"] == "restart" else _shorten(shown["error"])
    if not shown["admitted"]:
        return f"refused: {shown['reason']}: {_shorten(shown['message'])}"
    match shown["op"]:
        case "add":
            placed = map(format_placed, _describe_containers(scenario, shown["pods"].get(uid)))
            return ": ".join(part for part in ("admitted", "; ".join(placed)) if part)
        case "restart":
            results = shown.get("readmitted", ())
            refused = []
            for each in results:
                if not each["admitted"]:
                    name = names.get(each["podUID"], _format_name(each["podUID"]))
                    refused.append(f"{name} refused: {each['reason']}: {_shorten(each['message'])}")
            return "; ".join([f"{format_count(len(results) - len(refused), 'pod')} admitted again", *refused])
        case _:
            return ""


def _format_placement(scenario: Scenario, result: Document, end: WhatIf, width: int) -> list[str]:
    """Format the final placement of the pods, including pods that are only in the files with which the scenario starts."""
    names = _index_names(scenario)
    pods = result["steps"][-1]["pods"] if result["steps"] else {}
    gone = _find_removed(scenario)
    pool = str(shared_pool(end.managers, end.promises, scenario.topology.online))
    placed = []
    for uid, pod in pods.items():
        there = {**pod, "containers": {name: of for name, of in pod["containers"].items() if (uid, name) not in gone}}
        containers = [
            {**container, "cpus": pool} if container["isolation"] == Isolation.HOST.value else container
            for container in _describe_containers(scenario, there)
        ]
        placed.append((names.get(uid, _format_name(uid)), containers))
    known = {pod.uid for pod in end.pods}
    for uid, of_pod in end.promises.pods:
        if uid not in known:
            alone = {"isolation": Isolation.CONTAINER.value, "memoryNodes": None}
            own = [
                _describe_container(scenario, name, alone | {"cpuset": str(cpus), "effectiveCpuset": str(cpus)})
                for name, cpus in of_pod.of(CpuHoldings).cpus
            ]
            placed.append((f"{_format_name(uid)} (from the files)", own))
    return list(format_placements(placed, width))


def _find_removed(scenario: Scenario) -> set[tuple[str, str]]:
    """Return the containers that are removed at the end, as pairs of pod UID and container name. Their pods may still exist."""
    gone: set[tuple[str, str]] = set()
    for step in scenario.steps:
        if step.container is not None and step.op == "removeContainer":
            gone.add((step.pod_uid, step.container))
        elif step.op != "restart":
            gone = {(uid, name) for uid, name in gone if uid != step.pod_uid or step.container not in {None, name}}
    return gone


def _describe_containers(scenario: Scenario, pod: Document | None) -> list[Document]:
    """Describe the containers of a pod as simulations of manifests do, so that both are formatted by the same functions."""
    return [] if pod is None else [_describe_container(scenario, name, of) for name, of in pod["containers"].items()]


def _describe_container(scenario: Scenario, name: str, of: Document) -> Document:
    own = CpuSet.parse(of["cpuset"])
    return {
        "coreClasses": list(scenario.topology.classes_of(own)),
        "cpus": of["cpuset"] if of["isolation"] == Isolation.MIXED.value else of["effectiveCpuset"],
        "isolation": of["isolation"],
        "memoryNodes": None if of["memoryNodes"] is None else str(NumaSet.from_ids(of["memoryNodes"])),
        "name": _format_name(name),
        "numaNodes": str(scenario.topology.numa_of(own)) if own else None,
        "whyShared": None,
    }


def _index_names(scenario: Scenario) -> dict[str, str]:
    return {
        step.pod.uid: _format_name(step.pod.full_name)
        for step in scenario.steps
        if step.pod is not None and step.pod.name
    }


def _format_name(text: str) -> str:
    return printable(text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…")


def _shorten(text: str) -> str:
    return printable(text if len(text) <= 10 * _MAX_NAME else f"{text[: 10 * _MAX_NAME - 1]}…")
