"""Suggestions for a text that isn't a quantity, because it has a unit that Kubernetes doesn't have."""

import re

from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError

_WITH_UNIT = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)(?P<gap> *)(?P<unit>[A-Za-z]{1,8})")
_SIZES = {"k": "k", "m": "M", "g": "G", "t": "T", "p": "P", "e": "E"}
_DECIMAL, _BINARY = frozenset({"", "b", "byte", "bytes"}), frozenset({"i", "ib"})


def explain_no_quantity(text: str) -> str:
    """Explain why a text is not a quantity, and suggest the amount that was probably meant."""
    meant = find_meant(text)
    if not meant:
        return "must be a quantity such as 2, 500m or 1Gi"
    found = _WITH_UNIT.fullmatch(text)
    assert found is not None
    if found["gap"] and _is_quantity(found["number"] + found["unit"]):
        return f"must have no blank before the unit: {found['number']}{found['unit']}"
    return f"{found['unit']} is not a unit: {' or '.join(meant)}"


def find_meant(text: str) -> tuple[str, ...]:
    """Return the quantities that the author of a number with an invalid unit may have meant. The quantity with a binary unit comes last."""
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        return ()
    number, unit = found["number"], found["unit"]
    rest, size = unit[1:].lower(), _SIZES.get(unit[:1].lower())
    if unit.lower() in _DECIMAL:
        return (number,)
    if size is None or rest not in _DECIMAL | _BINARY:
        return (number + unit,) if _is_quantity(number + unit) else ()
    return (*([f"{number}{size}"] if rest in _DECIMAL else []), f"{number}{size.upper()}i")


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantitySyntaxError:
        return False
    return True
