"""Client of the launcher. It keeps its connection open for further requests.

After an error, each request may be repeated: the launcher starts a run ID only once, and keeps an exit status until the agent has
acknowledged it.
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
    """Changes of the launcher's runs since an earlier answer."""

    statuses: tuple[RunStatus, ...]
    """Statuses of the runs that are new or have changed, in no particular order."""
    gone: tuple[str, ...]
    """IDs of the runs that the launcher doesn't know any more."""
    token: str
    """Token for the next request, which then lists only later changes. Empty means that the launcher always lists all runs."""
    is_whole: bool
    """Whether the statuses are those of all runs, so that runs from earlier answers must be dropped."""


class LauncherClient:
    def __init__(self, path: Path = DEFAULT_SOCKET) -> None:
        self._path = path
        self._kept: tuple[int, socket.socket] | None = None
        """Connection from an earlier request, with the inode of the launcher's socket file at that time.

        If the inode has changed, the connection isn't used. It would lead to a launcher whose socket file was deleted or replaced.
        """
        self._subscription: socket.socket | None = None
        self._closed = False

    def hello(self) -> Hello:
        return self._check_served(protocol.decode_hello(self._ask(protocol.encode_hello())))

    def start(self, request: StartRequest) -> Running | Exited | StartFailed:
        """Start a container's process, and return its status after execve, or the reason why it couldn't be started.

        If the run ID was started before, nothing is started, and the current status is returned.
        """
        answer = protocol.decode_start(self._ask(protocol.encode_start(request)))
        if isinstance(answer, Refused):
            raise self._make_refusal(answer)
        return answer

    def list(self) -> tuple[RunStatus, ...]:
        """Return the statuses of the running processes, and the exit statuses that aren't acknowledged yet, ordered by ID."""
        return tuple(sorted(self.list_changes("").statuses, key=attrgetter("id")))

    def list_changes(self, since: str) -> Changes:
        """Return the changes since the answer that contained the token `since`. With an empty token, return all runs."""
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
        """Send a signal to a container's main process. Return False if the process has already exited."""
        return self._check_served(protocol.decode_signal(self._ask(protocol.encode_signal(run_id, signal))))

    def ack(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Acknowledge exit statuses, so that the launcher drops them. Return the IDs that the launcher has dropped.

        Unknown IDs, and those of running processes, have no effect.
        """
        asked = tuple(ids)
        acked: tuple[str, ...] = ()
        for first in range(0, len(asked), ACKS_PER_REQUEST):
            packet = self._ask(protocol.encode_ack(asked[first : first + ACKS_PER_REQUEST]))
            acked += self._check_served(protocol.decode_ack(packet))
        return acked

    def begin_partition(self, cgroup: Path, kind: str) -> None:
        """Let the launcher write a cgroup's `cpuset.cpus.partition`, because the agent isn't allowed to. Read the file afterwards to see
        whether the kernel accepted the value.
        """
        self._check_served(protocol.decode_partition(self._ask(protocol.encode_partition(str(cgroup), kind))))

    def gather(self, cgroup: Path) -> None:
        """Let the launcher reset the affinity of a cgroup's threads to the cgroup's CPUs (sched_setaffinity(2)), because the agent isn't
        allowed to.
        """
        self._check_served(protocol.decode_gather(self._ask(protocol.encode_gather(str(cgroup)))))

    def write_host(self, writes: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
        """Let the launcher write host settings, because the agent may only read them.

        Args:
            writes: pairs of place and value. The place is an absolute path, or `thread PID@START` for a kernel thread's CPUs.

        Returns:
            The result of each write: None after success, otherwise the error's text.

        Raises:
            LauncherError: the request failed. Some of the values may have been written.
        """
        results: tuple[str | None, ...] = ()
        for some in _split_writes(writes):
            found = self._check_served(protocol.decode_host(self._ask(protocol.encode_host(some))))
            if len(found) != len(some):
                raise LauncherError(self._path, f"it answered {len(some)} writes with {len(found)} results")
            results += found
        return results

    def tell(self, session: int, ticks: int, line: str) -> bool:
        """Make the launcher write a line to the pseudoterminal of a session (setsid(2)), because the agent isn't allowed to open it.

        Args:
            session: PID of the session's leader.
            ticks: start time of any process in the session. If the leader has started later, it belongs to another session that reuses the
                PID.
            line: the text.

        Returns:
            False if the terminal doesn't exist any more, or its buffer is full.
        """
        return self._check_served(protocol.decode_tell(self._ask(protocol.encode_tell(session, ticks, line))))

    def events(self) -> Iterator[None]:
        """Yield once when subscribed, and then whenever processes have exited, until `close`. Call `list` to get their statuses.

        Raises:
            LauncherError: the launcher has closed the connection, for instance because it was updated.
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
        """End the iteration of `events` for good. Any thread may call this method."""
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
        """Send a request, and return the answer. Empty means that the launcher closed the connection. Otherwise, the connection stays open
        for the next request.
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
    """Split writes into lists, each small enough for one request."""
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
