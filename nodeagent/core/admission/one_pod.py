"""Admission of one pod: hints of all managers, their merge, then allocation by each manager in turn, per container or per pod.

The order is that of kubelet's container manager: CPUs, then memory. Core never logs: what it saw goes into the outcome.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.affinity_score import preferred_of_two
from nodeagent.core.admission.existing_allocation import holds_all, kept_deltas, kept_hints
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
from nodeagent.core.model.holdings import put
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import CPU
from nodeagent.core.model.promises import NOTHING, Hint, Promises
from nodeagent.core.model.refusals import Refusal
from nodeagent.core.numa.hint_family import is_fine_with
from nodeagent.core.numa.hints import Merged
from nodeagent.core.numa.topology_manager import Scope, TopologyManager, TopologyPolicy, affinity_refusal
from nodeagent.core.resources.resource import Allocated, Allocation, Resource, ResourceHints

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices


class DecidedAnew(Struct, frozen=True):
    """What was tried so far came to nothing: the pod is decided on without the class of cores that it prefers."""


AllocationObserver = Callable[[Allocated | DecidedAnew], None]


R = TypeVar("R", bound=Resource)


class Providers(Struct, frozen=True):
    """The resources, and the manager that merges their hints."""

    resources: tuple[Resource, ...]
    """In the order in which they are asked and allocate (core/admission/resource_kinds.py)."""
    topology: TopologyManager
    quirks: frozenset[Erratum]
    observer: AllocationObserver | None = None
    """Gets what each resource has allocated; decides nothing."""
    devices: "PlacedDevices | None" = None
    """What a pod may ask to be near. None means that nobody has looked, as no pod that is decided on asks for it."""
    near: ResourceHints = ()
    """The hints of what this pod asks to be near, by name: kubelet's device manager is asked first."""

    def of(self, kind: type[R]) -> R:
        """Return the resource of this type, which every node has."""
        for one in self.resources:
            if isinstance(one, kind):
                return one
        raise AssertionError("the node has this resource")

    def find(self, kind: type[R]) -> R | None:
        """Return the resource of this type. None means that there is nothing of it."""
        return next((one for one in self.resources if isinstance(one, kind)), None)

    def having(self, resource: Resource) -> "Providers":
        """Return them with another resource of this type; a new one comes first."""
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
        """Return the hints that give way to those of CPUs, and all others."""
        others: ResourceHints = ()
        for resource in self.resources:
            found = ask(resource)
            near, others = ((*near, *found), others) if resource.gives_way else (near, (*others, *found))
        return near, others


class MergeReport(Struct, frozen=True):
    """One merge, and its result."""

    container: str | None
    """None: for the pod as a whole."""
    hints: ResourceHints
    """Of all managers, in the order of asking."""
    merged: Merged
    admitted: bool
    overruled: tuple[str, ...] = ()
    """The devices against whose hints the result is (`preferCPUsNumaNode`)."""


class AdmissionResult(Struct, frozen=True):
    """The result of an admission; with a refusal, `promises` has what was allocated before it."""

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
    """Take one pod through the topology manager's policy and scope.

    Args:
        providers: the managers.
        promises: as they are.
        pod: what it asks for.
        is_running: it was admitted before, and is admitted again after a start.
        unfit: why nothing can be promised to it; what it holds already, it keeps.
        has_claimed: what it holds, its claims have just got: the rest is decided beside that.
    """
    start = AdmissionResult(promises, (plus(TOPOLOGY_REQUESTS),))
    topology = providers.topology
    if Erratum.POD_ALLOCATED_AGAIN not in providers.quirks and not has_claimed:
        held = promises.of_pod(pod.uid)
        by_pod = is_by_pod(topology, pod)
        if (is_running or held is not NOTHING) and holds_all(
            providers.resources, held, pod, by_pod=by_pod, is_running=is_running
        ):
            return _kept(providers, start, pod)
    if unfit is not None:
        return _counted_error(replace(start, refusal=unfit))
    if topology.policy is TopologyPolicy.NONE:
        return _each_container(providers, start, pod)
    if topology.scope is Scope.CONTAINER:
        return _by_container(providers, start, pod)
    return _by_pod(providers, start, pod)


def is_by_pod(topology: TopologyManager, pod: PodDemand) -> bool:
    """Whether the pod gets one set as a whole, which its containers share."""
    return pod.is_managed and topology.policy is not TopologyPolicy.NONE and topology.scope is Scope.POD


