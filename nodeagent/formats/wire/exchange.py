"""One bounded request, one answer: the values that a server and the protocols it serves share. Knows no socket and no protocol."""

import enum

from msgspec import Struct


class Broken(enum.Enum):
    """Why a connection gets no answer to its request."""

    TOO_LARGE = "the request is too large"
    TOO_SLOW = "the request did not arrive in time"
    BUSY = "too many connections, try again"
    BUG = "internal error, see the agent's log"


class Bounds(Struct, frozen=True):
    """Limits for each client, and for all clients together."""

    connections: int
    request_bytes: int
    read_seconds: float
    """For the whole request, however many pieces it arrives in."""
    write_seconds: float
    """For sending the whole answer."""


class Peer(Struct, frozen=True):
    """The process at the other end of a Unix socket, as reported by the kernel."""

    uid: int
    gids: frozenset[int]
    """Its group and its supplementary groups."""
    pid: int = 0
    """0: the kernel shows none here, as for a process of a container around this one."""
