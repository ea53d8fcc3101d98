"""Check of the maximum length of received HTTP/2 frames (RFC 9113, 4.1), for servers and clients."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""Bytes that a client sends before its first frame."""
MAX_FRAME_BYTES = 16_384
"""Maximum length of a frame, as announced to the other side (h2's default and RFC 9113's minimum)."""
_HEAD_BYTES = 9


class FrameBound:
    """Checker of frame lengths, because h2 itself reads a frame of up to 16 MiB completely before refusing the frame. `before` is the
    number of received bytes before the first frame, such as the length of `PREFACE`.
    """

    def __init__(self, before: int = 0) -> None:
        self._left = before
        """Number of bytes before the next frame's header."""
        self._head = b""

    def allows(self, data: bytes) -> bool:
        """Check the next received bytes, and tell whether all frames so far are within the limit."""
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
