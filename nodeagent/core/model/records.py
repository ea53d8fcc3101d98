"""Results of reading a checkpoint of kubelet, of any kind."""

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """Checkpoint that is invalid by the rules of every version. The text is kubelet's."""

    message: str
