"""What systemctl tells of units' AllowedCPUs=, and which names of cgroups are those of units."""

import re

from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError

PROPERTIES = ("Id", "LoadState", "AllowedCPUs")
"""To be shown for each unit, as `name=value`, by `systemctl show`."""
_LOADED = "loaded"
_UNIT = re.compile(r"_?(?P<name>[A-Za-z0-9:_.\\@-]+\.(?:slice|scope|service|socket|mount|swap))")
"""A cgroup whose unit's name could be taken for a file of the kernel has an underscore in front."""


class UnitSyntaxError(ValueError):
    """The text is not what systemctl prints."""


def unit_of(cgroup: str) -> str | None:
    """Return the unit that a cgroup's name belongs to; None: systemd didn't make it."""
    match = _UNIT.fullmatch(cgroup)
    return None if match is None else match["name"].removeprefix("_")


def parse_unit_cpus(text: str) -> dict[str, CpuSet | None]:
    """Read blocks of `PROPERTIES`, one for each unit; None: it has no AllowedCPUs. Units that don't exist are left out.

    Raises:
        UnitSyntaxError: it is something else.
    """
    found = {}
    for block in text.strip("\n").split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        try:
            name, state, cpus = (values[name] for name in PROPERTIES)
            if state == _LOADED:
                found[name] = CpuSet.parse(",".join(cpus.split())) if cpus else None
        except (KeyError, IdSetSyntaxError) as err:
            raise UnitSyntaxError(f"{block[:200]!r} is not what systemctl shows of a unit") from err
    return found
