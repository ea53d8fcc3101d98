"""Types shared by the servers and their protocols, in which each request of limited size gets one answer."""

import enum

from msgspec import Struct


class Broken(enum.Enum):
    """Reason why a server closes a connection without answering the request."""

    TOO_LARGE = "the request is too large"
    TOO_SLOW = "the request did not arrive in time"
    BUSY = "too many connections, try again"
    BUG = "internal error, see the agent's log"


class Bounds(Struct, frozen=True):
    """Limits of a server on each connection and on the number of connections."""

    connections: int
    request_bytes: int
    read_seconds: float
    """Time limit for receiving the whole request, even if it arrives in many pieces."""
    write_seconds: float
    """Time limit for sending the whole answer."""


class Peer(Struct, frozen=True):
    """The process at the other end of a Unix socket, as reported by the kernel."""

    uid: int
    gids: frozenset[int]
    """IDs of the process's group and supplementary groups."""
    pid: int = 0
    """Process ID. 0 if the kernel doesn't show the process here, because it is in a parent PID namespace."""
