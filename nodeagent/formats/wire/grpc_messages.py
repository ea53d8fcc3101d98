"""What gRPC adds to HTTP/2 for calls with one request and one answer: statuses and the frame of a message. Knows no connection.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

import enum
import re
import struct

CONTENT_TYPE = "application/grpc"
_HEAD = struct.Struct(">?I")
"""Whether it is compressed, and its length."""
_STATUS = re.compile("[0-9]{1,3}")


class Status(enum.IntEnum):
    """gRPC's numbers, those that are answered here, and that are understood."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(Exception):
    """A call is answered with this status and text."""

    def __init__(self, status: Status, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


def parse_status(text: str) -> int | None:
    """Read the value of `grpc-status`. None means that it is no number of one to three ASCII digits."""
    return int(text) if _STATUS.fullmatch(text) else None


def framed(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return _HEAD.pack(False, len(message)) + message


def unframed(body: bytes) -> bytes:
    """Return the one message of a request.

    Raises:
        CallError: there is not exactly one, or it is compressed.
    """
    if len(body) < _HEAD.size:
        raise CallError(Status.INVALID_ARGUMENT, f"the request has {len(body)} bytes: a message begins with 5")
    if body[0] == 1:
        raise CallError(Status.UNIMPLEMENTED, "the request is compressed: only identity is understood")
    size, message = int.from_bytes(body[1 : _HEAD.size]), body[_HEAD.size :]
    if body[0] != 0 or size != len(message):
        raise CallError(
            Status.INVALID_ARGUMENT, f"the request is not one message: {size} bytes announced, {len(message)} sent"
        )
    return message


def percent_encoded(text: str) -> str:
    """Spell a status's text for a header: UTF-8, with everything escaped that is no visible ASCII, and the percent sign."""
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in text.encode(errors="backslashreplace")
    )
