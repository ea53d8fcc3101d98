"""Kubernetes quantities (`1500m`, `2`, `1Gi`, `1e3`) as exact integers. A quantity has no unit: the caller knows whether it means CPUs,
bytes or devices.

The rules are those of k8s.io/apimachinery resource.Quantity. As in that package, amounts finer than a billionth are rounded up to a
billionth.
"""

import enum
import re
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

_PATTERN = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?P<point>\.?)(?P<fraction>[0-9]*)(?P<suffix>[eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE]?)"
)
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL_POWER = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIX_OF_POWER = {power: suffix for suffix, power in _DECIMAL_POWER.items()}
_NANO = 10**9
_MIB = 2**20
_MAX_TEXT = 64
_MOST_TYPED = 100
"""Limit in bytes up to which an amount in thousandths of a byte is read as a typing error for MiB. For example, 99999m means 97 GiB."""
_MAX_NANO = (2**63 - 1) * _NANO


class Notation(enum.Enum):
    """Notation in which a quantity was written. It determines the notation in which the quantity is printed."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class QuantitySyntaxError(ValueError):
    """The text isn't a quantity. The message is that of Kubernetes."""


class Quantity(Struct, frozen=True):
    nano: int
    notation: Notation = Notation.DECIMAL_SI
    decimal_form: bool = False
    """Whether Kubernetes fails to read the text as int64, even if the amount is whole. This happens to a fraction (`1.5Gi`, `2.0`), to
    thousandths (`2000m`), and to more digits than its fast path reads (`100Ti`).
    """

    @classmethod
    def of(cls, whole: int) -> "Quantity":
        return cls(whole * _NANO)

    @classmethod
    def of_bytes(cls, whole: int) -> "Quantity":
        """Return the quantity for a whole number of bytes. It is printed with a binary suffix, as `1Gi` rather than `1073741824`."""
        return cls(whole * _NANO, Notation.BINARY_SI)

    @staticmethod
    @lru_cache(maxsize=4096)  # results are cached and shared, because many containers have the same amounts
    def parse(text: str) -> "Quantity":
        """Parse the text of a quantity.

        Raises:
            QuantitySyntaxError: the text isn't a quantity, or has more than 64 characters.
        """
        match = _PATTERN.fullmatch(text) if len(text) <= _MAX_TEXT else None
        if match is None or not (match["whole"] or match["fraction"]):
            raise QuantitySyntaxError(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            )
        digits = int(match["whole"] + match["fraction"])
        places = len(match["fraction"])
        suffix = match["suffix"]
        if suffix in _BINARY:
            notation, nano = Notation.BINARY_SI, _ceil_div(digits * _BINARY[suffix] * _NANO, 10**places)
        else:
            exponent = suffix[:1] in ("e", "E") and len(suffix) > 1
            notation = Notation.DECIMAL_EXPONENT if exponent else Notation.DECIMAL_SI
            power = max(-1000, min(1000, int(suffix[1:]))) if exponent else _DECIMAL_POWER[suffix]
            power += 9 - places
            nano = digits * 10**power if power >= 0 else _ceil_div(digits, 10**-power)
        negative = match["sign"] == "-"
        decimal_form = not _reads_as_int64(match, nano)
        nano = min(nano, _MAX_NANO)
        return Quantity(-nano if negative else nano, notation, decimal_form)

    def value(self) -> int:
        """Return the amount in whole units, rounded up."""
        return _ceil_div(self.nano, _NANO)

    def milli(self) -> int:
        """Return the amount in thousandths, rounded up."""
        return _ceil_div(self.nano, _NANO // 1000)

    def is_whole(self) -> bool:
        """Return whether a CPU amount, rounded up to thousandths, is a whole number. kubelet applies this test before it allocates
        exclusive CPUs.
        """
        return self.value() * 1000 == self.milli()

    def as_int64(self) -> int | None:
        """Return the whole amount if Kubernetes' AsInt64 would succeed. None means that the amount has a fraction or is in decimal form."""
        whole, rest = divmod(self.nano, _NANO)
        return None if rest or self.decimal_form else whole

    def as_whole_bytes(self) -> "Quantity":
        """Return the whole number of bytes that the author of a fractional memory amount probably meant. A small amount in thousandths
        (500m) is taken for MiB. Any other fraction comes from a division (0.1Gi), and is rounded up to MiB.
        """
        whole, rest = divmod(self.nano, _NANO)
        if not rest:
            return self
        is_typed = whole < _MOST_TYPED and self.nano % (_NANO // 1000) == 0
        return Quantity.of_bytes((self.milli() if is_typed else _ceil_div(self.value(), _MIB)) * _MIB)

    def rounded_up_to_milli(self) -> "Quantity":
        """Return the quantity rounded up to thousandths, as the API server stores CPU and memory."""
        milli = self.milli() * (_NANO // 1000)
        return self if milli == self.nano else replace(self, nano=milli)

    def as_stored(self) -> "Quantity":
        """Return the quantity that results from printing this one and parsing the text, as happens when it is saved and loaded. Repeating
        this gives the same quantity.
        """
        # The text is parsed twice: the first result is printed in decimal notation if the text has no binary suffix, and this may shorten
        # the number.
        return Quantity.parse(str(Quantity.parse(str(self))))

    def __add__(self, other: "Quantity") -> "Quantity":
        """Return the sum of two quantities. Its notation is that of the first quantity that isn't zero (Quantity.Add)."""
        first = other if self.nano == 0 else self
        return Quantity(self.nano + other.nano, first.notation, self.decimal_form or other.decimal_form)

    def __str__(self) -> str:
        """Return the canonical text, which has the largest suffix that needs no fraction."""
        whole, rest = divmod(abs(self.nano), _NANO)
        sign = "-" if self.nano < 0 else ""
        if self.nano == 0:
            return "0"
        if self.notation is Notation.BINARY_SI and not rest and whole >= 1024:
            fitting = [(size, suffix) for suffix, size in _BINARY.items() if whole % size == 0]
            size, suffix = max(fitting, default=(1, ""))
            return f"{sign}{whole // size}{suffix}"
        digits, power = abs(self.nano), -9
        while digits % 1000 == 0 and power < 18:
            digits, power = digits // 1000, power + 3
        if self.notation is Notation.DECIMAL_EXPONENT:
            return f"{sign}{digits}" + (f"e{power}" if power else "")
        return f"{sign}{digits}{_SUFFIX_OF_POWER[power]}"


def _reads_as_int64(match: re.Match[str], nano: int) -> bool:
    """Return whether Kubernetes' Quantity.AsInt64 would succeed for the parsed text. This requires that the fast path of Kubernetes' parser
    accepts the text, and that the amount isn't scaled down.
    """
    suffix, whole, fraction = match["suffix"], match["whole"].lstrip("0") or "0", match["fraction"]
    if nano > _MAX_NANO:
        return False
    if suffix in _BINARY:
        # For a number without a fraction, Go's ParseQuantity computes the precision 15 - len(num) - exponent*3/10 - 1.
        return not fraction and 14 - len(whole) - (_BINARY[suffix].bit_length() - 1) * 3 // 10 >= 0
    power = int(suffix[1:]) if len(suffix) > 1 else _DECIMAL_POWER[suffix]
    return power >= len(fraction) and len(whole) + len(fraction) <= 18


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
