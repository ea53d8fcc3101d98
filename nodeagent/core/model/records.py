"""Results of reading a checkpoint of kubelet, of any kind."""

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """Checkpoint that is invalid in every version of the format. The text is kubelet's message."""

    message: str
