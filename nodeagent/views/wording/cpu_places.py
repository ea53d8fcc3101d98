"""Locations of CPUs on the machine (sockets, NUMA nodes, cores and caches), as plain values and as text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology

_MOST_PLACES = 4
"""Limit on the locations listed one by one. More are shown as counts."""

Place = dict[str, Any]


class Places:
    """Locations of CPUs on one machine. Each set is looked up once, because many containers have the same CPUs (the
    shared pool).
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._cache_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group}
        self._known: dict[CpuSet, Sequence[Place]] = {}

    def of(self, cpus: CpuSet) -> Sequence[Place]:
        """Group the CPUs by the parts they share, in the order of sockets, NUMA nodes, caches. CPUs that are not
        online are left out.
        """
        known = self._known.get(cpus)
        if known is None:
            known = self._known[cpus] = self._find_places(cpus)
        return known

    def _find_places(self, cpus: CpuSet) -> Sequence[Place]:
        topology = self._topology
        groups: dict[tuple[int, int, int | None, int | None], list[int]] = {}
        for number in cpus & topology.online:
            cpu = topology.cpu[number]
            groups.setdefault((cpu.socket, cpu.numa, self._cache_of.get(number), cpu.uncore), []).append(number)
        return tuple(
            self._describe_place(CpuSet.from_ids(groups[key]), *key)
            for key in sorted(groups, key=lambda key: [(part is not None, part or 0) for part in key])
        )

    def _describe_place(self, cpus: CpuSet, socket: int, numa: int, cache: int | None, uncore: int | None) -> Place:
        topology = self._topology
        cores = sorted({topology.cpu[number].core for number in cpus})
        whole = all(topology.cores[core] <= cpus for core in cores)
        return {
            "cores": cores,
            "cpus": str(cpus),
            "l3": cache,
            "numa": numa,
            "socket": socket,
            "uncore": uncore,
            "wholeCores": whole,
        }


def places_text(places: Sequence[Mapping[str, Any]]) -> str:
    """Format locations as text, such as `socket 0, NUMA 0, cores 1 2 (whole), L3 0`. Several are joined by `; `."""
    if len(places) > _MOST_PLACES:
        counts = [
            _format_count({p["socket"] for p in places}, "socket"),
            _format_count({p["numa"] for p in places}, "NUMA node"),
            _format_count((core for p in places for core in p["cores"]), "core"),
        ]
        return ", ".join(counts) + (" (whole)" if all(p["wholeCores"] for p in places) else " (some in part)")
    return "; ".join(_format_place(place) for place in places)


def _format_place(place: Mapping[str, Any]) -> str:
    cores = place["cores"]
    parts = [
        f"socket {place['socket']}",
        f"NUMA {place['numa']}",
        f"core{'' if len(cores) == 1 else 's'} {_format_ids(cores)} ({'whole' if place['wholeCores'] else 'in part'})",
    ]
    if place["l3"] is not None:
        parts.append(f"L3 {place['l3']}")
    return ", ".join(parts)


def _format_ids(numbers: Sequence[int]) -> str:
    """Format a few numbers one by one, and many as ranges."""
    return " ".join(map(str, numbers)) if len(numbers) <= 8 else str(CpuSet.from_ids(numbers))


def _format_count(things: Iterable[int], name: str) -> str:
    number = len(set(things))
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
