"""Choice of CPUs from a set of free CPUs, in kubelet's packed or spread order, with or without alignment to uncore caches.

The order in which groups of CPUs (sockets, NUMA nodes, caches, cores) are visited determines the choice. Groups with fewer free CPUs come
first, so that groups with many free CPUs stay intact. distribution.py calls this module for each NUMA node.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.resources.cpu.layout import CpuGroup, CpuLayout, Nesting
from nodeagent.core.resources.cpu.observing import PickObserver, Rule, Took
from nodeagent.core.resources.cpu.points import CpuShortage, Question


class Picking(Struct, frozen=True):
    """Select step of the static policy, which takes CPUs in packed or spread order."""

    layout: CpuLayout
    spread: bool = False
    """Option `distribute-cpus-across-cores`: CPUs are taken in numerical order instead of whole cores."""
    align_uncore: bool = False
    """Option `prefer-align-cpus-by-uncorecache`."""
    averages: bool = False
    """Whether a core, cache or socket counts as whole if it has as many free CPUs as the average core, cache or socket has CPUs
    (Erratum.AVERAGE_GROUP_SIZES).
    """
    whole_cores: bool = False
    """Whether only whole cores are taken (full-pcpus-only without Erratum.HALF_CORES_HANDED_OUT), even on a machine whose cores differ in
    size.
    """
    observer: PickObserver | None = None
    """Observer that is called for each group of CPUs that is taken. It doesn't influence the choice."""

    def select(self, question: Question) -> CpuSet | CpuShortage:
        """Choose CPUs in packed or spread order."""
        picked = pick(self, question.free.bits, question.count)
        return picked if isinstance(picked, CpuShortage) else CpuSet(picked)


def shortage(requested: int, available: CpuMask) -> CpuShortage:
    return CpuShortage(
        f"not enough cpus available to satisfy request: requested={requested}, available={available.bit_count()}"
    )


def pick(picking: Picking, available: CpuMask, count: int) -> CpuMask | CpuShortage:
    """Choose `count` of the available CPUs, or return the reason why there are too few."""
    if count < 1:
        return CpuMask(0)
    free = CpuMask(available & picking.layout.online)
    if count > free.bit_count():
        return shortage(count, available)
    if picking.whole_cores:
        free = picking.layout.whole_cores(free)
        if not picking.layout.can_take_whole_cores(free, count):
            return shortage(count, free)
    picker = _Picker(picking, free, count)
    picker.take_whole_nodes_and_sockets()
    if picking.align_uncore:
        picker.take_uncore_caches()
    if not picking.spread:
        picker.take_whole_cores()
    picker.take_single_cpus()
    return CpuShortage("failed to allocate cpus") if picker.need > 0 else CpuMask(picker.result)


