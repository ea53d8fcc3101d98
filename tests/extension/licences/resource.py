"""Licences as a resource: pods request them by number (`example.com/licence`). What isn't on a NUMA node is the node's."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricDeltas, MetricSpec
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import put_item, remove_item
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import NotResized, defer_resize, wrap_unexpected
from nodeagent.core.model.violations import Shortage, Violation
from nodeagent.core.numa.hints import UNSATISFIABLE, masks_by_size
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.resource import AGAIN, Allocation, HoldingChange, Resource, ResourceHints

LICENCE = "example.com/licence"
GIVEN = MetricSpec("example_licences_allocated", "gauge", "Licences that pods have")
Counts = tuple[tuple[int | None, int], ...]  # by NUMA node; None is the node as a whole


class LicenceHoldings(Struct, frozen=True):
    licences: tuple[tuple[str, Counts], ...] = ()

    @property
    def holders(self) -> list[str]:
        return [name for name, _ in self.licences]

    @property
    def size(self) -> int:
        return sum(count for _, counts in self.licences for _, count in counts)

    def without(self, container: str) -> "LicenceHoldings":
        return LicenceHoldings(remove_item(self.licences, container))

    def of_container(self, name: str) -> Counts:
        return dict(self.licences).get(name, ())

    def describe(self, name: str) -> str:
        return " and ".join(str(n) if node is None else f"{n} (NUMA {node})" for node, n in self.of_container(name))


class Licences(Resource, frozen=True):
    pool: Counts
    name: ClassVar[str] = "licences"
    holdings: ClassVar[type[LicenceHoldings]] = LicenceHoldings
    managed: ClassVar[frozenset[str]] = frozenset({LICENCE})

    def _free(self, promises: Promises) -> dict[int | None, int]:
        free = dict(self.pool)
        held = (own for _, pod in promises.all_pods() for own in pod.of(LicenceHoldings).licences)
        for node, count in (one for _, counts in held for one in counts):
            free[node] = free.get(node, 0) - count
        return free

    def _wanted(self, container: ContainerDemand) -> int:
        return dict(container.devices).get(LICENCE, 0)

    def amounts(self, promises: Promises) -> Mapping[str, int]:
        return {LICENCE: sum(count for _, count in self.pool)}

    def limited_to(self, pod: PodDemand) -> "Licences":
        ours = {None, pod.numa_node}
        return self if pod.numa_node is None else Licences(tuple(one for one in self.pool if one[0] in ours))

    def _hints(self, promises: Promises, wanted: int) -> ResourceHints:
        free = self._free(promises)
        nodes = [node for node in free if node is not None]
        if not wanted or not nodes:
            return ()
        fit = [m for m in masks_by_size(nodes) if sum(free[node] for node in nodes if m >> node & 1) >= wanted]
        return ((LICENCE, tuple((mask, mask.bit_count() == fit[0].bit_count()) for mask in fit) or UNSATISFIABLE),)

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        return self._hints(promises, self._wanted(container))

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        return self._hints(promises, dict(pod.devices).get(LICENCE, 0))

    def _with(self, promises: Promises, uid: str, name: str, wanted: int, mask: NumaSet | None) -> Promises | str:
        held = promises.of_pod(uid)
        promises = with_pod(promises, uid, held.having(held.of(LicenceHoldings).without(name)))
        counts, missing = [], wanted
        far = set() if mask is None else {node for node, _ in self.pool} - {None, *mask}
        for node, free in sorted(self._free(promises).items(), key=lambda one: one[0] in far):
            taken = max(0, min(free, missing))
            counts += [(node, taken)] if taken else []
            missing -= taken
        if missing:
            return f"{wanted} licences are requested, and {wanted - missing} are free"
        own = put_item(held.of(LicenceHoldings).licences, name, tuple(counts))
        return with_pod(promises, uid, held.having(LicenceHoldings(own)))

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        if self.has_container(promises.of_pod(pod.uid), container):
            return Allocation(promises)
        mask, wanted = promises.hint(pod.uid, container.name).mask, self._wanted(container)
        given = self._with(promises, pod.uid, container.name, wanted, mask)
        return Allocation(promises, refusal=wrap_unexpected(given)) if isinstance(given, str) else Allocation(given)

    def is_asked(self, container: ContainerDemand) -> bool:
        return self._wanted(container) > 0

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        counts = held.of(LicenceHoldings).of_container(container.name)
        return sum(count for _, count in counts) == self._wanted(container)

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        return NumaSet.from_ids(n for n, _ in held.of(LicenceHoldings).of_container(name) if n is not None)

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        return self._wanted(now) < self._wanted(before)

    def resize(
        self,
        topology: TopologyManager,
        promises: Promises,
        pod: PodDemand,
        before: ContainerDemand,
        now: ContainerDemand,
    ) -> Promises | NotResized:
        given = self._with(promises, pod.uid, now.name, self._wanted(now), promises.hint(pod.uid, now.name).mask)
        return defer_resize(f"container {now.name}: {given}") if isinstance(given, str) else given

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        return with_pod(promises, uid, promises.of_pod(uid).without(name)), ()

    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        for name, counts in before.of(LicenceHoldings).licences:
            kept = self._with(promises, pod.uid, name, sum(n for _, n in counts), self.numa_nodes_of(before, name))
            promises = promises if isinstance(kept, str) else kept
        return promises

    def differences(
        self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises, name: str, *, by_pod: bool
    ) -> Iterator[HoldingChange]:
        had, has = (held.of(LicenceHoldings).describe(name) for held in (before, promises.of_pod(pod.uid)))
        if had != has:
            yield HoldingChange("licences", had or "none", has or "none", f"there are others now; {AGAIN}")

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        for node in sorted(self._free(promises).keys() - dict(self.pool).keys(), key=str):
            yield Violation(invariant="LicencesAreOfTheNode", difference=f"there are no licences on NUMA node {node}")

    def shortfalls(self, promises: Promises) -> Iterator[Shortage]:
        missing = -sum(min(0, free) for free in self._free(promises).values())
        yield from (Shortage(f"{missing} more licences are promised than there are"),) if missing else ()

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        return ((Series(GIVEN.name), sum(dict(self.pool).values()) - sum(self._free(promises).values())),)
