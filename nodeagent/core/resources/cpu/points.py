"""The points at which CPUs are chosen, as typed protocols. kubelet's own policies are made of the same ones that plugins implement.

A plugin implements one or more. Each is a pure function over the values of the core: the same question gets the same answer. What a plugin
answers is judged in plugins.py, which is loaded where there are any; what is asked here of our own steps is not.
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
    """By the names of the CPU Manager Plugin Model, in the order in which they are asked."""

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
        """The method of a plugin that implements it."""
        return self.name.lower()


Scores = Mapping[int, int]
"""By CPU: the more, the better. A CPU that isn't in it has 0."""
NO_SCORES: Scores = MappingProxyType({})


class Question(Struct, frozen=True, gc=False):  # one or two for each decision: nothing in it refers to it
    """A number of CPUs, and those they are to be chosen from."""

    topology: Topology
    promises: Promises
    """To whom what is promised, the pod's containers before this one among them."""
    pod: PodDemand
    container: str | None
    """None: for the pod as a whole."""
    free: CpuSet
    """Free, and what the points before have left of it. Select and Score are asked for what is to come from the NUMA nodes of the merged
    hint, and then for what these can't provide: `free` and `count` are those of the one or the other.
    """
    count: int
    scores: Scores = NO_SCORES
    """By PreScore, all plugins' together."""


class CpuShortage(Struct, frozen=True):
    """The request can't be met; the text is kubelet's."""

    message: str


class ReturnedCpus(Struct, frozen=True):
    """CPUs that a container gives back."""

    topology: Topology
    promises: Promises
    """As they are after it."""
    pod_uid: str
    container: str
    cpus: CpuSet


class Sort(Protocol):
    def sort(self, pod: Pod) -> int:
        """Say when a pod's turn is, among those that wait: those with less come first, those with equally much as before."""


class Filter(Protocol):
    def filter(self, question: Question) -> CpuSet:
        """Return the free CPUs that the pod may have."""


class PostFilter(Protocol):
    def post_filter(self, question: Question) -> CpuSet | None:
        """Return what to choose from instead, as what the filters have left is too little. `free` is what there was before they were asked.
        None: nothing.
        """


class PreScore(Protocol):
    def pre_score(self, question: Question) -> Scores:
        """Say how much each single CPU suits the pod."""


class Select(Protocol):
    def select(self, question: Question) -> CpuSet | CpuShortage | None:
        """Return so many of the free CPUs. None: no opinion. Only our own policy says that the request can't be met."""


class Score(Protocol):
    def score(self, question: Question, cpus: CpuSet) -> int:
        """Say how good one of the combinations is that Select has returned."""


class Allocate(Protocol):
    def allocate(self, question: Question, cpus: CpuSet) -> str | None:
        """Say why the container is not to have these CPUs after all; the pod is refused with it. None: it has them."""


class Deallocate(Protocol):
    def deallocate(self, returned: ReturnedCpus) -> str | None:
        """Say what is to be noted in the log about CPUs that have been given back. None: nothing."""


_MOST_CHARACTERS = 1000
"""Of what is said about a failure: it may quote sets of CPUs, or the plugin."""


class PluginFailedError(Exception):
    """A plugin has raised an error, was too late, is not there, or its answer is none. It refuses the pod that it was asked about."""

    def __init__(self, plugin: str, point: Point | None, why: str) -> None:
        where = "" if point is None else f", {point.value}"
        text = why if len(why) <= _MOST_CHARACTERS else f"{why[:_MOST_CHARACTERS]}…"
        super().__init__(printable(f"CPU plugin {plugin}{where}: {text}"))
