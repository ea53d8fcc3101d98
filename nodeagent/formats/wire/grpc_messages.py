"""Statuses and message frames of gRPC over HTTP/2, for calls with one request and one answer.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

import enum
import re
import struct

CONTENT_TYPE = "application/grpc"
_HEAD = struct.Struct(">?I")
"""Header of a gRPC message: a compression flag and the message's length."""
_STATUS = re.compile("[0-9]{1,3}")


class Status(enum.IntEnum):
    """gRPC status numbers that the agent sends or interprets."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(Exception):
    """Error that ends a call with this status and message."""

    def __init__(self, status: Status, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


def parse_status(text: str) -> int | None:
    """Parse the value of `grpc-status`, one to three ASCII digits. None means that the text is malformed."""
    return int(text) if _STATUS.fullmatch(text) else None


def add_frame(message: bytes) -> bytes:
    """Return a message with its length header."""
    return _HEAD.pack(False, len(message)) + message


def remove_frame(body: bytes) -> bytes:
    """Return the message of a request.

    Raises:
        CallError: the request has no message, several messages or a compressed message.
    """
    if len(body) < _HEAD.size:
        raise CallError(
            Status.INVALID_ARGUMENT, f"the request has {len(body)} bytes, but a message begins with a header of 5 bytes"
        )
    if body[0] == 1:
        raise CallError(Status.UNIMPLEMENTED, "the request is compressed, but only identity is supported")
    size, message = int.from_bytes(body[1 : _HEAD.size]), body[_HEAD.size :]
    if body[0] != 0 or size != len(message):
        raise CallError(
            Status.INVALID_ARGUMENT, f"the request is not one message: {size} bytes announced, {len(message)} sent"
        )
    return message


def percent_encode(text: str) -> str:
    """Encode a status text for a header as UTF-8, with the percent sign and everything except visible ASCII and
    blanks escaped.
    """
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in text.encode(errors="backslashreplace")
    )
