"""docs/performance.md shows the kept figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import benchmarks.report as benchmark_report
from benchmarks.goals import SHAPES, Row, burst
from benchmarks.matrix import OPTIONS, Cell, cells
from benchmarks.timing import Clock, Timing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def test_the_page_shows_the_kept_figures() -> None:
    assert benchmark_report.rewritten(PAGE, *map(kept, ("goals", "costs", "churn", "guest", "matrix"))) == PAGE, (
        "run: make bench-docs"
    )


def test_every_goal_has_its_row_and_its_verdict() -> None:
    rows = kept("goals")["rows"]
    assert [row["goal"] for row in rows[: len(SHAPES)]] == [round(goal, 4) for _, _, goal in SHAPES]
    for row in rows:
        verdict = benchmark_report.verdict(row)
        assert re.search(rf"^\| {re.escape(row['name'])} \|.*\| {verdict} \|$", PAGE, re.MULTILINE), row["name"]


def test_the_goal_is_for_the_calibrated_figure() -> None:
    row = {"measured": 20.0, "calibrated": 10.0, "goal": 10.0}
    assert benchmark_report.verdict(row) == "reached"
    assert benchmark_report.verdict({**row, "calibrated": 10.1}) == "missed"
    assert benchmark_report.verdict({**row, "goal": None}) == ""


def test_a_time_is_calibrated_by_the_loops_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is half as fast as the reference while the second run is measured, and changes in the middle of the third."""
    loops = iter((11.8, 11.8, 35.4, 11.8))
    runs = iter(([1.0, 2.0, 9.0], [4.0, 4.0], [5.0]))
    monkeypatch.setattr(Clock, "calibrate", lambda _: next(loops))
    assert Clock().time_runs(lambda: next(runs), 3) == Timing(4.0, 2.0)


def test_what_is_compared_takes_turns() -> None:
    turns: list[str] = []

    def run(name: str, ms: float) -> list[float]:
        turns.append(name)
        return [ms]

    few, many = Clock().time_each([lambda: run("few", 1.0), lambda: run("many", 3.0)], 2)
    assert turns == ["few", "many"] * 2
    assert (few.ms, many.ms) == (1.0, 3.0)


def test_the_matrix_is_measured() -> None:
    first = next(cells(Clock(), every=False, repeats=1))
    assert (first.cpus, first.nodes, first.pods, first.options) == (16, 1, 0, next(iter(OPTIONS)))
    assert first.admitted
    assert first.ms > 0


def test_a_burst_is_measured() -> None:
    """It asserts itself that all pods are admitted and no promise is broken."""
    (spent_ms,) = burst(memory=True, present=1)()
    assert spent_ms > 0


def test_the_figures_are_kept_with_what_they_were_measured_on() -> None:
    clock = Clock([5.0, 6.0, 7.0])
    row = Row("group", "some work", 1.25, 2.5, 2.0, "3 ms")
    found = benchmark_report.document(clock, [row], [Cell(16, 1, 0, "best-effort", 1.0, admitted=True)])
    assert json.loads(json.dumps(found)) == found
    assert found["machine"].keys() == {"cpu", "cpus", "python", "kernel"}
    assert found["loopMs"] == [5.0, 6.0, 7.0]
    assert benchmark_report.table(found)[1] == ["some work", "3 ms", "2 ms", "1.25 ms", "2.5 ms", "1.25", "missed"]
    assert benchmark_report.missed(found) == ["some work"]
    assert ["best-effort", "1 ms"] in benchmark_report.matrix(
        {**found, "matrix": [[16, 1, 0, name, 1.0, True] for name in OPTIONS]}
    )
