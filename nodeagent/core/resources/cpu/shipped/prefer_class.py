"""A CPU plugin that prefers one class of cores wherever CPUs are chosen, and says nothing about where that is.

`exclusiveCoreClass` prefers a class for the pod as a whole, when its NUMA nodes are chosen, too (D45). This is the same wish in one
point, and weaker: on the NUMA nodes that the topology manager has found, if they have enough of such cores.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import CORE_CLASSES
from nodeagent.core.resources.cpu.points import Question, Scores


class PreferClass(Struct, frozen=True):
    """PreScore: CPUs of the class have one more than others."""

    name: str

    def pre_score(self, question: Question) -> Scores:
        """Score the free CPUs of the class."""
        preferred = question.topology.core_classes.get(self.name, CpuSet()) & question.free
        return dict.fromkeys(preferred, 1)


def make(options: Mapping[str, str]) -> PreferClass:
    """Make it.

    Raises:
        ValueError: an option is wrong.
    """
    if set(options) != {"class"} or options["class"] not in CORE_CLASSES:
        raise ValueError(f"it has one option, class: {' or '.join(CORE_CLASSES)}")
    return PreferClass(options["class"])
