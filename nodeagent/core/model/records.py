"""Result of reading a checkpoint file of kubelet, whichever manager wrote the file."""

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """A checkpoint file of kubelet that is invalid in every version of the file format. The message is kubelet's."""

    message: str
