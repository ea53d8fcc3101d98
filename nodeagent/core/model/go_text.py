"""Quoting of text as by Go's strconv.Quote and the verb %q, for those messages of kubelet that quote configured values."""

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
    """Put text in double quotes and escape unprintable characters."""
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
