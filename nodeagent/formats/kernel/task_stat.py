"""/proc/PID/stat and /proc/PID/status: what the kernel says of a process or a thread (proc_pid_stat(5), proc_pid_status(5))."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet

_KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD (include/linux/sched.h)."""
_BOUND = 0x0400_0000
"""PF_NO_SETAFFINITY."""


class TaskStat(Struct, frozen=True):
    name: str
    state: str
    flags: int
    start_ticks: int
    """Since boot. With the id it is unique."""
    cpu: int
    """That it ran on last."""

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only waits for its parent."""
        return self.state in {"Z", "X", "x"}

    @property
    def is_kernel_thread(self) -> bool:
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def is_bound(self) -> bool:
        """Whether the kernel lets nobody change its affinity."""
        return bool(self.flags & _BOUND)


def parse_task_stat(text: str) -> TaskStat:
    """Read it. The name may contain blanks and parentheses, so everything is counted from the last parenthesis: field 3 comes next."""
    name, _, rest = text.rpartition(")")
    fields = rest.split()
    return TaskStat(name.partition("(")[2], fields[0], int(fields[6]), int(fields[19]), int(fields[36]))


def parse_allowed_cpus(status: str) -> CpuSet:
    """Read where it may run, offline CPUs too."""
    _, _, rest = status.partition("\nCpus_allowed_list:")
    return CpuSet.parse(rest.partition("\n")[0].strip())
