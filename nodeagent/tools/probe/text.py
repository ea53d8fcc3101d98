"""Formatter of a probe's results as text. Results of an earlier probe are shown next to them."""

from collections.abc import Callable, Iterable
from itertools import zip_longest

from msgspec import Struct

from nodeagent.tools.probe.document import THRESHOLDS_US, ContainerMemory, Latency
from nodeagent.tools.probe.latency import LONGEST_US, Delays, DelaysByCpu, combine_delays
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_count

WIDTH = 80
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_NOTHING = "-"
_PERMILLES = (500, 990, 999)

Row = tuple[str, ...]


class _Test(Struct, frozen=True):
    title: str
    headings: Row
    delays: Callable[[Latency], DelaysByCpu]
    cells: Callable[[Delays, int], Row]
    """Function that formats delays, given the duration of the test in seconds."""


def render_memory(found: Iterable[ContainerMemory], width: int | None = WIDTH) -> str:
    """Render a table with a row for each container."""
    rows = [("POD", "CONTAINER", "ALLOCATED", "MEMORY BY NUMA NODE", "THERE", "ELSEWHERE"), *map(_format_memory, found)]
    return "\n".join(format_table(rows, width)) + "\n" if len(rows) > 1 else "No container runs.\n"


def _format_memory(one: ContainerMemory) -> Row:
    promised = "anywhere" if one.promised is None else f"NUMA {one.promised}"
    if one.by_node is None:
        return one.pod, one.container, promised, "unknown", _NOTHING, _NOTHING
    nodes = ", ".join(f"{node}: {_format_amount(size)}" for node, size in sorted(one.by_node.items()) if size) or "none"
    if one.promised is None:
        return one.pod, one.container, promised, nodes, _NOTHING, _NOTHING
    whole, elsewhere = sum(one.by_node.values()), one.elsewhere
    # the share is rounded down, so that 100% is only shown if no memory is on other nodes
    share = f"{1000 * (whole - elsewhere) // whole / 10:.1f}%" if elsewhere else "100%"
    return one.pod, one.container, promised, nodes, share, _format_amount(elsewhere) if elsewhere else _NOTHING


def _format_amount(size: int) -> str:
    return next((f"{size / unit:.1f}{name}" for unit, name in _UNITS if size >= unit), f"{size}B")


def render_latency(now: Latency, before: Latency | None = None, width: int | None = WIDTH) -> str:
    """Render a table for each of the two tests."""
    lines = break_text(_format_heading(now), width)
    if before is not None:
        lines += break_text(f"before: {_format_heading(before)}", width)
    for test in (_BUSY, _WAKING):
        rows, everything = _format_results(test, now)
        if before is not None:  # the rows of both probes are paired by position, because their CPUs may differ
            earlier, all_earlier = _format_results(test, before)
            nothing = (_NOTHING,) * len(everything)
            rows = [_pair_rows(*pair) for pair in zip_longest(earlier, rows, fillvalue=nothing)]
            everything = _pair_rows(all_earlier, everything)
        if len(rows) > 1:
            rows.append(everything)
        table = [("  CPU", *test.headings), *((f"  {name}", *cells) for name, *cells in rows)]
        lines += ["", *break_text(test.title, width), *format_table(table, width)]
    return "\n".join(lines) + "\n"


def _format_heading(one: Latency) -> str:
    probed = one.of
    where = f"CPU{'s' * (len(probed.cpus) > 1)} {probed.cpus}" + (
        "" if probed.pod is None else f" of {probed.pod} {probed.container}"
    )
    beside = (
        f", in use by {format_count(probed.processes, 'process', 'processes')} of the pod" if probed.processes else ""
    )
    return f"{where}{beside}: two tests of {one.seconds} s each"


def _format_results(test: _Test, one: Latency) -> tuple[list[Row], Row]:
    found = test.delays(one)
    rows = [(str(cpu), *test.cells(delays, one.seconds)) for cpu, delays in found.items()]
    return rows, ("all", *test.cells(combine_delays(found.values()), one.seconds))


def _pair_rows(was: Row, now: Row) -> Row:
    name = now[0] if was[0] == now[0] else f"{was[0]} -> {now[0]}"
    return (name, *(f"{old} -> {new}" for old, new in zip(was[1:], now[1:], strict=True)))


def _format_duration(us: int) -> str:
    if us < 1000:
        return f"{us}us"
    if us < 1_000_000:
        return f"{us / 1000:.1f}ms" if us < 10_000 and us % 1000 else f"{us // 1000}ms"
    return f"{us / 1_000_000:.1f}s"


def _format_busy(delays: Delays, seconds: int) -> Row:
    return (_format_duration(delays.worst_us), *(_format_rate(delays.at_least(us), seconds) for us in THRESHOLDS_US))


def _format_rate(times: int, seconds: int) -> str:
    """Format a rate. The rate of a single delay is never shown as 0.0."""
    return f"{times / seconds:.1f}" if times == 0 or times / seconds >= 0.05 else "<0.1"


def _format_waking(delays: Delays, _seconds: int) -> Row:
    return (_format_duration(delays.worst_us), *(_format_quantile(delays, permille) for permille in _PERMILLES))


def _format_quantile(delays: Delays, permille: int) -> str:
    us = delays.quantile(permille)
    return f">{_format_duration(LONGEST_US)}" if us is None else _format_duration(us)


_BUSY = _Test(
    "Busy loop (oslat): longest interruption, and interruptions per second",
    ("WORST", *(f">={_format_duration(us)}" for us in THRESHOLDS_US)),
    lambda one: one.busy,
    _format_busy,
)
_WAKING = _Test(
    "Wake-up every 1 ms (cyclictest): delay of the wake-up",
    ("WORST", "MEDIAN", "99%", "99.9%"),
    lambda one: one.waking,
    _format_waking,
)
