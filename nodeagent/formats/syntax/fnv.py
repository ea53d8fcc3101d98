"""32-bit FNV-1a, the hash function of kubelet's checkpoint checksums, with a cache for long texts of which little changes between calls.

A step is (state ^ byte) * PRIME. The XOR changes only the low eight bits, which never depend on the higher bits. For a
given low byte of the state before it, a piece of text therefore multiplies every state by the same power of PRIME and
adds the same constant. A piece has 256 such constants. They are cached when first needed, so the text before a piece
may change freely.
"""

from fnv_hash_fast import fnv1a_32 as _hash_of_bytes

_BASIS = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 2**32 - 1


def _state_after(byte: int) -> int:
    return (_BASIS ^ byte) * _PRIME & _MASK


_BEGINNINGS = {_state_after(byte) & 0xFF: (bytes([byte]), _state_after(byte)) for byte in range(256)}
"""One-byte input after which the hash state has a certain low byte, and this state, by the low byte."""


class Piece:
    """Piece of text, with the factor and the summands by which it changes hash states. Summands are cached by the state's low byte."""

    __slots__ = ("_added", "_factor", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._factor = 0
        self._added: dict[int, int] = {}

    def then(self, other: "Piece") -> "Piece":
        """Return a piece for the concatenation of both texts with a blank between them."""
        return Piece(b"%b %b" % (self.data, other.data))

    def after(self, state: int) -> int:
        """Compute the hash state after this piece from the state before it."""
        low = state & 0xFF
        added = self._added.get(low)
        if added is None:
            self._factor = self._factor or pow(_PRIME, len(self.data), _MASK + 1)
            lead, begin = _BEGINNINGS[low]
            added = self._added[low] = (_hash_of_bytes(lead + self.data) - self._factor * begin) & _MASK
        return (self._factor * state + added) & _MASK


Text = str | tuple[Piece, ...]
"""A string, or pieces that are hashed as if joined by blanks."""


_MOST_PIECES, _MOST_BYTES = 8, 1024
"""Maximum number of pieces and of bytes up to which a text is hashed as a whole, because this is faster than piece by piece."""


def fnv1a_32(*texts: Text) -> int:
    """Hash the UTF-8 bytes of consecutive texts."""
    short: list[bytes] = []
    for text in texts:
        if isinstance(text, str):
            if len(text) > _MOST_BYTES:
                break
            short.append(text.encode())
        elif len(text) > _MOST_PIECES:
            break
        else:
            short.append(b" ".join([piece.data for piece in text]))
    else:
        whole = b"".join(short)
        if len(whole) <= _MOST_BYTES:
            return _hash_of_bytes(whole)
    state = _BASIS
    for text in texts:
        if isinstance(text, str):
            state = Piece(text.encode()).after(state)
        elif text:
            state = text[0].after(state)
            for piece in text[1:]:
                state = piece.after((state ^ 0x20) * _PRIME & _MASK)
    return state
