"""Parser for the values of policy options (`cpuManagerPolicyOptions` and others), with kubelet's rules and messages."""

from nodeagent.core.model.go_text import quote_as_go
from nodeagent.core.model.refusals import StartRefused

_BOOLEANS = {"1": True, "t": True, "T": True, "TRUE": True, "true": True, "True": True} | {
    "0": False,
    "f": False,
    "F": False,
    "FALSE": False,
    "false": False,
    "False": False,
}


def parse_boolean(option: str, value: str, field: str) -> bool | StartRefused:
    """Parse a policy option's boolean value by the rules of Go's ParseBool. Return a refusal to start if the value is invalid."""
    parsed = _BOOLEANS.get(value)
    if parsed is None:
        return StartRefused(
            f"bad value for option {quote_as_go(option)}: strconv.ParseBool: parsing {quote_as_go(value)}: invalid syntax",
            field,
            entry=option,
            allowed='must be "true" or "false"',
            plain=f'{option} must be "true" or "false", not {quote_as_go(value)}',
        )
    return parsed
