"""The kernel's notation of a set of CPUs as a mask: hexadecimal words of 32 bits, highest first, as in `00000000,0000ff0f`."""

import re

from nodeagent.core.model.idset import MAX_ID, CpuMask, CpuSet

_WORD = re.compile(r"[0-9a-fA-F]{1,8}")
_WORD_BITS = 32
_MAX_WORDS = (MAX_ID + 1) // _WORD_BITS


def parse_cpu_mask(text: str) -> CpuSet:
    """Read a mask.

    Raises:
        ValueError: it is something else.
    """
    words = text.strip().split(",")
    if len(words) > _MAX_WORDS or not all(_WORD.fullmatch(word) for word in words):
        raise ValueError(f"{text.strip()[:80]!r} is not a CPU mask such as 00000000,0000ff0f")
    return CpuSet(CpuMask(int("".join(word.zfill(8) for word in words), 16)))


def print_cpu_mask(cpus: CpuSet) -> str:
    words, rest = [f"{cpus.bits & 0xFFFFFFFF:08x}"], cpus.bits >> _WORD_BITS
    while rest:
        words.append(f"{rest & 0xFFFFFFFF:08x}")
        rest >>= _WORD_BITS
    return ",".join(reversed(words))
