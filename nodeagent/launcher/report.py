"""Log lines, and messages to systemd. A failure to send them never stops the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket


def log(event: str, **fields: object) -> None:
    """Write one line to stderr. If stderr is a full pipe, the line is dropped."""
    line = " ".join([event, *(f"{name}={json.dumps(value)}" for name, value in fields.items())])
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, line.encode()[:2000] + b"\n")


def notify(message: str) -> None:
    """Send a message to the service manager (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stream:
        if address:
            stream.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
