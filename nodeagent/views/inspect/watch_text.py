"""One frame of `nodeagent inspect --watch`: load of every CPU, drift and problems, and a table of containers that can be scrolled.

Adds words and layout to what was found, no facts. No line is longer than the width or contains terminal control sequences.
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
"""By key."""
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
"""Per CPU: smaller values may come from reading the two counters one after the other."""


class Look(Struct, frozen=True):
    """Everything that one frame shows."""

    document: Document
    topology: Topology
    sample: UsageSample
    rates: Rates = NO_RATES
    cost_ms: int | None = None
    """Duration of the previous look."""
    trouble: str | None = None
    """Why there is no newer one."""
    interference: Document | str | None = None
    """Who ran on exclusive CPUs besides their owner since the previous look, or why that is unknown; None: not asked."""


class View(Struct, frozen=True):
    """How it is shown."""

    width: int
    height: int | None = None
    """None: every row."""
    offset: int = 0
    """Rows of the table that are scrolled over."""
    sort: str = "name"
    is_utf8: bool = True


class Frame(Struct, frozen=True):
    lines: tuple[str, ...]
    heading: int
    """The line that is the table's heading."""
    offset: int
    """The view's, limited by the number of rows."""
    page: int
    """Rows that are visible."""


def frame(look: Look, view: View) -> Frame:
    """Lay out one frame."""
    head = [*_summary(look), *_loads(look, view), *_attention(look)]
    rows = _rows(look, view.sort)
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
    heading, *laid = _table([_HEADING, *rows], view.width)  # all, so that no column moves while scrolling
    lines = [*head, heading, *laid[offset : offset + page]]
    if view.height is not None:
        lines += [""] * (view.height - len(lines) - 1) + tail
    cut = tuple(printable(line)[: view.width].rstrip() for line in lines[: view.height])
    return Frame(cut, len(head), offset, page)


def _summary(look: Look) -> list[str]:
    document = look.document
    summary, agent, cpus = document["summary"], document["node"]["agent"], document["node"]["cpus"]
    phases = ", ".join(f"{count} {phase}" for phase, count in summary["byPhase"].items())
    runs = "runs" if agent["ready"] else "runs, with problems" if agent["live"] else "is NOT running"
    cost = "" if look.cost_ms is None else f", refreshed in {look.cost_ms} ms"
    lines = [f"agent {runs}{cost}; {counted(summary['pods'], 'pod')}{f': {phases}' if phases else ''}"]
    for name in ("shared", "exclusive"):
        pool = CpuSet.parse(cpus[name])
        lines.append(f"{name:<10} {cpus[name] or 'none'} ({counted(len(pool), 'CPU')}), load {_mean(look.rates, pool)}")
    return lines


def _loads(look: Look, view: View) -> list[str]:
    """One character per CPU, one or more lines per NUMA node."""
    lines = []
    for node in look.topology.node_ids:
        cpus = CpuSet.from_ids(cpu.id for cpu in look.topology.cpus if cpu.numa == node)
        if not cpus:
            continue
        title = f"{f'NUMA {node}':<10} {cpus} "
        room = max(8, view.width - len(title) - len("100%") - 1)
        steps = _STEPS if view.is_utf8 else _PLAIN_STEPS
        cells = "".join(_step(look.rates.cpus.get(cpu), steps) for cpu in cpus)
        for start in range(0, len(cells), room):
            load = f" {_mean(look.rates, cpus)}" if start == 0 else ""
            lines.append(f"{title if start == 0 else ' ' * len(title)}{cells[start : start + room]}{load}")
    return lines


