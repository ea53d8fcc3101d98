"""Judges a record of the scheduler by the kernel's events. What the agent has logged counts for the one exception alone.

The claim, for each run of an exclusive container:

- It *owns* CPUs from the moment its process has been loaded (sched_process_exec, just before the first instruction) until the last
  task of its cgroup has ended (sched_process_exit). Which CPUs: the Cpus_allowed_list that the process reads of itself as the first
  thing it does. They have to be those that the agent had promised it by then.
- A task is *foreign* to it if it belongs to another container, be it of the same pod: it joined that container's cgroup (or its
  parent did), and has not ended. That includes the launcher's child between joining the cgroup and its exec.
- *Overlap*: a foreign task is on an owned CPU (between the sched_switch to it and the one away from it) while it is owned.
- *Stray*: a task of the exclusive container itself is, while it owns, on a CPU that it does not own. A mixed container, which has the
  shared pool beside its own CPUs, cannot stray: on another's CPU, it overlaps like any other.
- A *resize* changes what it owns while it runs. A CPU that is granted is owned from the moment at which it was seen in the container's
  cpuset; one that is given up is owned until the last look that found it there. Between the last look at the old cpuset and the first at
  the new one, either may be so: the container may be on such a CPU, and so may others. The kernel shows a cpuset before it has moved the
  container's tasks, so they may be on a CPU that is given up until a look at all of them has found each elsewhere; nobody who owns that
  CPU by then may meet them there. How long the two last at most is told.

There is to be neither, for any length of time, but for two (see `exceptions`), which are counted apart: a container whose last CPU is
away, which owns what it was promised all the same; and one of a container runtime's that has begun while nobody was asked, as the agent
was away, until it is where it belongs.

What is not claimed: that host daemons and kernel threads keep away; that a CPU is
already empty between the agent's write to a cpuset and the exec; and anything about a task after its sched_process_exit, when the
kernel may still be on the CPU to tear it down but none of its instructions can run.

A record is worth nothing if it may be incomplete, so whatever contradicts itself is counted as a gap.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from integration.overlap.events import Attach, Event, Exec, Exit, Fork, Switch, Told
from integration.overlap.exceptions import Exceptions, Resize, Span

_HANDOVER_NS = 10_000_000_000
"""kubelet's reconcile period."""
_KEPT = 200
"""Of each kind of finding; all are counted."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A task where it should not be."""

    cpu: int
    owner: str
    """Cgroup of the exclusive container."""
    owned: frozenset[int]
    intruder: str
    """Cgroup of the task; the owner's own if it strayed."""
    pid: int
    program: str
    start_ns: int
    duration_ns: int
    after_exec_ns: int
    """From the owner's exec to the start."""

    def __str__(self) -> str:
        return (
            f"CPU {self.cpu} of {self.owner} (owns {sorted(self.owned)}): {self.program}[{self.pid}] of {self.intruder}"
            f" from {self.start_ns} ns for {self.duration_ns} ns, {self.after_exec_ns / 1e6:.3f} ms after the exec"
        )


@dataclass(slots=True)
class Findings:
    """What was seen. `faults` break the claim, `gaps` break the proof."""

    switches: int = 0
    stays: int = 0
    """Times that a task of a container was on a CPU."""
    owners: int = 0
    """Runs of exclusive containers that told which CPUs they own."""
    owned_cpus: int = 0
    """CPUs of all these runs together."""
    untold: int = 0
    """Runs of exclusive containers that ended, or stood at the end of the record, without a word."""
    containers: set[str] = field(default_factory=set)
    """Cgroups of which a task was on a CPU."""
    handovers: int = 0
    """Owned CPUs on which a foreign task had been within ten seconds before the exec: where a wrong order would show."""
    closest_ns: int | None = None
    """Shortest time from a foreign task's leaving a CPU to the exec of the CPU's owner."""
    granted: int = 0
    """CPUs that containers got while they ran."""
    given_up: int = 0
    longest_unknown_ns: int = 0
    """The longest time between the looks before and after a change of a cpuset."""
    longest_leaving_ns: int = 0
    """The longest time from there until no task of the container was elsewhere."""
    overlap_count: int = 0
    overlaps: list[Presence] = field(default_factory=list)
    stray_count: int = 0
    strays: list[Presence] = field(default_factory=list)
    granted_overlap_count: int = 0
    """Of the overlaps, those on CPUs that the owner got while it ran."""
    excused_overlap_count: int = 0
    excused_stray_count: int = 0
    excused_starts: int = 0
    """Containers that started when some of their CPUs were away."""
    longest_excused_overlap_ns: int = 0
    unasked_starts: int = 0
    """Containers that a runtime has started while nobody was asked, and that have therefore told of other CPUs."""
    unasked_overlap_count: int = 0
    """With one of these on either side."""
    unasked_stray_count: int = 0
    runtimes_own_count: int = 0
    """Overlaps by processes that a runtime makes containers' processes of, before they are."""
    longest_runtimes_own_ns: int = 0
    promises: list[str] = field(default_factory=list)
    """Faults in what is owned: not as many CPUs as asked for, others than promised, or one CPU with two owners."""
    gap_count: int = 0
    gaps: list[str] = field(default_factory=list)

    @property
    def faults(self) -> tuple[str, ...]:
        overlaps = tuple(f"overlap: {found}" for found in self.overlaps)
        strays = tuple(f"stray: {found}" for found in self.strays)
        return (*overlaps, *strays, *self.promises)

    def gap(self, text: str) -> None:
        self.gap_count += 1
        if len(self.gaps) < _KEPT:
            self.gaps.append(text)


