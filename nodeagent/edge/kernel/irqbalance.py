"""Client of irqbalance's socket, for root. irqbalance moves interrupts between CPUs every few seconds. It can be told to avoid some of the
CPUs.

irqbalance doesn't confirm a request, and forgets it when it restarts. A request replaces the CPUs that irqbalance's configuration
(IRQBALANCE_BANNED_CPULIST) or the kernel's command line (isolcpus, nohz_full) bans, so the caller must include these CPUs.
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
"""Timeout in seconds of each step of a call. A call may take long, because irqbalance answers only between two scans of the interrupts."""
_MAX_ANSWER_BYTES = 1 << 20
"""Maximum size of an answer in bytes. irqbalance sends about a hundred bytes for each excluded interrupt."""
_HINT = "see `systemctl status irqbalance`"


class IrqbalanceError(NodeAgentError):
    """irqbalance is running, but a call to it failed."""


def read(directory: Path = DIRECTORY) -> Irqbalance | None:
    """Return irqbalance's settings. None means that irqbalance isn't running.

    Raises:
        IrqbalanceError: the call failed.
    """
    answer = _ask(SETUP, directory)
    if answer is None:
        return None
    try:
        return parse_setup(answer)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(f"cannot read irqbalance's list of banned CPUs: {err}", hint=_HINT) from err


def ban(cpus: CpuSet, directory: Path = DIRECTORY) -> None:
    """Make irqbalance keep interrupts off exactly these CPUs, from its next scan on. Do nothing if irqbalance isn't running.

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
    """Make irqbalance leave exactly these interrupts where they are, from its next scan on. Do nothing if irqbalance isn't running.

    The request replaces the interrupts that irqbalance's command line excludes (--banirq), so the caller must include these.

    Raises:
        IrqbalanceError: the call failed.
    """
    try:
        request = format_leave_request(irqs)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(
            f"cannot ask irqbalance to leave interrupts alone: {err}",
            hint="name the interrupts with --banirq in IRQBALANCE_ARGS of /etc/default/irqbalance, or let pods claim fewer interrupts",
        ) from err
    _ask(request, directory)


def unban(directory: Path = DIRECTORY) -> None:
    """Make irqbalance return to the banned CPUs of its own configuration, from its next scan on. Do nothing if irqbalance isn't running.

    Raises:
        IrqbalanceError: the call failed.
    """
    _ask(UNBAN, directory)


def _ask(request: bytes, directory: Path) -> str | None:
    for path in sorted(directory.glob("irqbalance*.sock")):
        try:
            return _exchange(path, request)
        except (ConnectionRefusedError, FileNotFoundError):
            continue  # a killed irqbalance doesn't remove its socket
        except BlockingIOError as err:
            raise IrqbalanceError(f"no answer from irqbalance at {path} within {CALL_SECONDS:g} s", hint=_HINT) from err
        except OSError as err:
            raise IrqbalanceError(f"cannot ask irqbalance at {path}: {err.strerror}", hint=_HINT) from err
    return None


def _exchange(path: Path, request: bytes) -> str:
    """Send a request, and return what irqbalance sends until it closes the connection.

    The timeouts are set as socket options. With settimeout, the socket would be non-blocking, and connect would fail while the backlog is
    full.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
        timeval = struct.pack("ll", int(CALL_SECONDS), int(CALL_SECONDS % 1 * 1_000_000))
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        channel.connect(str(path))
        channel.sendall(request)
        answer = bytearray()
        while len(answer) < _MAX_ANSWER_BYTES and (part := channel.recv(65_536)):
            answer += part
    return answer.decode("ascii", "backslashreplace")
