"""Contract of a resource. Admission, resizes, starts, recovery, invariants and metrics use all resources through this contract.

A resource is built once from the machine and the configuration (core/admission/resource_kinds.py), and has no state. Its methods take
promises and return new promises. Resources are called in kubelet's fixed order, and don't depend on one another. Each resource defines a
type for what a pod holds, and a type for what it records about the whole node (core/model/holdings.py).

Claims have holdings, but aren't a `Resource`, because the decision on claims encloses the decisions on all resources. For each way to
satisfy a pod's claims, the claimed CPUs, memory and devices are allocated first, and the admission of the whole pod is then tried. The
first way that admits the pod is used (core/resources/claims/placing.py).
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from msgspec import Struct

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import Holdings
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import NotResized, Reason, Refusal, StartRefused
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.violations import MachineChange, Shortfall, Violation
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.numa.topology_manager import TopologyManager

if TYPE_CHECKING:
    from nodeagent.core.resources.explainer import Explainer

ResourceHints = tuple[tuple[str, Hints], ...]
"""NUMA hints, each with the name of a resource. A resource that accepts any node returns no hints, or a single entry with `DONT_CARE`."""


AGAIN = "remove its manifest and add it again when there is room"
"""Advice for the owner of a pod that has less than it requests."""


class Allocation(Struct, frozen=True):
    """Result of an attempt to allocate a resource. `refusal` is None if the attempt was successful."""

    promises: Promises
    deltas: MetricDeltas = ()
    refusal: Refusal | None = None


class Allocated(Struct, frozen=True):
    """Allocation of a resource, as reported to an observer for explanations."""

    resource: str
    container: str | None
    """Name of the container that gets the allocation. None means that the pod as a whole gets it."""
    before: Promises
    after: Promises
    refusal: Refusal | None
    spread: tuple[tuple[int, int], ...] = ()
    """Pairs of NUMA node and share, by which the container's memory should be spread. The tuple is empty if the memory shouldn't
    be spread.
    """


class Share(Struct, frozen=True):
    """Allocated and allocatable amount on a set of NUMA nodes, from which the set's score is computed."""

    nodes: NumaMask
    allocated: int
    allocatable: int
    """Amount that pods could have on an empty machine. No two shares in a list count the same amount."""


class HoldingChange(Struct, frozen=True):
    """Difference between what a container held before a recovery and what it holds now, with the reason."""

    resource: str
    """Name of the resource in texts for users, for example `CPUs` or `memory nodes`."""
    before: str
    after: str
    why: str


class ResourceFailedError(Exception):
    """Failure of a part that a resource needs for its decision, such as a CPU plugin. The pod is refused with the error's text."""

    reason: ClassVar[Reason]


