"""Figures that tests find and docs quote: printed at the end of the run, and kept when asked to.

With NODEAGENT_KEEP_FIGURES set, each test writes its own into results/; scripts/reliability.py puts them into
docs/reliability.md (`make figures`).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
KEEP = "NODEAGENT_KEEP_FIGURES"

Recorder = Callable[[str, object], None]
"""pytest's fixture record_property."""


def report(record_property: Recorder, text: str) -> None:
    """Have it printed at the end of the run (conftest.py at the root)."""
    record_property("figure", text)


def keep(topic: str, case: str, **counts: int) -> None:
    """Keep what a test has counted, if that is wanted.

    Args:
        topic: what was done, as the row of docs/reliability.md is called.
        case: of the test's parameters; cases are added up.
        counts: by what was counted, in the plural, `_` for a space.

    """
    if not os.environ.get(KEEP):
        return
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{topic.replace(' ', '-')}.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept[case] = {name.replace("_", " "): count for name, count in counts.items()}
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
