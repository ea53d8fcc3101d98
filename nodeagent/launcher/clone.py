"""Fork of a process into a cgroup. It starts there, and needn't be moved.

A move is slow: the kernel waits until every CPU has passed through a quiescent state of RCU (cgroup_threadgroup_rwsem), which takes tens of
milliseconds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal

_SYS_CLONE3 = 435  # on x86-64 and arm64
CLONE_INTO_CGROUP = 0x2_0000_0000  # linux/sched.h


class CloneArguments(ctypes.Structure):
    """Struct clone_args of linux/sched.h."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    )


FIRST_KERNEL = (6, 4)
"""Before, the kernel leaves the child with the CPUs and memory nodes of its parent instead of its cgroup's, but for releases with the fix
of April 2023 (cpuset_fork in kernel/cgroup/cpuset.c).
"""
# calls by PyDLL keep the lock of the interpreter, as os.fork does
_program = ctypes.PyDLL(None, use_errno=True)
_program.syscall.restype = ctypes.c_long


def fork_into(cgroup: str) -> int:
    """Fork as os.fork does, with the child in a cgroup from the start. The process must have no other threads.

    Raises:
        OSError: the kernel can't do this, or does it wrongly, or the cgroup takes no processes.
    """
    if tuple(map(int, re.findall(r"[0-9]+", os.uname().release)[:2])) < FIRST_KERNEL:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), cgroup)
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    arguments = CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=directory)
    size = ctypes.c_size_t(ctypes.sizeof(arguments))
    _program.PyOS_BeforeFork()
    pid: int = _program.syscall(ctypes.c_long(_SYS_CLONE3), ctypes.byref(arguments), size)
    if pid == 0:
        _program.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    _program.PyOS_AfterFork_Parent()
    os.close(directory)
    if pid < 0:
        raise OSError(number, os.strerror(number), cgroup)
    return pid
