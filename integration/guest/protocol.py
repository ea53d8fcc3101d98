"""Frames between host and guest: magic, kind, request, length, payload. Used on both sides, so it imports nothing of ours.

The guest begins each session with SYNC, which no frame contains by accident: whoever lost the thread (the guest was
reset in the middle of a frame) skips to there.
"""

import enum
import struct
from collections.abc import Iterator

SYNC = b"\n\0nodeagent-guest-sync\xa5\x5a\n"
PORT_NAME = "org.nodeagent.guest"
CHUNK_BYTES = 32768  # a virtio console write copies at most this much

_HEADER = struct.Struct(">HBII")
_MAGIC = 0x6E61
_LIMIT_BYTES = 1 << 20


class Kind(enum.IntEnum):
    """To the guest: START to SIGNAL; to the host: HELLO to FAILED. JSON or raw bytes, as noted."""

    START = 1  # JSON: {"op": "run", "argv", "cwd", "tty"} | {"op": "put", "path", "mode"} | {"op": "get", "path"}
    STDIN = 2  # bytes; none: end of file
    RESIZE = 3  # JSON: [rows, columns]
    SIGNAL = 4  # JSON: number, sent to the command's process group
    HELLO = 16  # JSON: {"boot_id", "kernel", "python"}; request 0
    STDOUT = 17  # bytes
    STDERR = 18  # bytes
    EXIT = 19  # JSON: status, negative for a signal
    FAILED = 20  # JSON: why the request could not be carried out


class FramingError(Exception):
    """The stream holds something that is no frame."""


class Frames:
    """Cuts a stream of bytes into frames; `seek` first skips to the next SYNC."""

    def __init__(self, *, seek: bool) -> None:
        self._seek = seek
        self._buffer = bytearray()

    def seek_sync(self) -> None:
        self._seek = True

    def feed(self, received: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        self._buffer += received
        while True:
            if self._seek and not self._skip_to_sync():
                return
            if self._buffer.startswith(SYNC):
                del self._buffer[: len(SYNC)]
                continue
            if len(self._buffer) < _HEADER.size:
                return
            magic, kind, request, length = _HEADER.unpack_from(self._buffer)
            if SYNC.startswith(self._buffer[: len(SYNC)]):
                return  # the beginning of a SYNC
            if magic != _MAGIC or length > _LIMIT_BYTES:
                raise FramingError(f"not a frame: {bytes(self._buffer[:64])!r}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield Kind(kind), request, payload

    def _skip_to_sync(self) -> bool:
        at = self._buffer.find(SYNC)
        if at < 0:
            del self._buffer[: max(0, len(self._buffer) - len(SYNC) + 1)]  # its beginning may be there already
            return False
        del self._buffer[: at + len(SYNC)]
        self._seek = False
        return True


def frame(kind: Kind, request: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(_MAGIC, kind, request, len(payload)) + payload


def chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]
