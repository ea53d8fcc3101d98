"""Settings of this process that the executed command inherits: address space, huge pages and scheduling."""

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
    """Switch off address space randomization, so that the command has the same addresses in each run.

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
    """Set the scheduling policy and priority from a text such as `fifo:10`. The priority follows a colon.

    Raises:
        OSError: the user may not set this policy or priority.
    """
    policy, _, priority = text.partition(":")
    os.sched_setscheduler(0, _POLICIES[policy], os.sched_param(int(priority or 0)))


def set_nice(value: int) -> None:
    """Set the nice value, -20 to 19.

    Raises:
        OSError: the user may not set so low a value.
    """
    os.setpriority(os.PRIO_PROCESS, 0, value)


def _check(result: int) -> None:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
