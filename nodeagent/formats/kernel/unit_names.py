"""Derivation of systemd unit names from the names and paths of cgroups."""

import re

_UNIT = re.compile(r"_?(?P<name>[A-Za-z0-9:_.\\@-]+\.(?:slice|scope|service))")
"""Name of a unit's cgroup. systemd adds an underscore to a name that could be mistaken for a kernel file."""


def unit_of(cgroup: str) -> str | None:
    """Return the unit that a cgroup's name belongs to. None means that systemd doesn't manage the cgroup, or that units
    of this kind (mounts) have no processes.
    """
    match = _UNIT.fullmatch(cgroup)
    return None if match is None else match["name"].removeprefix("_")


def unit_in(path: str) -> str:
    """Return the systemd unit of the last cgroup in a path."""
    name = path.rpartition("/")[2]
    return unit_of(name) or name


def slices_around(path: str) -> tuple[str, ...]:
    """Return the paths of the slices that contain a unit, topmost first. A unit in the root slice has none."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(1, len(parts)))
