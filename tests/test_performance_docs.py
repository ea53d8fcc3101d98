"""docs/performance.md shows the kept figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import benchmarks.report as benchmark_report
from benchmarks.goals import SHAPES, Row, burst
from benchmarks.matrix import OPTIONS, Cell, cells
from benchmarks.timing import Clock

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "performance.md").read_text()


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def test_the_page_shows_the_kept_figures() -> None:
    assert benchmark_report.rewritten(PAGE, kept("goals"), kept("matrix")) == PAGE, "run: make bench-docs"


def test_every_goal_has_its_row_and_its_verdict() -> None:
    rows = kept("goals")["rows"]
    assert [row["goal"] for row in rows[: len(SHAPES)]] == [round(goal, 4) for _, _, goal in SHAPES]
    for row in rows:
        verdict = benchmark_report.verdict(kept("goals"), row)
        assert re.search(rf"^\| {re.escape(row['name'])} \|.*\| {verdict} \|$", PAGE, re.MULTILINE), row["name"]


@pytest.mark.parametrize(
    ("measured", "unit", "loop_ms", "verdict"),
    [
        (10.0, "ms", 11.8, "reached"),
        (10.1, "ms", 11.8, "missed"),
        (5.0, "ms", 5.9, "reached"),
        (5.1, "ms", 5.9, "missed"),
        (20.0, "ms", 23.6, "reached"),
        (10.0, "×", 1.0, "reached"),
        (10.1, "×", 100.0, "missed"),
    ],
)
def test_times_are_judged_by_the_calibration_loop_and_ratios_as_they_are(
    measured: float, unit: str, loop_ms: float, verdict: str
) -> None:
    row = {"measured": measured, "unit": unit, "goal": 10.0}
    assert benchmark_report.verdict({"loopMs": loop_ms}, row) == verdict


def test_the_matrix_is_measured() -> None:
    measured = cells(Clock(), every=False, repeats=1)
    first = [next(measured) for _ in OPTIONS]
    assert [(cell.cpus, cell.nodes, cell.pods, cell.options) for cell in first] == [
        (16, 1, 0, name) for name in OPTIONS
    ]
    assert all(cell.admitted and cell.ms > 0 for cell in first)


def test_a_burst_is_measured() -> None:
    """It asserts itself that all pods are admitted and no promise is broken."""
    (spent_ms,) = burst(memory=True, present=1)()
    assert spent_ms > 0


def test_the_figures_are_kept_with_what_they_were_measured_on() -> None:
    clock = Clock([5.9, 7.0])
    row = Row("group", "some work", 1.25, 2.0, "3 ms")
    found = benchmark_report.document(clock, [row], [Cell(16, 1, 0, "best-effort", 0.5, admitted=True)])
    assert json.loads(json.dumps(found)) == found
    assert found["machine"].keys() == {"cpu", "cpus", "python", "kernel"}
    assert found["loopMs"] == 5.9
    assert benchmark_report.table(found)[1] == ["some work", "3 ms", "2 ms", "1.25 ms", "2.5 ms", "1.25", "missed"]
    assert benchmark_report.missed(found) == ["some work"]
    assert ["best-effort", "1 ms"] in benchmark_report.matrix(
        {**found, "matrix": [[16, 1, 0, name, 0.5, True] for name in OPTIONS]}
    )
