"""A CPU plugin that prefers one class of cores wherever CPUs are chosen, but doesn't influence the choice of NUMA nodes.

This plugin is weaker than `exclusiveCoreClass`, which also affects the choice of NUMA nodes (D45). The plugin prefers the class only on
the NUMA nodes that the topology manager has already chosen.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import CORE_CLASSES
from nodeagent.core.resources.cpu.points import Question, Scores


class PreferClass(Struct, frozen=True):
    """The PreScore step, which gives CPUs of the class the score 1, and other CPUs 0."""

    name: str

    def pre_score(self, question: Question) -> Scores:
        """Return the score 1 for each free CPU of the class."""
        preferred = question.topology.core_classes.get(self.name, CpuSet()) & question.free
        return dict.fromkeys(preferred, 1)


def make(options: Mapping[str, str]) -> PreferClass:
    """Create the plugin from its options.

    Raises:
        ValueError: an option is unknown, missing or invalid.
    """
    if set(options) != {"class"} or options["class"] not in CORE_CLASSES:
        raise ValueError(f"it has one option, class: {' or '.join(CORE_CLASSES)}")
    return PreferClass(options["class"])
