"""Colours the parts of an inspection that need attention: refusals, repeated failures, and containers worse than
allocated.

Only words are coloured that can't be a pod's or container's name, because names are lower case. Without colour the
text says the same.
"""

import re

_RED, _YELLOW = "1;91", "1;93"
_MARKED = re.compile(
    r"(?P<red>\b(?:Refused|CrashLoopBackOff|Failed|OOMKilled|StartError|NOT AS ALLOCATED|is NOT running)\b"
    r"|^(?:PROBLEMS|DIFFERENCES|PROCESSES IN CGROUPS)\b[^\n]*)"
    r"|(?P<yellow>\b(?:Starved|Unknown)\b|(?<=[ ])(?:degraded|starved)(?=[:,]))",
    re.MULTILINE,
)


def coloured(text: str) -> str:
    """Colour a formatted text. Positions of characters don't change."""
    return _MARKED.sub(lambda found: f"\x1b[{_RED if found['red'] else _YELLOW}m{found[0]}\x1b[0m", text)
