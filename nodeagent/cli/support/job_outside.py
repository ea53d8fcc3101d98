"""`nodeagent job` with `--until-free`, `--max-time` or `--reservation`. The calling process waits outside of the job, because a process
inside the job can't tell when the job's CPUs are free, or that the job's time was over.

The job's owner is the command, a child of the calling process. Like every job, the job ends with its owner.
"""

import fcntl
import os
import signal
from collections.abc import Mapping
from typing import Any

from nodeagent.cli.support.child_command import (
    block_signals,
    close_input_and_output,
    end_as,
    fork_child,
    wait_for_end,
)
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.daemon.turn.clock import read_boot_ms
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, call
from nodeagent.errors import NodeAgentError

_MESSAGE_BYTES = 128
EXIT_TIME_IS_OVER = 124
"""Exit status of a job that was ended by its time limit, as for timeout(1)."""


def stay_outside(socket: str, *, until_free: bool) -> tuple[int | None, int]:
    """Fork the process that becomes the command, and wait until it ends.

    Args:
        socket: path of the agent's socket for jobs.
        until_free: whether to wait until the job has ended as well, so that its CPUs are free.

    Returns:
        In the child, None and the pipe for `tell_outside`. In the parent, the exit status and -1. The exit status is the command's, or 124
        if the job's time was over. If a signal ended the command, the parent doesn't return, but ends itself by the same signal.
    """
    job, to_outside = os.pipe()  # execve closes both ends
    outside, before = os.getpid(), block_signals()
    child = fork_child(before)
    if child is None:
        os.close(job)
        _end_with(outside, to_outside)
        return None, to_outside
    os.close(to_outside)
    close_input_and_output()
    wait_for_end(child)
    is_over_at_ms = read_boot_ms()
    _, status = os.waitpid(child, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
    uid, _, ends_at_ms = os.read(job, _MESSAGE_BYTES).decode().partition(" ")
    if uid and until_free:  # the answer is empty if there was no job
        try:
            while not call(socket, "job-released", timeout_seconds=TURN_CALL_SECONDS, uid=uid)["isReleased"]:
                pass
        except NodeAgentError as err:
            write_error(f"nodeagent: the job's CPUs may not be free yet: {err.message}\nhint: {err.hint}\n")
    # A command that succeeded wasn't ended by the agent, even if its time is over now: this process may have noticed the end late, or no
    # agent was running.
    if status != 0 and 0 < int(ends_at_ms or 0) <= is_over_at_ms:
        write_error("nodeagent: the job's time was over, so the agent has ended it\n")
        return EXIT_TIME_IS_OVER, -1
    return end_as(status), -1


def _end_with(outside: int, to_outside: int) -> None:
    """Have the kernel end this process by a signal (SIGIO) if the process that waits outside of the job ends before the command is
    executed.

    Without this signal, a job in the queue would stay there after the waiting process was killed, and run later although nobody waits for
    it. The kernel sends the signal when the pipe loses its only reader, the waiting process. After execve, which closes this process's end
    of the pipe, no signal is sent.
    """
    fcntl.fcntl(to_outside, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(to_outside, fcntl.F_SETFL, os.O_ASYNC)
    if os.getppid() != outside:
        os.kill(os.getpid(), signal.SIGKILL)


def tell_outside(to_outside: int, answer: Mapping[str, Any]) -> None:
    """Send the agent's answer to the process that waits outside of the job. This process has entered the job, and sends it before it
    becomes the command.

    Args:
        to_outside: the pipe that `stay_outside` returned.
        answer: the agent's answer about the job.
    """
    os.write(to_outside, f"{answer['uid']} {answer.get('endsAtMs', 0)}".encode())
