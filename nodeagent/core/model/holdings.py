"""What is kept by resource: each has types of its own for it, by which it is asked for. Names no resource."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol, Self, TypeVar

V = TypeVar("V")


class Books(Protocol):
    """What a resource keeps of the node as a whole: a frozen struct. Made without arguments, it is that of a node that has nothing."""


class Holdings(Protocol):
    """What a pod holds of a resource: a frozen struct. Made without arguments, it is nothing."""

    @property
    def holders(self) -> Iterable[str]:
        """The containers that hold some of it."""

    @property
    def size(self) -> int:
        """How much it is, to compare pods."""

    def without(self, container: str) -> Self:
        """Return it without what this container holds."""


P = TypeVar("P", bound=Books)


def with_part(parts: tuple[P, ...], changed: P) -> tuple[P, ...]:
    """Replace the part of the same type, or leave it out if it is empty now. Parts are in the order of their types' names."""
    kind = type(changed)
    new = () if changed == kind() else (changed,)
    for at, part in enumerate(parts):
        if type(part) is kind:
            return (*parts[:at], *new, *parts[at + 1 :])
    return tuple(sorted((*parts, *new), key=_name)) if parts else new


def _name(part: Books) -> str:
    return type(part).__name__


def put(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Replace or insert one item of a tuple sorted by container name."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def dropped(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """The tuple without the item of that container."""
    return tuple(item for item in items if item[0] != name)
