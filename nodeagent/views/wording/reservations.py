"""Reservations for jobs, as text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodeagent.views.wording.columns import break_text, format_rows
from nodeagent.views.wording.words import format_age, format_time_until


def render_reservations(
    reservations: Sequence[Mapping[str, Any]],
    at_ms: int,
    width: int | None,
    name_user: Callable[[int], str] = str,
    format_time: Callable[[int], str] = str,
) -> str:
    """Format reservations as text. The text is empty without reservations.

    Args:
        reservations: documents of reservations.
        at_ms: the current time, in milliseconds since the epoch.
        width: number of columns. None means no limit.
        name_user: function that returns the name of a user ID.
        format_time: function that formats a time, given in milliseconds since the epoch.
    """
    if not reservations:
        return ""
    rows, details = [("RESERVATION", "USER", "CPUS", "MEMORY", "FROM", "TO", "STATE")], list[tuple[str, ...]]()
    for one in reservations:
        begins_ms, ends_ms = one["fromMs"] - at_ms, one["untilMs"] - at_ms
        state = (
            f"begins {format_time_until(begins_ms)}, for {format_age(ends_ms - begins_ms)}"
            if begins_ms > 0
            else f"has begun, ends {format_time_until(ends_ms)}"
        )
        in_it = f"  in it: {', '.join(one['jobs'])}" if one["jobs"] else "  no jobs in it"
        without = () if one.get("hasRoom", True) else ("  without room: other pods hold it, or the machine has less",)
        details.append((in_it, *without))
        times = format_time(one["fromMs"]), format_time(one["untilMs"])
        rows.append((one["name"], name_user(one["user"]), one["cpus"], one["memory"] or "none", *times, state))
    heading, *laid = format_rows(rows, width)
    lines = list(heading)
    for row, texts in zip(laid, details, strict=True):
        lines += [*row, *(line for text in texts for line in break_text(text, width))]
    return "\n".join([*lines, ""])
