"""Device plugins that misbehave, in a process of their own: `python -m tests.support.hostile_plugin DIRECTORY`.

Each line of stdin is a number. The process then registers a plugin that misbehaves in that way, and writes a line once that is done. What
the number stands for is made of kinds (`KINDS`), methods and dice.
"""

import random
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from h2.exceptions import H2Error

from nodeagent.formats.wire.grpc_messages import add_frame
from tests.support.device_plugin import HOSTILE_STATUSES, MESSAGES, register

RESOURCES = 8
METHODS = ("GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate", "PreStartContainer")
HEAD = ((":status", "200"), ("content-type", "application/grpc"))
OK = (("grpc-status", "0"),)
MEGABYTE = 1 << 20
FLOOD_BYTES = 6 * MEGABYTE
"""Enough to exceed every limit."""


def resource_of(number: int) -> str:
    return f"example.com/hostile{number % RESOURCES}"


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def good_message(method: str) -> Any:
    device = MESSAGES.Device(ID="a", health="Healthy")
    one = MESSAGES.ContainerAllocateResponse(envs={"A": "b"})
    preferred = MESSAGES.ContainerPreferredAllocationResponse(deviceIDs=["a"])
    return {
        "GetDevicePluginOptions": MESSAGES.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        ),
        "ListAndWatch": MESSAGES.ListAndWatchResponse(devices=[device, MESSAGES.Device(ID="b", health="Healthy")]),
        "GetPreferredAllocation": MESSAGES.PreferredAllocationResponse(container_responses=[preferred]),
        "Allocate": MESSAGES.AllocateResponse(container_responses=[one]),
        "PreStartContainer": MESSAGES.PreStartContainerResponse(),
    }[method]


def large_message(method: str, size: int) -> bytes:
    """A message of that size which only its size is wrong with."""
    text = "x" * size
    one = MESSAGES.ContainerAllocateResponse(annotations={"a": text})
    preferred = MESSAGES.ContainerPreferredAllocationResponse(deviceIDs=[text])
    found: dict[str, Any] = {
        "ListAndWatch": MESSAGES.ListAndWatchResponse(devices=[MESSAGES.Device(ID="a", health=text)]),
        "GetPreferredAllocation": MESSAGES.PreferredAllocationResponse(container_responses=[preferred]),
        "Allocate": MESSAGES.AllocateResponse(container_responses=[one]),
    }
    unknown = b"\xfa\x01" + bytes((128 | size & 127, 128 | size >> 7 & 127, 128 | size >> 14 & 127, size >> 21))
    return found[method].SerializeToString() if method in found else unknown + text.encode()


def many_devices(method: str) -> bytes:
    many = [f"d{n}" for n in range(16_385)]
    preferred = MESSAGES.ContainerPreferredAllocationResponse(deviceIDs=many)
    return {
        "ListAndWatch": MESSAGES.ListAndWatchResponse(devices=[MESSAGES.Device(ID=one) for one in many]),
        "GetPreferredAllocation": MESSAGES.PreferredAllocationResponse(container_responses=[preferred]),
    }.get(method, good_message(method)).SerializeToString()


