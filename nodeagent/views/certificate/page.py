"""HTML page that shows the disturbances and timelines of several runs. The page contains no scripts, and loads no other files."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from nodeagent.views.certificate.comparison import ReadReport, format_duration, format_exit, format_fact, format_same
from nodeagent.views.certificate.words import format_rate

_COMMAND = re.compile("`([^`]+)`")
_WIDTH, _ROW, _LABEL, _AXIS = 720, 36, 140, 20
_TIMES = 90
"""Minimum width in pixels for the start and end times below a timeline. The timeline itself may be shorter."""
_STYLE = """:root { color-scheme: light dark } body { font: 15px sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em }
h2 { font-size: 1.15em; margin: 2em 0 0.5em; overflow-wrap: anywhere } table { border-collapse: collapse; margin: 0.5em 0 1em }
th, td { padding: 0.25em 1.5em 0.25em 0; text-align: left; vertical-align: top }
th { color: #57606a; font-weight: normal; white-space: nowrap }
tr + tr { border-top: 1px solid #8c959f } svg { display: block; height: auto; max-width: 100% }
svg text { fill: currentColor; font: 12px sans-serif }
.clean { color: #1a7f37 } .disturbed { color: #b42318 } .unknown { color: #9a6700 } .aside { color: #57606a }
@media (prefers-color-scheme: dark) {
.clean { color: #3fb950 } .disturbed { color: #ff7b72 } .unknown { color: #d29922 } .aside, th { color: #9198a1 } }"""


def render_page(reports: Iterable[ReadReport], document: Mapping[str, Any]) -> str:
    """Render the compared reports as a page, each with its timeline. The good report is the first.

    Args:
        reports: the reports, the good one first.
        document: the comparison of these reports, as `describe_comparison` returns it.
    """
    runs = (document["good"], *document["others"])
    longest_us = max(run["microseconds"] for run in runs)
    body = "".join(_render_run(one, run, longest_us) for one, run in zip(reports, runs, strict=True))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Comparison of runs</title><style>{_STYLE}</style>\n<h1>Comparison of runs</h1>\n"
        '<p class="aside">The first run is the good one. The differences of each other run are sorted, the biggest first. '
        "All timelines have the same scale; a bar of full height is 100 %, and red is above the threshold.</p>\n"
        f"{body}</html>\n"
    )


def _render_run(report: ReadReport, run: Mapping[str, Any], longest_us: int) -> str:
    verdict = escape(run["verdict"])
    duration = f", {format_duration(run['durationPerMille'])}" if "durationPerMille" in run else ", the good run"
    rows = [
        f"<tr><td>{escape(one['sentence'])}<td>{format_rate(one['unit'], one['good'])}<td>{_format_remedy(one['remedy'])}"
        for one in run.get("differences", ())
    ]
    for fact in run.get("facts", ()):
        value, good = (escape(format_fact(fact["name"], fact[key])) for key in ("value", "good"))
        rows.append(f"<tr><td>other {escape(fact['name'])}{value and f': {value}'}<td>{good}<td>")
    same = f'<p class="aside">{escape(text)}</p>\n' if "same" in run and (text := format_same(run)) else ""
    table = "\n".join(("<table><tr><th>this run<th>good run<th>remedy", *rows)) + "</table>\n" if rows else ""
    unknown = f'<p class="aside">unknown: {escape(", ".join(run["unknown"]))}</p>\n' if run["unknown"] else ""
    return (
        f"<h2>{escape(run['file'])}: {run['microseconds'] / 1_000_000:.2f} s{duration}, "
        f'<span class="{verdict}">{verdict}</span>{format_exit(run["exitStatus"])}</h2>\n{table}{same}{unknown}'
        f"{_draw_timeline(report, longest_us)}\n"
    )


def _format_remedy(text: str) -> str:
    return _COMMAND.sub(r"<code>\1</code>", escape(text))


def _draw_timeline(report: ReadReport, longest_us: int) -> str:
    """Draw a row of bars for each measure that exceeds its threshold in any interval. The time scale is the same for all runs."""
    rows = [
        name
        for name, most in report.thresholds.items()
        if any(rates.get(name, 0) > most for _, rates in report.timeline)
    ]
    if not rows:
        return '<p class="aside">No timeline shows a disturbance.</p>'
    parts = []
    for row, name in enumerate(rows):
        bottom = (row + 1) * _ROW
        parts.append(f'<text x="0" y="{bottom - 4}">{escape(name)}</text>')
        at_us = 0
        for elapsed_us, rates in report.timeline:
            rate = rates.get(name, 0)
            x, width, height = (
                _LABEL + at_us * _WIDTH / longest_us,
                elapsed_us * _WIDTH / longest_us,
                min(rate, 1000) * (_ROW - 8) / 1000,
            )
            colour = "#b42318" if rate > report.thresholds[name] else "#1a7f37"
            place = f'x="{x:.1f}" y="{bottom - height:.1f}" width="{width:.1f}" height="{height:.1f}"'
            said = f"{at_us / 1_000_000:.2f} s: {format_rate('perMille', rate)}"
            parts.append(f'<rect {place} fill="{colour}"><title>{said}</title></rect>')
            at_us += elapsed_us
        end = at_us * _WIDTH / longest_us
        parts.append(f'<path d="M{_LABEL} {bottom}h{end:.1f}" stroke="currentColor"/>')
    bottom = len(rows) * _ROW
    parts += [
        f'<text x="{_LABEL}" y="{bottom + 15}">0 s</text>',
        f'<text x="{_LABEL + max(end, _TIMES):.1f}" y="{bottom + 15}" text-anchor="end">{at_us / 1_000_000:.2f} s</text>',
    ]
    width, height = _LABEL + _WIDTH, bottom + _AXIS
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="timeline">{"".join(parts)}</svg>'
    )
