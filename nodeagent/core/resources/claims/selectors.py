"""CEL selectors (cel.dev): does a device meet an expression? What they see is what Kubernetes shows them of a device.

Of Kubernetes' environment there are `device.driver`, `device.attributes`, `device.capacity` and quantities; `cel.bind` and optional fields
(`.?`) are not known to the library.
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
"""Bytes of an expression (CELSelectorExpressionMaxLength)."""
_LONGEST_QUOTED = 300
_DOMAIN = re.compile(r"""\b(?:attributes|capacity)\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
"""A domain that an expression asks about: where a device has none of it, it is there and empty."""
_DEEPEST = 64
"""Brackets within each other, long before the parser's stack ends."""
_MACROS = "all|exists|exists_one|existsOne|map|filter"
_MACRO = re.compile(rf"\b(?:{_MACROS})\b(?=\s*(?:\(|//))")
"""One that goes through a list. A comment may stand before its bracket."""
MOST_STEPS = 10_000
"""Of lists within lists that an expression may go through, for one device: the library doesn't count them."""


class SelectorError(Exception):
    """An expression can't be read, or has no answer about a device. The text says why."""


def check(expression: str) -> None:
    """Judge an expression before any device is known.

    Raises:
        SelectorError: it is no CEL, or names a variable that there is none of. Of functions the library says so only when it runs them:
            then the pod is refused with that.
    """
    program, _ = _compiled(expression)
    unknown = [name for name in program.variables() if name not in _known_variables(expression)]
    if unknown:
        raise SelectorError(f"{unknown[0]} is not known: an expression is about `device`")


def meets(device: ClaimableDevice, expressions: Iterable[str]) -> bool:
    """Whether a device meets all of these.

    Raises:
        SelectorError: one of them has no answer, as it asks for an attribute that the device doesn't have, or isn't true or false.
    """
    return all(_meets(device, expression) for expression in expressions)


def forget_answers() -> None:
    """Ask anew from now on: for who measures that."""
    _meets.cache_clear()


@lru_cache(maxsize=4096)  # pods that come together ask the same of the same devices
def _meets(device: ClaimableDevice, expression: str) -> bool:
    program, domains = _compiled(expression)
    with _answering(f"{_quoted(expression)}, of {device.name}"):
        answer = program.execute(cel.Context({"device": _shown(device, domains)}, _FUNCTIONS))
    if not isinstance(answer, bool):
        raise SelectorError(f"it must be true or false, not {_in_a_line(repr(answer))}: {_quoted(expression)}")
    return answer


@contextmanager
def _answering(what: str) -> Iterator[None]:
    """Turn whatever the library raises into an error about the expression: also its own breakdown, which is no Exception (pyo3)."""
    try:
        yield
    except KeyError as err:
        raise SelectorError(f"{_in_a_line(str(err.args[0]))} is missing: {what}") from None
    except BaseException as err:
        if not isinstance(err, Exception) and type(err).__module__ != "pyo3_runtime":
            raise
        raise SelectorError(f"{_first_line(err)}: {what}") from None


@lru_cache(maxsize=256)
def _compiled(expression: str) -> tuple[Any, frozenset[str]]:
    if len(expression.encode()) > LONGEST:
        raise SelectorError(f"an expression has at most {LONGEST} bytes, this one {len(expression.encode())}")
    depth = deepest = 0
    for character in expression:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise SelectorError(f"brackets are {deepest} deep, and may be {_DEEPEST}")
    longest = 1 + expression.count(",") + expression.count("+")  # lists are written out, or put together
    if longest ** len(_MACRO.findall(expression)) > MOST_STEPS:
        raise SelectorError("it goes through lists within lists of too many values")
    with _answering(_quoted(expression)):
        program = cel.compile(expression)
    return program, frozenset(one or other for one, other in _DOMAIN.findall(expression))


def _quoted(expression: str) -> str:
    return f"`{_in_a_line(expression)}`"


def _in_a_line(text: str) -> str:
    """Spell what somebody has written for a message: without line ends, and not without end."""
    line = printable(" ".join(text[: 2 * _LONGEST_QUOTED].split()))
    return line if len(line) <= _LONGEST_QUOTED else f"{line[:_LONGEST_QUOTED]}…"


def _known_variables(expression: str) -> set[str]:
    bound = re.findall(rf"\b(?:{_MACROS})\(\s*(\w+)\s*,", expression)
    return {"device", *bound}


def _first_line(err: BaseException) -> str:
    return _in_a_line(str(err).partition("ERROR: ")[2].partition("\n")[0] or str(err).partition("\n")[0])


def _shown(device: ClaimableDevice, domains: frozenset[str]) -> dict[str, Any]:
    return {
        "driver": device.driver,
        "attributes": _by_domain(((key, _plain(value)) for key, value in device.attributes), domains),
        "capacity": _by_domain(device.capacity, domains),
        "allowMultipleAllocations": device.memory is not None,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _by_domain(values: Iterable[tuple[str, Any]], domains: frozenset[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for key, value in values:
        domain, _, name = key.partition("/")
        found.setdefault(domain, {})[name] = value
    return found


def _quantity(text: str) -> int:
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
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "compareTo": lambda one, other: (one > other) - (one < other),
    "isGreaterThan": lambda one, other: one > other,
    "isLessThan": lambda one, other: one < other,
    "includes": lambda many, one: one in many if isinstance(many, list) else one == many,
}
"""Kubernetes' functions of quantities (which are bytes here), and of attributes that may be several."""
