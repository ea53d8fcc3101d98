"""CPU plugin that prefers the cores of one class (performance or efficiency), without influencing the choice of NUMA nodes.

The configuration field `exclusiveCoreClass` also influences the choice of NUMA nodes (D45). This plugin prefers the class only among the
CPUs of the NUMA nodes that the topology manager has already chosen.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import CORE_CLASSES
from nodeagent.core.resources.cpu.points import Question, Scores


class PreferClass(Struct, frozen=True):
    """PreScore step that gives the score 1 to CPUs of the preferred class. All other CPUs have the score 0."""

    name: str

    def pre_score(self, question: Question) -> Scores:
        """Return the score 1 for each free CPU of the preferred class."""
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
