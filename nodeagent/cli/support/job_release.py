"""`nodeagent job --until-free`: the calling process waits, outside of the job, until other programs can use the job's CPUs again.

The job's owner is a child of the calling process, so the job ends with the command as every job does.
"""

import os
import signal

from nodeagent.cli.support.child_command import (
    block_signals,
    close_input_and_output,
    end_as,
    fork_child,
    wait_for_end,
)
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, call
from nodeagent.errors import NodeAgentError

_UID_BYTES = 64


def stay_until_free(socket: str) -> tuple[int | None, int]:
    """Fork the process that becomes the command, and wait for its end and for the end of its job.

    Args:
        socket: path of the agent's socket for jobs.

    Returns:
        In the child, None and the pipe to which it writes the UID of its job. In the parent, the command's exit status and -1. If a signal
        has ended the command, the parent ends itself by the same signal.
    """
    uid, to_uid = os.pipe()  # closed by execve
    before = block_signals()
    child = fork_child(before)
    if child is None:
        return None, to_uid
    os.close(to_uid)
    close_input_and_output()
    wait_for_end(child)
    _, status = os.waitpid(child, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
    if found := os.read(uid, _UID_BYTES).decode():  # empty if there was no job
        _wait_for_release(socket, found)
    return end_as(status), -1


def _wait_for_release(socket: str, uid: str) -> None:
    try:
        while not call(socket, "job-released", timeout_seconds=TURN_CALL_SECONDS, uid=uid)["isReleased"]:
            pass
    except NodeAgentError as err:
        write_error(f"nodeagent: the job's CPUs may not be free yet: {err.message}\nhint: {err.hint}\n")
