"""Derived values that outlive a turn. Each value is stored with its inputs, and computed again only when one of the inputs changes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field

V = TypeVar("V")
Inputs = TypeVar("Inputs", bound=tuple[object, ...])


class Derived(Struct, Generic[Inputs, V], frozen=True):
    """Derived values by key. Inputs are immutable, so an identical object means an unchanged input."""

    common: tuple[object, ...] = ()
    """Inputs of all values."""
    kept: Mapping[str, tuple[Inputs, V]] = field(default_factory=dict)
    """Inputs and value by key."""

    def follow(
        self, common: tuple[object, ...], inputs: Iterable[tuple[str, Inputs]], make: Callable[[Inputs], V]
    ) -> "Derived[Inputs, V]":
        """Return the values for these inputs, in the order of the keys. Values with unchanged inputs are reused.

        Args:
            common: inputs of all values. Equal common inputs count as unchanged.
            inputs: further inputs of each value, by key.
            make: function that computes a value from its own inputs and the common ones.
        """
        old = self.kept if common == self.common else {}
        kept = {}
        for key, own in inputs:
            before = old.get(key)
            if before is None or tuple(map(id, before[0])) != tuple(map(id, own)):
                before = (own, make(own))
            kept[key] = before
        return Derived(common, kept)

    def by_key(self) -> dict[str, V]:
        return {key: value for key, (_, value) in self.kept.items()}
