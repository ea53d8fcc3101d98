"""Values that are derived from inputs and reused in later turns. A value is stored with its inputs, and is computed again only if an
input has changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from itertools import compress
from operator import is_, is_not
from typing import Generic, TypeVar

from msgspec import Struct, field

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
Inputs = TypeVar("Inputs", bound=tuple[object, ...])


def list_replaced(old: Mapping[K, V], new: Mapping[K, V]) -> list[K]:
    """Return the keys of `new` whose values aren't identical (`is`) to the values in `old`."""
    return list(compress(new, map(is_not, new.values(), map(old.get, new))))


def find_replaced(old: Sequence[V], new: Sequence[V]) -> tuple[slice, slice]:
    """Return the part of each sequence that lies between their common beginning and their common end. Items are compared by identity."""
    shorter = min(len(old), len(new))
    begin = shorter if old is new else next(compress(range(shorter), map(is_not, old, new)), shorter)
    left = shorter - begin
    end = next(compress(range(left), map(is_not, reversed(old), reversed(new))), left)
    return slice(begin, len(old) - end), slice(begin, len(new) - end)


class Derived(Struct, Generic[Inputs, V], frozen=True):
    """Derived values by key. Inputs are immutable, so the identity of an input shows that the input is unchanged."""

    common: tuple[object, ...] = ()
    """Inputs that all values have in common."""
    kept: Mapping[str, tuple[Inputs, V]] = field(default_factory=dict)
    """Inputs and value by key."""

    def derive(
        self,
        common: tuple[object, ...],
        items: Iterable[tuple[str, T]],
        find_inputs: Callable[[T], Inputs],
        make: Callable[[Inputs], V],
        unchanged: AbstractSet[str] = frozenset(),
    ) -> "Derived[Inputs, V]":
        """Return the values for these items, in their order. Values with unchanged inputs are reused.

        Args:
            common: inputs of all values. Equal common inputs count as unchanged.
            items: items from which values are derived, by key.
            find_inputs: function that finds the further inputs of an item's value.
            make: function that computes a value from its own inputs and the common inputs.
            unchanged: keys of items whose inputs are known to be unchanged.
        """
        old = self.kept if common == self.common else {}
        kept = {}
        for key, item in items:
            before = old.get(key)
            if before is None or key not in unchanged:
                own = find_inputs(item)
                if before is None or not all(map(is_, before[0], own)):
                    before = (own, make(own))
            kept[key] = before
        return Derived(common, kept)

    def by_key(self) -> dict[str, V]:
        return {key: value for key, (_, value) in self.kept.items()}
