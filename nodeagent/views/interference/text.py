"""Text of `nodeagent interference`, made from the document: a table of foreign tasks and interrupts for each owner of exclusive CPUs."""

from collections.abc import Mapping
from typing import Any

from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_count

Document = Mapping[str, Any]
WIDTH = 80
_KIND_LABELS = {
    "kernel-thread": "kernel thread",
    "bound-kernel-thread": "bound kernel thread",
    "ended": "ended since",
}
_INTERRUPT_LABELS = {True: "interrupt", False: "bound interrupt", None: "interrupt"}
_NOT_ALONE = "NOT ALONE"


def render_interference(document: Document, width: int | None = WIDTH, *, coloured: bool = False) -> str:
    """Format a table for each owner, in the order of the document. An owner whose CPUs nothing else used gets only one line."""
    if not document["cpus"] and not document["changed"]:
        return "No pod has exclusive CPUs.\n"
    paragraphs: list[list[str]] = []
    has_table = True
    for owner in document["cpus"]:
        had_table, has_table = has_table, any(owner[kind] for kind in ("tasks", "interrupts", "softirqs"))
        lines = _format_owner(owner, width)
        if had_table or has_table:
            paragraphs.append(lines)
        else:  # no blank line here, because hundreds of owners may be undisturbed
            paragraphs[-1] += lines
    for one in document["changed"]:
        why = "allocated or released during the measurement, so their tasks are unknown"
        paragraphs.append(break_text(f"{one['pod']}: CPUs {one['cpus']}: {why}", width))
    total = f"counted for {document['microseconds'] / 1_000_000:.1f} s" + (
        ", ended early" if document["endedEarly"] else ""
    )
    if document["dropped"]:
        lost = format_count(document["dropped"], "event")
        total += f"; {lost} did not fit into the kernel's tables, so the numbers are too low: count for less time"
    paragraphs.append(break_text(total, width))
    text = "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"
    return text.replace(_NOT_ALONE, f"\x1b[1;93m{_NOT_ALONE}\x1b[0m") if coloured else text


def _format_owner(owner: Document, width: int | None) -> list[str]:
    rows = []
    for task in owner["tasks"]:
        match task["kind"]:
            case "container":
                kind = f"ANOTHER CONTAINER: {task['of']}"
            case "process":  # the last part of the cgroup's path is the systemd unit, if the process has one
                kind = f"host: {(task['of'] or '').rpartition('/')[2] or 'process'}"
            case other:
                kind = _KIND_LABELS[other]
        cells = (f"  {task['name'] or '(no name)'}", str(task["tasks"]), *_format_amounts(task), kind)
        rows.append((task["movable"] is False, -task["microseconds"], cells))
    for interrupt in owner["interrupts"]:
        name = f"  IRQ {interrupt['number']} {interrupt['name']}".rstrip()
        kind = "claimed interrupt" if interrupt["claimed"] else _INTERRUPT_LABELS[interrupt["movable"]]
        is_expected = interrupt["movable"] is False or interrupt["claimed"]
        rows.append((is_expected, -interrupt["microseconds"], (name, "-", *_format_amounts(interrupt), kind)))
    rows.sort(key=lambda row: row[:2])
    table_rows = [cells for _, _, cells in rows]
    table_rows += [(f"  {one['name']}", "-", *_format_amounts(one), "softirq") for one in owner["softirqs"]]
    verdict = "alone" if owner["alone"] else _NOT_ALONE
    if owner["alone"] and table_rows:
        is_claimed = any(one["claimed"] for one in owner["interrupts"])
        verdict += " except for kernel work that can't move" + (" and claimed interrupts" if is_claimed else "")
    lines = break_text(f"{owner['pod']} {', '.join(owner['containers'])}: CPUs {owner['cpus']}: {verdict}", width)
    heading = ("  NAME", "TASKS", "TIMES", "MS", "%CPU", "CPUS", "WHAT")
    return [*lines, *format_table([heading, *table_rows], width)] if table_rows else lines


def _format_amounts(one: Document) -> tuple[str, ...]:
    return str(one["times"]), f"{one['microseconds'] / 1000:.1f}", f"{one['millicores'] / 10:.1f}", one["cpus"]
