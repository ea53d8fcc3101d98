"""ttrpc's frames, requests and responses (https://github.com/containerd/ttrpc, PROTOCOL.md), for unary calls only.

A frame consists of the data's length (u32, big-endian), the stream's ID (u32, odd if the caller opened the stream), a type (u8), flags (u8)
and the data.
"""

import struct
from enum import IntEnum

from msgspec import Struct

from nodeagent.formats.wire.protobuf import Field, Kind, MessageType, ProtobufError, decode, encode, fields

HEADER_BYTES = 10
MAX_DATA_BYTES = 4 << 20
_HEADER = struct.Struct(">IIBB")


class TtrpcError(ValueError):
    """A frame doesn't contain a valid request or response."""


class TtrpcFrameType(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3
    """Data of a stream, which NRI doesn't use."""


class TtrpcCode(IntEnum):
    """Status codes (google.rpc.Code) that the agent uses in its answers."""

    OK = 0
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12


class TtrpcHeader(Struct, frozen=True):
    length: int
    stream: int
    kind: int
    """A TtrpcFrameType, or a number that is unknown here."""
    flags: int


class TtrpcFrame(Struct, frozen=True):
    stream: int
    kind: int
    """A TtrpcFrameType, or a number that is unknown here."""
    flags: int
    """0 for the request of a unary call."""
    data: bytes


class TtrpcRequest(Struct, frozen=True):
    service: str
    method: str
    payload: bytes
    timeout_ns: int
    """Time that the caller waits for the response. 0 means that the request has no timeout."""


class TtrpcResponse(Struct, frozen=True):
    payload: bytes = b""
    code: int = TtrpcCode.OK
    message: str = ""


_STATUS = MessageType("Status", (Field(1, "code", Kind.INT32), Field(2, "message", Kind.STRING)))
_REQUEST = MessageType(
    "Request",
    (
        *fields(Kind.STRING, service=1, method=2),
        Field(3, "payload", Kind.BYTES),
        Field(4, "timeout_nano", Kind.INT64),
    ),
)
_RESPONSE = MessageType("Response", (Field(1, "status", _STATUS), Field(2, "payload", Kind.BYTES)))


def read_header(data: bytes | bytearray) -> TtrpcHeader:
    """Decode the header at the start of a frame."""
    return TtrpcHeader(*_HEADER.unpack_from(data))


def encode_request(stream: int, request: TtrpcRequest) -> bytes:
    """Encode a request as a whole frame. `stream` is odd, and greater than the stream of the previous request."""
    value = {
        "service": request.service,
        "method": request.method,
        "payload": request.payload,
        "timeout_nano": request.timeout_ns,
    }
    data = encode(_REQUEST, value)
    return _HEADER.pack(len(data), stream, TtrpcFrameType.REQUEST, 0) + data


def encode_response(stream: int, response: TtrpcResponse) -> bytes:
    """Encode a response as a whole frame. `stream` is the stream of the request."""
    status = None if response.code == TtrpcCode.OK else {"code": response.code, "message": response.message}
    data = encode(_RESPONSE, {"status": status, "payload": response.payload})
    return _HEADER.pack(len(data), stream, TtrpcFrameType.RESPONSE, 0) + data


def read_request(frame: TtrpcFrame) -> TtrpcRequest:
    """Decode a request.

    Raises:
        TtrpcError: the frame is malformed.
    """
    try:
        found = decode(_REQUEST, frame.data)
    except ProtobufError as err:
        raise TtrpcError(str(err)) from err
    return TtrpcRequest(found["service"], found["method"], found["payload"], max(0, found["timeout_nano"]))


def read_response(frame: TtrpcFrame) -> TtrpcResponse:
    """Decode a response.

    Raises:
        TtrpcError: the frame is malformed.
    """
    try:
        found = decode(_RESPONSE, frame.data)
    except ProtobufError as err:
        raise TtrpcError(str(err)) from err
    status = found["status"] or {"code": TtrpcCode.OK, "message": ""}
    return TtrpcResponse(found["payload"], status["code"], status["message"])
