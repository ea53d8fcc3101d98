"""Parsers of /proc/PID/stat and /proc/PID/status for processes and threads (proc_pid_stat(5), proc_pid_status(5))."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet

_KERNEL_THREAD = 0x0020_0000
"""Flag PF_KTHREAD (include/linux/sched.h)."""
_BOUND = 0x0400_0000
"""Flag PF_NO_SETAFFINITY: the kernel refuses to change the task's affinity."""


class TaskStat(Struct, frozen=True):
    name: str
    state: str
    flags: int
    start_ticks: int
    """Start time in clock ticks since boot. Together with the ID, the start time identifies the task uniquely."""
    cpu: int
    """CPU on which the task ran last."""
    threads: int = 1
    """Number of threads of the task's process."""
    parent: int = 0
    """PID of the parent. 0 means that the task has no parent, or that the parent is outside of this PID namespace."""
    session: int = 0
    """PID of the session's leader. 0 means that the leader is outside of this PID namespace."""

    @property
    def is_dead(self) -> bool:
        """Whether the process is a zombie or dead. A process whose main thread has exited isn't dead while another of its threads runs."""
        return self.state in {"Z", "X", "x"} and self.threads <= 1

    @property
    def is_kernel_thread(self) -> bool:
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def is_bound(self) -> bool:
        """Whether the kernel refuses to change the task's affinity."""
        return bool(self.flags & _BOUND)


def parse_task_stat(text: str) -> TaskStat:
    """Parse a stat file. The name may contain blanks and parentheses, so fields are counted from 3 after the last
    parenthesis.
    """
    name, _, rest = text.rpartition(")")
    fields = rest.split()
    flags, start_ticks, cpu, threads, parent, session = (int(fields[place]) for place in (6, 19, 36, 17, 1, 3))
    return TaskStat(name.partition("(")[2], fields[0], flags, start_ticks, cpu, threads, parent, session)


def parse_allowed_cpus(status: str) -> CpuSet:
    """Parse the CPUs that a task is allowed to run on, including offline ones."""
    _, _, rest = status.partition("\nCpus_allowed_list:")
    return CpuSet.parse(rest.partition("\n")[0].strip())
