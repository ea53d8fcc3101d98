"""Text of a fleet's documents: a line for each node and each pod, or for each value that differs. Adds words and layout, but no facts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nodeagent.views.explain.text import format_container
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_count

Document = Mapping[str, Any]
WIDTH = 80
_FEW_NODES = 3
"""Number of nodes up to which the largest group is named."""
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
        rows.append([node["name"], *_right((of["onlineCount"], 4), (of["exclusiveCount"], 9))])
        rows[-1] += [*_right((of["availableCount"], 4), (node["pods"], 4)), _health(node)]
    lines += ["", *format_table(rows, width)]
    if document["pods"]:
        pods = [["POD", "NODE", "STATE", "CPUS", "NUMA"]]
        pods += [
            [f"{pod['namespace']}/{pod['name']}", pod["node"], _state(pod), _cpus(pod), pod["numaNodes"] or _NO_VALUE]
            for pod in document["pods"]
        ]
        lines += ["", *format_table(pods, width)]
    lines += ["", *break_text(_verdict(document), width), *_captured(document, width)]
    return _joined(lines)


def _right(*columns: tuple[int, int]) -> list[str]:
    return [f"{number:>{width}}" for number, width in columns]


def _health(node: Document) -> str:
    if node["healthy"] is None or node["compared"]:
        return str(node["health"])
    return f"{node['health']}; its cgroups were not captured"


def _state(pod: Document) -> str:
    return str(pod["phase"]) if pod["reason"] is None else f"{pod['phase']}: {pod['reason']}"


def _cpus(pod: Document) -> str:
    return " + ".join(part for part in (pod["cpus"], "shared" if pod["shares"] else "") if part) or _NO_VALUE


def _verdict(document: Document) -> str:
    wrong = document["summary"]["unhealthy"]
    unknown = sum(node["healthy"] is None for node in document["nodes"])
    without = f"; {format_count(unknown, 'node')} without an agent" if unknown else ""
    if not wrong:
        return f"nothing needs attention{without}"
    verb = "needs" if wrong == 1 else "need"
    return f"{format_count(wrong, 'node')} {verb} attention (nodeagent inspect, there or with --machine FILE, says more){without}"


def _captured(document: Document, width: int) -> Iterator[str]:
    """Format the times of the captures."""
    times = sorted({node["copiedAt"] for node in document["nodes"] if node["copiedAt"] is not None})
    if times:
        span = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
        yield from break_text(f"captured: {span}", width)


def render_capacity(document: Document, width: int = WIDTH) -> str:
    """Render the copies that fit on each node, the placement of the first one, and the reasons for the limit."""
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
    refused = list(_reasons(document, width))
    if refused:
        lines += ["", "Why no more fit (nodeagent explain -f FILE --machine FILE says what would help)", *refused]
    return _joined(lines)


def _reasons(document: Document, width: int) -> Iterator[str]:
    """Format each reason with its nodes. The amounts in their messages may differ."""
    reasons: dict[str, list[Document]] = {}
    for node in document["nodes"]:
        if node["reason"] is not None:
            reasons.setdefault(node["reason"], []).append(node)
    for reason, nodes in reasons.items():
        first = nodes[0]
        differ = any(node["message"] != first["message"] for node in nodes)
        where = f"; {first['name']}" if differ else ""
        who = _who([node["name"] for node in nodes], many=len(nodes) > _FEW_NODES)
        yield from break_text(f"  {who}: {reason}{where}: {first['message']}", width)


def render_difference(document: Document, width: int = WIDTH) -> str:
    """Render each fact that differs, with the largest group first, and then the nodes outside of the largest groups."""
    nodes, differing = document["nodes"], document["differing"]
    count = len(differing) + len(document["alike"])
    if not differing:
        return _joined(
            break_text(f"{format_count(len(nodes), 'node')} are alike in all of {format_count(count, 'fact')}", width)
        )
    alike = f"{format_count(len(nodes), 'node')} are alike in {len(document['alike'])} of {format_count(count, 'fact')}"
    lines = break_text(f"{alike}, and differ in {len(differing)}", width)
    for found in differing:
        lines += ["", f"{found['about']}: {found['fact']}"]
        many = len(found["groups"][0]["nodes"]) > _FEW_NODES
        rows = [
            [f"  {_who(group['nodes'], many=many and not at)}", group["value"]]
            for at, group in enumerate(found["groups"])
        ]
        lines += format_table(rows, width)
    odd = sorted((node for node in nodes if node["odd"]), key=lambda node: -node["odd"])
    named = [f"{node['name']} ({node['odd']})" for node in odd]
    if named:
        lines += ["", *break_text(f"differing from most: {_names(named)}", width)]
    return _joined(lines)


def _who(nodes: Sequence[str], *, many: bool) -> str:
    return format_count(len(nodes), "node") if many else _names(nodes)


def _names(nodes: Sequence[str]) -> str:
    more = [f"and {len(nodes) - _MOST_NAMED} more (-o json has all)"] if len(nodes) > _MOST_NAMED else []
    return ", ".join([*nodes[:_MOST_NAMED], *more])


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"
