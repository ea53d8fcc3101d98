"""Loading of msgspec, which every command but the plain `job` needs, without what it doesn't need."""

import sys
from typing import Any


def load_msgspec() -> None:
    """Import msgspec without typing_extensions, which takes longer to import than the rest of msgspec, and 2 MiB in the agent.

    msgspec takes from it what Python has had in `typing` since 3.11, and uses `typing` where it isn't installed. Other packages require
    it, and load it when they are needed.
    """
    modules: dict[str, Any] = sys.modules
    if "typing_extensions" in modules:
        return
    modules["typing_extensions"] = None  # importing it raises ImportError
    try:
        import msgspec  # noqa: F401
    finally:
        del modules["typing_extensions"]
