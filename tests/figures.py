"""Figures that tests find and docs quote: printed even where pytest captures what passing tests print, and kept when asked to.

With NODEAGENT_KEEP_FIGURES set, each test writes its own into results/; scripts/reliability.py puts them into
docs/reliability.md (`make figures`).
"""

import json
import os
import sys
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent / "results"
KEEP = "NODEAGENT_KEEP_FIGURES"


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


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
