"""Fork into a cgroup (clone3(2)), which os.fork can't do.

To move a process into a cgroup, the kernel waits for an RCU grace period, which can take longer than all other steps of a start. The kernel
doesn't wait for a process that is created in the cgroup.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct

CLONE3 = 435  # number of the system call, the same on all architectures that have systemd
CLONE_INTO_CGROUP = 1 << 33  # value from linux/sched.h
ARGUMENTS = struct.Struct("11Q")  # struct clone_args from linux/sched.h

# a function of PyDLL keeps the interpreter's lock, unlike one of CDLL, so that the child has the lock, too
_syscall = ctypes.PyDLL(None).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t)
_syscall.restype = ctypes.c_long


def creates_in_cgroups(release: str) -> bool:
    """Return whether, with this kernel release, a process that is created in a cgroup gets the cgroup's CPUs and memory nodes.

    Before 6.4, the process may have the CPUs and memory nodes of its parent (cpuset_fork in kernel/cgroup/cpuset.c).
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    return version is not None and (int(version[1]), int(version[2])) >= (6, 4)


_is_possible = creates_in_cgroups(os.uname().release)


def fork_into(cgroup: str) -> int | None:
    """Fork like os.fork, and create the child in a cgroup. None means that the kernel refuses, so there is no child.

    The caller must have only one thread, and the child must execute a program soon, because neither Python nor the C library notices this
    fork.
    """
    if not _is_possible:
        return None
    try:
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    arguments = ARGUMENTS.pack(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, directory)
    pid = int(_syscall(CLONE3, arguments, len(arguments)))
    if pid != 0:  # the child closes all files that it doesn't need
        os.close(directory)
    return pid if pid >= 0 else None
