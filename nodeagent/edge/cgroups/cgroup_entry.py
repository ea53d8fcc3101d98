"""Entry into a cgroup: move the current process into a container's cgroup, and read the process's own cgroup and CPUs.

This module imports little, because the command `job` imports it at every start.
"""

import errno
import os

from nodeagent.core.model.kernel_limits import MOST_CPUS
from nodeagent.errors import NodeAgentError


class CgroupEntryError(NodeAgentError):
    """The current process can't enter a cgroup, or can't read its own cgroup or CPUs."""

    def __init__(self, message: str, *, path: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path


def list_populated_below(directory: str, payload: str) -> tuple[str, ...]:
    """Return the names of the populated cgroups directly below a container's cgroup and directly below its child `payload`.

    Raises:
        CgroupEntryError: a cgroup can't be read.
    """
    try:
        names = _list_children(directory)
        if payload in names:
            names.remove(payload)
            names += [f"{payload}/{name}" for name in _list_children(f"{directory}/{payload}")]
        return tuple(name for name in names if _is_populated(f"{directory}/{name}"))
    except OSError as err:
        raise _make_error(f"read cgroup {directory}", directory, err) from err


def _list_children(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))


def _is_populated(directory: str) -> bool:
    try:
        return "populated 1\n" in _read(f"{directory}/cgroup.events")
    except FileNotFoundError:  # the cgroup is gone
        return False


def enter_cgroup(directory: str) -> None:
    """Move this process into a cgroup, after resetting its CPU affinity so that it may use all CPUs there.

    Raises:
        CgroupEntryError: the kernel refuses the move.
    """
    reset_affinity()
    path = f"{directory}/cgroup.procs"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")  # the number 0 means the writing process itself (cgroups(7))
        finally:
            os.close(descriptor)
    except OSError as err:
        raise _make_error(f"enter cgroup {directory}", path, err) from err


def reset_affinity() -> None:
    """Allow this process to run on all CPUs of its cgroup, now and after each move to another cgroup.

    Without this reset, an affinity mask set earlier by systemd's CPUAffinity= or taskset would limit the process in every cgroup. Since
    version 6.2, the kernel keeps such a mask (sched_setaffinity(2)). A mask of all CPUs removes the limit.

    Raises:
        CgroupEntryError: the kernel refuses the mask.
    """
    try:
        os.sched_setaffinity(0, range(MOST_CPUS))
    except OSError as err:
        raise _make_error("reset this process's own CPU affinity", "sched_setaffinity", err) from err


def read_own_cgroup() -> str:
    """Return this process's cgroup v2 path, as in /proc/self/cgroup.

    Raises:
        CgroupEntryError: the file can't be read or has no line for cgroup v2.
    """
    path = "/proc/self/cgroup"
    try:
        lines = _read(path).splitlines()
    except OSError as err:
        raise _make_error(f"read {path}", path, err) from err
    for line in lines:
        if line.startswith("0::"):
            return line.removeprefix("0::")
    raise CgroupEntryError(
        f"{path} contains no path of a cgroup v2",
        path=path,
        hint="boot with `systemd.unified_cgroup_hierarchy=1` (cgroup v2 only)",
    )


def read_own_cpus() -> str:
    """Return the CPUs on which this process may run (`Cpus_allowed_list`), in the text form of a CpuSet.

    Raises:
        CgroupEntryError: /proc/self/status can't be read.
    """
    path = "/proc/self/status"
    try:
        lines = _read(path).splitlines()
    except OSError as err:
        raise _make_error(f"read {path}", path, err) from err
    for line in lines:
        if line.startswith("Cpus_allowed_list:"):
            return line.partition(":")[2].strip()
    raise CgroupEntryError(f"{path} has no Cpus_allowed_list", path=path, hint="is /proc mounted? see `findmnt /proc`")


def _read(path: str) -> str:
    """Read a kernel file (in /proc, /sys or a cgroup) by a single system call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


_MOST_BYTES = 1 << 18


def _make_error(action: str, path: str, err: OSError) -> CgroupEntryError:
    hint = "run as root; `nodeagent inspect` shows the container's state, dmesg may have the kernel's reason"
    if err.errno == errno.EOPNOTSUPP:
        hint = "another program has put a process into the cgroup above: see cgroup.threads there, and end the process"
    return CgroupEntryError(f"cannot {action}: {os.strerror(err.errno or 0)}", path=path, hint=hint)
