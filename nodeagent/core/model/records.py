"""Results of reading any kind of checkpoint from kubelet."""

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """A checkpoint that is invalid in every version of the format. The text is kubelet's message."""

    message: str
