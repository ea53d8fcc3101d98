"""/proc/interrupts and /proc/softirqs: what happened on each CPU since boot, a row for each kind, a column for each CPU.

Both are large on large machines (600 rows of 512 columns are 3 MB), and few rows change between two looks: only those are read.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet

CLAIMED = "claimed"
INTERRUPT_KINDS = ("device", "bound_device", CLAIMED, "timer", "ipi", "other")
"""Of devices; those of them that the kernel lets nobody move, and that the container wants; of timers; from other CPUs; and the rest."""
_IPIS = ("RES", "CAL", "TLB")
_LOCAL_TIMER = "LOC"
_WRAP = 2**32
"""The kernel's counters are unsigned ints."""


class CpuCounts(Struct, frozen=True):
    """One look. Rows stay as the kernel wrote them."""

    columns: tuple[int, ...]
    """CPUs: in /proc/interrupts those that are online."""
    rows: Mapping[bytes, bytes]
    """By label: what is behind its colon."""


class Increase(Struct, frozen=True):
    label: str
    source: str
    """The last word of the row: the device; empty: there is none."""
    by_cpu: Mapping[int, int]


def parse_cpu_counts(text: bytes) -> CpuCounts | None:
    """Read one of the files. None: it isn't one."""
    head, *lines = text.splitlines() or [b""]
    names = head.split()
    if not names or not all(name.startswith(b"CPU") and name[3:].isdigit() for name in names):
        return None
    rows = {}
    for line in lines:
        label, colon, rest = line.partition(b":")
        if colon:
            rows[label.strip()] = rest
    return CpuCounts(tuple(int(name[3:]) for name in names), rows)


def increases(before: CpuCounts, after: CpuCounts, cpus: CpuSet) -> Iterator[Increase]:
    """Return how much was counted on these CPUs in between; a CPU that has come meanwhile is left out, a row is counted whole.

    The number of an interrupt that was freed may be another's now, and begins anew; one that has come to its end does, too.
    """
    for label, row in after.rows.items():
        earlier = before.rows.get(label)
        if row == earlier and before.columns == after.columns:
            continue
        new, source = _words(row, len(after.columns))
        old = [b"0"] * len(before.columns) if earlier is None else _words(earlier, len(before.columns))[0]
        if new and old:
            if before.columns != after.columns:
                known = dict(zip(before.columns, old, strict=True))
                old = [known.get(cpu, now) for cpu, now in zip(after.columns, new, strict=True)]
            by_cpu = {
                cpu: _increase(int(then), int(now))
                for cpu, then, now in zip(after.columns, old, new, strict=True)
                if then != now and cpu in cpus
            }
            if by_cpu:
                yield Increase(label.decode(errors="replace"), source, by_cpu)


def interrupt_kind(row: Increase, *, is_bound: bool) -> str:
    """Return one of `INTERRUPT_KINDS`: what it is for a container that doesn't claim it.

    Args:
        row: of /proc/interrupts.
        is_bound: the kernel lets nobody move this interrupt.
    """
    if row.label.isdecimal():
        if row.source.endswith(
            "timer"
        ):  # the first one of PCs, arch_timer of others: each CPU has its own, or it is of no device
            return "timer"
        return "bound_device" if is_bound else "device"
    if row.label == _LOCAL_TIMER:
        return "timer"
    return "ipi" if row.label in _IPIS or row.label.startswith("IPI") else "other"


def _words(row: bytes, count: int) -> tuple[list[bytes], str]:
    """Split a row into its columns and its last word; no columns: it doesn't count by CPU, as ERR and MIS don't."""
    words = row.split(None, count)
    if len(words) < count or not b"".join(words[:count]).isdigit():
        return [], ""
    return words[:count], words[count].split()[-1].decode(errors="replace") if len(words) > count else ""


def _increase(old: int, new: int) -> int:
    if new >= old:
        return new - old
    return new + _WRAP - old if old >= _WRAP // 2 else new
