"""A page with the disturbances of several runs and their timelines, as HTML without scripts or other files."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from nodeagent.core.certificate.disturbances import THRESHOLDS
from nodeagent.views.certificate.comparison import ReadReport
from nodeagent.views.certificate.words import format_rate

_WIDTH, _ROW, _LABEL = 720, 36, 130
_STYLE = """body { font: 15px sans-serif; margin: 2em; max-width: 62em } td { padding: 0 1em 0.3em 0; vertical-align: top }
.clean { color: #1a7f37 } .disturbed { color: #b42318 } svg text { font: 12px sans-serif }"""


def render_page(reports: Iterable[ReadReport], document: Mapping[str, Any]) -> str:
    """Render the reports of a comparison, the good one first, each with its timeline.

    Args:
        reports: the reports.
        document: the comparison of the same reports.
    """
    runs = (document["good"], *document["others"])
    longest_us = max(run["microseconds"] for run in runs)
    body = "".join(_render_run(one, run, longest_us) for one, run in zip(reports, runs, strict=True))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Runs</title><style>{_STYLE}</style>\n'
        f"<h1>Runs</h1>\n{body}</html>\n"
    )


def _render_run(report: ReadReport, run: Mapping[str, Any], longest_us: int) -> str:
    verdict = escape(run["verdict"])
    rows = "".join(
        f"<tr><td>{escape(one['sentence'])}<td>good: {format_rate(one['unit'], one['good'])}<td>{escape(one['remedy'])}\n"
        for one in run.get("differences", ())
    )
    return (
        f"<h2>{escape(run['file'])}: {run['microseconds'] / 1_000_000:.2f} s, "
        f'<span class="{verdict}">{verdict}</span></h2>\n<table>{rows}</table>\n{_draw_timeline(report, longest_us)}\n'
    )


def _draw_timeline(report: ReadReport, longest_us: int) -> str:
    """Draw a row of bars for each measure that ever exceeded its threshold. All runs have the same scale of time."""
    rows = [
        name
        for name, threshold in THRESHOLDS.items()
        if any(rates.get(name, 0) > threshold.most for _, rates in report.timeline)
    ]
    if not rows:
        return "<p>No timeline shows a disturbance.</p>"
    parts = []
    for row, name in enumerate(rows):
        bottom = (row + 1) * _ROW
        parts.append(f'<text x="0" y="{bottom - 4}">{escape(name)}</text>')
        parts.append(f'<path d="M{_LABEL} {bottom}h{_WIDTH}" stroke="#999"/>')
        at_us = 0
        for elapsed_us, rates in report.timeline:
            rate = rates.get(name, 0)
            x, width, height = (
                _LABEL + at_us * _WIDTH / longest_us,
                elapsed_us * _WIDTH / longest_us,
                rate * (_ROW - 8) / 1000,
            )
            colour = "#b42318" if rate > THRESHOLDS[name].most else "#1a7f37"
            place = f'x="{x:.1f}" y="{bottom - height:.1f}" width="{width:.1f}" height="{height:.1f}"'
            said = f"{at_us / 1_000_000:.2f} s: {format_rate('perMille', rate)}"
            parts.append(f'<rect {place} fill="{colour}"><title>{said}</title></rect>')
            at_us += elapsed_us
    size = f'width="{_LABEL + _WIDTH}" height="{len(rows) * _ROW + 4}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{"".join(parts)}</svg>'
