"""The protocol of irqbalance's socket since version 1.8: requests, and the answer with irqbalance's setup."""

import re
from collections.abc import Set as AbstractSet

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.sysfs_sample import parse_cpu_mask

SETUP = b"setup"
UNBAN = b"settings cpus NULL"
"""Request to lift the ban, so that irqbalance uses the banned CPUs of its own configuration."""
LEAVE_NONE = b"settings ban irqs NONE"
MAX_REQUEST_BYTES = 500
"""Maximum length of a request. irqbalance would ignore the rest and ban only the CPUs read so far."""
MAX_LIST_BYTES = 255
"""Maximum length of a list of interrupts. Newer irqbalance versions ignore the rest."""
_SETUP = re.compile(r"SLEEP \d{1,10} (?P<irqs>.* )?BANNED (?P<mask>[0-9a-f,]+)")
_LEFT_ALONE = re.compile(r"\bIRQ (\d{1,10}) ")


class IrqbalanceSyntaxError(ValueError):
    """irqbalance's answer is malformed, or a request would exceed its limit."""


class Irqbalance(Struct, frozen=True):
    banned: CpuSet
    """CPUs that were banned at irqbalance's last scan. Requests take effect at the next scan."""
    left_alone: frozenset[int] = frozenset()
    """Numbers of interrupts that irqbalance doesn't move, because of its own configuration or a request."""


def format_ban_request(cpus: CpuSet) -> bytes:
    """Format the request to keep interrupts off CPUs.

    Raises:
        IrqbalanceSyntaxError: the list exceeds irqbalance's limit.
    """
    assert cpus, "irqbalance dies of an empty list"
    request = f"settings cpus {cpus}".encode()
    if len(request) > MAX_REQUEST_BYTES:
        raise IrqbalanceSyntaxError(
            f"a request of {len(request)} characters exceeds irqbalance's limit of {MAX_REQUEST_BYTES}"
        )
    return request


def format_leave_request(irqs: AbstractSet[int]) -> bytes:
    """Format the request that irqbalance stop moving these interrupts. It continues to move all others.

    Raises:
        IrqbalanceSyntaxError: the list exceeds irqbalance's limit.
    """
    listed = " ".join(map(str, sorted(irqs)))
    if len(listed) > MAX_LIST_BYTES:
        raise IrqbalanceSyntaxError(
            f"a list of {len(irqs)} interrupts exceeds irqbalance's limit of {MAX_LIST_BYTES} characters"
        )
    return f"settings ban irqs {listed}".encode() if listed else LEAVE_NONE


def parse_setup(text: str) -> Irqbalance:
    """Parse the answer to `SETUP`.

    Raises:
        IrqbalanceSyntaxError: the text is malformed.
    """
    match = _SETUP.fullmatch(text.strip("\n\0 "))
    if match is None:
        raise IrqbalanceSyntaxError(f"{text[:200]!r} is not an answer of irqbalance")
    try:
        irqs = frozenset(map(int, _LEFT_ALONE.findall(match["irqs"] or "")))
        return Irqbalance(parse_cpu_mask(match["mask"]), irqs)
    except ValueError as err:
        raise IrqbalanceSyntaxError(f"{match['mask'][:200]!r} is not a CPU mask") from err
