"""Protocols for the data of a resource: of the whole node (`Books`), and of one pod (`Holdings`). This module doesn't know any particular
resource.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol, Self, TypeVar

V = TypeVar("V")


class Books(Protocol):
    """A resource's accounts for the whole node, as a frozen struct. An instance without arguments describes an empty node."""


class Holdings(Protocol):
    """Holdings of one pod in one resource, as a frozen struct. An instance without arguments is empty."""

    @property
    def holders(self) -> Iterable[str]:
        """Return the names of the containers that hold a part of these holdings."""

    @property
    def size(self) -> int:
        """Return the size of the holdings. Sizes serve to compare pods."""

    def without(self, container: str) -> Self:
        """Return the holdings without those of one container."""


P = TypeVar("P", bound=Books)


def with_part(parts: tuple[P, ...], changed: P) -> tuple[P, ...]:
    """Return the parts, in which the changed part replaces the part of the same type. An empty part is removed. Parts are sorted by type
    name.
    """
    kind = type(changed)
    new = () if changed == kind() else (changed,)
    for at, part in enumerate(parts):
        if type(part) is kind:
            return (*parts[:at], *new, *parts[at + 1 :])
    return tuple(sorted((*parts, *new), key=lambda part: type(part).__name__)) if parts else new


def put_item(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Return the sorted items, with one container's item inserted or replaced."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def remove_item(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """Return the items without the item of one container."""
    return tuple(item for item in items if item[0] != name)
