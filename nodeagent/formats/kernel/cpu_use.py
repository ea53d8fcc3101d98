"""Derivation of CPU activity from the kernel's event histograms: the tasks that ran on the given CPUs, how often, and for how long.

A histogram has only sums of timestamps. They are sufficient, because the sum of all ends minus the sum of all starts is the total
running time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.histogram import Histogram, HistogramSyntaxError, parse_histogram

_IDLE = 0
"""ID of every CPU's idle task."""
_WRAP = 2**64
_MOST_FILTER_CHARACTERS = 3500
"""Maximum length of a trigger's filter in characters. Filter and keys together must fit into one page."""
SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
"""Softirqs by vector (include/linux/interrupt.h), with the names in /proc/softirqs."""


class Counted(Struct, frozen=True):
    """Histogram of one kind of event, and the latest possible time at which counting started."""

    text: bytes
    from_ns: int
    by_ns: int
    """Latest possible time of the start of counting, in nanoseconds of CLOCK_MONOTONIC, like the timestamps."""


class CpuHistograms(Struct, frozen=True):
    """Histograms in the kernel's format. Counting ended at the same time for all of them."""

    switches: Counted
    interrupt_entries: Counted
    interrupt_exits: Counted
    """Histogram of exits from interrupt handlers. It was started before the histogram of entries, so that no entry lacks its exit."""
    softirq_entries: Counted
    softirq_exits: Counted
    forks: bytes
    """Parents and children of tasks forked on these CPUs. This histogram was started before the others."""
    joins: bytes
    """Tasks that were moved to another cgroup, with the ID of the new cgroup."""
    exits: bytes
    """Tasks that began to exit on any CPU while the counters were prepared. This histogram was read before the others were started."""
    ended_ns: int


class TaskRun(Struct, frozen=True):
    """Runs of a task (process or thread) on one CPU."""

    cpu: int
    task: int
    name: str
    """Last known name of the task. Empty if no name was seen."""
    times: int
    ns: int


class Interrupt(Struct, frozen=True):
    """Name of an interrupt, and whether its affinity can be changed."""

    name: str
    """Names of the interrupt's devices, separated by commas. Empty if unknown."""
    is_movable: bool | None
    """Whether the kernel allows changing the interrupt's affinity. None means that this kernel doesn't report it."""


class Handling(Struct, frozen=True):
    """Handling of an interrupt, or of a kind of softirq, on one CPU."""

    cpu: int
    number: int
    times: int
    ns: int


class CpuUse(Struct, frozen=True):
    """Activity on the CPUs during the measurement."""

    elapsed_ns: int
    runs: tuple[TaskRun, ...]
    """Runs by CPU and task, without the idle task."""
    interrupts: tuple[Handling, ...]
    softirqs: tuple[Handling, ...]
    children: Mapping[int, tuple[int, ...]]
    """Child tasks by parent task."""
    joined: Mapping[int, tuple[int, ...]]
    """Tasks by the ID of the cgroup that they were moved into."""
    exiting: frozenset[int]
    """Tasks that were already exiting when counting began."""
    unobserved: CpuSet
    """CPUs without a task switch during the measurement. One task or the idle task ran there all the time."""
    dropped: int
    """Number of events that didn't fit into the kernel's tables. If it isn't 0, counts are too small and times may be wrong."""


def cpu_filter(cpus: CpuSet) -> str:
    """Return a histogram trigger's filter for these CPUs. If the exact filter would be too long, it matches the whole range from the lowest
    to the highest CPU.
    """
    ranges = [part.partition("-") for part in str(cpus).split(",")]
    text = "||".join(f"CPU>={low}&&CPU<={high}" if high else f"CPU=={low}" for low, _, high in ranges)
    if len(text) <= _MOST_FILTER_CHARACTERS:
        return text
    return f"CPU>={min(cpus)}&&CPU<={max(cpus)}"


def derive_cpu_use(record: CpuHistograms, cpus: CpuSet) -> CpuUse:
    """Derive the activity on these CPUs from their histograms.

    Raises:
        HistogramSyntaxError: a text doesn't have the kernel's format.
    """
    switches = _parse_histogram(
        "sched_switch",
        record.switches.text,
        ("common_cpu", "common_pid", "next_pid"),
        value="common_timestamp",
        task="common_pid",
    )
    interrupts = _parse_pair("irq_handler", "irq", record.interrupt_entries, record.interrupt_exits)
    softirqs = _parse_pair("softirq", "vec", record.softirq_entries, record.softirq_exits)
    forks = _parse_histogram("sched_process_fork", record.forks, ("parent_pid", "child_pid"))
    joins = _parse_histogram("cgroup_attach_task", record.joins, ("pid", "dst_id"))
    children, joined = defaultdict(list), defaultdict(list)
    for row in forks.rows:
        children[row.keys[0]].append(row.keys[1])
    for row in joins.rows:
        joined[row.keys[1]].append(row.keys[0])
    exits = _parse_histogram("sched_process_exit", record.exits, ("pid",))
    tables = (switches, *interrupts, *softirqs, forks, joins, exits)
    return CpuUse(
        elapsed_ns=record.ended_ns - record.switches.from_ns,
        runs=_derive_runs(switches, record.switches.from_ns, record.ended_ns, cpus),
        interrupts=_derive_handlings(
            interrupts, record.interrupt_entries, record.interrupt_exits, record.ended_ns, cpus
        ),
        softirqs=_derive_handlings(softirqs, record.softirq_entries, record.softirq_exits, record.ended_ns, cpus),
        children={parent: tuple(found) for parent, found in children.items()},
        joined={cgroup: tuple(found) for cgroup, found in joined.items()},
        exiting=frozenset(row.keys[0] for row in exits.rows),
        unobserved=cpus - CpuSet.from_ids(row.keys[0] for row in switches.rows),
        dropped=sum(table.dropped for table in tables),
    )


