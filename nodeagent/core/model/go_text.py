"""Quoting of text in the way of Go's strconv.Quote. It is needed for messages that equal kubelet's and quote configured values with
`%q`.
"""

_SHORT = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}
_ASCII_END = 0x80
_WIDE = 0x10000


def quote_as_go(text: str) -> str:
    """Put the text in double quotes, and escape unprintable characters as Go does."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < _ASCII_END:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < _WIDE else f"\\U{code:08x}"
