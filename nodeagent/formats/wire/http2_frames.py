"""The lengths of HTTP/2's frames (RFC 9113, 4.1), for both sides of a connection. Knows nothing of what is in them."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends before its first frame."""
MAX_FRAME_BYTES = 16_384
"""What the other side is told (h2's default, RFC 9113's least)."""
_HEAD_BYTES = 9


class FrameBound:
    """Watches the lengths of frames: h2 keeps one of 16 MiB, too, until it is whole, and refuses it then.

    Args:
        before: how many bytes come before the first frame.
    """

    def __init__(self, before: int = 0) -> None:
        self._left = before
        """Until the next frame's head."""
        self._head = b""

    def allows(self, data: bytes) -> bool:
        """Whether no frame is longer than it may be, up to the end of what was sent next."""
        at = 0
        while at + self._left < len(data):
            at += self._left
            self._left = 0
            missing = _HEAD_BYTES - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) < _HEAD_BYTES:
                return True
            self._left, self._head = int.from_bytes(self._head[:3]), b""
            if self._left > MAX_FRAME_BYTES:
                return False
        self._left -= max(0, len(data) - at)
        return True
