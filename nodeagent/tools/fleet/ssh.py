"""Runner of commands on other hosts, with a time limit. It uses ssh with the user's configuration and keys, and never asks the user for a
password.
"""

import os
import selectors
import subprocess
import time

from nodeagent.errors import NodeAgentError

_MAX_ERROR_BYTES = 64 * 2**10
_CONNECT_SECONDS = 10
_OWN_STATUS = 255
"""Exit status that means a failure of ssh itself, not of the command (ssh(1))."""
_PIECE = 2**16


class SshError(NodeAgentError):
    """The host can't be reached, or the command failed there."""


def run_on_host(host: str, command: str, *, within_seconds: float, max_bytes: int) -> bytes:
    """Run a command on a host, and return its output.

    Args:
        host: host in ssh's notation.
        command: command for the shell on the host.
        within_seconds: time limit for the whole answer.
        max_bytes: size limit of the output.

    Raises:
        SshError: the command could not be run, or failed.
    """
    connect = max(1, min(_CONNECT_SECONDS, int(within_seconds)))
    words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect}", "--", host, command]
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as err:
        why = os.strerror(err.errno or 0)
        raise SshError(
            f"{host}: cannot run ssh: {why}", hint="install it, for example: sudo apt install openssh-client"
        ) from err
    with process:
        try:
            answer = _read_output(process, within_seconds, max_bytes)
            status = process.wait() if isinstance(answer, tuple) else 0
        finally:
            process.kill()
    if isinstance(answer, str):
        raise SshError(
            f"{host}: {answer}",
            hint=f"to see how long the answer takes and how large it is: time ssh {host} {command} | wc -c",
        )
    printed, complaints = answer
    if status == 0:
        return printed
    lines = [line.strip() for line in complaints.decode(errors="replace").splitlines()]
    last_line = next((line for line in reversed(lines) if line and not line.startswith("hint:")), "")
    if status == _OWN_STATUS:
        raise SshError(
            f"{host}: {last_line or 'ssh failed'}",
            hint=f"this must work without a password: ssh -o BatchMode=yes {host} true",
        )
    raise SshError(
        f"{host}: `{command}` ended with status {status}{f': {last_line}' if last_line else ''}",
        hint=f"try it: ssh {host} {command}; --remote names another command, such as 'sudo -n nodeagent capture'",
    )


def _read_output(process: subprocess.Popen[bytes], within_seconds: float, max_bytes: int) -> tuple[bytes, bytes] | str:
    """Read stdout and stderr until the process has ended. Return an error text if the process takes too long or prints too much.

    This function doesn't wait for the end of stderr, because a process that ssh leaves behind (a shared connection) may keep stderr open.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    printed, complaints = bytearray(), bytearray()
    deadline = time.monotonic() + within_seconds
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for stream in (process.stdout, process.stderr, ended):
                selector.register(stream, selectors.EVENT_READ)
            needed = {process.stdout.fileno(), ended}
            while needed or (selector.get_map() and selector.select(0)):  # the loop ends when all output is read
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready or time.monotonic() > deadline:
                    return f"no complete answer within {within_seconds:g} s"
                for key, _ in ready:
                    piece = b"" if key.fd == ended else os.read(key.fd, _PIECE)
                    if not piece:
                        selector.unregister(key.fileobj)
                        needed.discard(key.fd)
                    elif key.fileobj is process.stdout:
                        printed += piece
                    else:
                        complaints += piece[: _MAX_ERROR_BYTES - len(complaints)]
                if len(printed) > max_bytes:
                    return f"it sent more than {max_bytes} bytes"
    finally:
        os.close(ended)
    return bytes(printed), bytes(complaints)
