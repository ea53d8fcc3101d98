"""One frame of `nodeagent inspect --watch`: load of every CPU, drift, problems, and a scrollable table of containers.

Adds words and layout to the facts. No line is longer than the width or has terminal control sequences.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.topology import Topology
from nodeagent.errors import printable
from nodeagent.formats.kernel.usage import NO_RATE, NO_RATES, Rates, UsageSample, remote_bytes
from nodeagent.views.wording.words import bytes_text, counted, state_text

Document = Mapping[str, Any]
SORTS = {"n": "name", "c": "CPU", "t": "throttled", "m": "remote memory"}
"""Columns to sort by, by key."""
KEYS = "q leaves; sorted by n(ame) c(pu) t(hrottled) m(emory)"
_STEPS = "▁▂▃▄▅▆▇█"
_PLAIN_STEPS = "0123456789"
_MOST_TOLD = 3
JUST_BEGUN = "counted from now on"
_NO_VALUE = "-"
_HEADING = ("CONTAINER", "STATE", "CPUS", "USED", "THROTTLED", "REMOTE", "")
_RIGHT = (False, False, False, True, True, True, False)
_WIDEST = (44, 22, 24, 7, 9, 8, 20)
_OTHERS_FROM_PERCENT = 10
"""Minimum load per CPU. Smaller values may result from reading two counters one after the other."""


class Look(Struct, frozen=True):
    """All data of one frame."""

    document: Document
    topology: Topology
    sample: UsageSample
    rates: Rates = NO_RATES
    cost_ms: int | None = None
    """Duration of the previous poll."""
    problem: str | None = None
    """Reason why no newer data is available."""
    interference: Document | str | None = None
    """Tasks on exclusive CPUs except the owners' since the previous poll, or the reason why they are unknown. None if
    not requested.
    """


class View(Struct, frozen=True):
    """Settings of the display."""

    width: int
    height: int | None = None
    """Number of lines. None means that every row is shown."""
    offset: int = 0
    """Number of scrolled rows of the table."""
    sort: str = "name"
    is_utf8: bool = True


class Frame(Struct, frozen=True):
    lines: tuple[str, ...]
    heading: int
    """Index of the table's heading."""
    offset: int
    """Offset of the view, limited by the number of rows."""
    page: int
    """Number of visible rows."""


def frame(look: Look, view: View) -> Frame:
    """Format one frame."""
    head = [*_format_summary(look), *_format_loads(look, view), *_format_attention(look)]
    rows = _format_rows(look, view.sort)
    if view.height is None:
        page, offset, tail = len(rows), 0, []
    else:
        head = head[: max(1, view.height - 4)]
        page = max(1, view.height - len(head) - 2)
        offset = max(0, min(view.offset, len(rows) - page))
        shown = (
            f"{offset + 1}-{min(len(rows), offset + page)} of {len(rows)} by {view.sort}" if rows else "no containers"
        )
        tail = [f"{shown}  {KEYS}"]
    heading, *laid = _format_table(
        [_HEADING, *rows], view.width
    )  # all rows are formatted, so that no column moves while scrolling
    lines = [*head, heading, *laid[offset : offset + page]]
    if view.height is not None:
        lines += [""] * (view.height - len(lines) - 1) + tail
    cut = tuple(printable(line)[: view.width].rstrip() for line in lines[: view.height])
    return Frame(cut, len(head), offset, page)


def _format_summary(look: Look) -> list[str]:
    document = look.document
    summary, agent, cpus = document["summary"], document["node"]["agent"], document["node"]["cpus"]
    phases = ", ".join(f"{count} {phase}" for phase, count in summary["byPhase"].items())
    runs = "runs" if agent["ready"] else "runs, with problems" if agent["live"] else "is NOT running"
    cost = "" if look.cost_ms is None else f", refreshed in {look.cost_ms} ms"
    lines = [f"agent {runs}{cost}; {counted(summary['pods'], 'pod')}{f': {phases}' if phases else ''}"]
    for name in ("shared", "exclusive"):
        pool = CpuSet.parse(cpus[name])
        lines.append(
            f"{name:<10} {cpus[name] or 'none'} ({counted(len(pool), 'CPU')}), load {_format_mean(look.rates, pool)}"
        )
    return lines


