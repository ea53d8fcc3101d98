"""Formatter of a fleet's documents as text, with a line for each node and pod, or for each value that differs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodeagent.views.explain.text import format_container
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_count

Document = Mapping[str, Any]
WIDTH = 80
_FEW_NODES = 3
"""Maximum number of nodes for which a reason, or the most common value of a fact, lists the nodes by name. For more nodes, the text shows
their number.
"""
_MOST_NAMED = 12
_NO_VALUE = "-"


def render_inspection(document: Document, width: int = WIDTH) -> str:
    """Render nodes, then pods, and last the nodes that need attention."""
    summary = document["summary"]
    cpus = f"{format_count(summary['cpus'], 'CPU')}, {summary['exclusive']} exclusive, {summary['free']} free"
    lines = break_text(
        f"{format_count(summary['nodes'], 'node')}: {cpus}; {format_count(summary['pods'], 'pod')}", width
    )
    rows = [["NODE", "CPUS", "EXCLUSIVE", "FREE", "PODS", "HEALTH"]]
    for node in document["nodes"]:
        of = node["cpus"]
        rows.append([node["name"], *_align_right((of["onlineCount"], 4), (of["exclusiveCount"], 9))])
        unsure = "" if node["healthy"] is None or node["compared"] else "; its cgroups were not captured"
        rows[-1] += [*_align_right((of["availableCount"], 4), (node["pods"], 4)), f"{node['health']}{unsure}"]
    lines += ["", *format_table(rows, width)]
    if document["pods"]:
        pods = [["POD", "NODE", "STATE", "CPUS", "NUMA"]]
        for pod in document["pods"]:
            state = pod["phase"] if pod["reason"] is None else f"{pod['phase']}: {pod['reason']}"
            cpus = " + ".join(part for part in (pod["cpus"], "shared" if pod["shares"] else "") if part) or _NO_VALUE
            pods.append([f"{pod['namespace']}/{pod['name']}", pod["node"], state, cpus, pod["numaNodes"] or _NO_VALUE])
        lines += ["", *format_table(pods, width)]
    wrong = summary["unhealthy"]
    verdicts = []
    if wrong:
        verb = "needs" if wrong == 1 else "need"
        verdicts.append(
            f"{format_count(wrong, 'node')} {verb} attention (nodeagent inspect, there or with --machine FILE, says more)"
        )
    if unknown := sum(node["healthy"] is None for node in document["nodes"]):
        verdicts.append(f"{format_count(unknown, 'node')} without an agent")
    lines += ["", *break_text("; ".join(verdicts) or "nothing needs attention", width)]
    if times := sorted({node["copiedAt"] for node in document["nodes"] if node["copiedAt"] is not None}):
        lines += break_text(f"captured: {times[0] if len(times) == 1 else f'{times[0]} to {times[-1]}'}", width)
    return _join_lines(lines)


def _align_right(*columns: tuple[int, int]) -> list[str]:
    return [f"{number:>{width}}" for number, width in columns]


def render_capacity(document: Document, width: int = WIDTH) -> str:
    """Render the number of copies that fit on each node, the placement of the first copy, and the reasons for the limit."""
    summary, names = document["summary"], " + ".join(document["of"])
    fitting = f"{summary['fitting']} of {format_count(summary['nodes'], 'node')}"
    copies = format_count(summary["copies"], "copy", "copies") + ("" if summary["complete"] else " and more")
    each = "all of them together" if len(document["of"]) > 1 else "the pod"
    lines = break_text(f"{names}: {each} would fit on {fitting}; {copies} in all", width)
    rows = [["NODE", "COPIES", "THE FIRST ONE", "WHERE", "MEMORY"]]
    for node in document["nodes"]:
        cells = [node["name"], f"{node['copies']:>5}{' ' if node['complete'] else '+'}"]
        if not node["first"]:
            rows.append([*cells, f"refused: {node['reason']}", "", ""])
        for pod in node["first"]:
            for container in pod["containers"]:
                name, *places = format_container(container)[:4]
                rows.append([*cells, f"{name}: {places[0]}", *places[1:]])
                cells = ["", ""]
    lines += ["", *format_table(rows, width)]
    reasons: dict[str, list[Document]] = {}
    for node in document["nodes"]:
        if node["reason"] is not None:
            reasons.setdefault(node["reason"], []).append(node)
    if reasons:
        lines += ["", "Why no more fit (nodeagent explain -f FILE --machine FILE says what would help)"]
    for reason, nodes in reasons.items():
        first = nodes[0]
        # the amounts in the messages may differ from node to node
        where = f"; {first['name']}" if any(node["message"] != first["message"] for node in nodes) else ""
        who = _format_nodes([node["name"] for node in nodes], many=len(nodes) > _FEW_NODES)
        lines += break_text(f"  {who}: {reason}{where}: {first['message']}", width)
    return _join_lines(lines)


def render_difference(document: Document, width: int = WIDTH) -> str:
    """Render each fact that differs, with the largest group first. The nodes that aren't in the largest group of every fact follow."""
    nodes, differing = document["nodes"], document["differing"]
    count = len(differing) + len(document["alike"])
    if not differing:
        return _join_lines(
            break_text(f"{format_count(len(nodes), 'node')} are alike in all of {format_count(count, 'fact')}", width)
        )
    alike = f"{format_count(len(nodes), 'node')} are alike in {len(document['alike'])} of {format_count(count, 'fact')}"
    lines = break_text(f"{alike}, and differ in {len(differing)}", width)
    for found in differing:
        lines += ["", f"{found['about']}: {found['fact']}"]
        many = len(found["groups"][0]["nodes"]) > _FEW_NODES
        rows = [
            [f"  {_format_nodes(group['nodes'], many=many and not at)}", group["value"]]
            for at, group in enumerate(found["groups"])
        ]
        lines += format_table(rows, width)
    odd = sorted((node for node in nodes if node["odd"]), key=lambda node: -node["odd"])
    named = [f"{node['name']} ({node['odd']})" for node in odd]
    if named:
        lines += ["", *break_text(f"differing from most: {_format_names(named)}", width)]
    return _join_lines(lines)


def _format_nodes(nodes: Sequence[str], *, many: bool) -> str:
    return format_count(len(nodes), "node") if many else _format_names(nodes)


def _format_names(nodes: Sequence[str]) -> str:
    more = [f"and {len(nodes) - _MOST_NAMED} more (-o json has all)"] if len(nodes) > _MOST_NAMED else []
    return ", ".join([*nodes[:_MOST_NAMED], *more])


def _join_lines(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"
