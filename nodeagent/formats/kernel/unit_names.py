"""Which names of cgroups are those of systemd's units with processes."""

import re

_UNIT = re.compile(r"_?(?P<name>[A-Za-z0-9:_.\\@-]+\.(?:slice|scope|service))")
"""A cgroup whose unit's name could be taken for a file of the kernel has an underscore in front."""


def unit_of(cgroup: str) -> str | None:
    """Return the unit that a cgroup's name belongs to; None: systemd didn't make it, or it has no processes (a mount)."""
    match = _UNIT.fullmatch(cgroup)
    return None if match is None else match["name"].removeprefix("_")


def unit_in(path: str) -> str:
    """Return the unit at the end of the path of its cgroup."""
    name = path.rpartition("/")[2]
    return unit_of(name) or name


def slices_around(path: str) -> tuple[str, ...]:
    """Return the paths of the slices around a unit, the topmost first; of a topmost unit none."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(1, len(parts)))
