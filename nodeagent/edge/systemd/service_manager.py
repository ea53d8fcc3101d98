"""Talks to the service manager: readiness, status, watchdog (sd_notify(3)). Without one, messages are dropped."""

import os
import socket
import time
from collections.abc import Mapping

from nodeagent.errors import NodeAgentError

_SEND_SECONDS = 1.0


class NotifyError(NodeAgentError):
    """The service manager's socket could not be used, or its variables make no sense."""


class ServiceManager:
    """The service manager that started this process, or none.

    Args:
        environment: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read here, once.

    Raises:
        NotifyError: one of them is malformed.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = _socket_address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_usec = _watchdog_usec(environment)

    @property
    def is_there(self) -> bool:
        return self._address is not None

    def watchdog_period_seconds(self) -> float | None:
        """Return how often to ping: half of the time after which we would be killed (sd_watchdog_enabled(3)). None: no watchdog."""
        return None if self._watchdog_usec is None else self._watchdog_usec / 2_000_000

    def ready(self, status: str) -> None:
        """Announce that start-up, or a reload, is finished."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={_one_line(status)}")

    def ping_watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def extend_start(self, seconds: int) -> None:
        """Ask for this much time from now on before the start counts as failed."""
        self._send(f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000}")

    def reloading(self) -> None:
        """Announce that a reload begins; `ready()` ends it. systemd 253 compares the time with that of its own request."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def _send(self, message: str) -> None:
        """Send one datagram.

        Raises:
            NotifyError: nobody listens, or nobody has read for a second.

        """
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(_SEND_SECONDS)
                channel.connect(self._address)
                channel.send(message.encode())
        except OSError as err:
            why = os.strerror(err.errno) if err.errno else str(err)
            raise NotifyError(
                f"cannot send '{message.splitlines()[0]}' to NOTIFY_SOCKET {_shown(self._address)}: {why}",
                hint="the unit needs Type=notify and NotifyAccess=main; outside systemd unset NOTIFY_SOCKET",
            ) from err


def _socket_address(text: str) -> str | None:
    if not text:
        return None
    if text.startswith("@") and len(text) > 1:
        return "\0" + text[1:]  # abstract: a leading NUL stands for the @ (unix(7))
    if text.startswith("/"):
        return text
    raise NotifyError(
        f"NOTIFY_SOCKET is '{text}', neither a path nor an abstract @name",
        hint="unset NOTIFY_SOCKET, or start under systemd",
    )


def _shown(address: str) -> str:
    return "@" + address[1:] if address.startswith("\0") else address


def _watchdog_usec(environment: Mapping[str, str]) -> int | None:
    text = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    for name, value in (("WATCHDOG_USEC", text), ("WATCHDOG_PID", pid)):
        if value and not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) > 0):
            raise NotifyError(
                f"{name} is '{value}', no positive number",
                hint=f"unset {name}, or start under systemd: `systemctl start nodeagent`",
            )
    if not text or (pid and int(pid) != os.getpid()):
        return None
    return int(text)


def _one_line(text: str) -> str:
    """A line break would begin the next variable."""
    return " ".join(text.split())
