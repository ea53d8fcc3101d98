"""Parsers of `systemctl show` for units, and the paths of their cgroups."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet

PROPERTIES = ("Id", "LoadState", "ActiveState", "Job", "ControlGroup", "Slice", "AllowedCPUs", "AllowedMemoryNodes")
"""Properties to query. systemctl leaves out a property that a unit doesn't have, such as a job."""
_ALLOWED = "DeviceAllow"
DEVICE_PROPERTIES = ("LoadState", "DevicePolicy", _ALLOWED)
LOADED, NOT_FOUND = "loaded", "not-found"
_DOWN = frozenset({"inactive", "failed"})
"""States of a unit that has ended. A unit that systemd is about to restart is in the state activating."""
_ROOT_SLICE = "-.slice"
_KERNEL_FILES = ("cgroup.", "cpu.", "cpuset.", "io.", "irq.", "memory.", "hugetlb.", "pids.", "rdma.", "misc.", "dmem.")
"""Prefixes of kernel files in a cgroup. systemd adds an underscore to a unit's name with such a prefix."""


class UnitProperties(Struct, frozen=True):
    """Properties of a unit."""

    id: str
    """Main name of the unit, which may have aliases."""
    load_state: str
    cgroup: str
    """Path of the unit's cgroup below the cgroup root, also while the unit is inactive. Empty if unknown."""
    settings: UnitSettings
    is_down: bool = False
    """Whether the unit is inactive and systemd is not about to start it."""


class DeviceRules(Struct, frozen=True):
    """Device rules of a unit."""

    load_state: str
    policy: str
    """DevicePolicy=, which is `auto`, `closed` or `strict`."""
    allowed: tuple[str, ...]
    """Entries of DeviceAllow=: a file or a group of files and the permissions, such as `/dev/nvme1 rw`."""

    @property
    def is_closed(self) -> bool:
        """Whether DevicePolicy= is `closed` or `strict`, so that the unit may use only the devices of DeviceAllow=
        (with `closed`, also standard pseudo devices).
        """
        return self.policy != "auto"


def parse_device_rules(text: str) -> DeviceRules:
    """Parse the device rules of a unit.

    Raises:
        ValueError: the text has another form.
    """
    lines = [*_split_lines(text)]
    properties = dict(lines)
    if "LoadState" not in properties:
        raise ValueError("LoadState is missing")
    allowed = tuple(value for name, value in lines if name == _ALLOWED and value)
    return DeviceRules(properties["LoadState"], properties.get("DevicePolicy", "auto"), allowed)


def parse_units(text: str) -> tuple[UnitProperties, ...]:
    """Parse the properties of several units, in the order of the query.

    Raises:
        ValueError: the text has another form.
    """
    return tuple(_parse_unit(dict(_split_lines(block))) for block in text.strip("\n").split("\n\n") if block)


def _split_lines(block: str) -> Iterator[tuple[str, str]]:
    for line in block.splitlines():
        name, _, value = line.partition("=")
        yield name, value


def _parse_unit(properties: dict[str, str]) -> UnitProperties:
    if missing := set(PROPERTIES[:2]) - properties.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing")
    try:
        settings = UnitSettings(
            CpuSet.parse(_remove_spaces(properties.get("AllowedCPUs", ""))),
            NumaSet.parse(_remove_spaces(properties.get("AllowedMemoryNodes", ""))),
        )
    except IdSetSyntaxError as err:
        given = " and ".join(f"{name}={properties.get(name, '')}" for name in PROPERTIES[-2:])
        raise ValueError(f"{properties['Id']} has {given}: {err}") from err
    name = properties["Id"]
    cgroup = properties.get("ControlGroup", "").strip("/") or _expected_cgroup(name, properties.get("Slice", ""))
    is_down = properties.get("ActiveState") in _DOWN and not properties.get("Job")
    return UnitProperties(name, properties["LoadState"], cgroup, settings, is_down)


def _remove_spaces(ranges: str) -> str:
    """Remove the spaces that systemctl prints between ranges."""
    return ",".join(ranges.split())


def _expected_cgroup(name: str, inside: str) -> str:
    """Return the future path of an inactive unit's cgroup."""
    if name.endswith(".slice"):
        return path_of_slice(name)
    if not inside:
        return ""
    return "/".join(filter(None, (path_of_slice(inside), _escape_name(name))))


def _escape_name(name: str) -> str:
    return f"_{name}" if name.startswith((*_KERNEL_FILES, "_", ".")) else name


def path_of_slice(name: str) -> str:
    """Return the path of a slice's cgroup. Each dash in the name means a parent slice (systemd.slice(5))."""
    if name == _ROOT_SLICE:
        return ""
    parts = name.removesuffix(".slice").split("-")
    return "/".join(_escape_name(f"{'-'.join(parts[: number + 1])}.slice") for number in range(len(parts)))
