"""One frame of `nodeagent inspect --watch`: load of every CPU, drift, problems, and a scrollable table of containers.

No line is longer than the width, and no line contains terminal control sequences.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.topology import Topology
from nodeagent.errors import printable
from nodeagent.formats.kernel.usage import NO_RATE, NO_RATES, Rates, UsageSample, remote_bytes
from nodeagent.views.wording.words import format_count, format_readable_bytes, format_state

Document = Mapping[str, Any]
SORTS = {"n": "name", "c": "CPU", "t": "throttled", "m": "remote memory"}
"""Column by which each key sorts the table."""
KEYS = "q leaves; sorted by n(ame) c(pu) t(hrottled) m(emory)"
_BAR_STEPS = "▁▂▃▄▅▆▇█"
_PLAIN_BAR_STEPS = "0123456789"
_MAX_LISTED = 3
JUST_BEGUN = "counted from now on"
_NO_VALUE = "-"
_HEADING = ("CONTAINER", "STATE", "CPUS", "USED", "THROTTLED", "REMOTE", "")
_ALIGNED = "<<<>>><"
_CUT_WIDTHS = ((2, 24), (1, 22), (0, 44), (2, 10), (1, 10), (0, 20), (2, 4), (0, 10))
"""Steps to narrow the table: pairs of a column and the width to which it is cut. The steps are taken in this order until the table fits."""
_MIN_FOREIGN_PERCENT = 10
"""Minimum load of foreign tasks that is shown, in percent of a CPU. A smaller load may be a measurement error, because the two counters
that it is computed from are read one after the other.
"""


class Poll(Struct, frozen=True):
    """Data from which one frame of the display is rendered."""

    document: Document
    topology: Topology
    sample: UsageSample
    rates: Rates = NO_RATES
    cost_ms: int | None = None
    """Duration of the previous poll in milliseconds."""
    problem: str | None = None
    """Reason why the latest poll failed, in which case the frame shows older data. None means that the poll succeeded."""
    interference: Document | str | None = None
    """Document of the foreign tasks that ran on exclusive CPUs since the previous poll, or the reason why these tasks are unknown.

    None means that the user didn't ask for interference.
    """


class DisplaySettings(Struct, frozen=True):
    """Settings of the display, which the user can change."""

    width: int
    height: int | None = None
    """Number of lines in the frame. None means as many lines as the table needs."""
    offset: int = 0
    """Number of table rows to skip, because the user has scrolled past them."""
    sort: str = "name"
    is_utf8: bool = True


class Frame(Struct, frozen=True):
    lines: tuple[str, ...]
    heading: int
    """Index of the line that contains the table's heading."""
    offset: int
    """Number of table rows that were skipped: the requested number, limited so that the last page is full."""
    page: int
    """Number of table rows that the frame has space for."""


def render_frame(look: Poll, view: DisplaySettings) -> Frame:
    head = [*_format_summary(look), *_format_loads(look, view), *_format_attention(look, view.width)]
    sorted_rows = []
    pods = [(f"{pod['namespace']}/{pod['name']}", pod) for pod in look.document["pods"]]
    for name, pod in sorted(pods, key=lambda item: item[0]):
        if pod["refusal"] is not None:
            refused = (name, f"{pod['phase']}: {pod['refusal']['reason']}", *[_NO_VALUE] * 4, "")
            sorted_rows.append(((0, 0, 0), refused))
        sorted_rows += [_format_row(f"{name} {container['name']}", container, look) for container in pod["containers"]]
    column = {"CPU": 0, "throttled": 1, "remote memory": 2}.get(view.sort)
    if column is not None:
        sorted_rows.sort(key=lambda row: -row[0][column])  # rows with equal values stay sorted by name
    rows = [cells for _, cells in sorted_rows]
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
    # All rows are formatted, even invisible ones, so that no column moves while the user scrolls.
    heading, *laid = _format_table([_HEADING, *rows], view.width)
    lines = [*head, heading, *laid[offset : offset + page]]
    if view.height is not None:
        lines += [""] * (view.height - len(lines) - 1) + tail
    cut = tuple(_cut(printable(line), view.width).rstrip() for line in lines[: view.height])
    return Frame(cut, len(head), offset, page)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}~"


def _format_some(title: str, items: list[str], width: int) -> str:
    """Format a title and the first items, and count the rest. At most three items are shown, and fewer if they don't fit into the line."""
    for count in range(_MAX_LISTED, 0, -1):
        more = f" and {len(items) - count} more" if len(items) > count else ""
        line = f"{title}: {', '.join(items[:count])}{more}"
        if len(line) <= width:
            break
    return line


def _format_summary(look: Poll) -> list[str]:
    document = look.document
    summary, agent, cpus = document["summary"], document["node"]["agent"], document["node"]["cpus"]
    phases = ", ".join(f"{count} {phase}" for phase, count in summary["byPhase"].items())
    runs = "runs" if agent["ready"] else "runs, with problems" if agent["live"] else "is NOT running"
    cost = "" if look.cost_ms is None else f", refreshed in {look.cost_ms} ms"
    lines = [f"agent {runs}{cost}; {format_count(summary['pods'], 'pod')}{f': {phases}' if phases else ''}"]
    for name in ("shared", "exclusive"):
        pool = CpuSet.parse(cpus[name])
        lines.append(
            f"{name:<10} {cpus[name] or 'none'} ({format_count(len(pool), 'CPU')}), load {_format_mean(look.rates, pool)}"
        )
    return lines


