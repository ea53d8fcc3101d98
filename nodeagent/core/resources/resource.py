"""Contract of a resource with everything that treats all resources alike: admission, resizes, starts, recovery, invariants, metrics.

A resource is built once from machine and configuration (core/admission/resource_kinds.py). It has no state: a method takes the
promises, and returns them as they are afterwards. Resources are asked in a fixed order, kubelet's, and none knows another. Each keeps what
a pod holds of it, and its books of the node, under types of its own (core/model/holdings.py).

Claims have holdings, but no `Resource`: their decision wraps those of all resources. Each way to meet a pod's claims is a set of CPUs,
memory and devices that the pod is given first, and the whole pod is decided with each way until it is admitted (claims/placing.py).
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
"""Hints by what they are for. A resource without an opinion has none, or one list that doesn't care."""


AGAIN = "remove its manifest and add it again when there is room"
"""What a person can do about a pod that has less than it requests."""


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
    """Something that a container no longer has as before."""

    resource: str
    """As people call it, for example `CPUs` or `memory nodes`."""
    before: str
    after: str
    why: str


class Resource(Protocol):
    """One kind of what pods are given."""

    @property
    def name(self) -> str:
        """Name of the resource in the trace of a decision."""

    @property
    def holdings(self) -> type[Holdings]:
        """Type of what a pod holds of it."""

    @property
    def managed(self) -> frozenset[str]:
        """Extended resources that pods request by number, and that this resource alone gives. Pods that request others are refused."""

    @property
    def gives_way(self) -> bool:
        """Whether its hints give way to those of CPUs, where `preferCPUsNumaNode` is set."""

    # A pod comes. Its UID holds nothing of the resource that it doesn't request.

    def amounts(self, promises: Promises) -> Mapping[str, int]:
        """Return how much the node has of each managed extended resource, for the check of the node's capacity before each decision."""

    def limited_to(self, nodes: NumaMask) -> Self:
        """Return the resource as if only these NUMA nodes had any of it: for a pod that requests one node."""

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        """Return the NUMA nodes that could provide what a container requests. Called before its allocation, except under policy none."""

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        """Return the NUMA nodes that could provide what a pod requests as a whole. Called instead of the above in scope `pod`."""

    def percent_given(self, promises: Promises, node: int) -> int | None:
        """Return the allocated share of a NUMA node, or None without an opinion. Called to compare two nodes
        (prefer-most-allocated-numa-node).
        """

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        """Promise a container what it requests, under the hint stored for it. The containers before it have theirs already."""

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        """Promise a pod what it requests as a whole, under the hint of its first container, and divide it among its containers."""

    def admitted(self, promises: Promises) -> Promises:
        """Forget what was kept for the containers of one pod alone. Called once a pod is admitted."""

    # What a pod holds

    def is_asked(self, container: ContainerDemand) -> bool:
        """Whether the container requests some of it."""

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        """Whether the container has what it requests. A plain init container may have given it back after it has run."""

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        """Whether the pod as a whole has what it requests."""

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        """Return the NUMA nodes on which the container has something."""

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        """Return what kubelet counts when a container already has what it requests."""

    # A container starts, is resized or goes

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        """Take back what the plain init containers before a starting container no longer need."""

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        """Whether a resize lowers what the container requests: its siblings may need what it gives back, so it comes first."""

    def resize(
        self,
        topology: TopologyManager,
        promises: Promises,
        pod: PodDemand,
        before: ContainerDemand,
        now: ContainerDemand,
    ) -> Promises | NotResized:
        """Give a running container what it requests now; nothing that it keeps moves. Called for each container of a resized pod, whether
        it requests another amount or not. The demand is the new one, and promises have what the pod holds.
        """

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        """Take back what only this container of its pod has. Called when a container has finished or its pod ends."""

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        """Take back what the pod has as a whole, once its containers have given theirs back."""

    # A start with a state that was lost, or of another machine or configuration (core/turn/recovery.py)

    def found(
        self,
        entry: PodEntry,
        pod: PodDemand,
        groups: Mapping[str, ObservedCgroup | None],
        observed: ObservedCgroups,
        *,
        by_pod: bool,
    ) -> Holdings | None:
        """Return what a running pod has according to its cgroups. None means that cgroups don't show it.

        Args:
            entry: the pod, with what its containers have done.
            pod: what it requests.
            groups: its containers' cgroups, by container.
            observed: all cgroups.
            by_pod: whether it gets one set, which its containers share.
        """

    def is_contradicted(self, held: PodPromises, container: str, group: ObservedCgroup, *, is_mixed: bool) -> bool:
        """Whether a container's cgroup shows more than a record says that it has: then no record of the pod is believed."""

    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        """Promise a pod what it held and may keep on this machine. Called for one pod after the other, in the order of their admission; the
        promises have what earlier ones keep, and nothing of this pod's.
        """

    def lacks(self, held: PodPromises, pod: PodDemand, *, by_pod: bool) -> bool:
        """Whether the pod has less than it requests, once all pods have what they keep."""

    def is_away(self, held: PodPromises) -> bool:
        """Whether some of what the pod holds is not usable at present, but may be again."""

    def fill(self, topology: TopologyManager, promises: Promises, pod: Pod, demand: PodDemand) -> Sequence[Promises]:
        """Return ways to give a pod what it lacks close to what it has, best first. Each is completed by an admission. Without any, the pod
        is decided again as a whole.
        """

    def differences(
        self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises, name: str, *, by_pod: bool
    ) -> Iterator[HoldingChange]:
        """Return how a container differs from before, or from its request, after all pods were placed."""

    # What must always hold, and what is shown of it

    def validated(self, promises: Promises) -> Promises | StartRefused:
        """Judge stored promises against the current machine and configuration. Changes that need no decision are applied."""

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        """Return the invariants that the promises break. Called before each save and after each load."""

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """Return the promises that the machine can't keep at present."""

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        """Return the values of its metrics after a start."""

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        """Return its gauges, computed from the state."""

    def describe(self, held: PodPromises, name: str) -> str:
        """Say in a few words what a container holds, for people. Empty if it holds nothing, or if a view of its own shows it."""


def allocate_each(resource: Resource, promises: Promises, pod: PodDemand) -> Allocation:
    """Promise each container of a pod its own, of a resource that a pod doesn't share."""
    for container in pod.containers:
        allocation = resource.allocate_container(promises, pod, container)
        if allocation.refusal is not None:
            return allocation
        promises = allocation.promises
    return Allocation(promises)
