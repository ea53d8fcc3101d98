"""Explanations of CPU allocations: the chosen CPUs and the rules behind the choice, the free CPUs of each NUMA node, and other numbers of
CPUs that a refused pod could request.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.pod import CPU, Container, Pod
from nodeagent.core.model.pod_amounts import MILLI, find_shared_part
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Refusal
from nodeagent.core.resources.cpu.holdings import CpuHoldings, free_cpus
from nodeagent.core.resources.cpu.manager import NOBODY, reusable_cpus
from nodeagent.core.resources.cpu.observing import Choosing, PluginAnswered, Rule, Source, Spread, Took
from nodeagent.core.resources.cpu.pods import check_pod
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.explainer import NEAREST, Explainer, ResourceEvent, SmallerAmounts, SoughtAmount
from nodeagent.core.resources.resource import Allocated


class TakenTogether(Struct, frozen=True):
    """Group of CPUs that one rule took from the free CPUs."""

    rule: Rule
    cpus: CpuSet
    share_of: int | None = None
    """ID of the NUMA node that provides the CPUs as its equal share of the request (distribute-cpus-across-numa). None means that they
    aren't an equal share.
    """
    is_remainder: bool = False
    """Whether the CPUs are a part of the remainder, which is left after each NUMA node has provided its equal share."""
    plugin: str | None = None
    """Name of the CPU plugin that chose the CPUs. None means that the policy chose them."""


class CpuChoice(Struct, frozen=True):
    """CPUs that were chosen from one source, such as the NUMA nodes of the hint."""

    source: Source
    available: CpuSet
    count: int
    isolated: bool
    container: str | None
    """Name of the container that gets these CPUs as its part of the pod's CPU set. None means that the CPUs aren't chosen from the set of a
    pod.
    """
    groups: tuple[TakenTogether, ...]


class CpuStep(Struct, frozen=True):
    """Allocation of CPUs to a container or to a pod as a whole, as a step of an explanation."""

    container: str | None
    cpus: CpuSet
    """Allocated CPUs. The set is empty after a refusal."""
    reused: CpuSet
    """Allocated CPUs that init containers of the pod held before."""
    choices: tuple[CpuChoice, ...]
    refused: bool
    answers: tuple[PluginAnswered, ...] = ()
    """Answers of CPU plugins, in the order in which the plugins were called."""


class HeldOnNode(Struct, frozen=True):
    """Exclusive CPUs of a container, or of a pod as a whole, on a NUMA node."""

    pod: str
    container: str | None
    cpus: CpuSet


class CpuHeadroom(Struct, frozen=True):
    """Free and used CPUs of one NUMA node."""

    cpus: CpuSet
    free: CpuSet
    """CPUs that can still be allocated exclusively."""
    whole_cores: int
    """Number of cores whose CPUs are all free."""
    split: CpuSet
    """Free CPUs of cores that also have CPUs in use."""
    whole_caches: int
    """Number of uncore caches whose CPUs are all free. It is 0 if the machine doesn't report the NUMA node's caches."""
    caches: int
    reserved: CpuSet
    holders: tuple[HeldOnNode, ...]


class CpuExplainer(Explainer, frozen=True):
    """Implementation of `Explainer` for CPUs (core/resources/explainer.py)."""

    resource: CpuResource

    def observed_by(self, observer: Callable[[ResourceEvent], None]) -> CpuResource:
        return CpuResource(self.resource.manager.observed_by(observer))

    def explain_step(self, event: Allocated, events: Sequence[ResourceEvent], pod: Pod) -> CpuStep | None:
        before, after = (held.of_pod(pod.uid).of(CpuHoldings) for held in (event.before, event.after))
        new_cpus = after.pod_cpus if event.container is None else after.own_set(event.container)
        if event.refusal is None and (new_cpus is None or after.cpus == before.cpus):
            return None
        cpus = CpuSet() if event.refusal is not None or new_cpus is None else new_cpus
        answers = tuple(each for each in events if isinstance(each, PluginAnswered))
        reused = cpus & CpuSet(reusable_cpus(event.before, pod.uid))
        return CpuStep(event.container, cpus, reused, _list_choices(events), event.refusal is not None, answers)

    def check_pod(self, pod: PodDemand) -> Refusal | None:
        manager = self.resource.manager
        return check_pod(manager, pod) if manager.static and pod.cpus else None

    def find_headroom(
        self, promises: Promises, nodes: Sequence[int], names: Mapping[str, str], asking: PodDemand | None
    ) -> tuple[CpuHeadroom, ...]:
        manager, topology = self.resource.manager, self.resource.manager.topology
        free, counted = free_cpus(promises, manager.grantable), topology.online
        if asking is not None:
            free |= CpuSet(reusable_cpus(promises, asking.uid))
            counted = counted if asking.core_class is None else topology.core_classes[asking.core_class]
        held = [
            HeldOnNode(names.get(uid, uid), name, cpus)
            for uid, of_pod in promises.pods
            for own in (of_pod.of(CpuHoldings),)
            for name, cpus in (own.cpus if own.pod_cpus is None else ((None, own.pod_cpus),))
        ]
        held.sort(key=lambda holder: (holder.pod, holder.container or ""))
        return tuple(self._examine_node(node, held, free, counted) for node in nodes)

    def _examine_node(self, node: int, held: list[HeldOnNode], all_free: CpuSet, counted: CpuSet) -> CpuHeadroom:
        topology = self.resource.manager.topology
        cpus = topology.nodes.get(node, CpuSet()) & counted
        free = all_free & cpus
        cores = [core.bits for core in topology.cores_of_nodes.get(node, ()) if core <= free]
        caches = topology.uncores_of_nodes.get(node, ())
        return CpuHeadroom(
            cpus=cpus,
            free=free,
            whole_cores=len(cores),
            split=free - CpuSet(CpuMask(reduce(or_, cores, 0))),
            whole_caches=sum(members <= free for members in caches),
            caches=len(caches),
            reserved=self.resource.manager.reserved & cpus,
            holders=tuple(HeldOnNode(h.pod, h.container, h.cpus & cpus) for h in held if h.cpus.bits & cpus.bits),
        )

    def find_largest_usable(self, promises: Promises, nodes: Sequence[CpuHeadroom]) -> int:
        """Return the largest number of exclusive CPUs that a container could get on a single one of these NUMA nodes."""
        manager = self.resource.manager
        anyone = manager.asking(promises, NOBODY, None, 0, 0)
        return max((manager.usable(anyone, node.free.bits).bit_count() for node in nodes), default=0)

    def count_fewest_nodes(self, _promises: Promises, demand: PodDemand | ContainerDemand) -> int:
        return self.resource.manager.layout.fewest_nodes(demand.cpus) if demand.cpus else 0

    def list_smaller(self, sought: SoughtAmount) -> SmallerAmounts | None:
        """Return smaller CPU requests that a search should try, in thousandths. Exclusive CPUs are reduced in steps of one CPU, or of one
        core under full-pcpus-only.

        A smaller request isn't always admitted. Fewer exclusive CPUs may come from another NUMA node, where too few CPUs are then left for
        another container. For instance, with 5 free CPUs on each of two nodes, policy `restricted` admits 9 CPUs but refuses 6 CPUs.
        """
        if sought.resource != CPU:
            return None
        least = max(sought.floor, 1)
        if not self._is_exclusive(sought):
            return SmallerAmounts(range(sought.bounded - 1, least - 1, -1))
        manager = self.resource.manager
        step = MILLI * (manager.layout.core_size or 1 if manager.options.full_pcpus_only else 1)
        largest = (sought.bounded - sought.shared - 1) // step * step + sought.shared
        return SmallerAmounts(range(largest, least - 1, -step), NEAREST, is_by_nodes=True)

    def list_larger(self, sought: SoughtAmount) -> Sequence[int]:
        """Return larger CPU requests that a search should try: under full-pcpus-only, the next numbers of CPUs that consist of
        whole cores.
        """
        manager, layout = self.resource.manager, self.resource.manager.layout
        if sought.resource != CPU or not manager.options.full_pcpus_only or not self._is_exclusive(sought):
            return ()
        exclusive = -(-(sought.asked - sought.shared) // MILLI)
        # If cores differ in size, the free cores may be larger than the cores that add up to the nearest number, so larger numbers are
        # tried, too.
        further = 0 if layout.core_size is not None else max(core.size for core in layout.cores)
        counts = (layout.find_whole_count(exclusive + more, 1) for more in range(further + 1))
        amounts = (count * MILLI + sought.shared for count in counts if count is not None)
        return [amount for amount in amounts if amount > sought.asked]

    def _is_exclusive(self, sought: SoughtAmount) -> bool:
        """Return whether the amount determines how many exclusive CPUs the pod gets."""
        return self.resource.manager.static and not sought.demand.is_skipped and sought.least_demand != sought.demand

    def round_amount(self, resource: str, container: Container, demand: ContainerDemand) -> tuple[int, int] | None:
        """Return the nearest smaller and larger CPU request that consists of whole cores. None means that the request itself does, or that
        whole cores aren't required.
        """
        manager, layout = self.resource.manager, self.resource.manager.layout
        if resource != CPU or not manager.options.full_pcpus_only:
            return None
        if not demand.cpus or layout.can_take_whole_cores(layout.online, demand.cpus):
            return None
        shared = find_shared_part(container)
        fewer, more = (layout.find_whole_count(demand.cpus, step) for step in (-1, 1))
        return (
            (fewer or more or demand.cpus) * MILLI + shared,
            (more or fewer or demand.cpus) * MILLI + shared,
        )

    def list_additions(self) -> Sequence[Mapping[str, int]]:
        return [{CPU: count * MILLI} for count in range(2 * self.resource.manager.layout.per_core)]


def _list_choices(events: Sequence[ResourceEvent]) -> tuple[CpuChoice, ...]:
    choices: list[CpuChoice] = []
    share: Spread | None = None
    for event in events:
        match event:
            case Choosing(source, available, count, isolated, container):
                if not isolated:
                    # An abandoned choice from isolated CPUs isn't part of the explanation.
                    choices = [choice for choice in choices if not choice.isolated]
                choices.append(CpuChoice(source, CpuSet(available), count, isolated, container, ()))
                share = None
            case Spread():
                share = event
            case Took():
                group = TakenTogether(event.rule, CpuSet(event.cpus), plugin=event.plugin)
                if share is not None:
                    group = TakenTogether(event.rule, CpuSet(event.cpus), share.node, share.is_remainder)
                groups = choices[-1].groups
                if groups and replace(groups[-1], cpus=group.cpus) == group:  # groups taken by the same rule are merged
                    groups, group = groups[:-1], replace(group, cpus=groups[-1].cpus | group.cpus)
                choices[-1] = replace(choices[-1], groups=(*groups, group))
    return tuple(choice for choice in choices if choice.count > 0)
