"""Typed reader of decoded JSON that a program wrote. The first value of the wrong type is reported with its path.

For text written by people, use formats/syntax/fields.py, which reports all errors at once.
"""

import enum
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.syntax.findings import shown

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=enum.Enum)

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Pattern of an escape that may be half of a surrogate pair. The agent's own files contain no such escapes."""
MAX_WHOLE = 2**64 - 1
"""Largest accepted whole number: the largest 64-bit number that a kernel file can contain."""


class MisfitError(ValueError):
    """A value is missing or has the wrong type. The message names its path and the wanted type."""


def parse_json(text: bytes) -> "JsonValue":
    """Decode JSON.

    Raises:
        MisfitError: the text isn't JSON or is nested too deeply.
    """
    try:
        value = json.loads(text.decode())
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return JsonValue(value)
    except RecursionError as err:
        raise MisfitError("it is nested too deeply") from err
    except UnicodeEncodeError as err:
        raise MisfitError("it contains half of a surrogate pair, which is not a character") from err
    except ValueError as err:
        raise MisfitError(f"it is not JSON: {err}") from err


class JsonValue(Struct, frozen=True):
    """A value and its path. Every reading method raises MisfitError if the value has the wrong type."""

    value: Any
    path: str = ""

    def misfit(self, wanted: str) -> MisfitError:
        """Create the error for this value, where `wanted` was expected."""
        found = shown(self.value) if isinstance(self.value, str | int | float | None) else type(self.value).__name__
        return MisfitError(f"{self.path or 'the document'}: must be {wanted}, not {found}")

    def field(self, name: str) -> "JsonValue":
        found = self.optional(name)
        if found is None:
            raise MisfitError(f"{self._at(name)}: is missing")
        return found

    def optional(self, name: str) -> "JsonValue | None":
        """Return a field of an object. None means that the field is missing or null."""
        value = self.object().get(name)
        return None if value is None else JsonValue(value, self._at(name))

    def read_optional(self, name: str, read: "Callable[[JsonValue], T]", default: D) -> T | D:
        """Read a field of an object. Return the default if the field is missing or null."""
        value = self.object().get(name)
        return default if value is None else read(JsonValue(value, self._at(name)))

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def object(self) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            raise self.misfit("an object")
        return self.value

    def by_name(self, read: "Callable[[JsonValue], T]") -> tuple[tuple[str, T], ...]:
        """Read each value of an object with arbitrary keys, sorted by key."""
        return tuple(
            (name, read(JsonValue(value, f"{self.path}[{name}]"))) for name, value in sorted(self.object().items())
        )

    def each(self, read: "Callable[[JsonValue], T]") -> tuple[T, ...]:
        """Read each item of a list."""
        return tuple(read(item) for item in self._read_items())

    def row(self, size: int) -> "tuple[JsonValue, ...]":
        """Return the items of a list, which must have exactly `size` items."""
        items = self._read_items()
        if len(items) != size:
            raise MisfitError(f"{self.path}: must have {size} values, not {len(items)}")
        return items

    def _read_items(self) -> "tuple[JsonValue, ...]":
        if not isinstance(self.value, list):
            raise self.misfit("a list")
        return tuple(JsonValue(value, f"{self.path}[{index}]") for index, value in enumerate(self.value))

    def or_none(self, read: "Callable[[JsonValue], T]") -> T | None:
        """Read a value that may be null."""
        return None if self.value is None else read(self)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.misfit("a string")
        return self.value

    def among(self, allowed: Collection[str]) -> str:
        """Read a string that must be one of the allowed ones."""
        if self.text() not in allowed:
            raise self.misfit(f"one of {', '.join(allowed)}")
        return self.text()

    def whole(self, low: int = 0, high: int = MAX_WHOLE) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not low <= self.value <= high:
            raise self.misfit(f"a whole number from {low}" + ("" if high == MAX_WHOLE else f" to {high}"))
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.misfit("true or false")
        return self.value

    def one_of(self, kind: type[E]) -> E:
        try:
            return kind(self.text())
        except ValueError as err:
            raise self.misfit(f"one of {', '.join(str(member.value) for member in kind)}") from err

    def cpus(self) -> CpuSet:
        return self._ids(CpuSet.parse, "a set of CPUs such as 0-3,8")

    def nodes(self) -> NumaSet:
        return self._ids(NumaSet.parse, "a set of NUMA nodes such as 0-1")

    def quantity(self) -> Quantity:
        try:
            return Quantity.parse(self.text())
        except QuantitySyntaxError as err:
            raise self.misfit("a quantity such as 2Gi") from err

    def _ids(self, parse: Callable[[str], T], wanted: str) -> T:
        try:
            return parse(self.text())
        except IdSetSyntaxError as err:
            raise self.misfit(f"{wanted} ({str(err)[:80]})") from err
