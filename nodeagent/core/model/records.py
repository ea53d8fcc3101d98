"""Results of reading any of kubelet's checkpoints."""

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """Checkpoint that no version's rules accept. The text is kubelet's."""

    message: str
