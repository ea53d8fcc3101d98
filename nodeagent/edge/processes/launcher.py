"""Client of the launcher's socket. The connection is kept open between requests.

Every request can be repeated after an error. The launcher starts each run ID only once, and keeps an exit status until the agent
acknowledges it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

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
ANSWER_SECONDS = 20.0  # more than the 10 seconds after which the launcher aborts a hanging start
ACKS_PER_REQUEST = 1000  # limit on the acknowledged ids in a request; an id has at most 120 characters
WRITES_BYTES = 128 * 1024  # limit on the written values in a request; JSON's quotes and escapes fit in addition
MOVES_CPUS = 2**20  # limit on the total number of CPUs in a request's thread moves; the launcher refuses more


class LauncherError(NodeAgentError):
    """The launcher can't be reached, or refuses a request."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"cannot talk to the launcher at {path}: {reason}",
            hint="start it with `systemctl start nodeagent-pods nodeagent-launcher`; if it runs already, `systemctl reload "
            "nodeagent-launcher` makes its socket again; `journalctl -u nodeagent-launcher` says more",
        )
        self.path = path


class Changes(Struct, frozen=True):
    """Changes in the launcher's list of runs since an earlier answer."""

    statuses: tuple[RunStatus, ...]
    """Statuses of new and changed runs, in any order."""
    gone: tuple[str, ...]
    """IDs of runs that the launcher has forgotten."""
    token: str
    """Token to send with the next request. Empty means that the launcher lists all runs each time."""
    is_whole: bool
    """Whether the answer lists all statuses, so that it replaces all earlier answers."""


