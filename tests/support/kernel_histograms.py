"""A model of what the kernel's histogram triggers make of a course of events: the text, as `CpuHistograms` has it."""

from collections import Counter
from collections.abc import Iterable, Mapping

from nodeagent.formats.kernel.cpu_use import Counted, CpuHistograms

WRAP = 2**64
Event = tuple[int, int, int]
"""At which nanosecond, on which CPU, which number."""


def text(rows: Iterable[tuple[str, int, int | None]], dropped: int = 0) -> bytes:
    lines = [
        f"{{ {keys} }} hitcount: {hits:10}" + ("" if summed is None else f"  common_timestamp: {summed % WRAP:10}")
        for keys, hits, summed in rows
    ]
    body = "".join(f"{line}\n" for line in lines)
    total = f"\nTotals:\n    Hits: 1\n    Entries: {len(lines)}\n    Dropped: {dropped}\n"
    return f"# event histogram\n#\n# trigger info: hist\n#\n\n{body}{total}".encode()


def switches(events: Iterable[tuple[int, int, int, int]], names: Mapping[int, str], *, dropped: int = 0) -> bytes:
    """Of (at_ns, cpu, task before, task after); names by task."""
    hits: Counter[tuple[int, int, int]] = Counter()
    sums: Counter[tuple[int, int, int]] = Counter()
    for at_ns, cpu, before, after in events:
        hits[cpu, before, after] += 1
        sums[cpu, before, after] += at_ns
    return text(
        [
            (
                f"common_cpu: {c:10}, common_pid: {names.get(b, '<idle>' if b == 0 else 'task'):<16}[{b:10}], next_pid: {a:10}",
                hits[c, b, a],
                sums[c, b, a],
            )
            for c, b, a in hits
        ],
        dropped,
    )


def pairs(key: str, events: Iterable[Event]) -> bytes:
    hits: Counter[tuple[int, int]] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    for at_ns, cpu, number in events:
        hits[cpu, number] += 1
        sums[cpu, number] += at_ns
    return text([(f"common_cpu: {c:10}, {key}: {n:10}", hits[c, n], sums[c, n]) for c, n in hits])


def record(
    switched: bytes | None = None,
    *,
    began_ns: int,
    ended_ns: int,
    interrupts: tuple[Iterable[Event], Iterable[Event]] = ((), ()),
    softirqs: tuple[Iterable[Event], Iterable[Event]] = ((), ()),
    gap_ns: int = 0,
    forks: Iterable[tuple[int, int]] = (),
    joins: Iterable[tuple[int, int]] = (),
    exits: Iterable[int] = (),
) -> CpuHistograms:
    """Entries and exits of interrupts and softirqs; exits are counted `gap_ns` earlier."""
    return CpuHistograms(
        switches=Counted(text([]) if switched is None else switched, began_ns, began_ns),
        interrupt_entries=Counted(pairs("irq", interrupts[0]), began_ns, began_ns + gap_ns),
        interrupt_exits=Counted(pairs("irq", interrupts[1]), began_ns, began_ns),
        softirq_entries=Counted(pairs("vec", softirqs[0]), began_ns, began_ns + gap_ns),
        softirq_exits=Counted(pairs("vec", softirqs[1]), began_ns, began_ns),
        forks=text([(f"parent_pid: {parent:10}, child_pid: {child:10}", 1, None) for parent, child in forks]),
        joins=text([(f"pid: {task:10}, dst_id: {cgroup:10}", 1, None) for task, cgroup in joins]),
        exits=text([(f"pid: {task:10}", 1, None) for task in exits]),
        ended_ns=ended_ns,
    )
