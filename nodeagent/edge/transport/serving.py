"""Thread that serves all of the agent's sockets. A connection is used either for one request with its answer, or for a dialogue of several
requests.

A client is disconnected if it is too slow, or if there are too many clients. An operation may wait before it answers, but must not block
the thread. Each protocol limits how many operations may wait.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar

from nodeagent.formats.wire.exchange import Bounds, Broken, Peer

T = TypeVar("T")
SlotHolder = int | None
"""User ID of a client. None means that it is unknown, because the client is connected over TCP."""
_CALL_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 1.0
_ACCEPT_PAUSE_SECONDS = 1.0
_READS_TO_PART = 4
_SO_PEERGROUPS = 59
"""Socket option SO_PEERGROUPS (asm-generic/socket.h, Linux 4.13), which Python's module `socket` doesn't define."""
_MAX_OPTION_BYTES = 1024
"""Maximum size in bytes of the value of SO_PEERGROUPS. It is enough for 256 groups."""


class Connections(NamedTuple):
    """Numbers of open connections by state."""

    reading: int
    """Number of connections with incomplete requests."""
    answering: int
    """Number of connections whose requests are being handled."""
    parting: int
    """Number of connections whose answers are being sent."""


class Service(Protocol):
    """Protocol in which a connection is used for one request and its answer."""

    @property
    def bounds(self) -> Bounds: ...
    @property
    def terminator(self) -> bytes:
        """Return the bytes with which a request ends."""

    def answer(self, request: bytes, peer: Peer | None) -> Awaitable[bytes]:
        """Answer a request, which includes its terminator. `peer` is None if the client is unknown, because it is connected over TCP."""

    def make_refusal(self, reason: Broken, /) -> bytes: ...


class Dialogue(NamedTuple):
    """Protocol in which a connection is used for several requests. If there are too many connections, the user with the most connections
    loses the oldest one.
    """

    bounds: Bounds
    """Limits for all connections together and for each connection. `request_bytes` is the size of the reader's buffer."""
    attend: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    """Function that serves one client until it disconnects. The function may raise OSError, which also ends the connection."""


