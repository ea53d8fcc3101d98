"""Events of a choice of CPUs, for an observer that explains the choice afterwards. The observer doesn't influence the choice."""

import enum
from collections.abc import Callable
from typing import ClassVar

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
    """Set of CPUs from which a choice is made."""

    HINT = "hint"
    """Free CPUs on the NUMA nodes of the merged hint, or with align-by-socket on the sockets of these nodes."""
    ELSEWHERE = "elsewhere"
    """CPUs outside of the hint's nodes, because these nodes can't provide enough CPUs."""
    ANYWHERE = "anywhere"
    """CPUs of any node, because there is no hint, or because the hint accepts every node."""
    POD = "pod"
    """CPU set of a pod with pod-level resources."""


class Choosing(Struct, frozen=True):
    """Event: a choice of CPUs begins."""

    source: Source
    available: CpuMask
    count: int
    isolated: bool = False
    """Whether only CPUs isolated at boot may be chosen (isolatedCPUs: prefer). If there are too few of them, another choice among all
    CPUs follows.
    """
    container: str | None = None
    """Name of the container that gets a slice of the pod's set. None means that the CPUs are chosen from the whole node."""
    is_for_hints: ClassVar[bool] = False


class Spread(Struct, frozen=True):
    """Event: CPUs are about to be taken, either as a NUMA node's equal share or as a group of the remainder
    (distribute-cpus-across-numa).
    """

    node: int
    count: int
    is_remainder: bool
    is_for_hints: ClassVar[bool] = False


class Took(Struct, frozen=True):
    rule: Rule
    cpus: CpuMask
    plugin: str | None = None
    """Name of the plugin that chose the CPUs, if the rule is Rule.PLUGIN."""
    is_for_hints: ClassVar[bool] = False


class PluginAnswered(Struct, frozen=True):
    """Event: a CPU plugin has answered, and the answer is valid."""

    plugin: str
    point: str
    cpus: CpuSet
    """CPUs in the plugin's answer. Depending on the extension point, these are the CPUs that were kept, offered, selected or scored."""
    score: int | None
    is_for_hints: bool = False
    """Whether the plugin was called for hints. Hints consider CPUs on any node."""


Pick = Choosing | Spread | Took | PluginAnswered
PickObserver = Callable[[Pick], None]
