"""Command of a job, run as a child process. The parent waits for the child, passes signals on, and ends with the exit status or signal of
the child.
"""

import os
import resource
import signal
from typing import Any

PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed on to the command. Signals that the terminal sends reach the command anyway, because it is in the same process
group.
"""
_WAITED = frozenset({*PASSED_ON, signal.SIGCHLD})
_SI_KERNEL = 0x80
"""Value of `si_code` for a signal that the kernel itself has sent, for instance after Ctrl-C."""


def block_signals() -> tuple[Any, set[int | signal.Signals]]:
    """Block the signals for which `wait_for_end` waits. Return the values that `fork_child` restores in the child."""
    return signal.signal(signal.SIGCHLD, signal.SIG_DFL), signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)


def fork_child(before: tuple[Any, set[int | signal.Signals]]) -> int | None:
    """Fork. Return None in the child, and in the parent the child's process ID.

    Args:
        before: the result of `block_signals`.
    """
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGCHLD, before[0])
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
        return None
    return child


def close_input_and_output() -> None:
    """Close stdin and stdout of this process. Otherwise, a reader of the command's output would get no EOF when the command ends."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)


def wait_for_end(child: int) -> None:
    """Wait until the child ends, and pass on signals sent to this process. The caller still has to reap the child (waitpid(2))."""
    while True:
        got = signal.sigwaitinfo(_WAITED)
        if got.si_signo == signal.SIGCHLD:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
        elif got.si_code != _SI_KERNEL:
            os.kill(child, got.si_signo)


def end_as(status: int) -> int:
    """Return the exit status of a child that has ended. If a signal ended the child, end this process by the same signal, without a core
    dump.

    Args:
        status: the status from waitpid(2).
    """
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)
