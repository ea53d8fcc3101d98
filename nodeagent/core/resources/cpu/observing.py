"""Events during a choice of CPUs, for an observer that explains it afterwards. The observer decides nothing."""

import enum
from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask, CpuSet


class Rule(enum.StrEnum):
    """Reason why CPUs were taken together."""

    WHOLE_SOCKET = "whole socket"
    WHOLE_NODE = "whole NUMA node"
    WHOLE_CACHE = "whole uncore cache"
    PART_OF_CACHE = "same uncore cache"
    WHOLE_CORE = "whole core"
    SINGLE_CPU = "single CPU"
    PLUGIN = "plugin"


class Source(enum.StrEnum):
    """The source that CPUs are chosen from."""

    HINT = "hint"
    """Free CPUs on the NUMA nodes of the merged hint (with align-by-socket: on their sockets)."""
    ELSEWHERE = "elsewhere"
    """CPUs outside the hint's nodes, which could not provide enough."""
    ANYWHERE = "anywhere"
    """CPUs of any node, because there is no hint or it accepts every node."""
    POD = "pod"
    """Set of a pod with pod-level resources."""


class Choosing(Struct, frozen=True):
    """CPUs are about to be chosen."""

    source: Source
    available: CpuMask
    count: int
    isolated: bool = False
    """Whether only CPUs isolated at boot are considered (isolatedCPUs: prefer). If too few are suitable, another choice follows."""
    container: str | None = None
    """Container whose slice of the pod's set is chosen."""


class Spread(Struct, frozen=True):
    """A NUMA node's share is taken next, or a group of what equal shares left over (distribute-cpus-across-numa)."""

    node: int
    count: int
    is_remainder: bool


class Took(Struct, frozen=True):
    rule: Rule
    cpus: CpuMask
    plugin: str | None = None
    """Plugin that chose the CPUs, under Rule.PLUGIN."""


class PluginAnswered(Struct, frozen=True):
    """A CPU plugin has given a valid answer."""

    plugin: str
    point: str
    cpus: CpuSet
    """CPUs that the plugin left, offered, selected or scored."""
    score: int | None
    is_for_hints: bool = False
    """Whether the plugin was called before the hints, for CPUs on any node."""


Pick = Choosing | Spread | Took | PluginAnswered
PickObserver = Callable[[Pick], None]
