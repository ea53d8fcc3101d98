"""Rules for the type and the value of an unquoted YAML scalar, as in Kubernetes.

Source: sigs.k8s.io/yaml turns YAML into JSON with its fork of go-yaml v2 (resolve.go). Its rules are those of YAML 1.1
without base 60 and with Go's integer prefixes: `yes`, `on` and even `y` are booleans, `010` is 8, `1_000` is 1000,
dates stay strings.
"""

import math
import re

from nodeagent.formats.syntax.tree import Number, ScalarValue

_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DATE = re.compile(r"[0-9]{4}-")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|(?P<dec>0|[1-9][0-9]*))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_MAX_DIGITS = 400
"""Maximum number of digits of a number. Longer numbers stay strings, because converting them takes quadratic time."""


class ScalarError(ValueError):
    """A scalar can't be expressed in JSON."""


def resolve(text: str) -> ScalarValue:
    """Return the value of an unquoted, untagged scalar.

    Raises:
        ScalarError: the scalar is infinity or not a number.
    """
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError("is not a finite number (quote it if it is meant as text)")
    if text[0] not in "+-.0123456789" or _DATE.match(text) or len(text) > _MAX_DIGITS:
        return text
    plain = text.replace("_", "") if text[0] != "." else text
    match = _INTEGER.fullmatch(plain)
    if match is not None:
        base = next(name for name in _BASES if match[name] is not None)
        return int(match["sign"] + match[base], _BASES[base])
    if _FLOAT.fullmatch(plain) is None:
        return text
    value = float(plain)
    if math.isinf(value):
        return text  # the number is out of Go's range, so the text stays a string, as in Go
    return json_number(value)


def json_number(value: float) -> int | Number:
    """Convert a finite float as Go's JSON does. A whole number has no decimal point, so integer fields accept it."""
    return int(value) if value.is_integer() and abs(value) < 1e21 else Number.of(value)
