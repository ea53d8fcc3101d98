"""Extension points of the choice of CPUs, as typed protocols. kubelet's own policies are implemented by the same points as plugins.

A plugin implements one or more points. Each point is a pure function of its arguments, so the same question must get the same answer.
plugins.py checks the answers of plugins. The answers of built-in policies need no check.
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
    """Extension points, in the order of calls. Their names are those of the CPU Manager Plugin Model."""

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
        """Return the name of the method that implements the point."""
        return self.name.lower()


Scores = Mapping[int, int]
"""Scores of CPUs. CPUs with higher scores are preferred. A CPU that isn't listed has the score 0."""
NO_SCORES: Scores = MappingProxyType({})


class Question(
    Struct, frozen=True, gc=False
):  # gc=False, because a question is created once or twice for each decision, and is never part of a reference cycle
    """Question to an extension point. It requests a number of the free CPUs."""

    topology: Topology
    promises: Promises
    """Current promises, including allocations to earlier containers of the pod."""
    pod: PodDemand
    container: str | None
    """Name of the container. None means that the pod as a whole is meant."""
    free: CpuSet
    """Free CPUs that earlier points have left. Select and Score are first called with the CPUs on the nodes of the merged hint. If CPUs
    are still missing, Select and Score are called again with other CPUs.
    """
    count: int
    scores: Scores = NO_SCORES
    """Scores from the plugins' PreScore, added up for each CPU."""


class CpuShortage(Struct, frozen=True):
    """Refusal of a request for lack of CPUs. The text is in kubelet's words."""

    message: str


class ReturnedCpus(Struct, frozen=True):
    """CPUs that a container has released."""

    topology: Topology
    promises: Promises
    """Promises after the release."""
    pod_uid: str
    container: str
    cpus: CpuSet


class Sort(Protocol):
    def sort(self, pod: Pod) -> int:
        """Return a number that orders the waiting pods. Lower numbers come first, and pods with equal numbers keep their order."""


class Filter(Protocol):
    def filter(self, question: Question) -> CpuSet:
        """Return the free CPUs that the pod may have."""


class PostFilter(Protocol):
    def post_filter(self, question: Question) -> CpuSet | None:
        """Return the CPUs to choose from, if the filters have left too few CPUs. The question's `free` has the CPUs before the filters.
        None means that the plugin doesn't offer any.
        """


class PreScore(Protocol):
    def pre_score(self, question: Question) -> Scores:
        """Return scores for CPUs. A higher score means that the CPU suits the pod better."""


class Select(Protocol):
    def select(self, question: Question) -> CpuSet | CpuShortage | None:
        """Return `count` of the free CPUs. None means that the plugin has no opinion. Only built-in policies may return a shortage."""


class Score(Protocol):
    def score(self, question: Question, cpus: CpuSet) -> int:
        """Return the score of a combination of CPUs that Select or the policy has chosen."""


class Allocate(Protocol):
    def allocate(self, question: Question, cpus: CpuSet) -> str | None:
        """Return an objection to these CPUs. An objection refuses the pod. None means that the plugin has no objection."""


class Deallocate(Protocol):
    def deallocate(self, returned: ReturnedCpus) -> str | None:
        """Return a note about released CPUs for the log. None means that there is nothing to note."""


_MAX_CHARACTERS = 1000
"""Maximum length of a failure's text in characters. The text may quote CPU sets or the plugin's own text."""


class PluginFailedError(ResourceFailedError):
    """A plugin is missing, has raised an error, has taken too long, or has given an invalid answer."""

    reason = Reason.CPU_PLUGIN_FAILED

    def __init__(self, plugin: str, point: Point | None, why: str) -> None:
        where = "" if point is None else f", {point.value}"
        text = why if len(why) <= _MAX_CHARACTERS else f"{why[:_MAX_CHARACTERS]}…"
        super().__init__(printable(f"CPU plugin {plugin}{where}: {text}"))