class ServingThread:
    """Thread that runs all servers of the process.

    Args:
        on_failure: function that the thread calls after an error that no client has caused, such as a bug or EMFILE. Its arguments are what
            the thread was doing, and the error.
    """

    def __init__(self, on_failure: Callable[[str, BaseException | None], None]) -> None:
        self._on_failure = on_failure
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(
            lambda _, context: on_failure(str(context.get("message")), context.get("exception"))
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="serving", daemon=True)
        self._thread.start()

    def serve(self, listener: socket.socket, service: Service | Dialogue) -> "Server":
        """Serve the clients of a listening socket. `Server.close` closes the socket."""
        server = Server(self, listener, service, self._on_failure)
        self.run(server.open())
        return server

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the serving thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_SECONDS)

    def stop(self) -> None:
        """Stop the thread. Its servers aren't closed."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class Server:
    """Server of one listening socket. It is created by `ServingThread.serve`."""

    def __init__(
        self,
        thread: ServingThread,
        listener: socket.socket,
        service: Service | Dialogue,
        on_failure: Callable[[str, BaseException | None], None],
    ) -> None:
        self._thread = thread
        self._listener = listener
        self._service = service
        self._on_failure = on_failure
        self._reading: dict[asyncio.Task[None], SlotHolder] = {}
        """Users of the connections with incomplete requests, the oldest connection first."""
        self._answering: dict[asyncio.Task[None], SlotHolder] = {}
        """Users of the connections whose requests are being handled."""
        self._parting: dict[asyncio.Task[None], SlotHolder] = {}
        """Users of the connections whose answers are being sent, the oldest connection first."""

    @property
    def connections(self) -> Connections:
        return Connections(len(self._reading), len(self._answering), len(self._parting))

    async def open(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:  # the listener is still open
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop listening, wait up to a second for answers in progress, close all connections, and remove the file of a Unix socket."""
        name = self._listener.getsockname() if self._listener.family == socket.AF_UNIX else None
        self._thread.run(self._close())
        if name and not name.startswith("\0"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108 - getsockname returns the name as str or bytes

    async def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_LAST_ANSWERS_SECONDS)
        tasks = [*self._reading, *self._answering, *self._parting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        """Accept one connection in each iteration of the event loop. Otherwise, many connecting clients would keep the loop from reading
        requests.
        """
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has disconnected
        except OSError as err:  # descriptors or memory are exhausted: without a pause, the loop would use all CPU time
            self._on_failure("accepting a connection", err)
            loop.remove_reader(self._listener)
            loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume)
            return
        connection.setblocking(False)
        peer = _read_peer(connection)
        user = None if peer is None else peer.uid
        task = loop.create_task(self._serve_connection(connection, peer, self._make_room(user)))

        def close_connection(done: asyncio.Task[None]) -> None:
            connection.close()  # the connection is closed even if its task was cancelled before the first step
            if not done.cancelled() and (err := done.exception()) is not None:
                raise err  # the event loop passes the error to its exception handler

        task.add_done_callback(close_connection)
        self._reading[task] = user

    def _make_room(self, newcomer: SlotHolder) -> bool:
        """Make room for a new connection, by dropping the slowest connection of the user with the most connections if there are too many.

        If that user is the newcomer itself, only a connection with an incomplete request is dropped. Return False if there is no connection
        to drop.
        """
        held = Counter([*self._reading.values(), *self._answering.values(), *self._parting.values()])
        if held.total() < self._service.bounds.connections:
            return True
        ((most, count),) = held.most_common(1)
        is_other = count > held[newcomer]
        loser = most if is_other else newcomer
        slow = [self._reading, self._parting] if is_other else [self._reading]
        slowest = next((task for tasks in slow for task, user in tasks.items() if user == loser), None)
        if slowest is None:
            return False
        self._forget(slowest)
        slowest.cancel()
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        for tasks in (self._reading, self._answering, self._parting):
            tasks.pop(task, None)

    async def _serve_connection(self, connection: socket.socket, peer: Peer | None, has_room: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        writer = None
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._service.bounds.request_bytes)
            if isinstance(self._service, Dialogue):
                if has_room:
                    await self._service.attend(reader, writer)
            elif has_room:
                await self._exchange(self._service, task, peer, reader, writer)
            else:
                await self._send_and_close(writer, self._service.make_refusal(Broken.BUSY), unread=reader)
        except OSError:
            pass  # the client has disconnected, or hasn't read its answer in time
        finally:
            self._forget(task)
            if writer is not None:
                writer.transport.abort()

    async def _exchange(
        self,
        service: Service,
        task: asyncio.Task[None],
        peer: Peer | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            async with asyncio.timeout(service.bounds.read_seconds):
                request = await reader.readuntil(service.terminator)
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            await self._send_and_close(writer, service.make_refusal(Broken.TOO_LARGE), unread=reader)
            return
        except TimeoutError:
            await self._send_and_close(writer, service.make_refusal(Broken.TOO_SLOW), unread=reader)
            return
        self._answering[task] = self._reading.pop(task)
        try:
            answer = await service.answer(request, peer)
        except Exception as err:  # noqa: BLE001 - a bug in one answer must not end the thread that serves all others
            self._on_failure("answering a request", err)
            answer = service.make_refusal(Broken.BUG)
        self._parting[task] = self._answering.pop(task)
        await self._send_and_close(writer, answer)

    async def _send_and_close(
        self, writer: asyncio.StreamWriter, answer: bytes, *, unread: asyncio.StreamReader | None = None
    ) -> None:
        """Send an answer, and close the connection. If the request isn't read completely (`unread`), first read the rest, so that the
        client gets the answer.
        """
        writer.transport.set_write_buffer_limits(0)  # with limits of 0, drain waits until all bytes are sent
        async with asyncio.timeout(self._service.bounds.write_seconds):
            writer.write(answer)
            await writer.drain()
            if unread is not None:
                # the remaining input is read, because closing a TCP socket with unread input resets the connection and loses the answer
                writer.write_eof()
                for _ in range(_READS_TO_PART):
                    if not await unread.read(self._service.bounds.request_bytes):
                        break
            writer.close()
            await writer.wait_closed()


def _read_peer(connection: socket.socket) -> Peer | None:
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("iII", credentials)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    except OSError as err:
        if err.errno != errno.ERANGE:
            raise
        groups = b""  # the user is in more groups than fit into the kernel's answer, so only the primary group counts
    return Peer(uid, frozenset({gid, *struct.unpack(f"{len(groups) // 4}I", groups)}), pid)
