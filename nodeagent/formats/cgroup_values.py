"""cgroup v2 values ↔ the kernel's text. Knows the notation of each file, no file system."""

from nodeagent.core.cgroup import Attribute, ByteLimit, CpuMax, Value
from nodeagent.core.idset import CpuSet, NumaSet

EFFECTIVE_CPUS = "cpuset.cpus.effective"
EFFECTIVE_MEMS = "cpuset.mems.effective"
MAX = "max"


class CgroupValueError(ValueError):
    """A cgroup file holds a text that the kernel would not write."""


def print_value(value: Value) -> str:
    """Give the text to write."""
    match value:
        case CpuSet() | NumaSet():
            assert value, "an empty cpuset must never be written: the kernel would grant the parent's"
            return str(value)
        case CpuMax():
            return f"{MAX if value.quota_us is None else value.quota_us} {value.period_us}"
        case ByteLimit():
            return MAX if value.limit_bytes is None else str(value.limit_bytes)
        case bool():
            return "1" if value else "0"
        case int():
            return str(value)


def parse_value(attribute: Attribute, text: str) -> Value:
    """Read the content of one of our files.

    Raises:
        CgroupValueError: the text is not of the file's form.

    """
    text = text.strip()
    try:
        match attribute:
            case Attribute.CPUSET_CPUS:
                return CpuSet.parse(text)
            case Attribute.CPUSET_MEMS:
                return NumaSet.parse(text)
            case Attribute.CPU_MAX:
                quota, period = text.split(" ")
                return CpuMax(None if quota == MAX else int(quota), int(period))
            case Attribute.MEMORY_MAX:
                return ByteLimit(None if text == MAX else int(text))
            case Attribute.CPU_WEIGHT:
                return int(text)
            case Attribute.MEMORY_OOM_GROUP | Attribute.FREEZE:
                return bool(int(text))
    except ValueError as err:
        raise CgroupValueError(f"{attribute.value} holds {text!r}: {err}") from err


def parse_flat_keyed(text: str) -> dict[str, int]:
    """Read a flat keyed file (`cgroup.events`, `memory.events`, `cpu.stat`): one `key number` a line.

    Raises:
        CgroupValueError: a line has another form.

    """
    result = {}
    for line in text.splitlines():
        key, _, number = line.partition(" ")
        if not number.isdigit():
            raise CgroupValueError(f"line {line!r} is not a key and a number")
        result[key] = int(number)
    return result