@dataclass(slots=True)
class _Task:
    pid: int
    cgroup: str | None
    """None: belongs to no container (yet)."""
    program: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Stay:
    cpu: int
    pid: int
    cgroup: str
    program: str
    start_ns: int
    end_ns: int | None = None


@dataclass(slots=True)
class _Owner:
    cgroup: str
    pid: int
    since_ns: int
    left_before: dict[int, tuple[int, str]]
    """By CPU: when a container's task left it last, and whose."""
    cpus: frozenset[int] | None = None
    """None: it has not told yet."""
    is_mixed: bool = False
    """It has the shared pool beside its own CPUs."""
    resizes: Sequence[Resize] = ()

    def owned(self, cpu: int) -> Iterator[Span]:
        """Return when that CPU is certainly its own."""
        return self._spans(cpu, starts=lambda change: change.after_ns, ends=lambda change: change.before_ns)

    def usable(self, cpu: int) -> Iterator[Span]:
        """Return when it may be on that CPU."""
        return self._spans(cpu, starts=lambda change: change.before_ns, ends=lambda change: change.left_ns)

    def _spans(self, cpu: int, starts: Callable[[Resize], int], ends: Callable[[Resize], int]) -> Iterator[Span]:
        since_ns = self.since_ns if self.cpus is not None and cpu in self.cpus else None
        for change in self.resizes:
            if cpu in change.cpus and since_ns is None:
                since_ns = starts(change)
            elif cpu not in change.cpus and since_ns is not None:
                yield Span(since_ns, ends(change))
                since_ns = None
        if since_ns is not None:
            yield Span(since_ns, math.inf)


