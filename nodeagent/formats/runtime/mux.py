"""The lowest layer of NRI's socket: frames that carry several connections' bytes. Knows the frames of ttrpc only by their length.

A frame: connection (u32, big-endian), length (u32), that many bytes. Frames of ttrpc may be split over several, at any byte.
"""

import struct
from collections.abc import Iterator

from nodeagent.formats.runtime.ttrpc import HEADER_BYTES, MAX_DATA_BYTES, TtrpcFrame, read_header

PLUGIN_SERVICE = 1
"""The connection on which the runtime calls us."""
RUNTIME_SERVICE = 2
"""The connection on which we call the runtime."""

MAX_FRAME_BYTES = 4096
"""Of a frame that we send. containerd reads with a buffer of that size, and never answers what came in a larger one."""
MAX_FRAMES_PER_MESSAGE = 128
"""That we send. The runtime queues 256 per connection, and closes the socket when there are more."""
_HEADER = struct.Struct(">II")
MAX_MESSAGE_BYTES = MAX_FRAMES_PER_MESSAGE * (MAX_FRAME_BYTES - _HEADER.size)
"""Of a frame of ttrpc that we send."""
MAX_PAYLOAD_BYTES = HEADER_BYTES + MAX_DATA_BYTES
"""Of a frame that the runtime sends."""


class MuxError(ValueError):
    """What came isn't NRI's framing, and nothing after it can be read."""


def spell_frames(connection: int, message: bytes) -> bytes:
    """Split a frame of ttrpc over as many frames as it takes."""
    assert 0 < len(message) <= MAX_MESSAGE_BYTES
    step = MAX_FRAME_BYTES - _HEADER.size
    pieces = (message[start : start + step] for start in range(0, len(message), step))
    return b"".join(_HEADER.pack(connection, len(piece)) + piece for piece in pieces)


class Reassembly:
    """Puts frames of ttrpc together again from what a socket gives, piece by piece. Keeps at most one unfinished frame a connection.

    Other connections than the two are skipped, as the runtime does.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0
        """Bytes of the current frame's payload that are still to come."""
        self._unfinished = {PLUGIN_SERVICE: bytearray(), RUNTIME_SERVICE: bytearray()}

    def feed(self, piece: bytes) -> Iterator[tuple[int, TtrpcFrame]]:
        """Yield every frame that this piece completes, with its connection.

        Raises:
            MuxError: a length is beyond what the protocol allows.
        """
        at = 0
        while at < len(piece):
            if self._left == 0:
                take = min(_HEADER.size - len(self._header), len(piece) - at)
                self._header += piece[at : at + take]
                at += take
                if len(self._header) == _HEADER.size:
                    self._begin(*_HEADER.unpack(self._header))
                continue
            take = min(self._left, len(piece) - at)
            if self._connection in self._unfinished:
                self._unfinished[self._connection] += piece[at : at + take]
                yield from self._finished()
            self._left -= take
            at += take

    def _begin(self, connection: int, length: int) -> None:
        if length > MAX_PAYLOAD_BYTES:
            raise MuxError(f"a frame of {length} bytes for connection {connection}, more than {MAX_PAYLOAD_BYTES}")
        self._header.clear()
        self._connection, self._left = connection, length

    def _finished(self) -> Iterator[tuple[int, TtrpcFrame]]:
        bytes_ = self._unfinished[self._connection]
        while len(bytes_) >= HEADER_BYTES:
            header = read_header(bytes_)
            if header.length > MAX_DATA_BYTES:
                raise MuxError(f"a message of {header.length} bytes, more than {MAX_DATA_BYTES}")
            end = HEADER_BYTES + header.length
            if len(bytes_) < end:
                return
            frame = TtrpcFrame(header.stream, header.kind, header.flags, bytes(bytes_[HEADER_BYTES:end]))
            del bytes_[:end]
            yield self._connection, frame