class Call:
    """A call to the plugin, to answer in some way."""

    def __init__(self, channel: socket.socket, h2: H2Connection, stream: int, method: str, dice: random.Random) -> None:
        self.channel, self.h2, self.stream, self.method, self.dice = channel, h2, stream, method, dice

    def message(self) -> bytes:
        return bytes(good_message(self.method).SerializeToString())

    def send(self, data: bytes = b"") -> None:
        self.channel.sendall(self.h2.data_to_send() + data)

    def begin(self, head: tuple[tuple[str, str], ...] = HEAD) -> None:
        self.h2.send_headers(self.stream, list(head))
        self.send()

    def body(self, data: bytes) -> None:
        """Send data, as much as the client's windows allow at a time."""
        while data:
            size = min(len(data), self.h2.local_flow_control_window(self.stream), self.h2.max_outbound_frame_size)
            self.h2.send_data(self.stream, data[:size])
            data = data[size:]
            self.send()
            if data and size == 0:
                received = self.channel.recv(65536)
                if not received:
                    raise OSError("it has hung up")
                self.h2.receive_data(received)

    def end(self, trailers: tuple[tuple[str, str], ...] = OK) -> None:
        self.h2.send_headers(self.stream, list(trailers), end_stream=True)
        self.send()

    def answer(self, body: bytes | None = None, trailers: tuple[tuple[str, str], ...] = OK) -> None:
        self.begin()
        self.body(add_frame(self.message()) if body is None else body)
        if self.method != "ListAndWatch" or body is not None or trailers is not OK:
            self.end(trailers)

    def raw(self, data: bytes) -> None:
        self.begin()
        self.send(data)

    def flood(self, data: bytes) -> None:
        self.begin()
        for _ in range(FLOOD_BYTES // (100 * len(data))):
            self.send(data * 100)

    def drip(self, data: bytes) -> None:
        for byte in data:
            self.channel.sendall(bytes((byte,)))

    def lists(self) -> None:
        """Report other devices without end, if it is asked for its devices."""
        self.begin()
        for number in range(2_000):
            device = MESSAGES.Device(ID=f"d{number}", health="Healthy")
            self.body(add_frame(MESSAGES.ListAndWatchResponse(devices=[device] * 200).SerializeToString()))

    def close(self) -> None:
        self.channel.shutdown(socket.SHUT_RDWR)


Step = Callable[[Call], object]
Answer = tuple[Step, ...]


def with_message(make: Callable[[Call], bytes]) -> Answer:
    return (lambda call: call.answer(add_frame(make(call))),)


def with_body(make: Callable[[Call], bytes]) -> Answer:
    return (lambda call: call.answer(make(call)),)


def with_head(*head: tuple[str, str]) -> Answer:
    return (lambda call: call.begin(head), Call.end)


def with_raw(make: Callable[[Call], bytes]) -> Answer:
    return (lambda call: call.raw(make(call)),)


KINDS: dict[str, Answer] = {
    "no protobuf": with_message(lambda _: b"\xff\xff\xff"),
    "half a message": with_message(lambda call: (call.message() or b"\x0a\x01x")[:-1]),
    "dice": with_message(lambda call: call.dice.randbytes(60)),
    "changed bytes": with_message(lambda call: bytes(b ^ (call.dice.random() < 0.1) for b in call.message() * 3)),
    "no bytes": with_message(lambda _: b""),
    "deep": with_message(lambda _: b"\x0a\x7e" * 64),
    "3.8 MB": with_message(lambda call: large_message(call.method, 3_800_000)),
    "70 KB": with_message(lambda call: large_message(call.method, 70_000)),
    "a million of nothing": with_message(lambda _: b"\x0a\0" * MEGABYTE),
    "16,385 devices": with_message(lambda call: many_devices(call.method)),
    "more than there may be": with_body(lambda _: b"\0\xff\xff\xff\xff"),
    "5 MB": with_message(lambda call: large_message(call.method, 5_000_000)),
    "compressed": with_body(lambda call: b"\1" + add_frame(call.message())[1:]),
    "two messages": with_body(lambda call: add_frame(call.message()) * 2),
    "no message": with_body(lambda _: b""),
    "half a length": with_body(lambda _: b"\0\0"),
    "a length that lies": with_body(lambda call: b"\0\0\0\0\x09" + call.message()[:4]),
    "no status": (lambda call: call.answer(trailers=(("x", "y"),)),),
    "a status of its own": (lambda call: call.answer(trailers=(("grpc-status", call.dice.choice(HOSTILE_STATUSES)),)),),
    "a refusal": (lambda call: call.answer(trailers=(("grpc-status", "13"), ("grpc-message", "no\x1b[2J" * 2_000))),),
    "a late status": (lambda call: call.answer(trailers=(("grpc-status", "4"),)),),
    "HTTP's 503": with_head((":status", "503")),
    "HTTP's nonsense": with_head((":status", "²")),
    "no HTTP status": with_head(("content-type", "application/grpc")),
    "capitals": with_head(*HEAD, ("X-Upper", "y")),
    "1,000 headers": with_head(*HEAD, *((f"x{n}", "y" * 60) for n in range(1_000))),
    "a length of content": with_head(*HEAD, ("content-length", "٠")),
    "no HPACK": with_raw(lambda call: frame(1, b"\xff" * 20, 4, call.stream)),
    "endless CONTINUATION": (
        lambda call: call.send(frame(1, b"\x82", 0, call.stream) + frame(9, b"x" * 60, 0, call.stream) * 5_000),
    ),
    "another's data": with_raw(lambda call: frame(0, b"x" * 50, 0, call.stream + 2)),
    "even data": with_raw(lambda _: frame(0, b"x" * 50, 0, 2)),
    "padding beyond": with_raw(lambda call: frame(0, b"\xff" + b"x" * 9, 8, call.stream)),
    "a promise": with_raw(lambda call: frame(5, b"\0\0\0\2\x82", 4, call.stream)),
    "settings that can't be": with_raw(lambda _: frame(4, b"\0\4\xff\xff\xff\xff")),
    "half settings": with_raw(lambda _: frame(4, b"x" * 5)),
    "windows beyond all": with_raw(lambda call: frame(8, b"\x7f\xff\xff\xff", 0, call.stream) * 2),
    "no window": with_raw(lambda call: frame(8, b"\0\0\0\0", 0, call.stream)),
    "a long frame": with_raw(lambda call: frame(0, b"x" * 20_000, 0, call.stream)),
    "a frame of 16 MB": with_raw(lambda _: b"\xff\xff\xff\0" + b"x" * 50_000),
    "half a frame": (lambda call: call.raw(b"\0\0\x20\0\0"), Call.close),
    "unknown frames": with_raw(lambda call: frame(call.dice.randrange(11, 256), call.dice.randbytes(9)) * 50),
    "dice for frames": with_raw(
        lambda call: b"".join(
            frame(
                call.dice.randrange(10),
                call.dice.randbytes(call.dice.randrange(30)),
                call.dice.randrange(256),
                call.dice.choice((0, call.stream)),
            )
            for _ in range(20)
        )
    ),
    "HTTP/1": (lambda call: call.channel.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20),),
    "a reset": (Call.begin, lambda call: call.h2.reset_stream(call.stream), Call.send),
    "a farewell": (Call.begin, lambda call: call.h2.close_connection(), Call.send),
    "pings without end": (lambda call: call.flood(frame(6, b"12345678")),),
    "settings without end": (lambda call: call.flood(frame(4)),),
    "empty data without end": (lambda call: call.flood(frame(0, b"", 0, call.stream)),),
    "lists without end": (Call.lists,),
    "silence": (),
    "silence after the head": (Call.begin,),
    "silence within the message": (Call.begin, lambda call: call.body(add_frame(b"x" * 9)[:-3])),
    "byte by byte": (
        lambda call: call.drip(frame(1, b"\x88", 4, call.stream) + frame(0, add_frame(call.message()), 0, call.stream)),
    ),
    "hanging up": (Call.close,),
    "hanging up after the head": (Call.begin, Call.close),
    "hanging up within the message": (
        Call.begin,
        lambda call: call.body(add_frame(call.message() + b"x")[:-1]),
        Call.close,
    ),
}


