"""Imports of packages without their optional dependencies. Some packages load these if they are installed, although nodeagent doesn't need
them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(package: str) -> Iterator[None]:
    """Make imports of an optional package fail while the `with` block runs, as if it weren't installed. A package that is already loaded
    stays available.
    """
    modules: dict[str, Any] = sys.modules
    if package in modules:
        yield
        return
    modules[package] = None
    try:
        yield
    finally:
        del modules[package]