class LauncherClient:
    def __init__(self, path: Path = DEFAULT_SOCKET) -> None:
        self._path = path
        self._kept: tuple[int, socket.socket] | None = None
        """Connection left open by an earlier request, with the inode of the launcher's socket.

        If the socket file was deleted or replaced, the connection isn't used, because this launcher can no longer be reached by others.
        """
        self._subscription: socket.socket | None = None
        self._closed = False

    def hello(self) -> Hello:
        return self._check_served(protocol.decode_hello(self._ask(protocol.encode_hello())))

    def start(self, request: StartRequest) -> Running | Exited | StartFailed:
        """Start a container's process.

        Return after execve, or after a failure. For an ID that was started before, only return the current status.
        """
        answer = protocol.decode_start(self._ask(protocol.encode_start(request)))
        if isinstance(answer, Refused):
            raise self._make_refusal(answer)
        return answer

    def list(self) -> tuple[RunStatus, ...]:
        """List the running processes, and the exit statuses that the agent hasn't acknowledged, ordered by ID."""
        return tuple(sorted(self.list_changes("").statuses, key=attrgetter("id")))

    def list_changes(self, since: str) -> Changes:
        """List the changes since the earlier answer with the token `since`. An empty token lists all runs."""
        found: dict[str, RunStatus | None] = {}
        after, more, is_whole = "", True, False
        while more:
            page = self._check_served(protocol.decode_list(self._ask(protocol.encode_list(since, after))))
            if page.is_whole:
                found, is_whole = {}, True
            found |= dict.fromkeys(page.gone) | {status.id: status for status in page.statuses}
            after = page.statuses[-1].id if page.statuses else ""
            since, more = page.token, page.more and bool(page.statuses or page.gone)
        return Changes(
            statuses=tuple(status for status in found.values() if status is not None),
            gone=tuple(run_id for run_id, status in found.items() if status is None),
            token=since,
            is_whole=is_whole or not since,
        )

    def signal(self, run_id: str, signal: int) -> bool:
        """Send a signal to the main process of a container. False means that the process has already exited."""
        return self._check_served(protocol.decode_signal(self._ask(protocol.encode_signal(run_id, signal))))

    def ack(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Acknowledge exit statuses, which the launcher then forgets.

        Return the acknowledged IDs, without IDs of unknown or running processes.
        """
        asked = tuple(ids)
        acked: tuple[str, ...] = ()
        for first in range(0, len(asked), ACKS_PER_REQUEST):
            packet = self._ask(protocol.encode_ack(asked[first : first + ACKS_PER_REQUEST]))
            acked += self._check_served(protocol.decode_ack(packet))
        return acked

    def begin_partition(self, cgroup: Path, kind: str) -> None:
        """Write a cgroup's `cpuset.cpus.partition`, which the agent isn't allowed to write. The file then shows whether the kernel accepted
        the value.
        """
        self._check_served(protocol.decode_partition(self._ask(protocol.encode_partition(str(cgroup), kind))))

    def gather(self, cgroup: Path) -> None:
        """Have the launcher set the affinity of a cgroup's threads to the cgroup's CPUs (sched_setaffinity(2)), which the agent may not
        do.
        """
        self._check_served(protocol.decode_gather(self._ask(protocol.encode_gather(str(cgroup)))))

    def write_host(self, writes: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
        """Write host settings, which the agent itself may only read.

        Args:
            writes: the files to write, as pairs of absolute path and content.

        Returns:
            The error of each write. None means that the write succeeded.

        Raises:
            LauncherError: the request failed. Some of the files may have been written.
        """
        results: tuple[str | None, ...] = ()
        for some in _split_writes(writes):
            found = self._check_served(protocol.decode_host(self._ask(protocol.encode_host(some))))
            if len(found) != len(some):
                raise LauncherError(self._path, f"it answered {len(some)} writes with {len(found)} results")
            results += found
        return results

    def tell(self, session: int, ticks: int, line: str) -> bool:
        """Write a line to the pseudoterminal of a session of this host, which the agent may not open.

        Args:
            session: process number of the session's leader.
            ticks: start time of a process in the session. A leader that started later has got a number that was free again.
            line: the text.

        Returns:
            False if there is no such terminal any more, or no room in it.
        """
        return self._check_served(protocol.decode_tell(self._ask(protocol.encode_tell(session, ticks, line))))

    def events(self) -> Iterator[None]:
        """Yield once after the subscription, and again whenever processes have exited, until `close`. Call `list` to get their statuses.

        Raises:
            LauncherError: the launcher has closed the connection, for instance to execute its new version.
        """
        try:
            with self._connect(None) as stream:
                self._subscription = stream
                stream.send(protocol.encode_subscribe())
                packet = stream.recv(protocol.MAX_ANSWER_BYTES)
                if packet:
                    self._check_served(protocol.decode_subscribe(packet))
                while packet and not self._closed:
                    yield None
                    packet = stream.recv(protocol.MAX_ANSWER_BYTES)
        except OSError as err:
            if not self._closed:
                raise LauncherError(self._path, err.strerror or str(err)) from err
        if not self._closed:
            raise LauncherError(self._path, "it closed the connection")

    def close(self) -> None:
        """End `events` permanently. Any thread may call this method."""
        self._closed = True
        if self._subscription is not None:
            with contextlib.suppress(OSError):  # the connection is closed already
                self._subscription.shutdown(socket.SHUT_RDWR)

    def _ask(self, request: bytes) -> bytes:
        if len(request) > protocol.MAX_REQUEST_BYTES:
            raise LauncherError(
                self._path, f"a request of {len(request)} bytes exceeds the limit of {protocol.MAX_REQUEST_BYTES}"
            )
        try:
            inode, answer = self._path.stat().st_ino, b""
            kept, self._kept = self._kept, None
            if kept is not None and kept[0] != inode:
                kept[1].close()
            elif kept is not None:
                # if the request is lost while the launcher executes its new version, it is sent again; repeating a request does no harm
                with contextlib.suppress(ConnectionError):
                    answer = self._exchange(kept[1], request, inode)
            answer = answer or self._exchange(self._connect(ANSWER_SECONDS), request, inode)
        except OSError as err:
            raise LauncherError(self._path, err.strerror or str(err)) from err
        if not answer:
            raise LauncherError(self._path, "it closed the connection without an answer")
        return answer

    def _exchange(self, stream: socket.socket, request: bytes, inode: int) -> bytes:
        """Send a request and return the answer. Empty means that the launcher closed the connection. After an answer, the connection stays
        open.
        """
        try:
            stream.send(request)
            answer = stream.recv(protocol.MAX_ANSWER_BYTES)
        except OSError:
            stream.close()
            raise
        if answer and self._kept is None:
            self._kept = inode, stream
        else:
            stream.close()
        return answer

    def __del__(self) -> None:
        if self._kept is not None:
            self._kept[1].close()

    def _connect(self, timeout_seconds: float | None) -> socket.socket:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            stream.settimeout(timeout_seconds)
            stream.connect(str(self._path))
        except OSError:
            stream.close()
            raise
        return stream

    def _check_served(self, answer: T | Refused) -> T:
        if isinstance(answer, Refused):
            raise self._make_refusal(answer)
        return answer

    def _make_refusal(self, refused: Refused) -> LauncherError:
        return LauncherError(self._path, f"it refuses the request: {refused.message} ({refused.code})")


def _split_writes(writes: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Split writes into lists that fit into one request each."""
    some: list[tuple[str, str]] = []
    size = cpus = 0
    for place, value in writes:
        length = len(place) + len(value) + 10  # the JSON text also has quotes, commas and brackets
        count = len(CpuSet.parse(value)) if place.startswith("thread ") else 0
        if some and (size + length > WRITES_BYTES or cpus + count > MOVES_CPUS):
            yield some
            some, size, cpus = [], 0, 0
        some.append((place, value))
        size += length
        cpus += count
    if some:
        yield some