class HostilePlugin:
    """A plugin that misbehaves in one method, or in all."""

    def __init__(self, directory: Path, number: int) -> None:
        self._dice = random.Random(number)
        self.name = f"hostile{number}.sock"
        self._kind = KINDS[list(KINDS)[number % len(KINDS)]]
        self._methods = self._dice.choice((*((method,) for method in METHODS), METHODS[3:], METHODS))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / self.name))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            channel, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(channel,), daemon=True).start()

    def _serve(self, channel: socket.socket) -> None:
        config = H2Configuration(
            client_side=False,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        h2, method = H2Connection(config), ""
        h2.initiate_connection()
        with channel, suppress(OSError, H2Error):
            while True:
                channel.sendall(h2.data_to_send())
                if not (data := channel.recv(65536)):
                    return
                for event in h2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        method = dict(event.headers)[":path"].rpartition("/")[2]
                    elif isinstance(event, StreamEnded):
                        call = Call(channel, h2, event.stream_id, method, self._dice)
                        for step in self._kind if method in self._methods else (Call.answer,):
                            step(call)


def main(directory: Path) -> None:
    for line in sys.stdin:
        number = int(line)
        plugin = HostilePlugin(directory, number)
        with suppress(grpc.RpcError):
            register(directory, resource_of(number), plugin.name)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
