"""The protocol of irqbalance's socket, as of versions 1.8 and later: what is asked for, and what it answers about itself."""

import re

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.sysfs_sample import parse_cpu_mask

SETUP = b"setup"
UNBAN = b"settings cpus NULL"
"""Back to its own configuration."""
MAX_REQUEST_BYTES = 500
"""It ignores what is more, and bans what it has read."""
_SETUP = re.compile(r"SLEEP (?P<seconds>\d{1,10}) (?:.* )?BANNED (?P<mask>[0-9a-f,]+)")


class IrqbalanceSyntaxError(ValueError):
    """The text is not what irqbalance answers, or it would not understand it."""


class Irqbalance(Struct, frozen=True):
    banned: CpuSet
    """As of its last scan: a request counts from the next one on."""
    scan_seconds: int
    """Between two scans."""


def print_ban(cpus: CpuSet) -> bytes:
    """Return the request to keep interrupts off CPUs.

    Raises:
        IrqbalanceSyntaxError: their list is longer than it reads.
    """
    assert cpus, "irqbalance dies of an empty list"
    request = f"settings cpus {cpus}".encode()
    if len(request) > MAX_REQUEST_BYTES:
        raise IrqbalanceSyntaxError(
            f"a request of {len(request)} characters is too long for it: it reads {MAX_REQUEST_BYTES}"
        )
    return request


def parse_setup(text: str) -> Irqbalance:
    """Read its answer to `SETUP`.

    Raises:
        IrqbalanceSyntaxError: it is something else.
    """
    match = _SETUP.fullmatch(text.strip("\n\0 "))
    if match is None:
        raise IrqbalanceSyntaxError(f"{text[:200]!r} is not what it answers")
    try:
        return Irqbalance(parse_cpu_mask(match["mask"]), int(match["seconds"]))
    except ValueError as err:
        raise IrqbalanceSyntaxError(f"{match['mask'][:200]!r} is no mask of CPUs") from err
