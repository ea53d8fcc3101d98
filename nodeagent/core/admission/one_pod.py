"""Admission of one pod: the managers give NUMA hints, the topology manager merges them, and the managers allocate, per container or per
pod.

The order is that of kubelet's container manager: CPUs before memory. Nothing is logged here. Results contain all details for the log and
for explanations.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.affinity_score import preferred_of_two, rank_by_strategy
from nodeagent.core.admission.existing_allocation import holds_all, kept_deltas, kept_hints
from nodeagent.core.admission.same_nodes import find_same_nodes, find_spread
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.metrics.manager_metrics import (
    TOPOLOGY_ERRORS,
    TOPOLOGY_REQUESTS,
    MetricDeltas,
    aligned,
    aligned_failure,
    plus,
)
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.holdings import put_item
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import CPU
from nodeagent.core.model.promises import NOTHING, Hint, Promises
from nodeagent.core.model.refusals import Refusal
from nodeagent.core.numa.hint_family import is_fine_with
from nodeagent.core.numa.hints import Merged, SetRank
from nodeagent.core.numa.topology_manager import Scope, TopologyManager, TopologyPolicy, affinity_refusal
from nodeagent.core.resources.resource import Allocated, Allocation, Resource, ResourceHints

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices


class DecidedAnew(Struct, frozen=True):
    """Event for observers: the pod was refused with a preference (a core class, or a setting that kubelet lacks), so the decision is
    repeated without it.
    """


AllocationObserver = Callable[[Allocated | DecidedAnew], None]


R = TypeVar("R", bound=Resource)


class Providers(Struct, frozen=True):
    """Managers of the node's resources, and the topology manager, which merges their NUMA hints."""

    resources: tuple[Resource, ...]
    """Resources, in the order in which they give hints and allocate (core/admission/resource_kinds.py)."""
    topology: TopologyManager
    quirks: frozenset[Erratum]
    observer: AllocationObserver | None = None
    """Function that is called with each allocation, for explanations. It doesn't influence decisions."""
    devices: "PlacedDevices | None" = None
    """PCI devices near which pods can ask to be placed. None means that they weren't scanned, because no pod names devices."""
    near: ResourceHints = ()
    """NUMA hints of the devices near which this pod asks to be placed, by device name. They precede all other hints, as the hints of
    kubelet's device manager do.
    """

    def of(self, kind: type[R]) -> R:
        """Return the resource of this type, which every node must have. For a type that a node may lack, use `find`."""
        for one in self.resources:
            if isinstance(one, kind):
                return one
        raise AssertionError("the node lacks a resource that every node has")

    def find(self, kind: type[R]) -> R | None:
        """Return the resource of this type. None means that the node has no such resource."""
        return next((one for one in self.resources if isinstance(one, kind)), None)

    def having(self, resource: Resource) -> "Providers":
        """Return a copy in which this resource replaces the one of the same type. If there is none, the resource becomes the first."""
        if not any(type(one) is type(resource) for one in self.resources):
            return replace(self, resources=(resource, *self.resources))
        return replace(
            self, resources=tuple(resource if type(one) is type(resource) else one for one in self.resources)
        )

    def hints_near(self, names: Sequence[str]) -> ResourceHints:
        return tuple([hints for hints in self.near if hints[0] in names]) if self.near else ()

    def hints(
        self, near: ResourceHints, ask: Callable[[Resource], ResourceHints]
    ) -> tuple[ResourceHints, ResourceHints]:
        """Return the hints of all resources in two groups. The first group contains the hints of devices, including those in `near`, and
        the second contains all others. With `preferCPUsNumaNode`, hints for CPUs may overrule the first group.

        Args:
            near: hints of the devices near which the pod or container should be placed.
            ask: function that returns a resource's hints.
        """
        others: ResourceHints = ()
        for resource in self.resources:
            found = ask(resource)
            near, others = ((*near, *found), others) if resource.gives_way else (near, (*others, *found))
        return near, others


class MergeReport(Struct, frozen=True):
    """One merge of NUMA hints: the input and the result."""

    container: str | None
    """Container for which the hints were merged. None means the pod as a whole."""
    hints: ResourceHints
    """Hints of all resources, in the order in which they were given."""
    merged: Merged
    admitted: bool
    overruled: tuple[str, ...] = ()
    """Devices whose hints the result contradicts, because CPUs took precedence (`preferCPUsNumaNode`)."""
    instead_of: Merged | None = None
    """Result of the merge before `sameNumaNodes` replaced it by a set of nodes that suits both CPUs and memory. None means that the result
    wasn't replaced.
    """


