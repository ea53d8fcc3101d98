"""Events that describe how CPUs are chosen. The CPU manager reports them to an observer, which explains the choice afterwards and doesn't
influence it.
"""

import enum
from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask, CpuSet


class Rule(enum.StrEnum):
    """Rule by which a group of CPUs was taken."""

    WHOLE_SOCKET = "whole socket"
    WHOLE_NODE = "whole NUMA node"
    WHOLE_CACHE = "whole uncore cache"
    PART_OF_CACHE = "same uncore cache"
    WHOLE_CORE = "whole core"
    SINGLE_CPU = "single CPU"
    PLUGIN = "plugin"


class Source(enum.StrEnum):
    """Origin of the CPUs among which the CPU manager chooses."""

    HINT = "hint"
    """Free CPUs on the NUMA nodes of the merged hint. With align-by-socket, free CPUs on all sockets of these nodes."""
    ELSEWHERE = "elsewhere"
    """Free CPUs outside of the hint's NUMA nodes, which are used if these nodes can't provide enough CPUs."""
    ANYWHERE = "anywhere"
    """Free CPUs on any NUMA node, because there is no hint, or because the hint accepts every node."""
    POD = "pod"
    """CPU set of a pod with pod-level resources, which is divided among the pod's containers."""


class Choosing(Struct, frozen=True):
    """Event at the beginning of a choice, before CPUs are taken."""

    source: Source
    available: CpuMask
    count: int
    isolated: bool = False
    """Whether this choice is limited to CPUs isolated at boot (`isolatedCPUs: prefer`). If these are too few, a choice among all CPUs
    follows.
    """
    container: str | None = None
    """Name of the container that gets a part of the pod's CPU set. None means that the choice isn't among the CPUs of a pod's set."""
    is_for_hints: ClassVar[bool] = False


class Spread(Struct, frozen=True):
    """Event before CPUs are taken from one NUMA node, either as the node's equal share or as a part of the remainder
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
    """Name of the plugin that chose the CPUs. None unless the rule is Rule.PLUGIN."""
    is_for_hints: ClassVar[bool] = False


class PluginAnswered(Struct, frozen=True):
    """Event after a CPU plugin has given a valid answer."""

    plugin: str
    point: str
    cpus: CpuSet
    """CPUs in the plugin's answer: the CPUs that it left (Filter, PostFilter), selected (Select) or scored (PreScore, Score)."""
    score: int | None
    is_for_hints: bool = False
    """Whether the plugin was called to compute NUMA hints, for which it considers the CPUs of all NUMA nodes."""


Pick = Choosing | Spread | Took | PluginAnswered
PickObserver = Callable[[Pick], None]