class Resource(Struct, frozen=True):
    """Contract of a kind of resource. Subclasses must implement the abstract methods. The other methods have defaults for a resource that
    needs no such behaviour.
    """

    name: ClassVar[str]
    """Name of the resource in explanations of decisions."""
    holdings: ClassVar[type[Holdings]]
    """Type of the allocation of this resource to one pod."""
    gives_way: ClassVar[bool] = False
    """Whether `preferCPUsNumaNode` lets the hints for CPUs take precedence over this resource's hints."""

    @property
    def managed(self) -> frozenset[str]:
        """Return the names of the extended resources that this resource allocates as counts. A pod is refused if it requests an extended
        resource that no resource allocates.
        """
        return frozenset()

    def explainer(self) -> "Explainer | None":
        """Return the resource's explainer. None means that NUMA hints and `ResourceKind.describe` explain the decisions well enough.

        The method imports the explainer's module, so that its code is loaded only for explanations.
        """
        return None

    # Methods for the admission of a pod. The pod holds only resources that it requests.

    def amounts(self, promises: Promises) -> Mapping[str, int]:
        """Return the node's amount of each extended resource that this resource allocates. Before each decision, the amounts are added to
        the node's capacity, and the pod's requests are checked against it.
        """
        return {}

    def limited_to(self, pod: PodDemand) -> Self:
        """Return a copy of the resource that contains only the part that the pod may use, such as one NUMA node, one class of cores, or
        whole cores.
        """
        return self

    def without_preferred_nodes(self) -> Self:
        """Return a copy of the resource without nodeagent's own preferences for NUMA nodes, which kubelet doesn't have."""
        return self

    def add_limits(self, refusal: Refusal, pod: PodDemand) -> Refusal:
        """Add to a refusal's message the limits that this resource applied to the pod, such as a required class of cores."""
        return refusal

    @abstractmethod
    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        """Return hints for the sets of NUMA nodes that could provide a container's request. This method is called before the container's
        allocation, unless the topology manager's policy is none.
        """

    @abstractmethod
    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        """Return hints for the sets of NUMA nodes that could provide the request of a pod as a whole. In scope `pod`, this method is called
        instead of `container_hints`.
        """

    def fits_on_each(
        self, promises: Promises, pod: PodDemand, container: ContainerDemand | None, nodes: NumaMask
    ) -> bool:
        """Return whether each of the NUMA nodes can provide a part of the request, as `sameNumaNodes` demands. `nodes` are the nodes of a
        hint. If `container` is None, the request is the pod's.
        """
        return True

    def count_by_node(self, held: PodPromises, name: str) -> tuple[tuple[int, int], ...]:
        """Return the amount that a container holds on each NUMA node. `spreadHugePages` spreads the container's huge pages in proportion to
        these amounts. Resources that shouldn't influence this return nothing.
        """
        return ()

    def list_shares(self, promises: Promises, name: str) -> tuple[Share, ...]:
        """Return the allocated part of the resource's amount for sets of NUMA nodes, from which the scores of these sets are computed
        (KEP-6007).

        Args:
            promises: the current promises.
            name: the name of a list of hints, which may be the name of the resource itself.

        Returns:
            The shares. The tuple is empty if this amount doesn't count in scores.
        """
        return ()

    @abstractmethod
    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        """Allocate a container's request on the NUMA nodes of its stored hint. `promises` contain the allocations to the pod's earlier
        containers.
        """

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        """Allocate the request of a pod as a whole on the NUMA nodes of its first container's hint, and divide the allocation among the
        containers.

        The default is for a resource that containers can't share. It allocates each container's request separately.
        """
        for container in pod.containers:
            allocation = self.allocate_container(promises, pod, container)
            if allocation.refusal is not None:
                return allocation
            promises = allocation.promises
        return Allocation(promises)

    def end_reuse(self, promises: Promises) -> Promises:
        """Remove the record of amounts that later containers could reuse from init containers. This method is called once the pod is
        admitted.
        """
        return promises

    # Methods that read the holdings of a pod

    @abstractmethod
    def is_asked(self, container: ContainerDemand) -> bool:
        """Return whether the container requests an amount of this resource."""

    @abstractmethod
    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        """Return whether the container holds everything that it requests. This may be false for an init container that has passed its
        holdings on to later containers.
        """

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        """Return whether the pod as a whole holds everything that it requests."""
        return all(self.has_container(held, container) for container in pod.containers)

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        """Return the NUMA nodes on which the container holds an amount of this resource."""
        return NumaSet()

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        """Return the metric changes that kubelet makes at an admission for a container that already holds what it requests."""
        return ()

    # Methods called when containers start, are resized or end

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        """Release what the pod's init containers hold, if the start of container `name` shows that they have ended."""
        return promises

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        """Return whether a resize lowers the container's request. Containers with lowered requests are resized first, because others may
        need the amounts that they release.
        """
        return False

    def resize(
        self,
        topology: TopologyManager,
        promises: Promises,
        pod: PodDemand,
        before: ContainerDemand,
        now: ContainerDemand,
    ) -> Promises | NotResized:
        """Change a running container's holdings to match its new request. CPUs and memory that the container keeps stay on the same NUMA
        nodes.

        This method is called for each container of a resized pod, even if the container's own request is unchanged. `pod` has the new
        amounts, and `promises` have the old holdings.
        """
        return promises

    @abstractmethod
    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        """Release what a container holds, except amounts that another container of the pod holds, too. This method is called once the
        container or its pod has ended.
        """

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        """Release what the pod as a whole holds. This method is called after `release_container` was called for each container."""
        return promises, ()

    # Methods called at a start with a lost state, or on a changed machine or configuration (core/turn/recovery.py)

    def find_in_cgroups(
        self,
        entry: PodEntry,
        pod: PodDemand,
        groups: Mapping[str, ObservedCgroup | None],
        observed: ObservedCgroups,
        *,
        by_pod: bool,
    ) -> Holdings | None:
        """Derive a running pod's holdings from its cgroups. None means that cgroups don't show holdings of this resource.

        Args:
            entry: the pod, with the past starts of its containers.
            pod: the pod's requests.
            groups: the cgroups of the pod's containers, by container name.
            observed: all cgroups.
            by_pod: whether the resource is allocated to the pod as a whole, and then divided among the containers.
        """
        return None

    def is_contradicted(self, held: PodPromises, container: str, group: ObservedCgroup, *, is_mixed: bool) -> bool:
        """Return whether a container's cgroup contradicts the recorded holdings. If it does, the records are outdated, and no record of the
        pod is used.
        """
        return False

    @abstractmethod
    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        """Allocate to a pod those of its former holdings that it can keep on this machine. This method is called for one pod after the
        other, in the order of their admission, and `promises` contain only the holdings of earlier pods.
        """

    def lacks(self, held: PodPromises, pod: PodDemand, *, by_pod: bool) -> bool:
        """Return whether the pod holds less than it requests. This method is called once all pods have got back what they can keep."""
        return not by_pod and not self.has_pod(held, pod)

    def is_away(self, held: PodPromises) -> bool:
        """Return whether some of the pod's holdings are unusable now, but may become usable again, such as offline CPUs."""
        return False

    def fill(self, topology: TopologyManager, promises: Promises, pod: Pod, demand: PodDemand) -> Sequence[Promises]:
        """Return variants of the promises in which the pod's missing amounts are allocated close to what it still holds, the best variant
        first.

        The agent completes each variant by an admission, until the admission succeeds. If it fails for all variants, the agent decides on
        the whole pod as if it held nothing.
        """
        return (promises,)

    def differences(
        self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises, name: str, *, by_pod: bool
    ) -> Iterator[HoldingChange]:
        """Yield the changes that a recovery made to a container's holdings, and the amounts that the container still lacks. This method is
        called after all pods have got their holdings.
        """
        yield from ()

    def machine_changes(self, before: Promises, after: Promises) -> Iterator[MachineChange]:
        """Yield the values recorded for the whole node that a recovery changed, such as the shared pool. Allocations to pods are not
        included.
        """
        yield from ()

    # Methods for invariants and metrics

    def validate(self, promises: Promises) -> Promises | StartRefused:
        """Check stored promises against the present machine and configuration, and update values that follow from these, such as the shared
        pool. If the promises don't fit, return the error.
        """
        return promises

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        """Yield a violation for each invariant of this resource that the promises break. This method is called before each save and after
        each load of the state.
        """
        yield from ()

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """Yield the allocations that the machine can't provide in full at present."""
        yield from ()

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        """Return the values of the resource's metrics right after the agent's start."""
        return ()

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        """Return the values of the resource's gauges, computed from the promises."""
        return ()
