"""Errors with an outside cause. A refusal of a pod is a value (see core), and a bug is an assert."""

_MOST_CHARACTERS = 10_000
"""Limit per line, because a damaged file may hold a name of megabytes."""


class NodeAgentError(Exception):
    """Error with an outside cause: a message that names the object and its value, and the next step. Both are safe to print."""

    def __init__(self, message: str, *, hint: str) -> None:
        self.message = "\n".join(map(_line, message.split("\n")))
        self.hint = "\n".join(map(_line, hint.split("\n")))
        super().__init__(self.message)


def _line(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}… ({len(text) - _MOST_CHARACTERS} characters more)"
    return printable(text)


def printable(text: str) -> str:
    """Return a text with everything escaped that a terminal could act on: controls, line ends, changes of direction, half characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
