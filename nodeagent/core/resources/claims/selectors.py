"""Evaluation of CEL selectors (cel.dev), which are expressions that select devices.

As in Kubernetes, an expression can use `device.driver`, `device.attributes` and `device.capacity`, with quantities. The CEL library lacks
`cel.bind` and optional fields (`.?`).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cel

from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.core.resources.claims.inventory import ClaimableDevice
from nodeagent.errors import printable

LONGEST = 10 * 1024
"""Maximum length of an expression in bytes. Kubernetes has the same limit (CELSelectorExpressionMaxLength)."""
_MAX_QUOTED = 300
_DOMAIN = re.compile(r"""\b(?:attributes|capacity)\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
"""Pattern that finds the attribute domains in an expression. If a device has no attributes in such a domain, the expression sees an empty
domain, instead of failing because the domain is missing.
"""
_MAX_DEPTH = 64
"""Maximum depth of nested brackets. The parser's stack overflows only at a far greater depth."""
_MACROS = "all|exists|exists_one|existsOne|map|filter"
_MACRO = re.compile(rf"\b(?:{_MACROS})\b(?=\s*(?:\(|//))")
"""Pattern of a CEL macro that iterates over a list. A comment may separate the macro's name from its bracket."""
MOST_STEPS = 10_000
"""Maximum number of steps that nested loops in an expression may take for one device. The CEL library has no such limit."""


class SelectorError(Exception):
    """An expression is invalid, or can't be evaluated for a device. The text gives the reason."""


def check(expression: str) -> None:
    """Check the syntax and the variables of an expression, without evaluating it.

    Raises:
        SelectorError: the expression isn't valid CEL, or uses an unknown variable. Unknown functions aren't detected here. They fail when
            the expression is evaluated for a pod, which is then refused.
    """
    program, _ = _compile(expression)
    known = {"device", *re.findall(rf"\b(?:{_MACROS})\(\s*(\w+)\s*,", expression)}
    unknown = [name for name in program.variables() if name not in known]
    if unknown:
        raise SelectorError(f"{unknown[0]} is unknown: an expression can use only `device`")


def meets(device: ClaimableDevice, expressions: Iterable[str]) -> bool:
    """Return whether all expressions are true for a device.

    Raises:
        SelectorError: an expression has no boolean result, for example because the device lacks an attribute.
    """
    return all(_meets(device, expression) for expression in expressions)


def forget_answers() -> None:
    """Clear the cache of evaluation results. Measurements need this, because cached results take no time."""
    _meets.cache_clear()


# the results are cached, because pods that arrive together evaluate the same expressions on the same devices
@lru_cache(maxsize=4096)
def _meets(device: ClaimableDevice, expression: str) -> bool:
    program, domains = _compile(expression)
    with _convert_errors(f"{_quote(expression)}, of {device.name}"):
        answer = program.execute(cel.Context({"device": _convert_device(device, domains)}, _FUNCTIONS))
    if not isinstance(answer, bool):
        raise SelectorError(
            f"an expression must be true or false, not {_shorten_to_line(repr(answer))}: {_quote(expression)}"
        )
    return answer


@contextmanager
def _convert_errors(what: str) -> Iterator[None]:
    """Convert every exception of the CEL library into a `SelectorError` that names the expression. The library is written in Rust, and its
    panics don't derive from `Exception`.
    """
    try:
        yield
    except KeyError as err:
        raise SelectorError(f"{_shorten_to_line(str(err.args[0]))} is missing: {what}") from None
    except BaseException as err:
        if not isinstance(err, Exception) and type(err).__module__ != "pyo3_runtime":
            raise
        raise SelectorError(f"{_extract_first_line(err)}: {what}") from None


@lru_cache(maxsize=256)
def _compile(expression: str) -> tuple[Any, frozenset[str]]:
    if len(expression.encode()) > LONGEST:
        raise SelectorError(f"an expression of {len(expression.encode())} bytes exceeds the limit of {LONGEST}")
    depth = deepest = 0
    for character in expression:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise SelectorError(f"brackets are nested {deepest} deep, more than the limit of {_MAX_DEPTH}")
    longest = (
        1 + expression.count(",") + expression.count("+")
        # A list in an expression is a literal or a concatenation of lists, so the number of commas and plus signs limits its length.
    )
    if longest ** len(_MACRO.findall(expression)) > MOST_STEPS:
        raise SelectorError("it loops over nested lists with too many values")
    with _convert_errors(_quote(expression)):
        program = cel.compile(expression)
    return program, frozenset(one or other for one, other in _DOMAIN.findall(expression))


def _quote(expression: str) -> str:
    return f"`{_shorten_to_line(expression)}`"


def _shorten_to_line(text: str) -> str:
    """Shorten a user's text to one printable line that fits into a message."""
    line = printable(" ".join(text[: 2 * _MAX_QUOTED].split()))
    return line if len(line) <= _MAX_QUOTED else f"{line[:_MAX_QUOTED]}…"


def _extract_first_line(err: BaseException) -> str:
    return _shorten_to_line(str(err).partition("ERROR: ")[2].partition("\n")[0] or str(err).partition("\n")[0])


def _convert_device(device: ClaimableDevice, domains: frozenset[str]) -> dict[str, Any]:
    return {
        "driver": device.driver,
        "attributes": _group_by_domain(
            ((key, list(value) if isinstance(value, tuple) else value) for key, value in device.attributes), domains
        ),
        "capacity": _group_by_domain(device.capacity, domains),
        "allowMultipleAllocations": device.memory is not None,
    }


def _group_by_domain(values: Iterable[tuple[str, Any]], domains: frozenset[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for key, value in values:
        domain, _, name = key.partition("/")
        found.setdefault(domain, {})[name] = value
    return found


def _parse_quantity(text: str) -> int:
    try:
        return Quantity.parse(text).value()
    except QuantitySyntaxError as err:
        raise ValueError(str(err)) from None


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantitySyntaxError:
        return False
    return True


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": _parse_quantity,
    "isQuantity": _is_quantity,
    "compareTo": lambda one, other: (one > other) - (one < other),
    "isGreaterThan": lambda one, other: one > other,
    "isLessThan": lambda one, other: one < other,
    "includes": lambda many, one: one in many if isinstance(many, list) else one == many,
}
"""Functions that Kubernetes adds to CEL: functions for quantities (in bytes), and `includes` for attributes with several values."""
