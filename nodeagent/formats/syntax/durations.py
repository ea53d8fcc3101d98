"""Parser of Go's notation for durations (`10s`, `1m30s`, `1.5h`; see time.ParseDuration) into whole nanoseconds."""

import re

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"(?P<whole>[0-9]{0,19})(?:\.(?P<fraction>[0-9]{0,19}))?(?P<unit>ns|us|µs|μs|ms|s|m|h)")
_MAX_TEXT = 64


class DurationSyntaxError(ValueError):
    """A text is not a duration. The message is the same as Go's."""


def parse_duration_ns(text: str) -> int:
    """Parse a duration. `0` needs no unit. Fractions of a nanosecond are dropped.

    Raises:
        DurationSyntaxError: the text is not a duration.
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total = 0
    position = 0
    while position < len(rest) <= _MAX_TEXT:
        match = _PART.match(rest, position)
        if match is None or not (match["whole"] or match["fraction"]):
            break
        unit, fraction = _UNITS[match["unit"]], match["fraction"] or ""
        total += int(match["whole"] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        position = match.end()
    if position != len(rest) or not rest or total > 2**63 - 1:
        raise DurationSyntaxError(f'time: invalid duration "{text[:_MAX_TEXT]}"')
    return -total if text[0] == "-" else total
