"""ttrpc's frames, requests and responses (https://github.com/containerd/ttrpc, PROTOCOL.md): unary calls only, all that NRI has.

A frame: length of the data (u32, big-endian), stream (u32, odd for the caller's), type (u8), flags (u8), data.
"""

import struct
from enum import IntEnum

from msgspec import Struct

from nodeagent.formats.wire.protobuf import Field, Kind, MessageType, ProtobufError, decode, encode

HEADER_BYTES = 10
MAX_DATA_BYTES = 4 << 20
_HEADER = struct.Struct(">IIBB")


class TtrpcError(ValueError):
    """A frame holds neither a request nor a response."""


class TtrpcFrameType(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3
    """Of a stream: NRI has none."""


class TtrpcCode(IntEnum):
    """Those of google.rpc.Code that we answer with."""

    OK = 0
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    """Newer runtimes take it as the sign of a plugin that knows StateChange instead."""


class TtrpcHeader(Struct, frozen=True):
    length: int
    stream: int
    kind: int
    """A TtrpcFrameType, or one that came later."""
    flags: int


class TtrpcFrame(Struct, frozen=True):
    stream: int
    kind: int
    """A TtrpcFrameType, or one that came later."""
    flags: int
    """Of a request: 0 where the call is unary."""
    data: bytes


class TtrpcRequest(Struct, frozen=True):
    service: str
    method: str
    payload: bytes
    timeout_ns: int
    """How long the caller waits, counted from when it was sent; 0: it doesn't say."""


class TtrpcResponse(Struct, frozen=True):
    payload: bytes = b""
    code: int = TtrpcCode.OK
    message: str = ""


_STATUS = MessageType("Status", (Field(1, "code", Kind.INT32), Field(2, "message", Kind.STRING)))
_REQUEST = MessageType(
    "Request",
    (
        Field(1, "service", Kind.STRING),
        Field(2, "method", Kind.STRING),
        Field(3, "payload", Kind.BYTES),
        Field(4, "timeout_nano", Kind.INT64),
    ),
)
_RESPONSE = MessageType("Response", (Field(1, "status", _STATUS), Field(2, "payload", Kind.BYTES)))


def read_header(data: bytes | bytearray) -> TtrpcHeader:
    """Data: at least a header's bytes."""
    return TtrpcHeader(*_HEADER.unpack_from(data))


def spell_request(stream: int, request: TtrpcRequest) -> bytes:
    """Return a whole frame. Stream: odd, and greater than that of the request before."""
    value = {
        "service": request.service,
        "method": request.method,
        "payload": request.payload,
        "timeout_nano": request.timeout_ns,
    }
    return _spell(stream, TtrpcFrameType.REQUEST, encode(_REQUEST, value))


def spell_response(stream: int, response: TtrpcResponse) -> bytes:
    """Return a whole frame. Stream: that of the request."""
    status = None if response.code == TtrpcCode.OK else {"code": response.code, "message": response.message}
    return _spell(stream, TtrpcFrameType.RESPONSE, encode(_RESPONSE, {"status": status, "payload": response.payload}))


def read_request(frame: TtrpcFrame) -> TtrpcRequest:
    """Raises TtrpcError."""
    try:
        found = decode(_REQUEST, frame.data)
    except ProtobufError as err:
        raise TtrpcError(str(err)) from err
    return TtrpcRequest(found["service"], found["method"], found["payload"], max(0, found["timeout_nano"]))


def read_response(frame: TtrpcFrame) -> TtrpcResponse:
    """Raises TtrpcError."""
    try:
        found = decode(_RESPONSE, frame.data)
    except ProtobufError as err:
        raise TtrpcError(str(err)) from err
    status = found["status"] or {"code": TtrpcCode.OK, "message": ""}
    return TtrpcResponse(found["payload"], status["code"], status["message"])


def _spell(stream: int, kind: TtrpcFrameType, data: bytes) -> bytes:
    return _HEADER.pack(len(data), stream, kind, 0) + data
