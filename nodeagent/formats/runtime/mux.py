"""The lowest layer of NRI's socket: frames with the data of several connections.

A frame consists of a connection number (u32, big-endian), a length (u32), and a payload of this length. A ttrpc frame may be split over
several such frames, at any byte.
"""

import struct
from collections.abc import Iterator

from nodeagent.formats.runtime.ttrpc import HEADER_BYTES, MAX_DATA_BYTES, TtrpcFrame, read_header

PLUGIN_SERVICE = 1
"""Number of the connection on which the runtime calls the agent."""
RUNTIME_SERVICE = 2
"""Number of the connection on which the agent calls the runtime."""

MAX_FRAME_BYTES = 4096
"""Maximum size of a sent frame. containerd's buffer has this size, and containerd never answers a larger frame."""
MAX_FRAMES_PER_MESSAGE = 128
"""Maximum number of frames in which a message is sent. The runtime closes the socket if more than 256 frames are queued for a connection.
"""
_HEADER = struct.Struct(">II")
MAX_MESSAGE_BYTES = MAX_FRAMES_PER_MESSAGE * (MAX_FRAME_BYTES - _HEADER.size)
"""Maximum size of a sent ttrpc frame."""
MAX_PAYLOAD_BYTES = HEADER_BYTES + MAX_DATA_BYTES
"""Maximum size of a received frame's payload."""


class MuxError(ValueError):
    """The received data doesn't have NRI's framing, so the rest of the stream can't be read."""


def encode_frames(connection: int, message: bytes) -> bytes:
    """Split a ttrpc frame into frames for the socket."""
    assert 0 < len(message) <= MAX_MESSAGE_BYTES
    step = MAX_FRAME_BYTES - _HEADER.size
    pieces = (message[start : start + step] for start in range(0, len(message), step))
    return b"".join(_HEADER.pack(connection, len(piece)) + piece for piece in pieces)


class Reassembly:
    """Decoder that joins pieces of a socket's data into ttrpc frames. At most one unfinished frame is kept for each connection.

    Data of connections other than PLUGIN_SERVICE and RUNTIME_SERVICE are skipped, as in the runtime.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0
        """Bytes of the current frame's payload that are still to come."""
        self._unfinished = {PLUGIN_SERVICE: bytearray(), RUNTIME_SERVICE: bytearray()}

    def feed(self, piece: bytes) -> Iterator[tuple[int, TtrpcFrame]]:
        """Yield each ttrpc frame that this piece completes, as (connection, frame).

        Raises:
            MuxError: a length exceeds the protocol's limit.
        """
        at = 0
        while at < len(piece):
            if self._left == 0:
                take = min(_HEADER.size - len(self._header), len(piece) - at)
                self._header += piece[at : at + take]
                at += take
                if len(self._header) == _HEADER.size:
                    self._connection, self._left = _HEADER.unpack(self._header)
                    if self._left > MAX_PAYLOAD_BYTES:
                        raise MuxError(
                            f"a frame for connection {self._connection} has {self._left} bytes, more than the limit of {MAX_PAYLOAD_BYTES}"
                        )
                    self._header.clear()
                continue
            take = min(self._left, len(piece) - at)
            if self._connection in self._unfinished:
                self._unfinished[self._connection] += piece[at : at + take]
                yield from self._take_frames()
            self._left -= take
            at += take

    def _take_frames(self) -> Iterator[tuple[int, TtrpcFrame]]:
        bytes_ = self._unfinished[self._connection]
        while len(bytes_) >= HEADER_BYTES:
            header = read_header(bytes_)
            if header.length > MAX_DATA_BYTES:
                raise MuxError(f"a message has {header.length} bytes, more than the limit of {MAX_DATA_BYTES}")
            end = HEADER_BYTES + header.length
            if len(bytes_) < end:
                return
            frame = TtrpcFrame(header.stream, header.kind, header.flags, bytes(bytes_[HEADER_BYTES:end]))
            del bytes_[:end]
            yield self._connection, frame
