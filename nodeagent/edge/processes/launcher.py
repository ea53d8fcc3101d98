"""The agent's side of the launcher's socket: one connection per question, so none is ever stale.

Every request can be repeated after an error: the launcher starts an id once, and forgets an end only when it is acknowledged.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from nodeagent.core.model.idset import CpuSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire import launcher_protocol as protocol
from nodeagent.formats.wire.launcher_protocol import (
    Exited,
    Hello,
    Refused,
    Running,
    RunStatus,
    StartFailed,
    StartRequest,
)

T = TypeVar("T")

DEFAULT_SOCKET = Path("/run/nodeagent-pods/launcher.sock")
ANSWER_SECONDS = 20.0  # the launcher gives up a hanging start after 10
ACKS_PER_REQUEST = 1000  # of at most 120 characters each

WRITES_BYTES = 128 * 1024  # in one request, so that it fits with all that JSON adds
MOVES_CPUS = 2**20  # of threads, in one request: the launcher takes no more, so that nothing holds it up


class LauncherError(NodeAgentError):
    """The launcher cannot be reached, or does not serve a request."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"cannot talk to the launcher at {path}: {what}",
            hint="see 'systemctl status nodeagent-launcher' and 'journalctl -u nodeagent-launcher'",
        )
        self.path = path


class LauncherClient:
    def __init__(self, path: Path = DEFAULT_SOCKET) -> None:
        self._path = path
        self._subscription: socket.socket | None = None
        self._closed = False

    def hello(self) -> Hello:
        return self._served(protocol.decode_hello(self._ask(protocol.encode_hello())))

    def start(self, request: StartRequest) -> Running | Exited | StartFailed:
        """Returns after execve, or the start's failure. If the id was started before: its status, and nothing is started."""
        answer = protocol.decode_start(self._ask(protocol.encode_start(request)))
        if isinstance(answer, Refused):
            raise self._refusal(answer)
        return answer

    def list(self) -> tuple[RunStatus, ...]:
        """Everything that runs, and every end that isn't acknowledged, ordered by id."""
        statuses: tuple[RunStatus, ...] = ()
        more = True
        while more:
            after = statuses[-1].id if statuses else ""
            page = self._served(protocol.decode_list(self._ask(protocol.encode_list(after))))
            statuses, more = statuses + page.statuses, page.more and len(page.statuses) > 0
        return statuses

    def signal(self, run_id: str, signal: int) -> bool:
        """To the main process only. False: it has ended already."""
        return self._served(protocol.decode_signal(self._ask(protocol.encode_signal(run_id, signal))))

    def ack(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Forget these ends. Returns those that were known and had ended."""
        asked = tuple(ids)
        acked: tuple[str, ...] = ()
        for first in range(0, len(asked), ACKS_PER_REQUEST):
            packet = self._ask(protocol.encode_ack(asked[first : first + ACKS_PER_REQUEST]))
            acked += self._served(protocol.decode_ack(packet))
        return acked

    def begin_partition(self, cgroup: Path, kind: str) -> None:
        """Write to `cpuset.cpus.partition` what takes a right that this process lacks. The kernel may grant it or not: see the file."""
        self._served(protocol.decode_partition(self._ask(protocol.encode_partition(str(cgroup), kind))))

    def gather(self, cgroup: Path) -> None:
        """Have the threads of a cgroup that may run elsewhere run on its CPUs, which takes a system call that this process may not use."""
        self._served(protocol.decode_gather(self._ask(protocol.encode_gather(str(cgroup)))))

    def write_host(self, writes: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
        """Write settings of the host, which this process may only read.

        Args:
            writes: each file's absolute path, and what to write.

        Returns:
            For each: None, or why it failed.

        Raises:
            LauncherError: some may be written, some not.
        """
        results: tuple[str | None, ...] = ()
        for some in _packets(writes):
            found = self._served(protocol.decode_host(self._ask(protocol.encode_host(some))))
            if len(found) != len(some):
                raise LauncherError(self._path, f"{len(found)} results of {len(some)} writes")
            results += found
        return results

    def events(self) -> Iterator[None]:
        """For a thread that wakes the agent: once as soon as it listens, then after ends. A wake-up carries no data: call list().

        Finishes after close(); raises LauncherError when the launcher goes away, even to be re-executed.
        """
        try:
            with self._connect(None) as stream:
                self._subscription = stream
                stream.send(protocol.encode_subscribe())
                packet = stream.recv(protocol.MAX_ANSWER_BYTES)
                if packet:
                    self._served(protocol.decode_subscribe(packet))
                while packet and not self._closed:
                    yield None
                    packet = stream.recv(protocol.MAX_ANSWER_BYTES)
        except OSError as err:
            if not self._closed:
                raise LauncherError(self._path, err.strerror or str(err)) from err
        if not self._closed:
            raise LauncherError(self._path, "it closed the connection")

    def close(self) -> None:
        """End events(), from any thread, for good."""
        self._closed = True
        if self._subscription is not None:
            with contextlib.suppress(OSError):  # it has already ended by itself
                self._subscription.shutdown(socket.SHUT_RDWR)

    def _ask(self, request: bytes) -> bytes:
        if len(request) > protocol.MAX_REQUEST_BYTES:
            raise LauncherError(self._path, f"a request of {len(request)} bytes, at most {protocol.MAX_REQUEST_BYTES}")
        try:
            with self._connect(ANSWER_SECONDS) as stream:
                stream.send(request)
                answer = stream.recv(protocol.MAX_ANSWER_BYTES)
        except OSError as err:
            raise LauncherError(self._path, err.strerror or str(err)) from err
        if not answer:
            raise LauncherError(self._path, "it closed the connection without an answer")
        return answer

    def _connect(self, timeout_seconds: float | None) -> socket.socket:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            stream.settimeout(timeout_seconds)
            stream.connect(str(self._path))
        except OSError:
            stream.close()
            raise
        return stream

    def _served(self, answer: T | Refused) -> T:
        if isinstance(answer, Refused):
            raise self._refusal(answer)
        return answer

    def _refusal(self, refused: Refused) -> LauncherError:
        return LauncherError(self._path, f"it refuses: {refused.message} ({refused.code})")


def _packets(writes: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Divide writes among requests."""
    some: list[tuple[str, str]] = []
    size = cpus = 0
    for place, value in writes:
        length = len(place) + len(value) + 10  # with quotes, commas, brackets
        count = len(CpuSet.parse(value)) if place.startswith("thread ") else 0
        if some and (size + length > WRITES_BYTES or cpus + count > MOVES_CPUS):
            yield some
            some, size, cpus = [], 0, 0
        some.append((place, value))
        size += length
        cpus += count
    if some:
        yield some
