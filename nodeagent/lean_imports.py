"""Context managers in which a package is imported without those of its dependencies that nodeagent doesn't need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
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


class _Placeholder(ModuleType):
    """Substitute for a module. Each of its attributes is an empty class."""

    def __getattr__(self, name: str) -> type:
        return type(name, (), {})


@contextmanager
def with_placeholders(*names: str) -> Iterator[None]:
    """Make imports of modules yield placeholders while the `with` block runs. A package can then define functions and classes that use
    these modules, but not call them. A module that is already loaded is used.
    """
    missing = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _Placeholder(name) for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
