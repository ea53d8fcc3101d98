"""What the kernel counted on some CPUs, and what follows from its sums: who ran there, how often and how long.

A histogram keeps only sums of timestamps, which are enough: the sum of all ends less the sum of all beginnings is the time in between.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.histogram import Histogram, HistogramSyntaxError, parse_histogram

_IDLE = 0
"""The id of every CPU's idle task."""
_WRAP = 2**64
_MOST_FILTER_CHARACTERS = 3500
"""A trigger has to fit into a page together with its keys."""
SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
"""By vector (include/linux/interrupt.h), as in /proc/softirqs."""


class Counted(Struct, frozen=True):
    """One event's histogram."""

    text: bytes
    from_ns: int
    by_ns: int
    """It began to count in between; CLOCK_MONOTONIC, as of the timestamps."""


class CpuHistograms(Struct, frozen=True):
    """Histograms as the kernel prints them; all stopped at once."""

    switches: Counted
    interrupt_entries: Counted
    interrupt_exits: Counted
    """Begun before the entries."""
    softirq_entries: Counted
    softirq_exits: Counted
    forks: bytes
    """On these CPUs: parents and children, from before the others began."""
    joins: bytes
    """Tasks that were moved into another cgroup, with its id."""
    ended_ns: int


class TaskRun(Struct, frozen=True):
    """A task on one CPU; a thread is a task."""

    cpu: int
    task: int
    name: str
    """Its last one that was noticed; empty: none."""
    times: int
    ns: int


class Interrupt(Struct, frozen=True):
    """What is known of an interrupt."""

    name: str
    """Of the devices, separated by commas; empty: unknown."""
    is_movable: bool | None
    """Whether the kernel lets its affinity be changed; None: this kernel doesn't tell."""


class Handling(Struct, frozen=True):
    """An interrupt, or a kind of softirq, on one CPU."""

    cpu: int
    number: int
    times: int
    ns: int


class CpuUse(Struct, frozen=True):
    """What ran while it was counted."""

    elapsed_ns: int
    runs: tuple[TaskRun, ...]
    """By CPU and task, without the idle task."""
    interrupts: tuple[Handling, ...]
    softirqs: tuple[Handling, ...]
    children: Mapping[int, tuple[int, ...]]
    """By parent."""
    joined: Mapping[int, tuple[int, ...]]
    """Tasks by the id of the cgroup that they were moved into."""
    unobserved: CpuSet
    """CPUs that never switched: the same task ran there all the time, or none."""
    dropped: int
    """Events that had no room in the kernel's tables: then numbers are too small, and times may be wrong."""


def cpu_filter(cpus: CpuSet) -> str:
    """Return the condition of a trigger that holds on these CPUs; with very many gaps between them, on those in the gaps as well."""
    ranges = [part.partition("-") for part in str(cpus).split(",")]
    text = "||".join(f"CPU>={low}&&CPU<={high}" if high else f"CPU=={low}" for low, _, high in ranges)
    if len(text) <= _MOST_FILTER_CHARACTERS:
        return text
    return f"CPU>={min(cpus)}&&CPU<={max(cpus)}"


def use_of(record: CpuHistograms, cpus: CpuSet) -> CpuUse:
    """Read a record of these CPUs.

    Raises:
        HistogramSyntaxError: the text is not what the kernel writes.
    """
    switches = _histogram("sched_switch", record.switches.text, ("common_cpu", "common_pid", "next_pid"), "common_pid")
    interrupts = _pair("irq_handler", "irq", record.interrupt_entries, record.interrupt_exits)
    softirqs = _pair("softirq", "vec", record.softirq_entries, record.softirq_exits)
    forks = _parsed("sched_process_fork", record.forks, ("parent_pid", "child_pid"))
    joins = _parsed("cgroup_attach_task", record.joins, ("pid", "dst_id"))
    children, joined = defaultdict(list), defaultdict(list)
    for row in forks.rows:
        children[row.keys[0]].append(row.keys[1])
    for row in joins.rows:
        joined[row.keys[1]].append(row.keys[0])
    tables = (switches, *interrupts, *softirqs, forks, joins)
    return CpuUse(
        elapsed_ns=record.ended_ns - record.switches.from_ns,
        runs=_runs(switches, record.switches.from_ns, record.ended_ns, cpus),
        interrupts=_handlings(interrupts, record.interrupt_entries, record.interrupt_exits, record.ended_ns, cpus),
        softirqs=_handlings(softirqs, record.softirq_entries, record.softirq_exits, record.ended_ns, cpus),
        children={parent: tuple(found) for parent, found in children.items()},
        joined={cgroup: tuple(found) for cgroup, found in joined.items()},
        unobserved=cpus - CpuSet.from_ids(row.keys[0] for row in switches.rows),
        dropped=sum(table.dropped for table in tables),
    )


