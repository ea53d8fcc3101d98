"""CPU plugin that spreads a container's CPUs over last-level caches. Each core is taken from the cache with the smallest
allocated share.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.core.resources.cpu.points import Question


class SpreadCaches(Struct, frozen=True):
    """Select step that takes one core after the other, each from the cache with the smallest load. A cache's load is the allocated share of
    its CPUs.
    """

    def select(self, question: Question) -> CpuSet | None:
        """Choose whole cores, and a part of one more core if needed. None means that the policy chooses instead, for instance because the
        machine has fewer than two caches.
        """
        topology = question.topology
        caches = [CpuSet(cache.bits) for cache in topology.l3] or list(topology.uncores.values())
        if len(caches) < 2:
            return None
        chosen, busy = CpuSet(), exclusive_cpus(question.promises)
        while len(chosen) < question.count:
            free, missing = question.free - chosen, question.count - len(chosen)
            by_load = sorted(
                (1000 * len((busy | chosen) & cache) // len(cache), min(cache), cache)
                for cache in caches
                if not free.isdisjoint(cache)
            )
            if not by_load:
                return None
            cache_cpus = free & by_load[0][2]
            cores = [part for core in topology.cores.values() if (part := core & cache_cpus)]
            core = max(cores, key=lambda part: (len(part) <= missing, len(part), -min(part)))
            chosen |= CpuSet.from_ids(list(core)[:missing])
        return chosen


def make(options: Mapping[str, str]) -> SpreadCaches:
    """Create the plugin.

    Raises:
        ValueError: options are given, although the plugin has none.
    """
    if options:
        raise ValueError("it has no options")
    return SpreadCaches()
