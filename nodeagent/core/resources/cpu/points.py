"""Extension points at which CPU plugins take part in the choice of CPUs, as typed protocols. The built-in policies of kubelet implement
some of these points, too.

A plugin implements one or more points. Each point must be a pure function: equal arguments must get equal results, because a decision may
be repeated for explanations. plugins.py checks the results of plugins. Results of built-in policies aren't checked.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.resource import ResourceFailedError
from nodeagent.errors import printable


class Point(enum.StrEnum):
    """Extension points, in the order in which they are called. The names are those of the CPU Manager Plugin Model."""

    SORT = "Sort"
    FILTER = "Filter"
    POST_FILTER = "PostFilter"
    PRE_SCORE = "PreScore"
    SELECT = "Select"
    SCORE = "Score"
    ALLOCATE = "Allocate"
    DEALLOCATE = "Deallocate"

    @property
    def method(self) -> str:
        """Return the name of the plugin's method for this point."""
        return self.name.lower()


Scores = Mapping[int, int]
"""Scores by CPU. CPUs with higher scores are preferred. The score of a CPU that isn't listed is 0."""
NO_SCORES: Scores = MappingProxyType({})


class Question(
    Struct, frozen=True, gc=False
):  # gc=False, because a question is created once or twice for each decision, and is never part of a reference cycle
    """Input of an extension point: a request for `count` of the CPUs in `free`."""

    topology: Topology
    promises: Promises
    """Present promises, including the allocations to earlier containers of the same pod."""
    pod: PodDemand
    container: str | None
    """Name of the container that requests the CPUs. None means that the pod as a whole requests them."""
    free: CpuSet
    """Free CPUs that earlier extension points have left. Select and Score are first called with the CPUs on the NUMA nodes of the merged
    hint. If more CPUs are needed, Select and Score are called once more, with CPUs of other nodes.
    """
    count: int
    scores: Scores = NO_SCORES
    """Scores of CPUs, summed over the PreScore results of all plugins."""


class CpuShortage(Struct, frozen=True):
    """Result of a choice for which there are too few CPUs. The message is worded as by kubelet."""

    message: str


class ReturnedCpus(Struct, frozen=True):
    """Input of Deallocate: CPUs that a container has released."""

    topology: Topology
    promises: Promises
    """Promises after the release."""
    pod_uid: str
    container: str
    cpus: CpuSet


class Sort(Protocol):
    def sort(self, pod: Pod) -> int:
        """Return the pod's sort key. Waiting pods are decided in ascending order of their keys. Pods with equal keys keep their order."""


class Filter(Protocol):
    def filter(self, question: Question) -> CpuSet:
        """Return those of the free CPUs that may be allocated to the pod."""


class PostFilter(Protocol):
    def post_filter(self, question: Question) -> CpuSet | None:
        """Return CPUs to choose from instead, if the plugins' Filter has left too few CPUs. In this call, `question.free` contains the CPUs
        before Filter. None means that this plugin offers no CPUs.
        """


class PreScore(Protocol):
    def pre_score(self, question: Question) -> Scores:
        """Return scores for the free CPUs. A higher score means that the CPU is more suitable for the pod."""


class Select(Protocol):
    def select(self, question: Question) -> CpuSet | CpuShortage | None:
        """Return `question.count` of the free CPUs. None means that the plugin makes no choice. Only the built-in policies may return a
        shortage.
        """


class Score(Protocol):
    def score(self, question: Question, cpus: CpuSet) -> int:
        """Return a score for CPUs that Select or the policy has chosen. The choice with the highest sum of scores is allocated."""


class Allocate(Protocol):
    def allocate(self, question: Question, cpus: CpuSet) -> str | None:
        """Return an objection to the chosen CPUs, which refuses the pod. None means that the plugin has no objection."""


class Deallocate(Protocol):
    def deallocate(self, returned: ReturnedCpus) -> str | None:
        """Return a text for the log about released CPUs. None means that nothing is logged."""


_MAX_CHARACTERS = 1000
"""Maximum length of an error's text in characters. The text may contain CPU sets or text from the plugin, which can be long."""


class PluginFailedError(ResourceFailedError):
    """A CPU plugin is missing, raised an error, took too long or returned an invalid answer."""

    reason = Reason.CPU_PLUGIN_FAILED

    def __init__(self, plugin: str, point: Point | None, why: str) -> None:
        where = "" if point is None else f", {point.value}"
        text = why if len(why) <= _MAX_CHARACTERS else f"{why[:_MAX_CHARACTERS]}…"
        super().__init__(printable(f"CPU plugin {plugin}{where}: {text}"))