class _Picker:
    """State of one choice: the CPUs that are still free, the number of CPUs that are still needed, and the CPUs taken so far."""

    __slots__ = ("free", "layout", "need", "picking", "result")

    def __init__(self, picking: Picking, free: int, need: int) -> None:
        self.picking = picking
        self.layout = picking.layout
        self.free = free
        self.need = need
        self.result = 0

    def take(self, cpus: int, rule: Rule) -> None:
        # `need` is reduced by the full size of a group, even if some CPUs of the group were not free (asymmetric cores, see the errata).
        self.result |= cpus
        self.free &= ~cpus
        self.need -= cpus.bit_count()
        if self.picking.observer is not None:
            self.picking.observer(Took(rule, CpuMask(cpus)))

    def take_groups(self, groups: Iterable[CpuGroup], rule: Rule) -> None:
        """Take, in order, each group that is completely free and not larger than the number of CPUs still needed."""
        for group in groups:
            if self.need < 1:
                return
            if self.need >= group.size and self.is_takeable(group.cpus) and self.leaves_enough(group):
                self.take(group.cpus, rule)

    def leaves_enough(self, group: CpuGroup) -> bool:
        # If cores have different sizes, the cores after this one must still be able to add up to the remaining number.
        layout = self.layout
        if not self.picking.whole_cores or layout.core_size is not None:
            return True
        return layout.can_take_whole_cores(CpuMask(self.free & ~group.cpus), self.need - group.size)

    def is_takeable(self, cpus: int) -> bool:
        # A group that is part of two larger groups is listed twice, so it may have been taken since it was listed. With kubelet's
        # erratum that averages the sizes of groups, a core is listed even if one of its CPUs is in use.
        return self.picking.averages or not cpus & ~self.free

    def take_whole_nodes_and_sockets(self) -> None:
        if self.need < self.layout.smallest_large:
            return
        kinds = ((self.find_whole_nodes, Rule.WHOLE_NODE), (self.find_whole_sockets, Rule.WHOLE_SOCKET))
        for whole, rule in kinds if self.layout.numa_first else reversed(kinds):
            self.take_groups(whole(), rule)

    def find_whole_nodes(self) -> list[CpuGroup]:
        return [g for g in ordered_nodes(self.layout, CpuMask(self.free)) if (g.cpus & self.free) == g.cpus]

    def find_whole_sockets(self) -> list[CpuGroup]:
        ordered = _order_sockets(self.layout, self.free)
        if self.picking.averages:
            return [g for g in ordered if (g.cpus & self.free).bit_count() == self.layout.per_socket]
        return [g for g in ordered if (g.cpus & self.free) == g.cpus]

    def take_uncore_caches(self) -> None:
        if self.need < 1:
            return
        for uncore in _order_uncores(self.layout, self.free):
            if not self.picking.averages or self.need >= self.layout.per_uncore:
                ordered = _order_uncores(self.layout, self.free)
                self.take_groups([g for g in ordered if (g.cpus & self.free) == g.cpus], Rule.WHOLE_CACHE)
            if self.need < 1:
                return
            self.take_part_of(uncore)
            if self.need < 1:
                return

    def take_part_of(self, uncore: CpuGroup) -> None:
        """Try to take all CPUs that are still needed from one uncore cache: the free CPUs of its lowest cores, if their number is exactly
        right. If the number of needed CPUs is odd, the last core may be split.
        """
        per_core = self.layout.per_core
        count = -(-self.need // per_core)
        candidates = [c for c in self.layout.cores if c.cpus & uncore.cpus & self.free][:count]
        part = 0
        for core in candidates:
            part |= core.cpus & self.free
        if self.need % 2 and per_core > 1 and part.bit_count() > self.need and not self.picking.whole_cores:
            part ^= 1 << (part.bit_length() - 1)
        if part.bit_count() == self.need:
            self.take(part, Rule.PART_OF_CACHE)

    def take_whole_cores(self) -> None:
        if self.need < 1:
            return
        layout, free = self.layout, self.free
        if layout.core_size is not None and (layout.core_size == layout.per_core or not self.picking.averages):
            # All whole cores have the same number of free CPUs, so sorting them isn't needed, and the generator stops after the last taken
            # core.
            self.take_groups(
                (
                    core
                    for outer in _order_outer_groups(layout, free)
                    for core in layout.cores_of_outer[outer.id]
                    if core.cpus & free == core.cpus
                ),
                Rule.WHOLE_CORE,
            )
            return
        ordered = _order_cores(layout, free)
        if self.picking.averages:
            self.take_groups([c for c in ordered if (c.cpus & free).bit_count() == layout.per_core], Rule.WHOLE_CORE)
        else:
            self.take_groups([c for c in ordered if (c.cpus & free) == c.cpus], Rule.WHOLE_CORE)

    def take_single_cpus(self) -> None:
        if self.need < 1:
            return
        assert not self.picking.whole_cores, "whole cores that add up were all found"
        free_at_start = self.free
        for group in (_order_sockets if self.picking.spread else _order_cores)(self.layout, free_at_start):
            if self.need < 1:
                return
            rest = group.cpus & free_at_start
            while rest and self.need > 0:
                lowest = rest & -rest
                if self.is_takeable(lowest):
                    self.take(lowest, Rule.SINGLE_CPU)
                rest ^= lowest


def ordered_nodes(layout: CpuLayout, free: CpuMask) -> list[CpuGroup]:
    """Return the NUMA nodes that have free CPUs, those with the fewest free CPUs first. If NUMA nodes are parts of sockets, all nodes of a
    socket are next to each other.
    """
    if layout.numa_first:
        return _order_groups(layout.nodes, free)
    return list(_order_within(layout.nodes_of_sockets, _order_groups(layout.sockets, free), free))


def _order_sockets(layout: CpuLayout, free: int) -> list[CpuGroup]:
    if layout.numa_first:
        return list(_order_within(layout.sockets_of_nodes, _order_groups(layout.nodes, free), free))
    return _order_groups(layout.sockets, free)


def _order_cores(layout: CpuLayout, free: int) -> Iterator[CpuGroup]:
    return _order_within(layout.cores_of_outer, _order_outer_groups(layout, free), free)


def _order_outer_groups(layout: CpuLayout, free: int) -> list[CpuGroup]:
    return _order_sockets(layout, free) if layout.numa_first else ordered_nodes(layout, CpuMask(free))


def _order_uncores(layout: CpuLayout, free: int) -> list[CpuGroup]:
    return list(_order_within(layout.uncores_of_nodes, ordered_nodes(layout, CpuMask(free)), free))


def _order_within(inner_of: Nesting, outer_order: list[CpuGroup], free: int) -> Iterator[CpuGroup]:
    """Yield the inner groups of one outer group after the other, such as the cores of each socket. Inner groups that have no free CPU
    within the outer group are left out. The generator is lazy, because callers often need only the first groups.
    """
    for outer in outer_order:
        inside = outer.cpus & free
        yield from _order_groups([g for g in inner_of[outer.id] if g.cpus & inside], free)


def _order_groups(groups: Iterable[CpuGroup], free: int) -> list[CpuGroup]:
    """Sort groups by their number of free CPUs, then by ID, both in ascending order. Groups without free CPUs are left out."""
    counted = [(n, g.id, g) for g in groups if (n := (g.cpus & free).bit_count())]
    if len(counted) > 1:
        counted.sort(key=itemgetter(0, 1))
    return [g for _, _, g in counted]
