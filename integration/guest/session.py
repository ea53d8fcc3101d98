"""The host's end of the port to the guest's agent: any number of requests at once, from any thread."""

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from integration.guest.errors import CommandError, GuestDiedError, GuestTimeoutError
from integration.guest.protocol import Frames, FramingError, Kind, chunks, frame

_RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Hello:
    boot_id: str
    kernel: str
    python: str


class Request:
    """One running request. Its output is collected, or given to `on_output` as it comes; `on_end` tells its end.

    Both are called in the session's thread.
    """

    def __init__(
        self,
        session: "Session",
        number: int,
        on_output: Callable[[bytes], None] | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        self._session = session
        self._number = number
        self._on_output = on_output
        self._on_end = on_end
        self._done = threading.Event()
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.status: int | None = None
        self.failure: Exception | None = None

    def send(self, content: bytes) -> None:
        for chunk in chunks(content):
            self._session.send(Kind.STDIN, self._number, chunk)

    def end_input(self) -> None:
        self._session.send(Kind.STDIN, self._number)

    def resize(self, rows: int, columns: int) -> None:
        self._session.send(Kind.RESIZE, self._number, json.dumps([rows, columns]).encode())

    def signal(self, number: int) -> None:
        self._session.send(Kind.SIGNAL, self._number, json.dumps(number).encode())

    def wait(self, timeout_seconds: float | None) -> int | None:
        """The exit status, or None when the time is over; raises what made the request fail."""
        if not self._done.wait(timeout_seconds):
            return None
        if self.failure is not None:
            raise self.failure
        return self.status

    def take(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.STDOUT if self._on_output:
                self._on_output(payload)
            case Kind.STDOUT:
                self.stdout += payload
            case Kind.STDERR:
                self.stderr += payload
            case Kind.EXIT:
                self.status = json.loads(payload)
                self.end(None)
            case Kind.FAILED:
                self.end(CommandError(json.loads(payload), None))
            case _:
                raise FramingError(f"the guest sent {kind.name}")

    def end(self, failure: Exception | None) -> None:
        self.failure = failure
        self._done.set()
        if self._on_end:
            self._on_end()


class Session:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._frames = Frames(seek=True)
        self._requests: dict[int, Request] = {}
        self._last_number = 0
        self._hello: Hello | None = None
        self._ended: GuestDiedError | None = None
        threading.Thread(target=self._receive, name="guest session", daemon=True).start()

    def start(
        self,
        spec: dict[str, Any],
        on_output: Callable[[bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Request:
        with self._changed:
            if self._ended:
                raise self._ended
            self._last_number += 1
            number = self._last_number
            request = self._requests[number] = Request(self, number, on_output, on_end)
        self.send(Kind.START, number, json.dumps(spec).encode())
        return request

    def send(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        try:
            with self._sending:
                self._connection.sendall(frame(kind, number, payload))
        except OSError as error:
            raise GuestDiedError("the guest is gone") from error

    def wait_hello(self, timeout_seconds: float) -> Hello:
        """The agent's greeting of this boot."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._hello is None:
                if self._ended:
                    raise self._ended
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise GuestTimeoutError(f"the guest's agent has not reported after {timeout_seconds:.0f} s")
                self._changed.wait(remaining)
            return self._hello

    def expect_reset(self) -> None:
        """The guest was reset: what was running is lost, and a frame may have been cut. To be called while it stands."""
        with self._changed:
            self._hello = None
            self._frames.seek_sync()
            self._end_requests(GuestDiedError("the guest was reset"))

    def close(self) -> None:
        self._connection.close()

    def _receive(self) -> None:
        failure = GuestDiedError("the guest ended")
        try:
            while received := self._connection.recv(_RECEIVE_BYTES):
                self._dispatch(received)
        except OSError:
            pass  # closed on our side
        except FramingError as error:
            failure = GuestDiedError(f"the guest's agent does not speak our language: {error}")
        with self._changed:
            self._ended = failure
            self._end_requests(failure)
            self._changed.notify_all()

    def _dispatch(self, received: bytes) -> None:
        with self._changed:
            for kind, number, payload in self._frames.feed(received):
                if kind is Kind.HELLO:
                    self._end_requests(GuestDiedError("the guest's agent was restarted"))
                    self._hello = Hello(**json.loads(payload))
                    self._changed.notify_all()
                elif number in self._requests:
                    self._requests[number].take(kind, payload)
                    if kind in (Kind.EXIT, Kind.FAILED):
                        del self._requests[number]

    def _end_requests(self, failure: GuestDiedError) -> None:
        for request in self._requests.values():
            request.end(failure)
        self._requests.clear()
