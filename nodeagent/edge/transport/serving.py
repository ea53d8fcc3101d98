"""Serves bounded exchanges (one request, one answer, close) and dialogues in one thread of its own, whatever clients do.

Decides which clients are dropped when they are too many or too slow. Knows no protocol; a protocol's answer may wait, but not
block the thread, and how many may wait at once is the protocol's to bound.
"""

import asyncio
import contextlib
import errno
import functools
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
"""The owner of a connection: the user id of a Unix socket's client; None for TCP, where the kernel doesn't know it."""
_CALL_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 1.0
_ACCEPT_PAUSE_SECONDS = 1.0
_READS_TO_PART = 4
_SO_PEERGROUPS = 59
"""asm-generic/socket.h (Linux 4.13); the socket module does not name it."""
_MAX_OPTION_BYTES = 1024
"""The most that socket.getsockopt takes: 256 groups."""


class Connections(NamedTuple):
    """How many connections are open."""

    reading: int
    """Their request is still arriving."""
    answering: int
    """Their answer is being computed."""
    parting: int
    """Their answer is being sent."""


class Service(Protocol):
    """A protocol to serve."""

    @property
    def bounds(self) -> Bounds: ...
    @property
    def terminator(self) -> bytes:
        """What ends a request."""
        ...

    def answer(self, request: bytes, peer: Peer | None) -> Awaitable[bytes]:
        """Answer a request that ends with the terminator. `peer` is None where the kernel doesn't know it (TCP)."""
        ...

    def refusal(self, why: Broken) -> bytes: ...


class Dialogue(NamedTuple):
    """A protocol of many requests per connection, which its clients may keep open: the oldest makes room for a new one."""

    bounds: Bounds
    """`request_bytes`: what is read at once."""
    attend: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    """Speaks with one client. An OSError ends it, too."""


class ServingThread:
    """A thread for all servers of the process.

    Args:
        on_failure: called in the thread with the current action and the error, if no client is at fault: a bug, or too few descriptors.
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
        """Serve on a listening socket, which belongs to the server from now on."""
        server = Server(self, listener, service, self._on_failure)
        self.run(server.open())
        return server

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(_CALL_SECONDS)

    def stop(self) -> None:
        """Stop the thread. Servers still open end where they are."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class Server:
    """One listening socket being served. Created by `ServingThread.serve`."""

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
        """Connections whose request is still arriving, oldest first, and their owners."""
        self._answering: dict[asyncio.Task[None], SlotHolder] = {}
        """Connections whose answer is being computed."""
        self._parting: dict[asyncio.Task[None], SlotHolder] = {}
        """Connections whose answer is being sent, oldest first."""

    @property
    def connections(self) -> Connections:
        return Connections(len(self._reading), len(self._answering), len(self._parting))

    async def open(self) -> None:
        self._listener.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:  # not closed in the meantime
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop listening, drop open connections except those about to get their answer, and remove the file of a Unix socket."""
        name = self._listener.getsockname() if self._listener.family == socket.AF_UNIX else None
        self._thread.run(self._close())
        if name and not name.startswith("\0"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108 - a socket's name, not a path we chose

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
        """Accept one connection per turn of the loop: an honest client sends its request before a flood takes all places."""
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it went away again
        except OSError as err:
            self._on_failure(
                "accepting a connection", err
            )  # out of descriptors or memory: a pause, or the thread would spin
            loop.remove_reader(self._listener)
            loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume)
            return
        connection.setblocking(False)
        peer = _peer(connection)
        holder = None if peer is None else peer.uid
        task = loop.create_task(self._attend(connection, peer, self._make_room(holder)))
        task.add_done_callback(functools.partial(_close_connection, connection))
        self._reading[task] = holder

    def _make_room(self, newcomer: SlotHolder) -> bool:
        """Make a place for one more connection, if necessary by dropping a slow client.

        The user with most connections loses one: no user can keep others out. If that is the new client's user, the connection whose
        request has been arriving longest is dropped, and the new one is refused when all have sent theirs.
        """
        held = Counter([*self._reading.values(), *self._answering.values(), *self._parting.values()])
        if held.total() < self._service.bounds.connections:
            return True
        ((most, places),) = held.most_common(1)
        is_other = places > held[newcomer]
        loser = most if is_other else newcomer
        slow = [self._reading, self._parting] if is_other else [self._reading]
        slowest = next((task for tasks in slow for task, holder in tasks.items() if holder == loser), None)
        if slowest is None:
            return False
        self._forget(slowest)
        slowest.cancel()
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        for tasks in (self._reading, self._answering, self._parting):
            tasks.pop(task, None)

    async def _attend(self, connection: socket.socket, peer: Peer | None, has_room: bool) -> None:
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
                await self._refuse(self._service, writer, reader, Broken.BUSY)
        except OSError:
            pass  # (includes timeouts) the client is gone, or does not read its answer
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
            await self._refuse(service, writer, reader, Broken.TOO_LARGE)
            return
        except TimeoutError:
            await self._refuse(service, writer, reader, Broken.TOO_SLOW)
            return
        self._answering[task] = self._reading.pop(task)
        try:
            answer = await service.answer(request, peer)
        except Exception as err:  # noqa: BLE001 - a bug in one answer must not end the thread that serves all others
            self._on_failure("answering a request", err)
            answer = service.refusal(Broken.BUG)
        self._parting[task] = self._answering.pop(task)
        await self._part(writer, answer)

    async def _refuse(
        self, service: Service, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, why: Broken
    ) -> None:
        await self._part(writer, service.refusal(why), unread=reader)

    async def _part(
        self, writer: asyncio.StreamWriter, answer: bytes, *, unread: asyncio.StreamReader | None = None
    ) -> None:
        """Send the last bytes and make sure that they were received."""
        writer.transport.set_write_buffer_limits(0)  # so that drain waits for the last byte
        async with asyncio.timeout(self._service.bounds.write_seconds):
            writer.write(answer)
            await writer.drain()
            if unread is not None:
                # closing a TCP socket with unread input resets it, and the answer would be lost: read what little may be left
                writer.write_eof()
                for _ in range(_READS_TO_PART):
                    if not await unread.read(self._service.bounds.request_bytes):
                        break
            writer.close()
            await writer.wait_closed()


def _close_connection(connection: socket.socket, task: asyncio.Task[None]) -> None:
    """Close it even if its task was cancelled before it began, and let the loop report what the task did not catch."""
    connection.close()
    if not task.cancelled() and (err := task.exception()) is not None:
        raise err


def _peer(connection: socket.socket) -> Peer | None:
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("iII", credentials)
    return Peer(uid, frozenset({gid, *_supplementary(connection)}), pid)


def _supplementary(connection: socket.socket) -> tuple[int, ...]:
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    except OSError as err:
        if err.errno == errno.ERANGE:
            return ()  # more than fit: then only the primary group counts
        raise
    return struct.unpack(f"{len(groups) // 4}I", groups)
