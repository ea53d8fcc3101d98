"""Client of irqbalance, which distributes interrupts every few seconds, to keep it off certain CPUs. Uses its socket, as root.

irqbalance forgets requests when it restarts. A request replaces the CPUs banned by its configuration or the kernel's command line
(IRQBALANCE_BANNED_CPULIST; isolcpus, nohz_full), so it must include these. irqbalance doesn't confirm requests: read again after its next
scan.
"""

import socket
import struct
from collections.abc import Set as AbstractSet
from pathlib import Path

from nodeagent.core.model.idset import CpuSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.irqbalance import (
    SETUP,
    UNBAN,
    Irqbalance,
    IrqbalanceSyntaxError,
    format_ban_request,
    format_leave_request,
    parse_setup,
)

DIRECTORY = Path("/run/irqbalance")
CALL_SECONDS = 2.0
"""Time for each step of a call. irqbalance doesn't answer while it scans."""
_MAX_ANSWER_BYTES = 1 << 20
"""Limit of an answer, which has a hundred bytes for each interrupt that irqbalance leaves alone."""
_HINT = "see `systemctl status irqbalance`"


class IrqbalanceError(NodeAgentError):
    """irqbalance runs, but a call to it failed."""


def read(directory: Path = DIRECTORY) -> Irqbalance | None:
    """Return the settings of irqbalance, or None if none answers.

    Raises:
        IrqbalanceError: the call failed.
    """
    answer = _ask(SETUP, directory)
    if answer is None:
        return None
    try:
        return parse_setup(answer)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(f"cannot read which CPUs irqbalance keeps interrupts off: {err}", hint=_HINT) from err


def ban(cpus: CpuSet, directory: Path = DIRECTORY) -> None:
    """Keep interrupts off exactly these CPUs, from the next scan on. Does nothing without irqbalance.

    Raises:
        IrqbalanceError: the call failed.
    """
    try:
        request = format_ban_request(cpus)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(
            f"cannot ask irqbalance to keep interrupts off {cpus}: {err}",
            hint="set IRQBALANCE_BANNED_CPULIST in /etc/default/irqbalance yourself",
        ) from err
    _ask(request, directory)


def leave(irqs: AbstractSet[int], directory: Path = DIRECTORY) -> None:
    """Exclude exactly these interrupts from moves, from the next scan on. Does nothing without irqbalance.

    This replaces the interrupts that its command line names (--banirq), so include these.

    Raises:
        IrqbalanceError: the call failed.
    """
    try:
        request = format_leave_request(irqs)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(
            f"cannot ask irqbalance to leave interrupts alone: {err}",
            hint="name them with --banirq in IRQBALANCE_ARGS of /etc/default/irqbalance, or claim fewer of them",
        ) from err
    _ask(request, directory)


def unban(directory: Path = DIRECTORY) -> None:
    """Restore irqbalance's own configuration, from the next scan on. Does nothing without irqbalance.

    Raises:
        IrqbalanceError: the call failed.
    """
    _ask(UNBAN, directory)


def _ask(request: bytes, directory: Path) -> str | None:
    """Return the answer of the running irqbalance. One that was killed leaves its socket behind."""
    for path in sorted(directory.glob("irqbalance*.sock")):
        try:
            return _exchange(path, request)
        except (ConnectionRefusedError, FileNotFoundError):
            continue
        except BlockingIOError as err:
            raise IrqbalanceError(f"no answer from irqbalance at {path} for {CALL_SECONDS:g} s", hint=_HINT) from err
        except OSError as err:
            raise IrqbalanceError(f"cannot ask irqbalance at {path}: {err.strerror}", hint=_HINT) from err
    return None


def _exchange(path: Path, request: bytes) -> str:
    """Send one request, and read until irqbalance closes the connection, which means that it has read the request.

    Time limits are the kernel's, because connect with Python's own would fail at once while another client is served.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
        limit = struct.pack("ll", int(CALL_SECONDS), int(CALL_SECONDS % 1 * 1_000_000))
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        channel.connect(str(path))
        channel.sendall(request)
        answer = bytearray()
        while len(answer) < _MAX_ANSWER_BYTES and (part := channel.recv(65_536)):
            answer += part
    return answer.decode("ascii", "backslashreplace")