class AdmissionResult(Struct, frozen=True):
    """Result of the decision on one pod. After a refusal, `promises` contains the allocations that the pod had got until then."""

    promises: Promises
    deltas: MetricDeltas = ()
    merges: tuple[MergeReport, ...] = ()
    refusal: Refusal | None = None


def run_admission(
    providers: Providers,
    promises: Promises,
    pod: PodDemand,
    *,
    is_running: bool = False,
    unfit: Refusal | None = None,
    has_claimed: bool = False,
) -> AdmissionResult:
    """Decide on one pod, by the topology manager's policy and scope. A pod that already holds everything is admitted without a new
    allocation.

    Args:
        providers: the managers.
        promises: the allocations so far.
        pod: the pod's demand.
        is_running: whether the pod is already running, and is admitted again after a start of the agent.
        unfit: reason to refuse the pod if it doesn't already hold everything.
        has_claimed: whether the pod's claims have just been allocated. These allocations alone don't count as holding everything.
    """
    start = AdmissionResult(promises, (plus(TOPOLOGY_REQUESTS),))
    topology = providers.topology
    if Erratum.POD_ALLOCATED_AGAIN not in providers.quirks and not has_claimed:
        held = promises.of_pod(pod.uid)
        by_pod = is_by_pod(topology, pod)
        if (is_running or held is not NOTHING) and holds_all(
            providers.resources, held, pod, by_pod=by_pod, is_running=is_running
        ):
            return _keep_allocation(providers, start, pod)
    if unfit is not None:
        return _count_error(replace(start, refusal=unfit))
    if topology.policy is TopologyPolicy.NONE:
        return _allocate_each_container(providers, start, pod)
    if topology.scope is Scope.CONTAINER:
        return _admit_by_container(providers, start, pod)
    return _admit_by_pod(providers, start, pod)


def is_by_pod(topology: TopologyManager, pod: PodDemand) -> bool:
    """Return whether the managers make one allocation to the whole pod, which its containers divide."""
    return pod.is_managed and topology.policy is not TopologyPolicy.NONE and topology.scope is Scope.POD


