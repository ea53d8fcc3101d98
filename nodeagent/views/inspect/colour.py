"""Colours of the parts of an inspection that need attention: refusals, repeated failures, degraded containers.

Only words with capital letters or in a fixed context are coloured, because these can't be a pod's or container's name.
"""

import re

_RED, _YELLOW = "1;91", "1;93"
_ATTENTION = re.compile(
    r"(?P<red>\b(?:Refused|CrashLoopBackOff|Failed|OOMKilled|StartError|NOT AS ALLOCATED|is NOT running)\b"
    r"|^(?:PROBLEMS|DIFFERENCES|PROCESSES IN CGROUPS)\b[^\n]*)"
    r"|(?P<yellow>\b(?:Starved|Unknown)\b|(?<=[ ])(?:degraded|starved)(?=[:,]))",
    re.MULTILINE,
)


def add_colours(text: str) -> str:
    """Colour a formatted text. Positions of characters don't change."""
    return _ATTENTION.sub(lambda found: f"\x1b[{_RED if found['red'] else _YELLOW}m{found[0]}\x1b[0m", text)