def _kept(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    """Admit a pod that holds everything it asks for, leaving everything where it is."""
    promises = outcome.promises
    held = promises.of_pod(pod.uid)
    if providers.topology.policy is not TopologyPolicy.NONE:
        held = replace(held, hints=kept_hints(providers.topology, providers.resources, held, pod))
        promises = replace(promises, pods=promises.pods.put(pod.uid, held))
    return AdmissionResult(promises, (*outcome.deltas, *kept_deltas(providers.resources, pod)))


def _each_container(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    for container in pod.containers:
        outcome = _allocated(providers, outcome, pod, container)
        if outcome.refusal is not None:
            return outcome
    return outcome


def _by_container(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    for container in pod.containers:
        promises = outcome.promises
        ask = partial(_container_hints, promises, pod, container)
        near, hints = providers.hints(providers.hints_near(container.near), ask)
        outcome = _merged(providers, outcome, pod, container, near, hints)
        if outcome.refusal is not None:
            return outcome
        outcome = _allocated(providers, _with_hint(outcome, pod, (container,)), pod, container)
        if outcome.refusal is not None:
            return _counted_error(outcome)
        outcome = _counted_alignment(providers, outcome)
    return outcome


def _container_hints(
    promises: Promises, pod: PodDemand, container: ContainerDemand, resource: Resource
) -> ResourceHints:
    return resource.container_hints(promises, pod, container)


def _by_pod(providers: Providers, outcome: AdmissionResult, pod: PodDemand) -> AdmissionResult:
    near, hints = providers.hints(providers.near, lambda one: one.pod_hints(outcome.promises, pod))
    outcome = _merged(providers, outcome, pod, None, near, hints)
    if outcome.refusal is not None:
        return outcome
    outcome = _with_hint(outcome, pod, pod.containers)
    if is_by_pod(providers.topology, pod):
        for manager in providers.resources:
            outcome = _after(providers, outcome, manager.name, None, manager.allocate_pod(outcome.promises, pod))
            if outcome.refusal is not None:
                break
    else:
        outcome = _each_container(providers, outcome, pod)
    return _counted_alignment(providers, outcome) if outcome.refusal is None else _counted_error(outcome)


def _merged(
    providers: Providers,
    outcome: AdmissionResult,
    pod: PodDemand,
    container: ContainerDemand | None,
    near: ResourceHints,
    hints: ResourceHints,
) -> AdmissionResult:
    """Merge the hints of devices and of all managers; the report's last entry has the result."""
    topology = providers.topology
    promises = outcome.promises
    merged = topology.merge(
        [each for _, each in (*near, *hints)], lambda a, b: preferred_of_two(providers.resources, promises, a, b)
    )
    overruled: tuple[str, ...] = ()
    if near and not merged.preferred:
        merged, overruled = _despite_devices(topology, merged, near, hints)
    admitted = topology.admits(merged)
    name = None if container is None else container.name
    report = MergeReport(name, (*near, *hints), merged, admitted, overruled)
    outcome = replace(outcome, merges=(*outcome.merges, report))
    if admitted:
        return outcome
    if topology.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        outcome = _moved(outcome, aligned_failure(topology.scope.value, "numa_node"))
    refusal = affinity_refusal(topology.scope, is_managed_pod=pod.is_managed)
    return _counted_error(replace(outcome, refusal=refusal))


def _despite_devices(
    topology: TopologyManager, merged: Merged, near: ResourceHints, hints: ResourceHints
) -> tuple[Merged, tuple[str, ...]]:
    cpus = next(each for name, each in hints if name == CPU)
    instead = topology.despite_devices([each for _, each in near], cpus, [each for _, each in hints])
    if instead is None or instead.mask is None:
        return merged, ()
    mask = instead.mask
    return instead, tuple(name for name, each in near if not is_fine_with(each, mask))


def _with_hint(outcome: AdmissionResult, pod: PodDemand, containers: Sequence[ContainerDemand]) -> AdmissionResult:
    merged = outcome.merges[-1].merged
    hint = Hint(None if merged.mask is None else NumaSet(merged.mask), merged.preferred)
    promises = outcome.promises
    held = promises.of_pod(pod.uid)
    hints = held.hints
    for container in containers:
        hints = put(hints, container.name, hint)
    pods = promises.pods.put(pod.uid, replace(held, hints=hints))
    return replace(outcome, promises=replace(promises, pods=pods))


def _allocated(
    providers: Providers, outcome: AdmissionResult, pod: PodDemand, container: ContainerDemand
) -> AdmissionResult:
    for manager in providers.resources:
        allocation = manager.allocate_container(outcome.promises, pod, container)
        outcome = _after(providers, outcome, manager.name, container.name, allocation)
        if outcome.refusal is not None:
            break
    return outcome


def _after(
    providers: Providers, outcome: AdmissionResult, manager: str, container: str | None, allocation: Allocation
) -> AdmissionResult:
    if providers.observer is not None:
        providers.observer(Allocated(manager, container, outcome.promises, allocation.promises, allocation.refusal))
    if allocation.promises is outcome.promises and not allocation.deltas and allocation.refusal is None:
        return outcome
    return AdmissionResult(
        allocation.promises, (*outcome.deltas, *allocation.deltas), outcome.merges, allocation.refusal
    )


def _counted_error(outcome: AdmissionResult) -> AdmissionResult:
    return _moved(outcome, plus(TOPOLOGY_ERRORS))


def _counted_alignment(providers: Providers, outcome: AdmissionResult) -> AdmissionResult:
    topology = providers.topology
    if topology.policy is not TopologyPolicy.SINGLE_NUMA_NODE:
        return outcome
    return _moved(outcome, aligned(topology.scope.value, "numa_node"))


def _moved(outcome: AdmissionResult, *deltas: MetricDelta) -> AdmissionResult:
    return replace(outcome, deltas=(*outcome.deltas, *deltas))
