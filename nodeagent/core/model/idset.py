"""Immutable sets of CPU IDs and of NUMA node IDs. The two kinds of sets have different types, so that a type checker notices a mix-up.

Searches over many sets use plain bitmasks (`CpuMask`, `NumaMask`) instead, because they are faster. Arithmetic on a mask gives an int, so
code converts the result back to the mask type.

As text, a set lists its IDs in ascending order, with ranges as `a-b`. The kernel and kubelet use the same format.
"""

from collections.abc import Iterable, Iterator
from typing import NewType, Self

from msgspec import Struct

from nodeagent.core.model.go_text import quote_as_go

MAX_ID = 65_535
"""Largest ID that is accepted in text. The kernel's CONFIG_NR_CPUS is at most 8,192. Without a limit, text from an untrusted source such as
`0-9999999999` would need too much time and memory.
"""

CpuMask = NewType("CpuMask", int)
"""Bitmask in which bit n stands for logical CPU n."""
NumaMask = NewType("NumaMask", int)
"""Bitmask in which bit n stands for NUMA node n."""


class IdSetSyntaxError(ValueError):
    """The text isn't a set of IDs. The message is that of kubelet's parser."""


def _atoi(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise IdSetSyntaxError(f"strconv.Atoi: parsing {quote_as_go(text)}: invalid syntax")
    number = int(digits) if len(digits) < 30 else MAX_ID + 1
    if number > MAX_ID:
        raise IdSetSyntaxError(f"strconv.Atoi: parsing {quote_as_go(text)}: value out of range")
    return -number if text.startswith("-") else number


class _IdSet(Struct, frozen=True):
    bits: int = 0

    @classmethod
    def of(cls, *ids: int) -> Self:
        return cls.from_ids(ids)

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> Self:
        bits = 0
        for i in ids:
            bits |= 1 << i
        return cls(bits)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a set such as `0-3,8`. IDs may be in any order, and may be repeated. An empty text is an empty set.

        Raises:
            IdSetSyntaxError: the text isn't a set of IDs. The message is that of kubelet's parser.
        """
        if text == "":
            return cls()
        bits = 0
        for part in text.split(","):
            first, dash, last = part.partition("-")
            low = _atoi(first)
            high = _atoi(last) if dash else low
            if low > high:
                raise IdSetSyntaxError(f'invalid range "{part}" ({low} > {high})')
            bits |= (1 << (high + 1)) - (1 << low)
        return cls(bits)

    def __str__(self) -> str:
        parts = []
        bits, base = self.bits, 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            bits >>= skip
            base += skip
            run = (~bits & (bits + 1)).bit_length() - 1
            parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            bits >>= run
            base += run
        return ",".join(parts)

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, item: int) -> bool:
        return item >= 0 and bool(self.bits >> item & 1)

    def __or__(self, other: Self) -> Self:
        return type(self)(self.bits | other.bits)

    def __and__(self, other: Self) -> Self:
        return type(self)(self.bits & other.bits)

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.bits & ~other.bits)

    def __le__(self, other: Self) -> bool:
        return not self.bits & ~other.bits

    def isdisjoint(self, other: Self) -> bool:
        return not self.bits & other.bits


class CpuSet(_IdSet, frozen=True):
    """Set of logical CPUs, identified by the kernel's CPU numbers."""

    bits: CpuMask = CpuMask(0)

    __str__ = _IdSet.__str__


class NumaSet(_IdSet, frozen=True):
    """Set of NUMA nodes, identified by the kernel's node numbers."""

    bits: NumaMask = NumaMask(0)

    __str__ = _IdSet.__str__