class Witness:
    """Takes events in the order in which they happened (see `Merge`).

    Args:
        is_container: whether a cgroup (path from the root of cgroup v2) is one of the pods' containers.
        exclusive_programs: names of the programs whose first words are `Told`. A container has one process of these.
        exceptions: from the claim.

    """

    def __init__(
        self, is_container: Callable[[str], bool], exclusive_programs: Collection[str], exceptions: Exceptions
    ) -> None:
        self.findings = Findings()
        self._is_container = is_container
        self._exclusive_programs = exclusive_programs
        self._exceptions = exceptions
        self._tasks: dict[int, _Task] = {}
        self._running: dict[int, int] = {}
        self._stays: dict[int, _Stay] = {}
        self._live: dict[str, set[int]] = {}
        self._began_ns: dict[str, int] = {}
        """By cgroup: when there was a task in it first."""
        self._owners: dict[str, _Owner] = {}
        self._left: dict[int, tuple[int, str]] = {}
        self._past: deque[_Stay] = deque()
        """Stays that are over, but not older than the exec of an owner that has not told its CPUs yet."""
        self._now_ns = 0

    def see(self, event: Event) -> None:
        self._now_ns = event.at_ns
        match event:
            case Switch():
                self._switch(event)
            case Fork():
                self._fork(event)
            case Exec():
                self._exec(event)
            case Exit():
                self._exit(event)
            case Attach():
                self._attach(event)
            case Told():
                self._told(event)

    def finish(self) -> Findings:
        """Judge what is still under way, as if everything ended with the last event."""
        for cgroup in tuple(self._owners):
            self._disown(cgroup)
        return self.findings

    def _switch(self, event: Switch) -> None:
        self.findings.switches += 1
        before = self._running.get(event.cpu)
        if before != event.prev_pid:
            for pid, what in ((before, "never left"), (event.prev_pid, "never came to")):
                task = self._tasks.get(pid) if pid is not None else None
                if task is not None and not task.is_over:
                    self.findings.gap(f"{event.at_ns}: task {pid} {what} CPU {event.cpu}: an event is missing")
        self._end_stay(event.cpu)
        self._running[event.cpu] = event.next_pid
        self._begin_stay(event.cpu)

    def _fork(self, event: Fork) -> None:
        old = self._tasks.get(event.child_pid)
        if old is not None and not old.is_over:
            self.findings.gap(f"{event.at_ns}: task {event.child_pid} was made twice without an end")
            self._end_task(old)
        parent = self._tasks.get(event.parent_pid)
        cgroup, program = (parent.cgroup, parent.program) if parent is not None else (None, "")
        self._tasks[event.child_pid] = _Task(event.child_pid, cgroup, program)
        self._join(event.child_pid, cgroup)

    def _exec(self, event: Exec) -> None:
        if event.old_pid != event.pid:
            self._take_over(event)
        task = self._tasks.get(event.pid)
        if task is None:
            return
        task.program = event.program.rpartition("/")[2]
        if task.cgroup is not None and task.program in self._exclusive_programs:
            if task.cgroup in self._owners:
                self.findings.gap(f"{event.at_ns}: {task.cgroup} has a second exclusive process")
                return
            self._owners[task.cgroup] = _Owner(task.cgroup, event.pid, event.at_ns, dict(self._left))

    def _take_over(self, event: Exec) -> None:
        """A thread that calls exec gets the process's id; the thread that had it has ended (fs/exec.c, de_thread)."""
        task = self._tasks.pop(event.old_pid, None)
        if task is None:
            return
        self._end_stay(event.cpu)
        if task.cgroup is not None:
            self._live[task.cgroup] -= {event.old_pid}
        task.pid = event.pid
        self._tasks[event.pid] = task
        self._running[event.cpu] = event.pid
        self._join(event.pid, task.cgroup)

    def _exit(self, event: Exit) -> None:
        task = self._tasks.get(event.pid)
        if task is not None and not task.is_over:
            self._end_task(task)

    def _end_task(self, task: _Task) -> None:
        task.is_over = True
        for cpu, stay in tuple(self._stays.items()):
            if stay.pid == task.pid:
                self._end_stay(cpu)
        if task.cgroup is not None:
            self._live[task.cgroup].discard(task.pid)
            if not self._live[task.cgroup]:
                self._disown(task.cgroup)

    def _attach(self, event: Attach) -> None:
        cgroup = event.cgroup.removesuffix("/payload") if self._is_container(event.cgroup) else None
        task = self._tasks.setdefault(event.pid, _Task(event.pid, None, ""))
        if task.cgroup is not None and task.cgroup != cgroup:
            self.findings.promises.append(f"task {event.pid} moved from {task.cgroup} to {event.cgroup}")
            return
        task.cgroup, task.is_over = cgroup, False
        self._join(event.pid, cgroup)

    def _told(self, event: Told) -> None:
        task = self._tasks.get(event.pid)
        owner = self._owners.get(task.cgroup) if task is not None and task.cgroup is not None else None
        if owner is None or owner.pid != event.pid or owner.cpus is not None:
            self.findings.gap(f"{event.at_ns}: task {event.pid} tells of CPUs, but its start was not seen")
            return
        is_other = event.cpus != self._exceptions.promised(owner.cgroup)
        if is_other and self._unasked_until(owner.cgroup) >= owner.since_ns:
            self.findings.unasked_starts += 1
            del self._owners[owner.cgroup]
            self._forget_past()
            return
        owner.cpus = cpus = self._owned(owner, event)
        owner.is_mixed = event.allowed is not None
        lacking = frozenset() if event.allowed is None else event.cpus - event.allowed
        if not all(self._exceptions.may_lack(owner.cgroup, frozenset({cpu}), event.at_ns) for cpu in lacking):
            self.findings.promises.append(f"{owner.cgroup} was told of CPUs {sorted(lacking)}, which it may not use")
        owner.resizes = self._exceptions.resizes(owner.cgroup)
        self._count_resizes(owner)
        self.findings.owners += 1
        self.findings.owned_cpus += len(cpus)
        self._count_handovers(owner, cpus)
        for stay in self._past:
            self._judge(stay, owner)
        self._forget_past()

    def _owned(self, owner: _Owner, event: Told) -> frozenset[int]:
        """What it owns: the CPUs that it tells of, if they are what was promised; those that were promised where some are away."""
        promised = self._exceptions.promised(owner.cgroup)
        if promised is not None and len(promised) == event.asked:
            if event.cpus == promised:
                return promised
            has_some = event.cpus <= promised and self._exceptions.may_lack(owner.cgroup, promised, event.at_ns)
            if has_some or self._exceptions.may_stray(owner.cgroup, promised, event.at_ns, event.at_ns):
                self.findings.excused_starts += 1
                return promised
        shown, known = sorted(event.cpus), "unknown" if promised is None else sorted(promised)
        self.findings.promises.append(
            f"{owner.cgroup} asked for {event.asked} CPUs and has {shown} at {event.at_ns} ns, promised are {known}"
        )
        return event.cpus

    def _count_resizes(self, owner: _Owner) -> None:
        before = owner.cpus or frozenset()
        for change in owner.resizes:
            self.findings.granted += len(change.cpus - before)
            self.findings.given_up += len(before - change.cpus)
            unknown_ns = change.after_ns - change.before_ns
            self.findings.longest_unknown_ns = max(self.findings.longest_unknown_ns, unknown_ns)
            leaving_ns = change.left_ns - change.after_ns
            self.findings.longest_leaving_ns = max(self.findings.longest_leaving_ns, leaving_ns)
            before = change.cpus

    def _count_handovers(self, owner: _Owner, cpus: frozenset[int]) -> None:
        for cpu in cpus:
            left_ns, cgroup = owner.left_before.get(cpu, (None, ""))
            if left_ns is None or cgroup == owner.cgroup or owner.since_ns - left_ns > _HANDOVER_NS:
                continue
            self.findings.handovers += 1
            between_ns = owner.since_ns - left_ns
            closest_ns = self.findings.closest_ns
            self.findings.closest_ns = between_ns if closest_ns is None else min(closest_ns, between_ns)

    def _disown(self, cgroup: str) -> None:
        owner = self._owners.get(cgroup)
        if owner is None:
            return
        for stay in self._stays.values():
            self._judge(stay, owner)
        if owner.cpus is None:
            self.findings.untold += 1
        del self._owners[cgroup]
        for other in self._owners.values():
            twice = sorted(cpu for cpu in _all_cpus(owner) & _all_cpus(other) if self._own_both(owner, other, cpu))
            if twice:
                self.findings.promises.append(f"CPUs {twice} belong to {other.cgroup} and to {owner.cgroup}")
        self._forget_past()

    def _own_both(self, ended: _Owner, other: _Owner, cpu: int) -> bool:
        """Whether a CPU certainly had two owners until now, when one of them has ended."""
        return any(
            max(one.start_ns, another.start_ns) < min(one.end_ns, another.end_ns, self._now_ns)
            for one in ended.owned(cpu)
            for another in other.owned(cpu)
        )

    def _join(self, pid: int, cgroup: str | None) -> None:
        if cgroup is not None:
            self._live.setdefault(cgroup, set()).add(pid)
            self._began_ns.setdefault(cgroup, self._now_ns)
        for cpu, running in self._running.items():
            if running == pid and cpu not in self._stays:
                self._begin_stay(cpu)

    def _begin_stay(self, cpu: int) -> None:
        task = self._tasks.get(self._running[cpu])
        if task is None or task.cgroup is None or task.is_over:
            return
        self.findings.stays += 1
        self.findings.containers.add(task.cgroup)
        self._stays[cpu] = _Stay(cpu, task.pid, task.cgroup, task.program, self._now_ns)

    def _end_stay(self, cpu: int) -> None:
        running = self._stays.pop(cpu, None)
        if running is None:
            return
        stay = _Stay(cpu, running.pid, running.cgroup, running.program, running.start_ns, self._now_ns)
        self._left[cpu] = (self._now_ns, stay.cgroup)
        is_told = True
        for owner in self._owners.values():
            if owner.cpus is None:
                is_told = False
            else:
                self._judge(stay, owner)
        if not is_told:
            self._past.append(stay)

    def _judge(self, stay: _Stay, owner: _Owner) -> None:
        """Compare one stay with one ownership; called once for each pair, when the first of the two is over."""
        is_own = stay.cgroup == owner.cgroup
        if owner.cpus is None or (owner.is_mixed and is_own):
            return
        end_ns = self._now_ns if stay.end_ns is None else stay.end_ns
        wrong = _without(owner.usable(stay.cpu), owner.since_ns) if is_own else owner.owned(stay.cpu)
        for span in wrong:
            start_ns, until_ns = max(stay.start_ns, int(span.start_ns)), min(end_ns, span.end_ns)
            if until_ns > start_ns:
                self._find(stay, owner, start_ns, int(until_ns) - start_ns)

    def _find(self, stay: _Stay, owner: _Owner, start_ns: int, duration_ns: int) -> None:
        found = Presence(
            cpu=stay.cpu,
            owner=owner.cgroup,
            owned=_owned_at(owner, start_ns),
            intruder=stay.cgroup,
            pid=stay.pid,
            program=stay.program,
            start_ns=start_ns,
            duration_ns=duration_ns,
            after_exec_ns=start_ns - owner.since_ns,
        )
        is_stray = stay.cgroup == owner.cgroup
        if self._is_of_unasked(found):
            self.findings.unasked_stray_count += is_stray
            self.findings.unasked_overlap_count += not is_stray
            return
        if not is_stray and self._exceptions.is_runtimes_own(found.intruder, found.program):
            self.findings.runtimes_own_count += 1
            self.findings.longest_runtimes_own_ns = max(self.findings.longest_runtimes_own_ns, duration_ns)
            return
        if self._is_excused(found):
            self.findings.excused_stray_count += is_stray
            self.findings.excused_overlap_count += not is_stray
            if not is_stray:
                longest_ns = max(self.findings.longest_excused_overlap_ns, duration_ns)
                self.findings.longest_excused_overlap_ns = longest_ns
            return
        self.findings.stray_count += is_stray
        self.findings.overlap_count += not is_stray
        self.findings.granted_overlap_count += not is_stray and found.cpu not in (owner.cpus or ())
        kept = self.findings.strays if is_stray else self.findings.overlaps
        if len(kept) < _KEPT:
            kept.append(found)

    def _is_excused(self, found: Presence) -> bool:
        end_ns = found.start_ns + found.duration_ns
        if found.intruder == found.owner:
            # of none it is not known that they are away
            return bool(found.owned) and self._exceptions.may_stray(found.owner, found.owned, found.start_ns, end_ns)
        if _pod_of(found.intruder) != _pod_of(found.owner):
            return False
        lost = self._exceptions.promised(found.intruder)
        return lost is not None and self._exceptions.may_intrude(found.intruder, lost, found.start_ns, end_ns)

    def _is_of_unasked(self, found: Presence) -> bool:
        end_ns = found.start_ns + found.duration_ns
        return any(end_ns <= self._unasked_until(cgroup) for cgroup in (found.intruder, found.owner))

    def _unasked_until(self, cgroup: str) -> float:
        return self._exceptions.unasked_until(cgroup, self._began_ns[cgroup])

    def _forget_past(self) -> None:
        needed_ns = min((owner.since_ns for owner in self._owners.values() if owner.cpus is None), default=None)
        while self._past and (needed_ns is None or (self._past[0].end_ns or 0) < needed_ns):
            self._past.popleft()


