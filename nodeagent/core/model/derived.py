"""Derived values that outlive a turn: each is kept with the inputs that it was made from, and made again only when one of them changed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field

V = TypeVar("V")
Inputs = TypeVar("Inputs", bound=tuple[object, ...])


class Derived(Struct, Generic[Inputs, V], frozen=True):
    """Values by key. The inputs are immutable, so an input that is the same object has not changed."""

    common: tuple[object, ...] = ()
    """Inputs of all values."""
    kept: Mapping[str, tuple[Inputs, V]] = field(default_factory=dict)
    """The inputs of each key's value, and the value."""

    def follow(
        self, common: tuple[object, ...], inputs: Iterable[tuple[str, Inputs]], make: Callable[[Inputs], V]
    ) -> "Derived[Inputs, V]":
        """Return the values for these inputs, in their order. Values whose inputs are the same are taken over.

        Args:
            common: what all values depend on. An equal one makes no difference.
            inputs: what each value depends on in addition, by key.
            make: computes a value from its inputs and the common ones.
        """
        old = self.kept if common == self.common else {}
        kept = {}
        for key, own in inputs:
            before = old.get(key)
            if before is None or any(a is not b for a, b in zip(before[0], own, strict=True)):
                before = (own, make(own))
            kept[key] = before
        return Derived(common, kept)

    def by_key(self) -> dict[str, V]:
        return {key: value for key, (_, value) in self.kept.items()}
