"""Records that the guest's script writes to its standard output, for the host to judge: kind, CPU, length, content."""

import enum
import struct
from collections.abc import Iterator

_HEADER = struct.Struct(">BHI")
_NS = struct.Struct(">Q")


class Kind(enum.IntEnum):
    FORMATS = 1
    """JSON: event name -> layout. Comes first."""
    PAGE = 2
    """A page of one CPU's trace buffer."""
    UNTIL = 3
    """A time; every event before it has been sent."""
    POD_EVENT = 4
    """JSON: what happened to a pod, and what one that arrived was promised."""
    JOURNAL = 5
    """What was logged in the run, a JSON object a line."""
    SUMMARY = 6
    """JSON: counts of the whole run. Comes last."""


def record(kind: Kind, content: bytes, cpu: int = 0) -> bytes:
    return _HEADER.pack(kind, cpu, len(content)) + content


def until(at_ns: int) -> bytes:
    return record(Kind.UNTIL, _NS.pack(at_ns))


def nanoseconds(content: bytes) -> int:
    (value,) = _NS.unpack(content)
    return int(value)


class Records:
    """Cuts a stream of bytes into records."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        self._buffer += received
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            kind, cpu, length = _HEADER.unpack_from(self._buffer, at)
            end = at + _HEADER.size + length
            if len(self._buffer) < end:
                break
            yield Kind(kind), cpu, bytes(self._buffer[at + _HEADER.size : end])
            at = end
        del self._buffer[:at]
