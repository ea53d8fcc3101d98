"""The hash of texts in pieces is the hash of the whole text, whatever was remembered."""

import pytest
from fnv_hash_fast import fnv1a_32 as hash_of_bytes
from hypothesis import given, strategies as st

from nodeagent.formats.syntax.fnv import Piece, fnv1a_32

LONG = "x" * 1025
"""At the end of a text: it's too long to be hashed as one."""


@pytest.mark.parametrize(
    ("text", "value"),
    # The first three from http://www.isthe.com/chongo/src/fnv/test_fnv.c
    [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968), ("ü", hash_of_bytes("ü".encode()))],
)
def test_known_values(text: str, value: int) -> None:
    assert fnv1a_32(text) == value


@pytest.mark.parametrize("end", ["", LONG], ids=["short", "long"])
@given(st.lists(st.text()), st.lists(st.text(), min_size=1, max_size=300), st.text())
def test_pieces_remember_what_they_add_after_any_text_before_them(
    end: str, listed: list[str], heads: list[str], tail: str
) -> None:
    pieces = tuple(Piece(text.encode()) for text in listed)
    for head in heads:
        assert fnv1a_32(head, pieces, tail + end) == hash_of_bytes((head + " ".join(listed) + tail + end).encode())


def test_every_low_byte_has_a_beginning() -> None:
    piece = Piece(b"a piece of text")
    heads = [chr(byte) for byte in range(128)] + [f"{a}{b}" for a in "ab" for b in map(chr, range(128))]
    lows = {hash_of_bytes(head.encode()) & 0xFF for head in heads}
    assert len(lows) == 256
    for head in heads * 2:
        whole = hash_of_bytes(f"{head}a piece of text a piece of text{LONG}".encode())
        assert fnv1a_32(head, (piece, piece), LONG) == whole


def test_two_pieces_in_one() -> None:
    both = Piece("ä".encode()).then(Piece(b"b"))
    assert both.data == "ä b".encode()
    assert fnv1a_32((both,), LONG) == hash_of_bytes(f"ä b{LONG}".encode())
