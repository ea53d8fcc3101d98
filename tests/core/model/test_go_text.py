"""strconv.Quote's form: https://pkg.go.dev/strconv#Quote."""

import pytest

from nodeagent.core.model.go_text import quote_as_go


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", '""'),
        ("plain text", '"plain text"'),
        ('say "a"', r'"say \"a\""'),
        ("a\\b", r'"a\\b"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("\0\x1b\x7f", r'"\x00\x1b\x7f"'),
        ("grün 中", '"grün 中"'),
        ("\x80\xa0\u202e", r'"\u0080\u00a0\u202e"'),
        ("\U0001f600\U000e0001", '"\U0001f600\\U000e0001"'),
    ],
)
def test_what_cannot_be_printed_is_an_escape(text: str, quoted: str) -> None:
    assert quote_as_go(text) == quoted
