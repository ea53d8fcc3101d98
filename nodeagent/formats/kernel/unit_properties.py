"""Parsers of the output of `systemctl show`, paths of units' cgroups, and formatter and parser of the record of a unit's original
properties.
"""

import json
from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet
from nodeagent.formats.syntax.json_values import MisfitError, parse_json

PROPERTIES = ("Id", "LoadState", "ActiveState", "Job", "ControlGroup", "Slice", "AllowedCPUs", "AllowedMemoryNodes")
"""Properties to query. systemctl leaves out properties that a unit doesn't have, such as Job=."""
_ALLOWED = "DeviceAllow"
DEVICE_PROPERTIES = ("LoadState", "DevicePolicy", _ALLOWED)
LOADED, NOT_FOUND = "loaded", "not-found"
_DOWN = frozenset({"inactive", "failed"})
"""States of a unit that has ended. A unit that waits for its restart is in the state activating."""
_ROOT_SLICE = "-.slice"
_KERNEL_FILES = ("cgroup.", "cpu.", "cpuset.", "io.", "irq.", "memory.", "hugetlb.", "pids.", "rdma.", "misc.", "dmem.")
"""Prefixes of kernel files in a cgroup. systemd adds an underscore to a unit's name with such a prefix."""


class UnitProperties(Struct, frozen=True):
    """Properties of a unit."""

    id: str
    """Main name of the unit, which may have aliases."""
    load_state: str
    cgroup: str
    """Path of the unit's cgroup below the cgroup root, even while the unit is inactive. Empty if unknown."""
    settings: UnitSettings
    is_down: bool = False
    """Whether the unit is inactive and systemd is not about to start it."""


class DeviceRules(Struct, frozen=True):
    """Device access rules of a systemd unit."""

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
        ValueError: the text is malformed.
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
        ValueError: the text is malformed.
    """
    return tuple(_parse_unit(dict(_split_lines(block))) for block in text.strip("\n").split("\n\n") if block)


def _split_lines(block: str) -> Iterator[tuple[str, str]]:
    for line in block.splitlines():
        name, _, value = line.partition("=")
        yield name, value


def _parse_unit(properties: dict[str, str]) -> UnitProperties:
    if missing := set(PROPERTIES[:2]) - properties.keys():
        raise ValueError(f"missing properties: {', '.join(sorted(missing))}")
    try:
        # systemctl prints spaces between the ranges of a list.
        settings = UnitSettings(
            CpuSet.parse(",".join(properties.get("AllowedCPUs", "").split())),
            NumaSet.parse(",".join(properties.get("AllowedMemoryNodes", "").split())),
        )
    except IdSetSyntaxError as err:
        given = " and ".join(f"{name}={properties.get(name, '')}" for name in PROPERTIES[-2:])
        raise ValueError(f"{properties['Id']} has {given}: {err}") from err
    name, slice_ = properties["Id"], properties.get("Slice", "")
    cgroup = properties.get("ControlGroup", "").strip("/")
    if not cgroup and name.endswith(".slice"):
        cgroup = path_of_slice(name)
    elif not cgroup and slice_:  # an inactive unit has no path yet, so this is the path that it will have
        cgroup = "/".join(filter(None, (path_of_slice(slice_), _escape_name(name))))
    is_down = properties.get("ActiveState") in _DOWN and not properties.get("Job")
    return UnitProperties(name, properties["LoadState"], cgroup, settings, is_down)


def _escape_name(name: str) -> str:
    return f"_{name}" if name.startswith((*_KERNEL_FILES, "_", ".")) else name


def path_of_slice(name: str) -> str:
    """Return the path of a slice's cgroup. Each dash in the name separates a parent slice (systemd.slice(5))."""
    if name == _ROOT_SLICE:
        return ""
    parts = name.removesuffix(".slice").split("-")
    return "/".join(_escape_name(f"{'-'.join(parts[: number + 1])}.slice") for number in range(len(parts)))


def format_unit_record(before: UnitSettings) -> bytes:
    """Format the properties that a unit had before the agent changed them."""
    document = {"cpus": str(before.allowed_cpus), "mems": str(before.allowed_memory_nodes)}
    return f"{json.dumps(document, sort_keys=True)}\n".encode()


def parse_unit_record(content: bytes) -> UnitSettings | None:
    """Parse a record. None means that the record is damaged or malformed."""
    try:
        document = parse_json(content)
        return UnitSettings(document.field("cpus").cpus(), document.field("mems").nodes())
    except MisfitError:
        return None
