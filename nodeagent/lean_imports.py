"""Imports of packages without parts that they load where these are installed, but don't need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(package: str) -> Iterator[None]:
    """Make the import of another package fail in this block, as where it isn't installed, unless it is loaded already."""
    modules: dict[str, Any] = sys.modules
    if package in modules:
        yield
        return
    modules[package] = None
    try:
        yield
    finally:
        del modules[package]
