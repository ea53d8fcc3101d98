"""Clients of the launcher's socket. Requests and answers are JSON objects, one per packet (SOCK_SEQPACKET)."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.launcher.order import RefusedError
from nodeagent.launcher.report import log

# maximum size of a request; a packet must fit into the kernel's default send buffer (net.core.wmem_default, 208 KiB)
MAX_REQUEST_BYTES = 192 * 1024
MAX_CLIENTS = 64

Answer = Callable[
    [socket.socket, Mapping[str, Any]], Mapping[str, Any] | None
]  # None means that the answer is sent later


class Clients:
    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, answer: Answer) -> None:
        self.listener, self.selector, self.answer = listener, selector, answer
        self.subscribed: dict[socket.socket, bool] = {}  # all clients; the value is whether the client gets wake-ups

    def listen(self) -> None:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client = self.listener.accept()[0]
            uid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid not in {0, os.getuid()} or len(self.subscribed) >= MAX_CLIENTS:
                log("client_refused", uid=uid, clients=len(self.subscribed))
                client.close()
                return
            client.setblocking(False)
            self.subscribed[client] = False
            self.selector.register(client, selectors.EVENT_READ, lambda: self.receive(client))

    def drop(self, client: socket.socket) -> None:
        if self.subscribed.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()

    def send(self, client: socket.socket, message: Mapping[str, Any], *, is_wakeup: bool = False) -> None:
        """Send a message, and disconnect a client that doesn't read. A client with an unread wake-up gets no second wake-up."""
        if client not in self.subscribed:
            return
        try:
            client.send(json.dumps(message).encode())
        except OSError as err:
            if not (is_wakeup and isinstance(err, BlockingIOError)):
                self.drop(client)

    def wake(self, run_id: str) -> None:
        """Notify the subscribed clients that a process has exited."""
        for client in [client for client, is_subscribed in self.subscribed.items() if is_subscribed]:
            self.send(client, {"event": "exit", "id": run_id}, is_wakeup=True)

    def receive(self, client: socket.socket) -> None:
        if client not in self.subscribed:  # the client was dropped after select() returned
            return
        try:
            packet, _, flags, _ = client.recvmsg(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet, flags = b"", 0
        if not packet:
            self.drop(client)
            return
        try:
            if flags & socket.MSG_TRUNC:
                raise RefusedError("too_large", f"a request must have at most {MAX_REQUEST_BYTES} bytes")  # noqa: TRY301 - refused like all
            message = json.loads(packet)
            answer = self.answer(client, message if isinstance(message, dict) else {})
        except RefusedError as err:
            answer = {"refused": {"code": err.code, "message": str(err)}}
        except (ValueError, RecursionError):
            answer = {"refused": {"code": "bad_request", "message": "a request must be a JSON object in UTF-8"}}
        if answer is not None:
            self.send(client, answer)
