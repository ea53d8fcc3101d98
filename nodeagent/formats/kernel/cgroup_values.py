"""Formatter and parser of cgroup v2 values in the notation of each kernel file. The module doesn't access files."""

import re
from functools import lru_cache

from nodeagent.core.model.cgroup import Attribute, ByteLimit, CpuMax, Partition, PartitionKind, TaskLimit, Value
from nodeagent.core.model.idset import CpuSet, NumaSet

EFFECTIVE_CPUS = "cpuset.cpus.effective"
EFFECTIVE_MEMS = "cpuset.mems.effective"
MAX = "max"


class CgroupValueError(ValueError):
    """A cgroup file contains a text that the kernel doesn't write."""


def format_value(value: Value) -> str:
    """Format a value in the kernel's notation."""
    match value:
        case CpuSet() | NumaSet():
            assert value, "an empty cpuset must never be written: the kernel would grant the parent's"
            return str(value)
        case CpuMax():
            return f"{MAX if value.quota_us is None else value.quota_us} {value.period_us}"
        case ByteLimit():
            return MAX if value.limit_bytes is None else str(value.limit_bytes)
        case TaskLimit():
            return MAX if value.limit is None else str(value.limit)
        case Partition():
            return value.kind.value + (f" invalid ({value.problem})" if value.problem else "")
        case bool():
            return "1" if value else "0"
        case int():
            return str(value)


def format_for_write(attribute: Attribute, value: Value) -> str:
    """Format a value for writing. An empty set of exclusive CPUs becomes a newline, because a write of zero bytes doesn't reach the
    kernel.
    """
    return "\n" if attribute is Attribute.CPUSET_CPUS_EXCLUSIVE and not value else format_value(value)


@lru_cache(maxsize=1024)  # results are cached and shared, because most cgroups have the same values
def parse_value(attribute: Attribute, text: str) -> Value:
    """Parse the content of one of the agent's cgroup files.

    Raises:
        CgroupValueError: the text doesn't have the file's format.
    """
    text = text.strip()
    try:
        match attribute:
            case Attribute.CPUSET_CPUS | Attribute.CPUSET_CPUS_EXCLUSIVE | Attribute.FALLBACK_CPUS:
                return CpuSet.parse(text)
            case Attribute.CPUSET_CPUS_PARTITION:
                return _parse_partition(text)
            case Attribute.CPUSET_MEMS:
                return NumaSet.parse(text)
            case Attribute.CPU_MAX:
                quota, _, period = text.partition(" ")
                return CpuMax(None if quota == MAX else _parse_number(quota), _parse_number(period))
            case Attribute.MEMORY_MAX | Attribute.MEMORY_SWAP_MAX:
                return ByteLimit(None if text == MAX else _parse_number(text))
            case Attribute.PIDS_MAX:
                return TaskLimit(None if text == MAX else _parse_number(text))
            case Attribute.CPU_WEIGHT:
                return _parse_number(text)
            case Attribute.MEMORY_OOM_GROUP | Attribute.FREEZE:
                return _SWITCH[text]
    except (ValueError, KeyError) as err:
        raise CgroupValueError(f"{attribute.value} contains {_shorten(text)}, which the kernel never writes") from err


def _parse_partition(text: str) -> Partition:
    found = _PARTITION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    problem = found["why"] or ("no reason given" if found["invalid"] else "")
    return Partition(PartitionKind(found["kind"]), problem)


_PARTITION = re.compile(r"(?P<kind>[^ ]*)(?P<invalid> invalid(?: \((?P<why>[^\n]*)\))?)?")
_SWITCH = {"0": False, "1": True}
_MAX_DIGITS = 20
"""Maximum number of digits of a 64-bit number."""


def _parse_number(text: str) -> int:
    # int() would also accept signs, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise ValueError(text)
    return int(text)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "…")


def parse_flat_keyed(text: str) -> dict[str, int]:
    """Parse a flat keyed file (`cgroup.events`, `memory.events`, `cpu.stat`) with one `key number` per line.

    Raises:
        CgroupValueError: a line has a different format.
    """
    result = {}
    for line in text.splitlines():
        key, _, number = line.partition(" ")
        try:
            result[key] = _parse_number(number)
        except ValueError as err:
            raise CgroupValueError(f"line {_shorten(line)} is not a key and a number") from err
    return result
