"""What the kernel reported about the pods' processes, one value per trace event. Times are of one clock for all CPUs."""

from typing import NamedTuple

TOLD = "nodeagent-owns"
"""First word of an exclusive process's line in trace_marker: `nodeagent-owns COUNT CPULIST`; of one that also shares CPUs,
`nodeagent-owns COUNT OWN ALL`, where `-` means none.
"""


class Switch(NamedTuple):
    """`next_pid` takes over the CPU from `prev_pid` (sched_switch). 0 is the idle task of any CPU."""

    at_ns: int
    cpu: int
    prev_pid: int
    next_pid: int


class Fork(NamedTuple):
    """A task was made, a thread or a process; it has not run yet (sched_process_fork)."""

    at_ns: int
    cpu: int
    parent_pid: int
    child_pid: int


class Exec(NamedTuple):
    """The program is loaded and its first instruction comes next (sched_process_exec)."""

    at_ns: int
    cpu: int
    pid: int
    old_pid: int
    """Differs from `pid` if a thread called it: it takes over the process's id."""
    program: str


class Exit(NamedTuple):
    """The task executes no instruction of its program any more (sched_process_exit); the kernel still tidies up in its name."""

    at_ns: int
    cpu: int
    pid: int


class Attach(NamedTuple):
    """A process has moved to another cgroup, and is on a CPU that is allowed there (cgroup_attach_task)."""

    at_ns: int
    cpu: int
    pid: int
    cgroup: str


class Told(NamedTuple):
    """An exclusive process's first words: how many CPUs it was promised, and which its own /proc/self/status shows."""

    at_ns: int
    cpu: int
    pid: int
    asked: int
    cpus: frozenset[int]
    allowed: frozenset[int] | None = None
    """If it shares CPUs beside these: all that /proc/self/status shows; its own are then those that the agent has told it."""


Event = Switch | Fork | Exec | Exit | Attach | Told


def cpu_list(text: str) -> frozenset[int]:
    """Read the kernel's list format. Not by the agent's own parser: a proof must not share a mistake with what it watches."""
    cpus: set[int] = set()
    if text == "-":
        return frozenset()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
