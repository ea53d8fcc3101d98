"""The events that docs/how-to/logs.md explains: the agent's are held to it, and what the tests' launchers log."""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/logs.md"


@cache
def explained_events() -> frozenset[str]:
    """Give the names in the first cells of its tables."""
    cells = re.findall(r"^\| (`[a-z_`, ]+) \|", PAGE.read_text(), re.MULTILINE)
    return frozenset(re.findall(r"`(\w+)`", "".join(cells)))
