"""Protocols of the records that a resource keeps: `Books` for the whole node, and `Holdings` for one pod. They are the same for all
resources.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol, Self, TypeVar

V = TypeVar("V")


class Books(Protocol):
    """Records that a resource keeps for the whole node, such as the shared pool's CPUs. They are a frozen struct. A struct without
    arguments describes a node without allocations.
    """


class Holdings(Protocol):
    """Allocation of one resource to a pod, as a frozen struct. A struct without arguments means that nothing is allocated."""

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
    """Replace the part that has the same type as `changed`, or add it. Remove it if `changed` is empty. The result is sorted by type
    name.
    """
    kind = type(changed)
    new = () if changed == kind() else (changed,)
    for at, part in enumerate(parts):
        if type(part) is kind:
            return (*parts[:at], *new, *parts[at + 1 :])
    return tuple(sorted((*parts, *new), key=lambda part: type(part).__name__)) if parts else new


def put_item(items: tuple[tuple[str, V], ...], name: str, value: V) -> tuple[tuple[str, V], ...]:
    """Insert or replace the value of the container `name`. The pairs of container and value stay sorted by container."""
    if not items or items[-1][0] < name:
        return (*items, (name, value))
    return tuple(sorted([*(item for item in items if item[0] != name), (name, value)], key=itemgetter(0)))


def remove_item(items: tuple[tuple[str, V], ...], name: str) -> tuple[tuple[str, V], ...]:
    """Remove the pair of the container `name`."""
    return tuple(item for item in items if item[0] != name)
