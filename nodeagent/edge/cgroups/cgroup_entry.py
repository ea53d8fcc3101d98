"""Entering a cgroup: find the processes below it, move this process there, and read what the kernel then reports. Decides nothing."""

import errno
import os
from pathlib import Path

from nodeagent.core.model.cgroup_layout import PAYLOAD, payload_path
from nodeagent.core.model.idset import MOST_CPUS, CpuSet, IdSetSyntaxError
from nodeagent.errors import NodeAgentError


class CgroupEntryError(NodeAgentError):
    """The kernel refused to move this process, or its report can't be read."""

    def __init__(self, message: str, *, path: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path


def used_below(directory: str) -> tuple[str, ...]:
    """Return the populated cgroups directly below a container's cgroup, or below its payload's.

    Raises:
        CgroupEntryError: a cgroup cannot be read.
    """
    try:
        beside = [name for name in _children(directory) if name != PAYLOAD]
        has_payload = Path(payload_path(directory)).is_dir()
        within = _children(payload_path(directory)) if has_payload else []
        names = [*beside, *(f"{PAYLOAD}/{name}" for name in within)]
        return tuple(name for name in names if _is_populated(f"{directory}/{name}"))
    except OSError as err:
        raise _failure(f"read cgroup {directory}", directory, err) from err


def _children(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))


def _is_populated(directory: str) -> bool:
    try:
        return "populated 1" in Path(directory, "cgroup.events").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return False  # the cgroup disappeared after it was listed


def join(directory: str) -> None:
    """Move this process into the cgroup, and clear its own affinity.

    Raises:
        CgroupEntryError: the kernel refuses.
    """
    forget_affinity()
    path = f"{directory}/cgroup.procs"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")  # 0 means the writer itself (cgroups(7))
        finally:
            os.close(descriptor)
    except OSError as err:
        raise _failure(f"enter cgroup {directory}", path, err) from err


def forget_affinity() -> None:
    """Let this process run on all CPUs of its cgroup.

    Since kernel 6.2, an earlier affinity (by systemd's CPUAffinity=, taskset) restricts it within the cgroup's CPUs, also when these change
    (sched_setaffinity(2) keeps the requested mask). A mask of all CPUs restricts nothing.

    Raises:
        CgroupEntryError: the kernel refuses.
    """
    try:
        os.sched_setaffinity(0, range(MOST_CPUS))
    except OSError as err:
        raise _failure("forget this process's own CPU affinity", "sched_setaffinity", err) from err


def own_cgroup() -> str:
    """Return the cgroup v2 path of this process as the kernel shows it.

    Raises:
        CgroupEntryError: /proc/self/cgroup has none.

    """
    path = "/proc/self/cgroup"
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as err:
        raise _failure(f"read {path}", path, err) from err
    for line in lines:
        if line.startswith("0::"):
            return line.removeprefix("0::")
    raise CgroupEntryError(
        f"{path} names no cgroup v2", path=path, hint="boot with `systemd.unified_cgroup_hierarchy=1` (cgroup v2 only)"
    )


def own_cpus() -> CpuSet:
    """Return the CPUs on which this process may run (`Cpus_allowed_list`).

    Raises:
        CgroupEntryError: /proc/self/status does not have them.
    """
    path = "/proc/self/status"
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        text = next(line.partition(":")[2].strip() for line in lines if line.startswith("Cpus_allowed_list:"))
        return CpuSet.parse(text)
    except OSError as err:
        raise _failure(f"read {path}", path, err) from err
    except (StopIteration, IdSetSyntaxError) as err:
        raise CgroupEntryError(
            f"{path} has no readable Cpus_allowed_list", path=path, hint="is /proc mounted? see `findmnt /proc`"
        ) from err


def _failure(doing: str, path: str, err: OSError) -> CgroupEntryError:
    hint = "run as root; `nodeagent inspect` shows the container's state, dmesg may have the kernel's reason"
    if err.errno == errno.EOPNOTSUPP:
        hint = "a process is in the cgroup above instead, not by `nodeagent exec`: see cgroup.threads there, and end it"
    return CgroupEntryError(f"cannot {doing}: {os.strerror(err.errno or 0)}", path=path, hint=hint)
