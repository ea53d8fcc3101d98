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

    def without(self, container: str) -> Self:
        """Return it without what this container holds."""


P = TypeVar("P", bound=Books)


def part_of(parts: tuple[Books, ...], kind: type[P]) -> P:
    """Return the part of this type, or an empty one."""
    for part in parts:
        if isinstance(part, kind):
            return part
    return kind()


def with_parts(parts: tuple[P, ...], changed: Iterable[P]) -> tuple[P, ...]:
    """Replace parts by those of the same types, and leave out empty ones. They are in the order of their types' names: equal contents are
    equal.
    """
    by_type = {type(part): part for part in (*parts, *changed)}
    left = [(kind.__name__, part) for kind, part in by_type.items() if part != kind()]
    return tuple(part for _, part in sorted(left, key=itemgetter(0)))


def put(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Replace or insert one item of a tuple sorted by container name."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def dropped(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """The tuple without the item of that container."""
    return tuple(item for item in items if item[0] != name)
