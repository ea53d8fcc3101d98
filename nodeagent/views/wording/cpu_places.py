"""Locations of CPUs on the machine, as documents: sockets, NUMA nodes, cores and caches."""

from collections.abc import Sequence
from typing import Any

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology

Place = dict[str, Any]


class Places:
    """Locations of CPUs on one machine. They are cached for each set of CPUs, because many containers have the same set, the
    shared pool.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._cache_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group}
        self._known: dict[CpuSet, Sequence[Place]] = {}

    def find(self, cpus: CpuSet) -> Sequence[Place]:
        """Group the online CPUs of a set by socket, NUMA node and caches, and describe each group."""
        if cpus in self._known:
            return self._known[cpus]
        topology = self._topology
        groups: dict[tuple[int, int, int | None, int | None], list[int]] = {}
        for number in cpus & topology.online:
            cpu = topology.cpu[number]
            groups.setdefault((cpu.socket, cpu.numa, self._cache_of.get(number), cpu.uncore), []).append(number)
        places = []
        for key in sorted(groups, key=lambda key: [(part is not None, part or 0) for part in key]):
            socket, numa, cache, uncore = key
            members = CpuSet.from_ids(groups[key])
            cores = sorted({topology.cpu[number].core for number in members})
            places.append(
                {
                    "cores": cores,
                    "cpus": str(members),
                    "l3": cache,
                    "numa": numa,
                    "socket": socket,
                    "uncore": uncore,
                    "wholeCores": all(topology.cores[core] <= members for core in cores),
                }
            )
        self._known[cpus] = tuple(places)
        return self._known[cpus]
