"""Kernel threads that can run on several CPUs, and their CPU affinity.

New threads don't inherit the affinity of kthreadd, so each scan must look for them. Workers of unbound workqueues needn't be moved, because
they follow /sys/devices/virtual/workqueue/cpumask. The kernel itself moves all other kernel threads off the CPUs of cpuset partitions.
"""

import errno
import os

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.task_stat import TaskStat, parse_allowed_cpus, parse_task_stat


class KernelThreadsError(NodeAgentError):
    """The kernel threads cannot be listed."""


class ThreadKey(Struct, frozen=True, order=True):
    """Identity of a thread: its ID, and its start time, because the kernel reuses IDs."""

    pid: int
    start_ticks: int
    """Start time of the thread in clock ticks since boot (field 22 of /proc/PID/stat)."""


class KernelThread(Struct, frozen=True):
    name: str
    cpus: CpuSet
    """CPU affinity of the thread, including offline CPUs."""


def move_thread(thread: ThreadKey, cpus: CpuSet) -> str | None:
    """Set the CPU affinity of a thread. Return None after success, otherwise the error's text."""
    try:
        if _read_stat(f"/proc/{thread.pid}").start_ticks != thread.start_ticks:
            return os.strerror(errno.ESRCH)
        os.sched_setaffinity(thread.pid, cpus)
    except OSError as err:
        return os.strerror(err.errno or 0)
    return None


class KernelThreads:
    """Finder of the kernel threads that can be moved.

    Workers and rescuers of workqueues aren't found, because the kernel refuses to move them (EINVAL). Threads that serve a process, such as
    vhost for a virtual machine, aren't found because they are in that process's cgroup.

    Args:
        proc: directory of the processes.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[tuple[str, int], _Look] = {}
        """Last check of each process, by name and inode of its directory in /proc. If a PID is reused, the directory's inode is another one
        (proc_flush_pid in fs/proc/base.c).
        """

    def find(self, *, rescan: bool = True) -> dict[ThreadKey, KernelThread]:
        """Return the kernel threads that can be moved. Threads that exit during the search are left out.

        Args:
            rescan: whether to check known threads again, because a thread may have entered or left a cgroup. Otherwise, only their affinity
                is read. Threads that the last call found for the first time are always checked again, because the kernel may bind or move a
                thread shortly after creating it.

        Raises:
            KernelThreadsError: the processes can't be listed, or a thread can't be read.
        """
        try:
            with os.scandir(self._proc) as entries:
                there = [(entry.name, entry.inode()) for entry in entries if entry.name.isdigit()]
        except OSError as err:
            raise KernelThreadsError(f"cannot list {self._proc}: {err.strerror}", hint=_HINT) from err
        known, found = self._known, {}
        # most processes are known and can't be moved, so that they need no further step
        self._known = {one: known[one] for one in there if one in known and known[one].is_final}
        for process in [one for one in there if one not in self._known]:
            directory = f"{self._proc}/{process[0]}"
            try:
                look = known.get(process)
                if look is None or rescan or look.is_first:
                    look = _look_at(directory, is_first=look is None)
                if look.thread is not None:
                    # /proc/PID/status includes offline CPUs, which sched_getaffinity(2) leaves out
                    found[look.thread] = KernelThread(look.name, parse_allowed_cpus(_read(f"{directory}/status")))
                self._known[process] = look
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError as err:  # a thread that is left out here would count as ended
                raise KernelThreadsError(f"cannot read {directory}: {err.strerror}", hint=_HINT) from err
        return found


class _Look(Struct, frozen=True):
    thread: ThreadKey | None
    """Key of the thread. None means that the thread can't be moved."""
    name: str
    is_first: bool
    is_final: bool
    """Whether the result can never change, because the thread is bound to a CPU or isn't a kernel thread. It then isn't checked again."""


def _look_at(directory: str, *, is_first: bool) -> _Look:
    stat = _read_stat(directory)
    is_final = not stat.is_kernel_thread or stat.is_bound
    is_movable = not is_final and _read(f"{directory}/cgroup").strip().endswith("0::/")
    key = ThreadKey(int(directory.rpartition("/")[2]), stat.start_ticks)
    return _Look(key if is_movable else None, stat.name, is_first, is_final)


_MOST_BYTES = 65536
"""Maximum number of bytes to read. The longest file, /proc/PID/status with its lists of CPUs and groups, is shorter."""
_HINT = "see `ulimit -n`; the agent lists the threads again at the next sync"


def _read_stat(directory: str) -> TaskStat:
    return parse_task_stat(_read(f"{directory}/stat"))


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "backslashreplace")
    finally:
        os.close(descriptor)
