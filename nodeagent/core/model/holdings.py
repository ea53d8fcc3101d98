"""Protocols of the records that each resource keeps: `Books` for the whole node, and `Holdings` for one pod. Every resource implements them
with types of its own.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol, Self, TypeVar

V = TypeVar("V")


class Books(Protocol):
    """Records that a resource keeps for the whole node, such as the CPUs of the shared pool. Implementations are frozen structs. An
    instance created without arguments describes a node without allocations.
    """


class Holdings(Protocol):
    """Allocation of one resource to a pod. Implementations are frozen structs. An instance created without arguments means that nothing is
    allocated.
    """

    @property
    def holders(self) -> Iterable[str]:
        """Return the names of the containers to which a part of the allocation belongs."""

    @property
    def size(self) -> int:
        """Return the amount that is allocated, in the resource's own unit. It serves to find the pod with the smallest allocation."""

    def without(self, container: str) -> Self:
        """Return a copy without the allocation of one container."""


P = TypeVar("P", bound=Books)


def with_part(parts: tuple[P, ...], changed: P) -> tuple[P, ...]:
    """Return the parts with `changed` in place of the part of the same type. An empty `changed` removes this part. The result is sorted by
    type name.
    """
    kind = type(changed)
    new = () if changed == kind() else (changed,)
    for at, part in enumerate(parts):
        if type(part) is kind:
            return (*parts[:at], *new, *parts[at + 1 :])
    return tuple(sorted((*parts, *new), key=lambda part: type(part).__name__)) if parts else new


def put_item(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Return the sorted pairs of container and value, in which the container `name` has the new value."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def remove_item(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """Return the pairs of container and value without the container `name`."""
    return tuple(item for item in items if item[0] != name)
