"""Contract between a resource and the code that treats all resources alike: admission, resizes, starts, recovery, invariants, metrics.

A resource is built once from machine and configuration (core/admission/resource_kinds.py). It has no state: a method takes promises and
returns new ones. Resources are asked in kubelet's fixed order, and none knows another. Each has its own types for what a pod holds of it
and for its accounts of the node (core/model/holdings.py).

Claims have holdings, but no `Resource`, because their decision wraps those of all resources. Each way to meet a pod's claims gives the pod
CPUs, memory and devices first, and the whole pod is decided with each way until it is admitted (core/resources/claims/placing.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self

from msgspec import Struct

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import Holdings
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import NotResized, Refusal, StartRefused
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.violations import Shortfall, Violation
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.numa.topology_manager import TopologyManager

ResourceHints = tuple[tuple[str, Hints], ...]
"""Hints, each with the name of its resource. Without an opinion, a resource has none, or one list that accepts any node."""


AGAIN = "remove its manifest and add it again when there is room"
"""Next step for a pod that has less than it requests."""


class Allocation(Struct, frozen=True):
    """Result of an allocate call."""

    promises: Promises
    deltas: MetricDeltas = ()
    refusal: Refusal | None = None


class Allocated(Struct, frozen=True):
    """One allocate call of a resource, for explanations."""

    resource: str
    container: str | None
    """None means the pod as a whole."""
    before: Promises
    after: Promises
    refusal: Refusal | None


class HoldingChange(Struct, frozen=True):
    """Loss or change of something that a container held."""

    resource: str
    """Name for people, for example `CPUs` or `memory nodes`."""
    before: str
    after: str
    why: str


class Resource(Protocol):
    """A kind of resource that pods are given."""

    @property
    def name(self) -> str:
        """Name of the resource in the trace of a decision."""

    @property
    def holdings(self) -> type[Holdings]:
        """Type of what a pod holds of it."""

    @property
    def managed(self) -> frozenset[str]:
        """Extended resources that pods request by number and only this resource gives. Pods that request unknown ones are refused."""

    @property
    def gives_way(self) -> bool:
        """Whether its hints give way to those of CPUs, where `preferCPUsNumaNode` is set."""

    # A pod comes. It holds nothing of the resource that it doesn't request.

    def amounts(self, promises: Promises) -> Mapping[str, int]:
        """Return how much the node has of each managed extended resource. The node's capacity is checked against it before each
        decision.
        """

    def limited_to(self, nodes: NumaMask) -> Self:
        """Return the resource limited to these NUMA nodes, for a pod that requires one node."""

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        """Return the NUMA nodes that could provide what a container requests. Called before its allocation, except under policy none."""

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        """Return the NUMA nodes that could provide what a pod requests as a whole. Called instead of `container_hints` in scope `pod`."""

    def percent_given(self, promises: Promises, node: int) -> int | None:
        """Return the allocated share of a NUMA node, or None without an opinion. Called to compare two nodes
        (prefer-most-allocated-numa-node).
        """

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        """Allocate what a container requests, under its stored hint. Earlier containers already have their allocations."""

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        """Allocate what a pod requests as a whole, under the hint of its first container, and divide it among its containers."""

    def end_reuse(self, promises: Promises) -> Promises:
        """Forget what was reserved for reuse by the pod's containers. Called once the pod is admitted."""

    # What a pod holds

    def is_asked(self, container: ContainerDemand) -> bool:
        """Whether the container requests some of the resource."""

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        """Whether the container has what it requests. A plain init container may have released it after it has run."""

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        """Whether the pod as a whole has what it requests."""

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        """Return the NUMA nodes on which the container has something."""

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        """Return what kubelet counts when a container already has what it requests."""

    # A container starts, is resized or ends

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        """Release what the plain init containers before a starting container no longer need."""

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        """Whether a resize lowers what the container requests. Such containers come first, because others of the pod may need what they
        release.
        """

    def resize(
        self,
        topology: TopologyManager,
        promises: Promises,
        pod: PodDemand,
        before: ContainerDemand,
        now: ContainerDemand,
    ) -> Promises | NotResized:
        """Give a running container what it requests now, without moving what it keeps. Called for each container of a resized pod, even if
        its request is unchanged. The demand has the new amounts, and the promises have what the pod holds.
        """

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        """Release what only this container of its pod holds. Called when a container has ended or its pod ends."""

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        """Release what the pod holds as a whole, once its containers have released theirs."""

    # A start with a lost state, or on a changed machine or configuration (core/turn/recovery.py)

    def find_in_cgroups(
        self,
        entry: PodEntry,
        pod: PodDemand,
        groups: Mapping[str, ObservedCgroup | None],
        observed: ObservedCgroups,
        *,
        by_pod: bool,
    ) -> Holdings | None:
        """Return what a running pod has according to its cgroups. None means that cgroups don't show this resource.

        Args:
            entry: the pod, with what its containers have done.
            pod: what the pod requests.
            groups: the cgroups of its containers, by container.
            observed: all cgroups.
            by_pod: whether the pod gets one set, which its containers share.
        """

    def is_contradicted(self, held: PodPromises, container: str, group: ObservedCgroup, *, is_mixed: bool) -> bool:
        """Whether a container's cgroup shows more than a record says. Then no record of the pod is believed."""

    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        """Allocate what a pod held and may keep on this machine. Called for the pods in the order of their admission. The promises contain
        what earlier pods keep, and nothing of this pod.
        """

    def lacks(self, held: PodPromises, pod: PodDemand, *, by_pod: bool) -> bool:
        """Whether the pod has less than it requests, once all pods have what they keep."""

    def is_away(self, held: PodPromises) -> bool:
        """Whether some of what the pod holds is unusable at present, but may return."""

    def fill(self, topology: TopologyManager, promises: Promises, pod: Pod, demand: PodDemand) -> Sequence[Promises]:
        """Return ways to give a pod what it lacks, close to what it has, the best first. An admission completes each way. If there is none,
        the whole pod is decided again.
        """

    def differences(
        self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises, name: str, *, by_pod: bool
    ) -> Iterator[HoldingChange]:
        """Return the differences of a container from before, or from its request, after all pods were placed."""

    # Invariants, and what is shown

    def validate(self, promises: Promises) -> Promises | StartRefused:
        """Judge stored promises against the current machine and configuration, and apply changes that need no decision."""

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        """Return the invariants that the promises break. Called before each save and after each load."""

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """Return the promises that the machine can't keep at present."""

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        """Return the values of its metrics right after a start."""

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        """Return its gauges, computed from the state."""


def allocate_each(resource: Resource, promises: Promises, pod: PodDemand) -> Allocation:
    """Allocate to each container of a pod separately, for a resource that containers don't share."""
    for container in pod.containers:
        allocation = resource.allocate_container(promises, pod, container)
        if allocation.refusal is not None:
            return allocation
        promises = allocation.promises
    return Allocation(promises)
