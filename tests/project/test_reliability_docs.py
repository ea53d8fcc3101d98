"""docs/reliability.md shows the kept counts, and the tests that it names are there."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support import figures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "reliability.py"))


def test_the_page_shows_the_kept_counts(script: dict[str, Any]) -> None:
    assert script["rewritten"](PAGE) == PAGE, "run: .venv/bin/python scripts/reliability.py"


def test_every_kept_count_has_its_row(script: dict[str, Any]) -> None:
    topics = [row.topic for row in script["ROWS"]]
    assert {file.stem for file in figures.RESULTS.glob("*.json")} <= {topic.replace(" ", "-") for topic in topics}
    assert len(topics) == len({*topics})


def test_its_tests_exist() -> None:
    named = set(re.findall(r"`((?:tests|integration)/[\w/]+\.py)`", PAGE))
    assert len(named) >= 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_each_test_that_proves_a_promise_exists() -> None:
    named = re.findall(r"`((?:tests|integration)/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 60
    assert [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


def test_its_classes_are_the_codes() -> None:
    import errno

    from nodeagent.core.cgroups.write_failures import classify_failure

    rows = re.findall(r"^\| (gone|retry|refused) \| (.*?) \|", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for kind, answers in rows:
        names = re.findall(r"`(E\w+)`", answers)
        assert names
        assert {classify_failure(getattr(errno, name)).value for name in names} == {kind}


def test_counts_are_kept_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: dict[str, Any]) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    monkeypatch.delenv(figures.KEEP, raising=False)
    figures.keep("deaths", "one", crash_points=3)
    assert not figures.RESULTS.exists()
    monkeypatch.setenv(figures.KEEP, "1")
    figures.keep("deaths", "one", crash_points=2)
    figures.keep("deaths", "one", crash_points=3)
    figures.keep("deaths", "other", crash_points=1, half_writes=1)
    assert (figures.RESULTS / "deaths.json").exists()
    monkeypatch.setitem(script["kept"].__globals__, "RESULTS", figures.RESULTS)
    assert script["totals"](script["kept"]("deaths")) == {"crash points": 4, "half writes": 1}
