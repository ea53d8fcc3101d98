"""Extension points of the choice of CPUs, as typed protocols. kubelet's own policies are built from the same points as plugins.

A plugin implements one or more points. Each is a pure function of values of the core, so the same question gets the same answer. plugins.py
judges the answers of plugins. Answers of our own steps need no judgment.
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
from nodeagent.core.model.topology import Topology
from nodeagent.errors import printable


class Point(enum.StrEnum):
    """Points by their names in the CPU Manager Plugin Model, in the order of calls."""

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
        """Name of the method that implements the point."""
        return self.name.lower()


Scores = Mapping[int, int]
"""Scores by CPU, where more is better. A missing CPU has score 0."""
NO_SCORES: Scores = MappingProxyType({})


class Question(
    Struct, frozen=True, gc=False
):  # created once or twice for each decision, and never part of a reference cycle
    """A request for a number of CPUs out of a set of free ones."""

    topology: Topology
    promises: Promises
    """Current promises, including those of the pod's containers before this one."""
    pod: PodDemand
    container: str | None
    """None means the pod as a whole."""
    free: CpuSet
    """Free CPUs that earlier points have left. Select and Score are called for the NUMA nodes of the merged hint first, and again for the
    rest that these nodes can't provide. `free` and `count` refer to one of the two.
    """
    count: int
    scores: Scores = NO_SCORES
    """Sum of the scores of all plugins' PreScore."""


class CpuShortage(Struct, frozen=True):
    """The request can't be met. The text is kubelet's."""

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
        """Return the position of a pod among waiting ones: lower values come first, and equal ones keep their order."""


class Filter(Protocol):
    def filter(self, question: Question) -> CpuSet:
        """Return the free CPUs that the pod may have."""


class PostFilter(Protocol):
    def post_filter(self, question: Question) -> CpuSet | None:
        """Return the CPUs to choose from instead, because the filters have left too few. `free` is the set before the filters. None means
        no offer.
        """


class PreScore(Protocol):
    def pre_score(self, question: Question) -> Scores:
        """Return how well each CPU suits the pod."""


class Select(Protocol):
    def select(self, question: Question) -> CpuSet | CpuShortage | None:
        """Return this number of the free CPUs. None means no opinion. Only our own policy reports that the request can't be met."""


class Score(Protocol):
    def score(self, question: Question, cpus: CpuSet) -> int:
        """Return the score of one combination that Select has returned."""


class Allocate(Protocol):
    def allocate(self, question: Question, cpus: CpuSet) -> str | None:
        """Return why the container must not get these CPUs, which refuses the pod. None means no objection."""


class Deallocate(Protocol):
    def deallocate(self, returned: ReturnedCpus) -> str | None:
        """Return a note for the log about released CPUs. None means no note."""


_MOST_CHARACTERS = 1000
"""Limit on the text of a failure, which may quote sets of CPUs, or the plugin."""


class PluginFailedError(Exception):
    """A plugin has raised an error, taken too long, is missing, or has given an invalid answer. The pod in question is refused."""

    def __init__(self, plugin: str, point: Point | None, why: str) -> None:
        where = "" if point is None else f", {point.value}"
        text = why if len(why) <= _MOST_CHARACTERS else f"{why[:_MOST_CHARACTERS]}…"
        super().__init__(printable(f"CPU plugin {plugin}{where}: {text}"))