def descendants(children: Mapping[int, Iterable[int]], ancestors: Iterable[int]) -> frozenset[int]:
    """Return these tasks and all their descendants."""
    found: set[int] = set()
    left = list(ancestors)
    while left:
        task = left.pop()
        if task not in found:
            found.add(task)
            left.extend(children.get(task, ()))
    return frozenset(found)


def _derive_runs(switches: Histogram, began_ns: int, ended_ns: int, cpus: CpuSet) -> tuple[TaskRun, ...]:
    """Return the runs of all tasks. Each switch ends a run of one task and starts a run of another.

    Times are relative to the start of the measurement. If a run began earlier, only its part after this start counts. A run that continues
    to the end has no end event, so its sum lacks the measured time and is negative.
    """
    sums_ns: dict[tuple[int, int], int] = defaultdict(int)
    begun: dict[tuple[int, int], int] = defaultdict(int)
    ended: dict[tuple[int, int], int] = defaultdict(int)
    names: dict[tuple[int, int], tuple[float, str]] = {}
    for row in switches.rows:
        cpu, before, after = row.keys
        if cpu not in cpus:
            continue
        at_ns = (row.sum - row.hits * began_ns) % _WRAP
        sums_ns[cpu, before] += at_ns
        sums_ns[cpu, after] -= at_ns
        ended[cpu, before] += row.hits
        begun[cpu, after] += row.hits
        # When a task executes a program, its name changes. The most recent row has the current name.
        names[cpu, before] = max(names.get((cpu, before), (0.0, "")), (at_ns / max(1, row.hits), row.name))
    whole_ns = ended_ns - began_ns
    return tuple(
        TaskRun(
            cpu,
            task,
            name=names.get((cpu, task), (0, ""))[1],
            times=max(begun[cpu, task], ended[cpu, task]),
            ns=_clamp_to_window(_to_signed(sum_ns), whole_ns),
        )
        for (cpu, task), sum_ns in sorted(sums_ns.items())
        if task != _IDLE
    )


def _clamp_to_window(sum_ns: int, whole_ns: int) -> int:
    """Add the measured time to a negative sum, whose last run didn't end. Limit the result to the measured time, because dropped events
    falsify sums.
    """
    return max(0, min(whole_ns, sum_ns if sum_ns >= 0 else sum_ns + whole_ns))


def _derive_handlings(
    pair: tuple[Histogram, Histogram], entries: Counted, exits: Counted, ended_ns: int, cpus: CpuSet
) -> tuple[Handling, ...]:
    """Return the handling of each interrupt. Times are less exact than for tasks, because the counting of exits from interrupt handlers
    starts microseconds before the counting of entries into them.
    """
    begun, ended = ({row.keys: (row.hits, row.sum) for row in table.rows} for table in pair)
    gap_ns = entries.by_ns - exits.from_ns
    middle_ns = exits.from_ns + gap_ns // 2
    found = []
    for cpu, number in sorted(begun.keys() | ended.keys()):
        (entered, entered_ns), (left, left_ns) = begun.get((cpu, number), (0, 0)), ended.get((cpu, number), (0, 0))
        if cpu not in cpus or not entered:
            continue
        # number of exits without an entry, or, if negative, number of entries without an exit
        excess_exits = left - entered
        handled_ns = _to_signed(left_ns - entered_ns - excess_exits * (middle_ns if excess_exits > 0 else ended_ns))
        # the estimate places unmatched events in the middle of the gap, so the time may come out slightly negative
        if -excess_exits * gap_ns <= handled_ns < 0:
            handled_ns = 0
        found.append(
            Handling(
                cpu,
                number,
                entered,
                _clamp_to_window(handled_ns, ended_ns - middle_ns) if excess_exits >= 0 else max(0, handled_ns),
            )
        )
    return tuple(found)


def _to_signed(number: int) -> int:
    """Interpret the difference of two 64-bit sums that may have overflowed."""
    number %= _WRAP
    return number if number < _WRAP // 2 else number - _WRAP


def _parse_pair(event: str, key: str, entries: Counted, exits: Counted) -> tuple[Histogram, Histogram]:
    begun, ended = (
        _parse_histogram(f"{event}_{end}", counted.text, ("common_cpu", key), value="common_timestamp")
        for end, counted in (("entry", entries), ("exit", exits))
    )
    return begun, ended


def _parse_histogram(
    event: str, text: bytes, keys: tuple[str, ...], *, value: str | None = None, task: str | None = None
) -> Histogram:
    try:
        return parse_histogram(text, keys, value=value, task=task)
    except HistogramSyntaxError as err:
        raise HistogramSyntaxError(f"cannot parse the histogram of {event}: {err}") from err
