"""The agent's line in `systemctl status`, as a script reads it."""

import re

_LINE = re.compile(
    r"\d+ pods?, \d+ exclusive CPUs?, \d+ problems?(?: \((?P<kinds>[a-z_, ]+)\))?, (?P<refused>\d+) refused"
)


def named_kinds(line: str) -> set[str]:
    """Return the kinds of problems that the line names, refused pods among them."""
    found = _LINE.match(line)
    assert found, line
    kinds = set((found["kinds"] or "").split(", ")) - {""}
    return kinds if found["refused"] == "0" else kinds | {"refused"}
