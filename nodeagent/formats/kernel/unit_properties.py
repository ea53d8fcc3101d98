"""What `systemctl show` prints of units, and where their cgroups are."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet

PROPERTIES = ("Id", "LoadState", "ActiveState", "Job", "ControlGroup", "Slice", "AllowedCPUs", "AllowedMemoryNodes")
"""Those to ask for. One that a unit doesn't have, such as a job, is left out of the answer."""
_ALLOWED = "DeviceAllow"
DEVICE_PROPERTIES = ("LoadState", "DevicePolicy", _ALLOWED)
LOADED, NOT_FOUND = "loaded", "not-found"
_DOWN = frozenset({"inactive", "failed"})
"""States in which a unit has ended; one that systemd restarts by itself is being activated meanwhile."""
_ROOT_SLICE = "-.slice"
_KERNEL_FILES = ("cgroup.", "cpu.", "cpuset.", "io.", "irq.", "memory.", "hugetlb.", "pids.", "rdma.", "misc.", "dmem.")
"""Beginnings of the kernel's files in a cgroup: systemd puts an underscore in front of a unit's name that begins so."""


class UnitProperties(Struct, frozen=True):
    """One unit, as systemd has it."""

    id: str
    """Its own name, where it has others as well."""
    load_state: str
    cgroup: str
    """Path below the root of all cgroups, where it is or will be once it is active; empty: unknown."""
    settings: UnitSettings
    is_down: bool = False
    """It isn't active, and systemd is not going to start it now."""


class DeviceRules(Struct, frozen=True):
    """Which devices one unit may use, as systemd has it."""

    load_state: str
    policy: str
    """`auto`, `closed` or `strict`."""
    allowed: tuple[str, ...]
    """A file, or a group of them, and what it may do with it: `/dev/nvme1 rw`."""

    @property
    def is_closed(self) -> bool:
        """Whether it may use nothing but what it is allowed, and what every program needs."""
        return self.policy != "auto"


def parse_device_rules(text: str) -> DeviceRules:
    """Read the answer about a unit's devices.

    Raises:
        ValueError: it isn't one.
    """
    lines = [*_lines(text)]
    properties = dict(lines)
    if "LoadState" not in properties:
        raise ValueError("it lacks LoadState")
    allowed = tuple(value for name, value in lines if name == _ALLOWED and value)
    return DeviceRules(properties["LoadState"], properties.get("DevicePolicy", "auto"), allowed)


def parse_units(text: str) -> tuple[UnitProperties, ...]:
    """Read the answer about some units, in the order in which they were asked for.

    Raises:
        ValueError: it isn't one.
    """
    return tuple(_unit(dict(_lines(block))) for block in text.strip("\n").split("\n\n") if block)


def _lines(block: str) -> Iterator[tuple[str, str]]:
    for line in block.splitlines():
        name, _, value = line.partition("=")
        yield name, value


def _unit(properties: dict[str, str]) -> UnitProperties:
    if missing := set(PROPERTIES[:2]) - properties.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    try:
        settings = UnitSettings(
            CpuSet.parse(_listed(properties.get("AllowedCPUs", ""))),
            NumaSet.parse(_listed(properties.get("AllowedMemoryNodes", ""))),
        )
    except IdSetSyntaxError as err:
        given = " and ".join(f"{name}={properties.get(name, '')}" for name in PROPERTIES[-2:])
        raise ValueError(f"{properties['Id']} has {given}: {err}") from err
    name = properties["Id"]
    cgroup = properties.get("ControlGroup", "").strip("/") or _expected(name, properties.get("Slice", ""))
    is_down = properties.get("ActiveState") in _DOWN and not properties.get("Job")
    return UnitProperties(name, properties["LoadState"], cgroup, settings, is_down)


def _listed(ranges: str) -> str:
    """Sets are printed with spaces between the ranges."""
    return ",".join(ranges.split())


def _expected(name: str, inside: str) -> str:
    """Return where the cgroup of a unit will be that isn't active."""
    if name.endswith(".slice"):
        return path_of_slice(name)
    if not inside:
        return ""
    return "/".join(filter(None, (path_of_slice(inside), _escaped(name))))


def _escaped(name: str) -> str:
    return f"_{name}" if name.startswith((*_KERNEL_FILES, "_", ".")) else name


def path_of_slice(name: str) -> str:
    """Return the path of a slice's cgroup: each dash stands for another one around it (systemd.slice(5))."""
    if name == _ROOT_SLICE:
        return ""
    parts = name.removesuffix(".slice").split("-")
    return "/".join(_escaped(f"{'-'.join(parts[: number + 1])}.slice") for number in range(len(parts)))
