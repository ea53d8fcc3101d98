"""The protocol of irqbalance's socket, as of versions 1.8 and later: what is asked for, and what it answers about itself."""

import re
from collections.abc import Set as AbstractSet

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.sysfs_sample import parse_cpu_mask

SETUP = b"setup"
UNBAN = b"settings cpus NULL"
"""Back to its own configuration."""
LEAVE_NONE = b"settings ban irqs NONE"
MAX_REQUEST_BYTES = 500
"""It ignores what is more, and bans what it has read."""
MAX_LIST_BYTES = 255
"""Of a list of interrupts, later versions ignore what is more than this."""
_SETUP = re.compile(r"SLEEP (?P<seconds>\d{1,10}) (?P<irqs>.* )?BANNED (?P<mask>[0-9a-f,]+)")
_LEFT_ALONE = re.compile(r"\bIRQ (\d{1,10}) ")


class IrqbalanceSyntaxError(ValueError):
    """The text is not what irqbalance answers, or it would not understand it."""


class Irqbalance(Struct, frozen=True):
    banned: CpuSet
    """As of its last scan: a request counts from the next one on."""
    scan_seconds: int
    """Between two scans."""
    left_alone: frozenset[int] = frozenset()
    """Numbers of interrupts that it moves nowhere, by its own configuration or because it was asked to."""


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


def print_leave(irqs: AbstractSet[int]) -> bytes:
    """Return the request to move these interrupts nowhere, and all others as before.

    Raises:
        IrqbalanceSyntaxError: their list is longer than it reads.
    """
    listed = " ".join(map(str, sorted(irqs)))
    if len(listed) > MAX_LIST_BYTES:
        raise IrqbalanceSyntaxError(
            f"a list of {len(irqs)} interrupts is too long for it: it reads {MAX_LIST_BYTES} characters"
        )
    return f"settings ban irqs {listed}".encode() if listed else LEAVE_NONE


def parse_setup(text: str) -> Irqbalance:
    """Read its answer to `SETUP`.

    Raises:
        IrqbalanceSyntaxError: it is something else.
    """
    match = _SETUP.fullmatch(text.strip("\n\0 "))
    if match is None:
        raise IrqbalanceSyntaxError(f"{text[:200]!r} is not what it answers")
    try:
        irqs = frozenset(map(int, _LEFT_ALONE.findall(match["irqs"] or "")))
        return Irqbalance(parse_cpu_mask(match["mask"]), int(match["seconds"]), irqs)
    except ValueError as err:
        raise IrqbalanceSyntaxError(f"{match['mask'][:200]!r} is no mask of CPUs") from err
