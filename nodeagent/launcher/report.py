"""Reports of the launcher: lines for the journal, states for systemd. Neither may ever stop it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket


def log(event: str, **fields: object) -> None:
    """Write one line to stderr, or drop it: a full pipe must not stop the launcher."""
    line = " ".join([event, *(f"{name}={json.dumps(value)}" for name, value in fields.items())])
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, line.encode()[:2000] + b"\n")


def notify(message: str) -> None:
    """Send a message to the service manager, as sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stream:
        if address:
            stream.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
