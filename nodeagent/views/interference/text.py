"""Who ran on exclusive CPUs besides their owner, for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.views.wording.columns import broken, table
from nodeagent.views.wording.words import counted

Document = Mapping[str, Any]
WIDTH = 80
_KINDS = {
    "kernel-thread": "kernel thread",
    "bound-kernel-thread": "bound kernel thread",
    "ended": "ended since",
}
_MOVABLE = {True: "interrupt", False: "bound interrupt", None: "interrupt"}
_NOT_ALONE = "NOT ALONE"


def render_interference(document: Document, width: int | None = WIDTH, *, coloured: bool = False) -> str:
    """Print a table for each owner, the worst first."""
    if not document["cpus"] and not document["changed"]:
        return "No pod has exclusive CPUs.\n"
    lines = []
    for claim in document["cpus"]:
        lines += [*_claim(claim, width), ""]
    for one in document["changed"]:
        lines += [
            *broken(f"{one['pod']}: CPUs {one['cpus']}: given or taken meanwhile, so nothing is said of them", width),
            "",
        ]
    text = "\n".join([*lines, *broken(_total(document), width)]) + "\n"
    return text.replace(_NOT_ALONE, f"\x1b[1;93m{_NOT_ALONE}\x1b[0m") if coloured else text


def _claim(claim: Document, width: int | None) -> Iterator[str]:
    rows = [*_rows(claim)]
    verdict = _NOT_ALONE if not claim["alone"] else _alone_but_for(claim) if rows else "alone"
    yield from broken(f"{claim['pod']} {', '.join(claim['containers'])}: CPUs {claim['cpus']}: {verdict}", width)
    if rows:
        yield from table([("  WHO", "TASKS", "TIMES", "MS", "%CPU", "CPUS", "WHAT"), *rows], width)


def _alone_but_for(claim: Document) -> str:
    is_claimed = any(one["claimed"] for one in claim["interrupts"])
    return "alone, but for what cannot leave" + (" or is claimed" if is_claimed else "")


def _rows(claim: Document) -> Iterator[tuple[str, ...]]:
    found = [
        (
            one["movable"] is False,
            one["microseconds"],
            (f"  {one['name'] or '(no name)'}", str(one["tasks"]), *_amounts(one), _what(one)),
        )
        for one in claim["tasks"]
    ]
    found += [
        (one["movable"] is False or one["claimed"], one["microseconds"], _interrupt(one)) for one in claim["interrupts"]
    ]
    found.sort(key=lambda row: (row[0], -row[1]))
    yield from (row for _, _, row in found)
    for one in claim["softirqs"]:
        yield (f"  {one['name']}", "-", *_amounts(one), "softirq")


def _what(one: Document) -> str:
    """A task's kind and whose it is: of a process systemd's unit, the last part of its cgroup's path."""
    match one["kind"]:
        case "container":
            return f"ANOTHER CONTAINER: {one['of']}"
        case "process":
            return f"host: {(one['of'] or '').rpartition('/')[2] or 'process'}"
        case kind:
            return _KINDS[kind]


def _interrupt(one: Document) -> tuple[str, ...]:
    name = f"  IRQ {one['number']}" + (f" {one['name']}" if one["name"] else "")
    return (name, "-", *_amounts(one), "claimed interrupt" if one["claimed"] else _MOVABLE[one["movable"]])


def _amounts(one: Document) -> tuple[str, ...]:
    return str(one["times"]), f"{one['microseconds'] / 1000:.1f}", f"{one['millicores'] / 10:.1f}", one["cpus"]


def _total(document: Document) -> str:
    seconds = f"{document['microseconds'] / 1_000_000:.1f} s"
    text = f"counted for {seconds}" + (", ended early" if document["endedEarly"] else "")
    if document["dropped"]:
        lost = counted(document["dropped"], "event")
        text += f"; {lost} had no room in the kernel's tables: the numbers are too small, count for less time"
    return text