def _step(percent: int | None, steps: str) -> str:
    return "?" if percent is None else steps[min(len(steps) - 1, percent * len(steps) // 100)]


def _mean(rates: Rates, cpus: CpuSet) -> str:
    known = [rates.cpus[cpu] for cpu in cpus if cpu in rates.cpus]
    return f"{round(sum(known) / len(known))}%" if known else _NO_VALUE


def _attention(look: Look) -> list[str]:
    document, lines = look.document, []
    if look.trouble is not None:
        lines.append(f"NOT REFRESHED: {look.trouble}")
    found = document["differences"]
    if found is None:
        lines.append("DRIFT not known: the pods' cgroups cannot be read")
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
        if (percent := _others(container, look))
    ]
    if disturbed:
        more = f" and {len(disturbed) - _MOST_TOLD} more" if len(disturbed) > _MOST_TOLD else ""
        lines.append(f"OTHERS on exclusive CPUs {len(disturbed)}: {', '.join(disturbed[:_MOST_TOLD])}{more}")
    lines += _interference(look)
    problems = [
        *document["node"]["problems"],
        *(f"processes in {s['cgroup']}, which no pod owns" for s in document["orphans"]),
    ]
    if problems:
        lines.append(f"PROBLEMS {len(problems)}: {problems[0]}")
    return [*lines, ""]


def _interference(look: Look) -> list[str]:
    """Say who could run elsewhere and did not: one line for each owner that was not alone, the worst first."""
    found = look.interference
    if found is None:
        return []
    if isinstance(found, str):
        return [f"INTERFERENCE {found}" if found == JUST_BEGUN else f"INTERFERENCE not known: {found}"]
    if not found["cpus"] and not found["changed"]:
        return ["INTERFERENCE none: no pod has exclusive CPUs"]
    disturbed = [one for one in found["cpus"] if not one["alone"]]
    seconds = f"{found['microseconds'] / 1_000_000:.1f} s"
    none = "none seen" if found["dropped"] or found["changed"] else "none"
    lines = [f"INTERFERENCE {len(disturbed)} in {seconds}:" if disturbed else f"INTERFERENCE {none} in {seconds}"]
    if found["dropped"]:
        lines[0] += " (too much ran to count all of it: refresh more often, --interval 0.5)"
    if found["changed"]:
        lines[0] += f" (not known of {', '.join(one['pod'] for one in found['changed'])}: CPUs given or taken)"
    for claim in disturbed[:_MOST_TOLD]:
        culprits = _culprits(claim)
        more = f" and {len(culprits) - _MOST_TOLD} more" if len(culprits) > _MOST_TOLD else ""
        whose = f"{claim['pod']} {', '.join(claim['containers'])}: CPUs {claim['cpus']}"
        lines.append(f"  {whose}: {', '.join(culprits[:_MOST_TOLD])}{more}")
    if len(disturbed) > _MOST_TOLD:
        lines.append(f"  and {len(disturbed) - _MOST_TOLD} more")
    return lines


def _culprits(claim: Document) -> list[str]:
    found = [(one, one["name"] or "(no name)") for one in claim["tasks"]]
    found += [(one, f"IRQ {one['number']} {one['name']}".strip()) for one in claim["interrupts"]]
    movable = sorted(
        ((one, name) for one, name in found if one["movable"] is not False),
        key=lambda item: (-item[0]["microseconds"], item[1]),
    )
    return [f"{name} {one['millicores'] / 10:.1f}%" for one, name in movable]


def _rows(look: Look, sort: str) -> list[tuple[str, ...]]:
    rows = []
    pods = sorted((f"{pod['namespace']}/{pod['name']}", pod) for pod in look.document["pods"])
    for name, pod in pods:
        if pod["refusal"] is not None:
            rows.append(((0, 0, 0), (name, f"Refused: {pod['refusal']['reason']}", *[_NO_VALUE] * 4, "")))
        rows += [_row(f"{name} {container['name']}", container, look) for container in pod["containers"]]
    place = {"CPU": 0, "throttled": 1, "remote memory": 2}.get(sort)
    if place is not None:
        rows.sort(key=lambda row: -row[0][place])  # by name where they are equal
    return [cells for _, cells in rows]


def _row(name: str, container: Document, look: Look) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    there = container["effective"] or {}
    rate, usage = (
        look.rates.containers.get(container["cgroup"], NO_RATE),
        look.sample.containers.get(container["cgroup"]),
    )
    cpus = CpuSet.parse(there.get("cpus") or "")
    remote = None if usage is None else remote_bytes(usage, _near(cpus, look.topology))
    throttled = _NO_VALUE if rate.throttled_percent is None else f"{rate.throttled_percent}%"
    others = _others(container, look)
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


def _others(container: Document, look: Look) -> int:
    """Return the load of others on a container's exclusive CPUs, in percent of one CPU; 0: negligible, or unknown."""
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


def _near(cpus: CpuSet, topology: Topology) -> NumaSet:
    return NumaSet.from_ids(cpu.numa for cpu in topology.cpus if cpu.id in cpus)


def _table(rows: list[tuple[str, ...]], width: int) -> list[str]:
    """One line per row: what is too long is cut at its end, never the numbers."""
    widths = [min(most, max(len(row[i]) for row in rows)) for i, most in enumerate(_WIDEST)]
    spare = width - sum(widths) - 2 * (len(widths) - 1)
    for i in (2, 1, 0):  # what is cut first if the width is too small
        if spare < 0:
            taken = min(-spare, max(0, widths[i] - 10))
            widths[i], spare = widths[i] - taken, spare + taken
    return ["  ".join(_cell(cell, widths[i], right=_RIGHT[i]) for i, cell in enumerate(row)) for row in rows]


def _cell(text: str, width: int, *, right: bool) -> str:
    cut = text if len(text) <= width else f"{text[: max(0, width - 1)]}~"
    return f"{cut:>{width}}" if right else f"{cut:<{width}}"
