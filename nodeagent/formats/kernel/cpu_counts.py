"""Counters of /proc/interrupts and /proc/softirqs since boot. There is a row for each interrupt or kind of softirq, and a column for each
CPU.

On large machines, both files are large (600 rows with 512 columns are 3 MB), but few rows change between two samples. Only changed rows
are therefore parsed.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet

CLAIMED = "claimed"
INTERRUPT_KINDS = ("device", "bound_device", CLAIMED, "timer", "ipi", "other")
"""Kinds of interrupts: of devices, of devices with a fixed affinity, of devices whose interrupts the container requested, of timers, from
other CPUs, and others.
"""
_SOFTIRQ_KINDS = {
    "NET_TX": "network",
    "NET_RX": "network",
    "BLOCK": "block",
    "IRQ_POLL": "block",
    "TIMER": "timer",
    "HRTIMER": "timer",
    "SCHED": "tick",
    "RCU": "tick",
}
SOFTIRQ_KINDS = (*dict.fromkeys(_SOFTIRQ_KINDS.values()), "other")
"""Kinds of softirqs, classified by the way to keep them off a CPU. SCHED and RCU follow the scheduler's tick (nohz_full=). HI and
TASKLET are `other`.
"""
_IPIS = ("RES", "CAL", "TLB")
_LOCAL_TIMER = "LOC"
_WRAP = 2**32
"""Value at which the kernel's 32-bit counters wrap around."""


class CpuCounts(Struct, frozen=True):
    """One sample of a file, whose rows haven't been parsed."""

    columns: tuple[int, ...]
    """CPU number of each column. /proc/interrupts has columns only for online CPUs."""
    rows: Mapping[bytes, bytes]
    """Text after the colon of each row, by the label before the colon."""


class Increase(Struct, frozen=True):
    label: str
    source: str
    """Last word of the row, which names the device. It is empty if the row has no such word."""
    by_cpu: Mapping[int, int]


def parse_cpu_counts(text: bytes) -> CpuCounts | None:
    """Split the text of /proc/interrupts or /proc/softirqs into rows. None means that the text is malformed."""
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


def count_increases(before: CpuCounts, after: CpuCounts, cpus: CpuSet) -> Iterator[Increase]:
    """Yield the increase of each row between two samples, on these CPUs.

    A CPU that came online between the samples is left out. The kernel resets a counter when its interrupt number is freed; the increase is
    then counted from 0. A 32-bit overflow is corrected.
    """
    for label, row in after.rows.items():
        earlier = before.rows.get(label)
        if row == earlier and before.columns == after.columns:
            continue
        new, source = _split_row(row, len(after.columns))
        old = [b"0"] * len(before.columns) if earlier is None else _split_row(earlier, len(before.columns))[0]
        if new and old:
            if before.columns != after.columns:
                known = dict(zip(before.columns, old, strict=True))
                old = [known.get(cpu, now) for cpu, now in zip(after.columns, new, strict=True)]
            by_cpu = {}
            for cpu, then, now in zip(after.columns, map(int, old), map(int, new), strict=True):
                if then != now and cpu in cpus:
                    wraps = now < then and then >= _WRAP // 2
                    by_cpu[cpu] = now - then if now >= then else now + _WRAP - then if wraps else now
            if by_cpu:
                yield Increase(label.decode(errors="replace"), source, by_cpu)


def interrupt_kind(row: Increase, *, is_bound: bool) -> str:
    """Return the kind of an interrupt, one of `INTERRUPT_KINDS`. The result is never `CLAIMED`, because the row doesn't tell whether a
    container requested the device's interrupts.

    Args:
        row: the row of /proc/interrupts.
        is_bound: whether the kernel forbids changing the affinity of this interrupt.
    """
    if row.label.isdecimal():
        # On a PC, `timer` is the first timer; other machines have `arch_timer`. A timer belongs to a CPU or to no device.
        if row.source.endswith("timer"):
            return "timer"
        return "bound_device" if is_bound else "device"
    if row.label == _LOCAL_TIMER:
        return "timer"
    return "ipi" if row.label in _IPIS or row.label.startswith("IPI") else "other"


def softirq_kind(row: Increase) -> str:
    """Return the kind of a softirq, one of `SOFTIRQ_KINDS`."""
    return _SOFTIRQ_KINDS.get(row.label, "other")


def _split_row(row: bytes, count: int) -> tuple[list[bytes], str]:
    """Split a row into its columns and its last word. A row without a count per CPU, such as ERR or MIS, gives no columns."""
    words = row.split(None, count)
    if len(words) < count or not b"".join(words[:count]).isdigit():
        return [], ""
    return words[:count], words[count].split()[-1].decode(errors="replace") if len(words) > count else ""
