"""QEMU's control connection: commands with answers, and the events one may wait for."""

import json
import socket
import threading
import time
from typing import Any

from integration.guest.errors import GuestDiedError, GuestError, GuestTimeoutError

_EVENTS_KEPT = 256


class Qmp:
    """Commands may come from any thread, one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._command = threading.Lock()
        self._changed = threading.Condition()
        self._answers: list[dict[str, Any]] = []
        self._events: list[str] = []
        self._closed = False
        threading.Thread(target=self._read, name="qmp", daemon=True).start()

    def execute(self, command: str, timeout_seconds: float = 60, **arguments: Any) -> None:
        """Run a command; GuestError with QEMU's own words if it refuses."""
        message = {"execute": command, "arguments": arguments}
        with self._command:
            try:
                self._connection.sendall(json.dumps(message).encode())
            except OSError as error:
                raise GuestDiedError(f"QEMU is gone before '{command}'") from error
            deadline = time.monotonic() + timeout_seconds
            with self._changed:
                self._wait(lambda: bool(self._answers), deadline, f"QEMU's answer to '{command}'")
                answer = self._answers.pop(0)
        if "error" in answer:
            raise GuestError(f"QEMU refuses '{command}': {answer['error']}")

    def forget_events(self) -> None:
        with self._changed:
            self._events.clear()

    def wait_event(self, name: str, timeout_seconds: float) -> None:
        with self._changed:
            self._wait(lambda: name in self._events, time.monotonic() + timeout_seconds, f"QEMU's event {name}")

    def close(self) -> None:
        self._connection.close()

    def _wait(self, condition: Any, deadline: float, what: str) -> None:
        while not condition():
            if self._closed:
                raise GuestDiedError(f"QEMU ended while waiting for {what}")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise GuestTimeoutError(f"no sign of {what}")
            self._changed.wait(remaining)

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # closed on our side, or QEMU was killed in the middle of a line
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "event" in message:
                self._events = [*self._events[-_EVENTS_KEPT:], message["event"]]
            elif "QMP" not in message:  # the greeting
                self._answers.append(message)
            self._changed.notify_all()
