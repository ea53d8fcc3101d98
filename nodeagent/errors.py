"""The errors that come from outside. A refusal of a pod is a value (see core), a bug is an assert; everything else is one of these."""


class NodeAgentError(Exception):
    """Something outside went wrong: one line that names the thing and its value, and the next step."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
