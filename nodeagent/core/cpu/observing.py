"""What a choice of CPUs does on its way, told to whoever explains it afterwards. Nothing here decides."""

import enum
from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask


class Rule(enum.StrEnum):
    """Why these CPUs were taken together."""

    WHOLE_SOCKET = "whole socket"
    WHOLE_NODE = "whole NUMA node"
    WHOLE_CACHE = "whole uncore cache"
    PART_OF_CACHE = "same uncore cache"
    WHOLE_CORE = "whole core"
    SINGLE_CPU = "single CPU"


class Source(enum.StrEnum):
    """Out of what CPUs are chosen."""

    HINT = "hint"
    """What is free on the NUMA nodes of the merged hint (with align-by-socket: on their sockets)."""
    ELSEWHERE = "elsewhere"
    """What the hint's nodes could not give."""
    ANYWHERE = "anywhere"
    """There is no hint, or any node is as good."""
    POD = "pod"
    """The set of a pod with resources of its own."""


class Choosing(Struct, frozen=True):
    """CPUs are going to be chosen."""

    source: Source
    available: CpuMask
    count: int
    isolated: bool = False
    """Only CPUs isolated at boot are looked at (isolatedCPUs: prefer). If too few suit, another choice follows."""
    container: str | None = None
    """Whose slice of the pod's set it is."""


class Spread(Struct, frozen=True):
    """distribute-cpus-across-numa takes a node's share next, or a group of what shares left over."""

    node: int
    count: int
    is_remainder: bool


class Took(Struct, frozen=True):
    rule: Rule
    cpus: CpuMask


PickObserver = Callable[[Choosing | Spread | Took], None]