def descendants(children: Mapping[int, Iterable[int]], ancestors: Iterable[int]) -> frozenset[int]:
    """Return these tasks, and all that they and their children have started."""
    found: set[int] = set()
    left = list(ancestors)
    while left:
        task = left.pop()
        if task not in found:
            found.add(task)
            left.extend(children.get(task, ()))
    return frozenset(found)


def _runs(switches: Histogram, began_ns: int, ended_ns: int, cpus: CpuSet) -> tuple[TaskRun, ...]:
    """Each switch is the end of one task's run and the beginning of another's.

    Relative to the beginning, a run under way then counts in full. One under way at the end lacks its end: a negative sum shows that, as
    the sum lacks the whole time then.
    """
    ns: dict[tuple[int, int], int] = defaultdict(int)
    begun: dict[tuple[int, int], int] = defaultdict(int)
    ended: dict[tuple[int, int], int] = defaultdict(int)
    names: dict[tuple[int, int], tuple[float, str]] = {}
    for row in switches.rows:
        cpu, before, after = row.keys
        if cpu not in cpus:
            continue
        at_ns = (row.sum - row.hits * began_ns) % _WRAP
        ns[cpu, before] += at_ns
        ns[cpu, after] -= at_ns
        ended[cpu, before] += row.hits
        begun[cpu, after] += row.hits
        # a task's name changes when it executes a program: the row that was hit last has the last one
        names[cpu, before] = max(names.get((cpu, before), (0.0, "")), (at_ns / max(1, row.hits), row.name))
    whole_ns = ended_ns - began_ns
    return tuple(
        TaskRun(
            cpu,
            task,
            name=names.get((cpu, task), (0, ""))[1],
            times=max(begun[cpu, task], ended[cpu, task]),
            ns=_within(_signed(sum_ns), whole_ns),
        )
        for (cpu, task), sum_ns in sorted(ns.items())
        if task != _IDLE
    )


def _within(sum_ns: int, whole_ns: int) -> int:
    """Add what is lacking; more than all the time is due to events that had no room."""
    return max(0, min(whole_ns, sum_ns if sum_ns >= 0 else sum_ns + whole_ns))


def _handlings(
    pair: tuple[Histogram, Histogram], entries: Counted, exits: Counted, ended_ns: int, cpus: CpuSet
) -> tuple[Handling, ...]:
    """Count handlings, which can't be as exact at the beginning: exits are counted a little earlier than entries, by microseconds."""
    begun, ended = ({row.keys: (row.hits, row.sum) for row in table.rows} for table in pair)
    gap_ns = entries.by_ns - exits.from_ns
    middle_ns = exits.from_ns + gap_ns // 2
    found = []
    for cpu, number in sorted(begun.keys() | ended.keys()):
        (entered, entered_ns), (left, left_ns) = begun.get((cpu, number), (0, 0)), ended.get((cpu, number), (0, 0))
        if cpu not in cpus or not entered:
            continue
        extra = left - entered  # exits without an entry, or, less than none, an entry without its exit
        ns = _signed(left_ns - entered_ns - extra * (middle_ns if extra > 0 else ended_ns))
        if -extra * gap_ns <= ns < 0:  # they were not exactly in the middle
            ns = 0
        found.append(Handling(cpu, number, entered, _within(ns, ended_ns - middle_ns) if extra >= 0 else max(0, ns)))
    return tuple(found)


def _signed(number: int) -> int:
    """Read the difference of two sums of 64 bits that may have overflowed."""
    number %= _WRAP
    return number if number < _WRAP // 2 else number - _WRAP


def _pair(event: str, key: str, entries: Counted, exits: Counted) -> tuple[Histogram, Histogram]:
    keys = ("common_cpu", key)
    return _histogram(f"{event}_entry", entries.text, keys), _histogram(f"{event}_exit", exits.text, keys)


def _histogram(event: str, text: bytes, keys: tuple[str, ...], task: str | None = None) -> Histogram:
    return _parsed(event, text, keys, value="common_timestamp", task=task)


def _parsed(
    event: str, text: bytes, keys: tuple[str, ...], *, value: str | None = None, task: str | None = None
) -> Histogram:
    try:
        return parse_histogram(text, keys, value=value, task=task)
    except HistogramSyntaxError as err:
        raise HistogramSyntaxError(f"the histogram of {event} is not understood: {err}") from err
