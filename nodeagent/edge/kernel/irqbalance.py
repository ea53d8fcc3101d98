"""Asks irqbalance, which distributes interrupts every few seconds, to keep them off CPUs. Through its own socket, as root.

It forgets what it was asked when it restarts. A request takes the place of all CPUs that its configuration or the kernel's command line
keep interrupts off (IRQBALANCE_BANNED_CPULIST; isolcpus, nohz_full), so ask for these too. It does not say whether it follows: look again
after the next scan.
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
    parse_setup,
    print_ban,
    print_leave,
)

DIRECTORY = Path("/run/irqbalance")
CALL_SECONDS = 2.0
"""For each step of a call; it doesn't answer while it scans."""
_MAX_ANSWER_BYTES = 1 << 20
"""It has a hundred for each interrupt that it leaves alone."""
_HINT = "see `systemctl status irqbalance`"


class IrqbalanceError(NodeAgentError):
    """irqbalance runs, but cannot be asked."""


def read(directory: Path = DIRECTORY) -> Irqbalance | None:
    """Return how irqbalance is set; None: none answers here.

    Raises:
        IrqbalanceError: with its reason.
    """
    answer = _ask(SETUP, directory)
    if answer is None:
        return None
    try:
        return parse_setup(answer)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(f"cannot read which CPUs irqbalance keeps interrupts off: {err}", hint=_HINT) from err


def ban(cpus: CpuSet, directory: Path = DIRECTORY) -> None:
    """Keep interrupts off exactly these CPUs, from its next scan on; if it isn't there, nothing happens.

    Raises:
        IrqbalanceError: with its reason.
    """
    try:
        request = print_ban(cpus)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(
            f"cannot ask irqbalance to keep interrupts off {cpus}: {err}",
            hint="set IRQBALANCE_BANNED_CPULIST in /etc/default/irqbalance yourself",
        ) from err
    _ask(request, directory)


def leave(irqs: AbstractSet[int], directory: Path = DIRECTORY) -> None:
    """Move exactly these interrupts nowhere, from its next scan on; if it isn't there, nothing happens.

    This takes the place of those that its command line names (--banirq), so ask for these too.

    Raises:
        IrqbalanceError: with its reason.
    """
    try:
        request = print_leave(irqs)
    except IrqbalanceSyntaxError as err:
        raise IrqbalanceError(
            f"cannot ask irqbalance to leave interrupts alone: {err}",
            hint="name them with --banirq in IRQBALANCE_ARGS of /etc/default/irqbalance, or claim fewer of them",
        ) from err
    _ask(request, directory)


def unban(directory: Path = DIRECTORY) -> None:
    """Leave it to its own configuration again, from its next scan on; if it isn't there, nothing happens.

    Raises:
        IrqbalanceError: with its reason.
    """
    _ask(UNBAN, directory)


def _ask(request: bytes, directory: Path) -> str | None:
    """Return what the running one answers. One that was killed leaves its socket behind."""
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
    """Send one request, and read until it closes the connection, which means that it has read it.

    Limits are the kernel's: with Python's own, connect would fail at once while another client is served.
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
