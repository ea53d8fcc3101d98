"""JSON as read and written by Go's encoding/json, limited to the needs of kubelet's checkpoints.

The decoder ignores the case of field names and unknown fields, and reads null as the zero value. The encoder escapes `<`, `>` and `&`.
"""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = str.maketrans(_ESCAPES)


class GoJsonError(ValueError):
    """A text that Go's decoder would not accept for the wanted type. Where possible, the message is Go's own."""


class OldFormatError(GoJsonError):
    """The text has the format of an earlier kubelet, which the current kubelet doesn't read."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def quote(text: str) -> str:
    """Format a JSON string as Go prints it."""
    if text.isalnum() and text.isascii():
        return f'"{text}"'
    return json.dumps(text, ensure_ascii=False).translate(_ESCAPED)


def decode_json(text: str) -> Any:
    """Decode JSON. Objects become lists of (name, value) in the file's order.

    Raises:
        GoJsonError: the text is not JSON.
    """

    def refuse_constant(name: str) -> None:
        raise GoJsonError(f"invalid character '{name[0]}' looking for beginning of value")

    if "\\u" in text:
        # A lone surrogate isn't a character; Go replaces it with U+FFFD.
        text = _ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], text)
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_constant=refuse_constant)
    except json.JSONDecodeError as err:
        if not text.strip() or err.pos >= len(text.rstrip()) or err.msg.startswith("Unterminated string"):
            raise GoJsonError("unexpected end of JSON input") from err
        raise GoJsonError(f"invalid character {text[err.pos]!r} looking for beginning of value") from err
    except RecursionError as err:
        raise GoJsonError("exceeded max depth") from err
    except GoJsonError:
        raise
    except ValueError as err:  # Python doesn't convert numbers of more than 4300 digits
        raise GoJsonError("json: cannot unmarshal number into Go value: too many digits") from err


_ESCAPE = re.compile(
    r"\\(?:(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class _Pairs(list[tuple[str, Any]]):
    """A decoded JSON object."""


def keys_of(value: Any) -> frozenset[str]:
    """Return the names of an object's fields in lower case. For any other value, the result is empty."""
    return frozenset(key.lower() for key, _ in value) if isinstance(value, _Pairs) else frozenset()


def is_list(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, _Pairs)


def fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the named fields of an object as Go reads them into a struct. The value of a missing field is None.

    Raises:
        GoJsonError: the value is not an object.
    """
    found: dict[str, Any] = dict.fromkeys(names)
    if value is None:
        return found
    if not isinstance(value, _Pairs):
        raise GoJsonError(f"json: cannot unmarshal {_describe_kind(value)} into Go value of type struct")
    by_lower_case = {name.lower(): name for name in names}
    for key, item in value:
        name = key if key in found else by_lower_case.get(key.lower())
        if name is not None:
            found[name] = item
    return found


def string(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise GoJsonError(f"json: cannot unmarshal {_describe_kind(value)} into Go value of type string")
    return value


def integer(value: Any, *, low: int, high: int) -> int:
    """Read a whole number within bounds (inclusive)."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise GoJsonError(f"json: cannot unmarshal {_describe_kind(value)} into Go value of an integer type")
    return value


def unsigned(value: Any) -> int:
    """Read a whole number of 64 bits without a sign."""
    return integer(value, low=0, high=2**64 - 1)


def mapping(value: Any, read: Callable[[Any], T]) -> dict[str, T] | None:
    """Read a map. None means null."""
    if value is None:
        return None
    if not isinstance(value, _Pairs):
        raise GoJsonError(f"json: cannot unmarshal {_describe_kind(value)} into Go value of type map")
    return {key: read(item) for key, item in value}


def sequence(value: Any, read: Callable[[Any], T]) -> tuple[T, ...] | None:
    """Read a list. None means null."""
    if value is None:
        return None
    if isinstance(value, _Pairs) or not isinstance(value, list):
        raise GoJsonError(f"json: cannot unmarshal {_describe_kind(value)} into Go value of type slice")
    return tuple(read(item) for item in value)


def _describe_kind(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return f"number {value}" if isinstance(value, float) else "number"
        case _Pairs():
            return "object"
        case _:
            return "array"
