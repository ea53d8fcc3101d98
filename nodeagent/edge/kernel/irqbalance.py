"""Client of irqbalance's socket, for root. irqbalance distributes interrupts every few seconds, and accepts requests to avoid CPUs.

irqbalance forgets requests when it restarts, and doesn't confirm them. A request replaces the CPUs banned by irqbalance's configuration
(IRQBALANCE_BANNED_CPULIST) or the kernel's command line (isolcpus, nohz_full), so the request must include these CPUs.
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
"""Timeout in seconds of each step of a call. irqbalance doesn't answer while it scans interrupts."""
_MAX_ANSWER_BYTES = 1 << 20
"""Maximum size of an answer. An answer has about a hundred bytes for each excluded interrupt."""
_HINT = "see `systemctl status irqbalance`"


class IrqbalanceError(NodeAgentError):
    """irqbalance runs, but a call to it failed."""


def read(directory: Path = DIRECTORY) -> Irqbalance | None:
    """Return the settings of irqbalance. None means that irqbalance doesn't run.

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
    """Have irqbalance keep interrupts off exactly these CPUs, from its next scan on. Do nothing if irqbalance doesn't run.

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
    """Have irqbalance exclude exactly these interrupts from balancing, from its next scan on. Do nothing if irqbalance doesn't run.

    The request replaces the interrupts that irqbalance's command line excludes (--banirq), so `irqs` must include these interrupts.

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
    """Have irqbalance use its own configuration again, from its next scan on. Do nothing if irqbalance doesn't run.

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
    """Send one request, and read until irqbalance closes the connection.

    settimeout isn't used, because connect would then fail while the backlog is full.
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
