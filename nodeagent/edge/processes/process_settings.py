"""Settings that this process changes before it executes a command, which inherits them: address space, huge pages and scheduling."""

import ctypes
import os

_POLICIES = {"batch": os.SCHED_BATCH, "fifo": os.SCHED_FIFO, "rr": os.SCHED_RR}
_ADDR_NO_RANDOMIZE = 0x0040000
"""Flag of personality(2) that switches off address randomization."""
_UNCHANGED = 0xFFFFFFFF
"""Argument of personality(2) that only reads the current value."""
_PR_SET_THP_DISABLE = 41
"""Operation of prctl(2) that switches off transparent huge pages."""


def stop_address_randomization() -> None:
    """Switch off address space randomization for the command, so that each run uses the same addresses.

    Raises:
        OSError: the kernel refuses the change.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.personality(ctypes.c_ulong(libc.personality(ctypes.c_ulong(_UNCHANGED)) | _ADDR_NO_RANDOMIZE)))


def stop_transparent_huge_pages() -> None:
    """Switch off transparent huge pages for the command.

    Raises:
        OSError: the kernel refuses the change.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_THP_DISABLE, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0))))


def set_scheduler(text: str) -> None:
    """Set the scheduling policy, and the priority if the text contains one (as in `fifo:10`).

    Raises:
        OSError: this user may not set the policy or the priority.
    """
    policy, _, priority = text.partition(":")
    os.sched_setscheduler(0, _POLICIES[policy], os.sched_param(int(priority or 0)))


def set_nice(value: int) -> None:
    """Set the nice value, from -20 to 19.

    Raises:
        OSError: this user may not lower the value so far.
    """
    os.setpriority(os.PRIO_PROCESS, 0, value)


def _check(result: int) -> None:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