def _owned_at(owner: _Owner, at_ns: int) -> frozenset[int]:
    return frozenset(cpu for cpu in _all_cpus(owner) if any(span.holds(at_ns, at_ns) for span in owner.owned(cpu)))


def _all_cpus(owner: _Owner) -> frozenset[int]:
    """Return those that it owns at any time."""
    return (owner.cpus or frozenset()).union(*(change.cpus for change in owner.resizes))


def _without(spans: Iterable[Span], since_ns: int) -> Iterator[Span]:
    """Return the time since then that is in none of the spans, which are in order."""
    at_ns: float = since_ns
    for span in spans:
        yield Span(at_ns, span.start_ns)
        at_ns = max(at_ns, span.end_ns)
    if at_ns < math.inf:
        yield Span(at_ns, math.inf)


def _pod_of(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]


class Merge:
    """Brings the events of all CPUs into one order: each CPU's come in their own, one CPU's long after another's."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self._waiting: list[Event] = []
        self._last_ns: dict[int, int] = {}
        self._released_ns = 0

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.at_ns < self._released_ns:
                self.gaps.append(f"an event of CPU {event.cpu} came {self._released_ns - event.at_ns} ns too late")
            if event.at_ns < self._last_ns.get(event.cpu, 0):
                self.gaps.append(f"the clock of CPU {event.cpu} went back at {event.at_ns} ns")
            self._last_ns[event.cpu] = event.at_ns
            self._waiting.append(event)

    def until(self, limit_ns: int | None) -> Iterator[Event]:
        """Give all events before that time, which nobody will add to any more; None: all there are."""
        self._waiting.sort(key=itemgetter(0))  # stable: what one CPU did in one nanosecond keeps its order
        count = 0
        for event in self._waiting:
            if limit_ns is not None and event.at_ns >= limit_ns:
                break
            count += 1
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        if limit_ns is not None:
            self._released_ns = max(self._released_ns, limit_ns)
        yield from ready