def _format_loads(look: Look, view: View) -> list[str]:
    """Format the load with one character per CPU and one or more lines per NUMA node."""
    lines = []
    for node in look.topology.node_ids:
        cpus = CpuSet.from_ids(cpu.id for cpu in look.topology.cpus if cpu.numa == node)
        if not cpus:
            continue
        title = f"{f'NUMA {node}':<10} {cpus} "
        room = max(8, view.width - len(title) - len("100%") - 1)
        steps = _STEPS if view.is_utf8 else _PLAIN_STEPS
        cells = "".join(_format_step(look.rates.cpus.get(cpu), steps) for cpu in cpus)
        for start in range(0, len(cells), room):
            load = f" {_format_mean(look.rates, cpus)}" if start == 0 else ""
            lines.append(f"{title if start == 0 else ' ' * len(title)}{cells[start : start + room]}{load}")
    return lines


def _format_step(percent: int | None, steps: str) -> str:
    return "?" if percent is None else steps[min(len(steps) - 1, percent * len(steps) // 100)]


def _format_mean(rates: Rates, cpus: CpuSet) -> str:
    known = [rates.cpus[cpu] for cpu in cpus if cpu in rates.cpus]
    return f"{round(sum(known) / len(known))}%" if known else _NO_VALUE


def _format_attention(look: Look) -> list[str]:
    document, lines = look.document, []
    if look.problem is not None:
        lines.append(f"NOT REFRESHED: {look.problem}")
    found = document["differences"]
    if found is None:
        lines.append("DRIFT unknown: the pods' cgroups cannot be read")
    else:
        described = [
            f"{difference['pod'] or 'node'} {difference['container'] or ''} {difference['file'] or 'cgroup'}".replace(
                "  ", " "
            )
            for difference in found[:_MOST_TOLD]
        ]
        more = f" and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
        lines.append(f"DRIFT {len(found)}: {', '.join(described)}{more}" if found else "no drift")
    disturbed = [
        f"{pod['namespace']}/{pod['name']} {container['name']} {percent}%"
        for pod in document["pods"]
        for container in pod["containers"]
        if (percent := _load_of_others(container, look))
    ]
    if disturbed:
        more = f" and {len(disturbed) - _MOST_TOLD} more" if len(disturbed) > _MOST_TOLD else ""
        lines.append(f"OTHERS on exclusive CPUs {len(disturbed)}: {', '.join(disturbed[:_MOST_TOLD])}{more}")
    lines += _format_interference(look)
    problems = [
        *document["node"]["problems"],
        *(f"processes in {s['cgroup']}, which has no pod" for s in document["orphans"]),
    ]
    if problems:
        lines.append(f"PROBLEMS {len(problems)}: {problems[0]}")
    return [*lines, ""]


def _format_interference(look: Look) -> list[str]:
    """List tasks and interrupts that ran on exclusive CPUs but could run elsewhere, one line per owner, most time first."""
    found = look.interference
    if found is None:
        return []
    if isinstance(found, str):
        return [f"INTERFERENCE {found}" if found == JUST_BEGUN else f"INTERFERENCE unknown: {found}"]
    if not found["cpus"] and not found["changed"]:
        return ["INTERFERENCE none: no pod has exclusive CPUs"]
    disturbed = [one for one in found["cpus"] if not one["alone"]]
    seconds = f"{found['microseconds'] / 1_000_000:.1f} s"
    none = "none seen" if found["dropped"] or found["changed"] else "none"
    lines = [f"INTERFERENCE {len(disturbed)} in {seconds}:" if disturbed else f"INTERFERENCE {none} in {seconds}"]
    if found["dropped"]:
        lines[0] += " (too many events to count them all: refresh more often, --interval 0.5)"
    if found["changed"]:
        lines[0] += f" (unknown for {', '.join(one['pod'] for one in found['changed'])}: CPUs changed)"
    for claim in disturbed[:_MOST_TOLD]:
        culprits = _list_culprits(claim)
        more = f" and {len(culprits) - _MOST_TOLD} more" if len(culprits) > _MOST_TOLD else ""
        owner = f"{claim['pod']} {', '.join(claim['containers'])}: CPUs {claim['cpus']}"
        lines.append(f"  {owner}: {', '.join(culprits[:_MOST_TOLD])}{more}")
    if len(disturbed) > _MOST_TOLD:
        lines.append(f"  and {len(disturbed) - _MOST_TOLD} more")
    return lines


def _list_culprits(claim: Document) -> list[str]:
    found = [(one, one["name"] or "(no name)") for one in claim["tasks"]]
    found += [(one, f"IRQ {one['number']} {one['name']}".strip()) for one in claim["interrupts"]]
    movable = sorted(
        ((one, name) for one, name in found if one["movable"] is not False),
        key=lambda item: (-item[0]["microseconds"], item[1]),
    )
    return [f"{name} {one['millicores'] / 10:.1f}%" for one, name in movable]


def _format_rows(look: Look, sort: str) -> list[tuple[str, ...]]:
    rows = []
    pods = sorted((f"{pod['namespace']}/{pod['name']}", pod) for pod in look.document["pods"])
    for name, pod in pods:
        if pod["refusal"] is not None:
            rows.append(((0, 0, 0), (name, f"Refused: {pod['refusal']['reason']}", *[_NO_VALUE] * 4, "")))
        rows += [_format_row(f"{name} {container['name']}", container, look) for container in pod["containers"]]
    place = {"CPU": 0, "throttled": 1, "remote memory": 2}.get(sort)
    if place is not None:
        rows.sort(key=lambda row: -row[0][place])  # equal values stay sorted by name
    return [cells for _, cells in rows]


def _format_row(name: str, container: Document, look: Look) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    there = container["effective"] or {}
    rate, usage = (
        look.rates.containers.get(container["cgroup"], NO_RATE),
        look.sample.containers.get(container["cgroup"]),
    )
    cpus = CpuSet.parse(there.get("cpus") or "")
    remote = None if usage is None else remote_bytes(usage, _numa_nodes_of(cpus, look.topology))
    throttled = _NO_VALUE if rate.throttled_percent is None else f"{rate.throttled_percent}%"
    others = _load_of_others(container, look)
    cells = (
        name,
        state_text(container, look.document["atMs"]),
        "frozen" if there.get("frozen") else there.get("cpus") or _NO_VALUE,
        _NO_VALUE if rate.used_milli is None else f"{rate.used_milli}m",
        throttled,
        _NO_VALUE if remote is None else bytes_text(remote) if remote else "0",
        " ".join(filter(None, ("DIFFERS" if container["differs"] else "", f"OTHERS {others}%" if others else ""))),
    )
    return (rate.used_milli or 0, rate.throttled_percent or 0, remote or 0), cells


def _load_of_others(container: Document, look: Look) -> int:
    """Return the load of others on a container's exclusive CPUs, in percent of one CPU. 0 means negligible or unknown."""
    own = CpuSet.parse(container["promised"]["cpus"] or "")
    runs = container["state"]["name"] in {"Running", "Open"}
    is_known = container["cgroup"] in look.rates.containers and all(cpu in look.rates.cpus for cpu in own)
    if not (runs and is_known and container["isolation"] == "container"):
        return 0
    used = [
        look.rates.containers.get(other["cgroup"], NO_RATE).used_milli
        for pod in look.document["pods"]
        for other in pod["containers"]
        if not own.isdisjoint(CpuSet.parse(other["promised"]["cpus"] or ""))
    ]
    others = sum(look.rates.cpus[cpu] for cpu in own) - sum(milli or 0 for milli in used) // 10
    return others if others >= _OTHERS_FROM_PERCENT else 0


def _numa_nodes_of(cpus: CpuSet, topology: Topology) -> NumaSet:
    return NumaSet.from_ids(cpu.numa for cpu in topology.cpus if cpu.id in cpus)


def _format_table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    """Format one line per row. Long texts are cut at their end, numbers never."""
    widths = [min(most, max(len(row[i]) for row in rows)) for i, most in enumerate(_WIDEST)]
    spare = width - sum(widths) - 2 * (len(widths) - 1)
    for i in (2, 1, 0):  # columns in the order in which they are cut
        if spare < 0:
            taken = min(-spare, max(0, widths[i] - 10))
            widths[i], spare = widths[i] - taken, spare + taken
    return ["  ".join(_format_cell(cell, widths[i], right=_RIGHT[i]) for i, cell in enumerate(row)) for row in rows]


def _format_cell(text: str, width: int, *, right: bool) -> str:
    cut = text if len(text) <= width else f"{text[: max(0, width - 1)]}~"
    return f"{cut:>{width}}" if right else f"{cut:<{width}}"
