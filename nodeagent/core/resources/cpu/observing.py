"""The steps of a choice of CPUs, passed to an observer that explains it afterwards. Nothing here decides."""

import enum
from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask, CpuSet


class Rule(enum.StrEnum):
    """Why these CPUs were taken together."""

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
    """What is free on the NUMA nodes of the merged hint (with align-by-socket: on their sockets)."""
    ELSEWHERE = "elsewhere"
    """The rest, which the hint's nodes could not provide."""
    ANYWHERE = "anywhere"
    """There is no hint, or any node is equally good."""
    POD = "pod"
    """The set of a pod with pod-level resources."""


class Choosing(Struct, frozen=True):
    """CPUs are about to be chosen."""

    source: Source
    available: CpuMask
    count: int
    isolated: bool = False
    """Only CPUs isolated at boot are considered (isolatedCPUs: prefer). If too few are suitable, another choice follows."""
    container: str | None = None
    """The container whose slice of the pod's set it is."""


class Spread(Struct, frozen=True):
    """distribute-cpus-across-numa takes a node's share next, or a group of what equal shares left over."""

    node: int
    count: int
    is_remainder: bool


class Took(Struct, frozen=True):
    rule: Rule
    cpus: CpuMask
    plugin: str | None = None
    """Whose choice it is, under Rule.PLUGIN."""


class PluginAnswered(Struct, frozen=True):
    """A CPU plugin has answered, and its answer holds."""

    plugin: str
    point: str
    cpus: CpuSet
    """What it has left, given or selected; or what it has scored."""
    score: int | None
    is_for_hints: bool = False
    """It was asked before the hints: for CPUs on any node."""


Pick = Choosing | Spread | Took | PluginAnswered
PickObserver = Callable[[Pick], None]
