"""What is counted costs no more than it did: `make bench` keeps the counts that are measured again here."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import RESULTS
from benchmarks.costs import COUNTERS
from benchmarks.goals import Row

KEPT = {row["name"]: row["measured"] for row in json.loads(Path(RESULTS, "costs.json").read_text())["rows"]}
TENTH_MORE = 1.1


@pytest.mark.parametrize("counter", COUNTERS, ids=[counter.__name__ for counter in COUNTERS])
def test_no_count_grows_by_more_than_a_tenth(counter: Callable[[], Iterator[Row]]) -> None:
    """Who has a good reason to spend more keeps the new count: `make bench-costs bench-docs`."""
    found = {row.name: row.measured for row in counter()}
    assert found, "a counter counts something"
    assert not {name: (KEPT[name], count) for name, count in found.items() if count > KEPT[name] * TENTH_MORE}