def _keep_allocation(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    """Admit a pod that already holds all requested resources. Nothing new is allocated."""
    promises = outcome.promises
    held = promises.of_pod(pod.uid)
    if providers.topology.policy is not TopologyPolicy.NONE:
        held = replace(held, hints=kept_hints(providers.topology, providers.resources, held, pod))
        promises = replace(promises, pods=promises.pods.put(pod.uid, held))
    return AdmissionResult(promises, (*outcome.deltas, *kept_deltas(providers.resources, pod)))


def _allocate_each_container(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    for container in pod.containers:
        outcome = _allocate_container(providers, outcome, pod, container)
        if outcome.refusal is not None:
            return outcome
    return outcome


def _admit_by_container(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    for container in pod.containers:
        promises = outcome.promises
        ask = partial(_ask_container_hints, promises, pod, container)
        near, hints = providers.hints(providers.hints_near(container.near), ask)
        outcome = _merge_hints(providers, outcome, pod, container, near, hints)
        if outcome.refusal is not None:
            return outcome
        outcome = _allocate_container(providers, _store_hint(outcome, pod, (container,)), pod, container)
        if outcome.refusal is not None:
            return _count_error(outcome)
        outcome = _count_alignment(providers, outcome)
    return outcome


def _ask_container_hints(
    promises: Promises, pod: PodDemand, container: ContainerDemand, resource: Resource
) -> ResourceHints:
    return resource.container_hints(promises, pod, container)


def _admit_by_pod(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    near, hints = providers.hints(providers.near, lambda one: one.pod_hints(outcome.promises, pod))
    outcome = _merge_hints(providers, outcome, pod, None, near, hints)
    if outcome.refusal is not None:
        return outcome
    outcome = _store_hint(outcome, pod, pod.containers)
    if is_by_pod(providers.topology, pod):
        for manager in providers.resources:
            outcome = _apply_allocation(
                providers, outcome, manager.name, None, manager.allocate_pod(outcome.promises, pod)
            )
            if outcome.refusal is not None:
                break
    else:
        outcome = _allocate_each_container(providers, outcome, pod)
    return _count_alignment(providers, outcome) if outcome.refusal is None else _count_error(outcome)


def _merge_hints(
    providers: Providers,
    outcome: AdmissionResult,
    pod: PodDemand,
    container: ContainerDemand | None,
    near: ResourceHints,
    hints: ResourceHints,
) -> AdmissionResult:
    """Merge the hints of devices and of all other resources. Record the merge in the result, and refuse the pod if the policy doesn't admit
    it.
    """
    topology = providers.topology
    promises = outcome.promises
    rank_set = rank_by_strategy(topology, providers.resources, promises, (*near, *hints))
    merged = topology.merge(
        [each for _, each in (*near, *hints)],
        lambda a, b: preferred_of_two(providers.resources, promises, a, b),
        rank_set,
    )
    overruled: tuple[str, ...] = ()
    if near and not merged.preferred:
        merged, overruled = _prefer_cpus_node(topology, merged, near, hints, rank_set)
    instead_of = None
    # If the devices' hints were overruled, the chosen node already has room for both CPUs and memory.
    if topology.same_nodes and topology.admits(merged) and not overruled:
        same = find_same_nodes(providers, promises, pod, container, (*near, *hints), merged)
        merged, instead_of = same, None if same is merged else merged
    admitted = topology.admits(merged)
    name = None if container is None else container.name
    report = MergeReport(name, (*near, *hints), merged, admitted, overruled, instead_of)
    outcome = replace(outcome, merges=(*outcome.merges, report))
    if admitted:
        return outcome
    if topology.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        outcome = _add_deltas(outcome, aligned_failure(topology.scope.value, "numa_node"))
    refusal = affinity_refusal(topology.scope, is_managed_pod=pod.is_managed)
    return _count_error(replace(outcome, refusal=refusal))


def _prefer_cpus_node(
    topology: TopologyManager, merged: Merged, near: ResourceHints, hints: ResourceHints, rank_set: SetRank | None
) -> tuple[Merged, tuple[str, ...]]:
    cpus = next(each for name, each in hints if name == CPU)
    instead = topology.despite_devices([each for _, each in near], cpus, [each for _, each in hints], rank_set)
    if instead is None or instead.mask is None:
        return merged, ()
    mask = instead.mask
    return instead, tuple(name for name, each in near if not is_fine_with(each, mask))


def _store_hint(outcome: AdmissionResult, pod: PodDemand, containers: Sequence[ContainerDemand]) -> AdmissionResult:
    merged = outcome.merges[-1].merged
    hint = Hint(None if merged.mask is None else NumaSet(merged.mask), merged.preferred)
    promises = outcome.promises
    held = promises.of_pod(pod.uid)
    hints = held.hints
    for container in containers:
        hints = put_item(hints, container.name, hint)
    pods = promises.pods.put(pod.uid, replace(held, hints=hints))
    return replace(outcome, promises=replace(promises, pods=pods))


def _allocate_container(
    providers: Providers, outcome: AdmissionResult, pod: PodDemand, container: ContainerDemand
) -> AdmissionResult:
    for manager in providers.resources:
        allocation = manager.allocate_container(outcome.promises, pod, container)
        outcome = _apply_allocation(providers, outcome, manager.name, container.name, allocation, container.spread)
        if outcome.refusal is not None:
            break
        if providers.topology.spread_pages and not container.spread:
            spread = find_spread(providers.topology, manager, outcome.promises, pod.uid, container)
            container = replace(container, spread=spread)
    return outcome


def _apply_allocation(
    providers: Providers,
    outcome: AdmissionResult,
    manager: str,
    container: str | None,
    allocation: Allocation,
    spread: tuple[tuple[int, int], ...] = (),
) -> AdmissionResult:
    if providers.observer is not None:
        event = Allocated(manager, container, outcome.promises, allocation.promises, allocation.refusal, spread)
        providers.observer(event)
    if allocation.promises is outcome.promises and not allocation.deltas and allocation.refusal is None:
        return outcome
    return AdmissionResult(
        allocation.promises, (*outcome.deltas, *allocation.deltas), outcome.merges, allocation.refusal
    )


def _count_error(outcome: AdmissionResult) -> AdmissionResult:
    return _add_deltas(outcome, plus(TOPOLOGY_ERRORS))


def _count_alignment(providers: Providers, outcome: AdmissionResult) -> AdmissionResult:
    topology = providers.topology
    if topology.policy is not TopologyPolicy.SINGLE_NUMA_NODE:
        return outcome
    return _add_deltas(outcome, aligned(topology.scope.value, "numa_node"))


def _add_deltas(outcome: AdmissionResult, *deltas: MetricDelta) -> AdmissionResult:
    return replace(outcome, deltas=(*outcome.deltas, *deltas))
