"""Errors with a cause outside the program. The refusal of a pod is a value instead (see core), and a bug is a failed assertion."""

_MOST_CHARACTERS = 10_000
"""Maximum number of characters per line, because a damaged file may contain a name of several megabytes."""


class NodeAgentError(Exception):
    """Error with a cause outside the program. The message names the object and the wrong value, and the hint names the next step. Control
    characters in both are escaped.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        self.message = "\n".join(map(_line, message.split("\n")))
        self.hint = "\n".join(map(_line, hint.split("\n")))
        super().__init__(self.message)


def _line(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}… ({len(text) - _MOST_CHARACTERS} characters more)"
    return printable(text)


def printable(text: str) -> str:
    """Return a text in which all characters that a terminal could act on are escaped: control characters, line ends, changes of the writing
    direction, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
