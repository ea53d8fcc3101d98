"""Client of the service manager's notification socket: readiness, status and watchdog (sd_notify(3))."""

import os
import socket
import time
from collections.abc import Mapping

from nodeagent.errors import NodeAgentError

_SEND_SECONDS = 1.0


class NotifyError(NodeAgentError):
    """The notification socket can't be used, or an environment variable of the service manager is malformed."""


class ServiceManager:
    """Client of the service manager that started this process. Without NOTIFY_SOCKET, nothing is sent.

    Args:
        environment: environment variables, of which NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read.

    Raises:
        NotifyError: one of these variables is malformed.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")
        """Path of the socket. A leading @ marks the name of an abstract socket (unix(7))."""
        if self._path and not (self._path.startswith("/") or (self._path.startswith("@") and len(self._path) > 1)):
            raise NotifyError(
                f"NOTIFY_SOCKET is '{self._path}', which is neither a path nor an abstract @name",
                hint="unset NOTIFY_SOCKET, or start under systemd",
            )
        self._watchdog_usec = _read_watchdog_usec(environment)

    def watchdog_period_seconds(self) -> float | None:
        """Return half of the watchdog timeout, the interval that sd_watchdog_enabled(3) recommends for pings. None means that there is no
        watchdog.
        """
        return None if self._watchdog_usec is None else self._watchdog_usec / 2_000_000

    def notify_ready(self, status: str) -> None:
        """Announce that the start, or a reload, is complete."""
        self._send(f"READY=1\nSTATUS={_join_lines(status)}")

    def set_status(self, status: str) -> None:
        self._send(f"STATUS={_join_lines(status)}")

    def ping_watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def extend_start(self, seconds: int) -> None:
        """Extend the time limit of the start, so that this many seconds are left."""
        self._send(f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000}")

    def notify_reloading(self) -> None:
        """Announce that a reload has begun. `notify_ready` announces its end.

        The message contains the time, which Type=notify-reload requires (systemd 253).
        """
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def notify_stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={_join_lines(status)}")

    def _send(self, message: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(_SEND_SECONDS)
                channel.connect(address)
                channel.send(message.encode())
        except OSError as err:
            reason = os.strerror(err.errno) if err.errno else str(err)
            raise NotifyError(
                f"cannot send '{message.splitlines()[0]}' to NOTIFY_SOCKET {self._path}: {reason}",
                hint="the unit needs Type=notify and NotifyAccess=main; outside systemd unset NOTIFY_SOCKET",
            ) from err


def _read_watchdog_usec(environment: Mapping[str, str]) -> int | None:
    text = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    for name, value in (("WATCHDOG_USEC", text), ("WATCHDOG_PID", pid)):
        if value and not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) > 0):
            raise NotifyError(
                f"{name} is '{value}', which is not a positive number",
                hint=f"unset {name}, or start under systemd: `systemctl start nodeagent`",
            )
    if not text or (pid and int(pid) != os.getpid()):
        return None
    return int(text)


def _join_lines(text: str) -> str:
    """Replace line breaks by spaces, because each line of a message is a separate variable."""
    return " ".join(text.split())
