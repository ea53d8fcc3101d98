"""Cache of values that are computed from immutable inputs in every turn of the agent. A value is computed again only if one of its inputs
has changed.
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
    """Return the keys of `new` whose values are not the same objects as in `old`. Keys that `old` lacks are included."""
    return list(compress(new, map(is_not, new.values(), map(old.get, new))))


def find_replaced(old: Sequence[V], new: Sequence[V]) -> tuple[slice, slice]:
    """Compare two sequences by the identity of their items. Return, as slices, the parts that lie between their common beginning and their
    common end.
    """
    shorter = min(len(old), len(new))
    begin = shorter if old is new else next(compress(range(shorter), map(is_not, old, new)), shorter)
    left = shorter - begin
    end = next(compress(range(left), map(is_not, reversed(old), reversed(new))), left)
    return slice(begin, len(old) - end), slice(begin, len(new) - end)


class Derived(Struct, Generic[Inputs, V], frozen=True):
    """Cached values by key, each with the inputs from which it was computed. Inputs are immutable, so the same object is an unchanged
    input.
    """

    common: tuple[object, ...] = ()
    """Inputs that all values share."""
    kept: Mapping[str, tuple[Inputs, V]] = field(default_factory=dict)
    """Cached values by key, each with the inputs from which it was computed."""

    def derive(
        self,
        common: tuple[object, ...],
        items: Iterable[tuple[str, T]],
        find_inputs: Callable[[T], Inputs],
        make: Callable[[Inputs], V],
        unchanged: AbstractSet[str] = frozenset(),
    ) -> "Derived[Inputs, V]":
        """Compute the values for these items, in their order. Reuse the cached value of each item whose inputs haven't changed.

        Args:
            common: inputs of all values. They are compared by equality, and all values are computed again if they have changed.
            items: pairs of key and item. One value is computed per item.
            find_inputs: function that finds an item's own inputs.
            make: function that computes a value from the item's own inputs.
            unchanged: keys of items whose own inputs are known to be unchanged, so that they needn't be found and compared.
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
