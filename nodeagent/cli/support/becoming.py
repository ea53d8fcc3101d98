"""Replacement of nodeagent's process by another command, at the end of `exec` and `job`. The exit statuses are the same as for other
container tools.

`job` loads this module at every start, so the module imports little. For instance, it imports only the C part of the module `signal`.
"""

from __future__ import annotations

import os
import sys
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

from nodeagent.errors import NodeAgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

EXIT_NOT_ENTERED = 125
"""Exit status if nodeagent itself fails before the command runs."""
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


class CommandError(NodeAgentError):
    """The container was entered, but the command could not be started there."""

    def __init__(self, message: str, *, hint: str, exit_status: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_status = exit_status


def run_command(command: list[str]) -> NoReturn:
    """Replace this process by a command (execve)."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the stream is None if the caller has closed it
            stream.flush()
    # Python ignores these two signals, and ignored signals stay ignored after execve.
    ours = {number: signal(number, SIG_DFL) for number in (SIGPIPE, SIGXFSZ)}
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell: that is the point
    except (FileNotFoundError, ValueError) as err:  # execve(2) takes no empty word as a command
        import shlex

        looked = "" if "/" in command[0] else f" in PATH {os.environ.get('PATH', os.defpath)}"
        raise CommandError(
            f"cannot run '{command[0]}': not found{looked}",
            hint=f"containers have no image here: name a program of the host (`command -v {shlex.quote(command[0])}`), or its full path",
            exit_status=EXIT_NOT_FOUND,
        ) from err
    except OSError as err:
        import shlex

        raise CommandError(
            f"cannot run '{command[0]}': {os.strerror(err.errno or 0)}",
            hint=f"is it an executable file for this machine? see `ls -l {shlex.quote(command[0])}` and `file {shlex.quote(command[0])}`",
            exit_status=EXIT_CANNOT_RUN,
        ) from err
    finally:
        for number, handler in ours.items():
            signal(number, handler)
