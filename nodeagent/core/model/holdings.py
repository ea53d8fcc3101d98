"""Protocols for the data of resources: on the whole node (`Books`), and of one pod (`Holdings`). This module doesn't name any resource."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol, Self, TypeVar

V = TypeVar("V")


class Books(Protocol):
    """Accounts of a resource for the whole node, as a frozen struct. An instance created without arguments describes an empty node."""


class Holdings(Protocol):
    """Holdings of a pod in one resource, as a frozen struct. An instance created without arguments is empty."""

    @property
    def holders(self) -> Iterable[str]:
        """Names of the containers that hold a part of the holdings."""

    @property
    def size(self) -> int:
        """Size of the holdings, by which pods are compared."""

    def without(self, container: str) -> Self:
        """Return the holdings without the holdings of one container."""


P = TypeVar("P", bound=Books)


def with_part(parts: tuple[P, ...], changed: P) -> tuple[P, ...]:
    """Return the parts with one part replaced by the changed part of the same type. An empty part is removed. Parts are sorted by type
    name.
    """
    kind = type(changed)
    new = () if changed == kind() else (changed,)
    for at, part in enumerate(parts):
        if type(part) is kind:
            return (*parts[:at], *new, *parts[at + 1 :])
    return tuple(sorted((*parts, *new), key=lambda part: type(part).__name__)) if parts else new


def put_item(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Return the tuple with one item inserted or replaced. The tuple is sorted by container name."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def remove_item(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """Return the tuple without one container's item."""
    return tuple(item for item in items if item[0] != name)