def _format_loads(look: Poll, view: DisplaySettings) -> list[str]:
    """Format the load with one character per CPU and one or more lines per NUMA node."""
    lines = []
    for node in look.topology.node_ids:
        cpus = CpuSet.from_ids(cpu.id for cpu in look.topology.cpus if cpu.numa == node)
        if not cpus:
            continue
        title = f"{f'NUMA {node}':<10} {cpus} "
        room = max(8, view.width - len(title) - len("100%") - 1)
        steps = _BAR_STEPS if view.is_utf8 else _PLAIN_BAR_STEPS
        loads = [look.rates.cpus.get(cpu) for cpu in cpus]
        cells = "".join("?" if load is None else steps[min(len(steps) - 1, load * len(steps) // 100)] for load in loads)
        for start in range(0, len(cells), room):
            load = f" {_format_mean(look.rates, cpus)}" if start == 0 else ""
            lines.append(f"{title if start == 0 else ' ' * len(title)}{cells[start : start + room]}{load}")
    return lines


def _format_mean(rates: Rates, cpus: CpuSet) -> str:
    known = [rates.cpus[cpu] for cpu in cpus if cpu in rates.cpus]
    return f"{round(sum(known) / len(known))}%" if known else _NO_VALUE


def _format_attention(look: Poll, width: int) -> list[str]:
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
            for difference in found
        ]
        lines.append(_format_some(f"DRIFT {len(found)}", described, width) if found else "no drift")
    disturbed = [
        f"{pod['namespace']}/{pod['name']} {container['name']} {percent}%"
        for pod in document["pods"]
        for container in pod["containers"]
        if (percent := _compute_foreign_load(container, look))
    ]
    if disturbed:
        owners = format_count(len(disturbed), "container")
        lines.append(_format_some(f"OTHERS on exclusive CPUs of {owners}", disturbed, width))
    lines += _format_interference(look)
    problems = [
        *document["node"]["problems"],
        *(f"processes in {s['cgroup']}, which has no pod" for s in document["orphans"]),
    ]
    if problems:
        lines.append(f"PROBLEMS {len(problems)}: {problems[0]}")
    return [*lines, ""]


def _format_interference(look: Poll) -> list[str]:
    """List tasks and interrupts that ran on exclusive CPUs but could run on other CPUs. Each owner of exclusive CPUs has one line; the
    owner that lost the most time comes first.
    """
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
    for owner in disturbed[:_MAX_LISTED]:
        foreign = [(one, one["name"] or "(no name)") for one in owner["tasks"]]
        foreign += [(one, f"IRQ {one['number']} {one['name']}".strip()) for one in owner["interrupts"]]
        movable = [(one, name) for one, name in foreign if one["movable"] is not False]
        movable.sort(key=lambda item: (-item[0]["microseconds"], item[1]))
        shares = [f"{name} {one['millicores'] / 10:.1f}%" for one, name in movable[:_MAX_LISTED]]
        more = f" and {len(movable) - _MAX_LISTED} more" if len(movable) > _MAX_LISTED else ""
        lines.append(
            f"  {owner['pod']} {', '.join(owner['containers'])}: CPUs {owner['cpus']}: {', '.join(shares)}{more}"
        )
    if len(disturbed) > _MAX_LISTED:
        lines.append(f"  and {len(disturbed) - _MAX_LISTED} more")
    return lines


def _format_row(name: str, container: Document, look: Poll) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Return the values by which a row can be sorted (CPU time, throttling and remote memory), and the row's cells."""
    there = container["effective"] or {}
    rate = look.rates.containers.get(container["cgroup"], NO_RATE)
    usage = look.sample.containers.get(container["cgroup"])
    cpus = CpuSet.parse(there.get("cpus") or "")
    nodes = NumaSet.from_ids(cpu.numa for cpu in look.topology.cpus if cpu.id in cpus)
    remote = None if usage is None else remote_bytes(usage, nodes)
    throttled = _NO_VALUE if rate.throttled_percent is None else f"{rate.throttled_percent}%"
    others = _compute_foreign_load(container, look)
    cells = (
        name,
        format_state(container, look.document["atMs"]),
        "frozen" if there.get("frozen") else there.get("cpus") or _NO_VALUE,
        _NO_VALUE if rate.used_milli is None else f"{rate.used_milli}m",
        throttled,
        _NO_VALUE if remote is None else format_readable_bytes(remote) if remote else "0",
        " ".join(filter(None, ("DIFFERS" if container["differs"] else "", f"OTHERS {others}%" if others else ""))),
    )
    return (rate.used_milli or 0, rate.throttled_percent or 0, remote or 0), cells


def _compute_foreign_load(container: Document, look: Poll) -> int:
    """Return the load of foreign tasks on a container's exclusive CPUs, in percent of one CPU. 0 means that the load is negligible or
    unknown.
    """
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
    return others if others >= _MIN_FOREIGN_PERCENT else 0


def _format_table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    """Format one line per row. Texts that are too long are cut, but numbers are not.

    Names are cut in the middle, because the names of a workload's pods often differ only at their ends.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    spare = width - sum(widths) - 2 * (len(widths) - 1)
    for column, least in _CUT_WIDTHS:
        taken = min(max(0, -spare), max(0, widths[column] - least))
        widths[column], spare = widths[column] - taken, spare + taken
    lines = []
    for name, *cells in rows:
        room = widths[0] - 1
        whole = name if len(name) <= widths[0] else f"{name[: room // 4]}~{name[-(room - room // 4) :]}"
        cut = (
            cell if len(cell) <= size else f"{cell[: size - 1]}~" for cell, size in zip(cells, widths[1:], strict=True)
        )
        lines.append("  ".join(f"{cell:{_ALIGNED[i]}{widths[i]}}" for i, cell in enumerate((whole, *cut))))
    return lines
