"""Contract between a resource and the code that treats all resources alike (admission, resizes, starts, recovery, invariants, metrics).

A resource is built once from the machine and the configuration (core/admission/resource_kinds.py). A resource has no state. Its methods
take promises and return new promises. Resources are called in kubelet's fixed order, and are independent of one another. Each resource has
its own types for a pod's holdings and for the node's accounts (core/model/holdings.py).

Claims have holdings but no `Resource`, because the decision on claims encloses the decisions on all resources. Each way to satisfy a
pod's claims first allocates CPUs, memory and devices. Then the admission of the whole pod is tried. The first way that admits the pod is
used (core/resources/claims/placing.py).
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
"""Hints, each with the name of its resource. A resource that accepts any node gives no hints, or one list that accepts any node."""


AGAIN = "remove its manifest and add it again when there is room"
"""Next step for the owner of a pod that has less than it requests."""


class Allocation(Struct, frozen=True):
    """Result of an allocation of a resource."""

    promises: Promises
    deltas: MetricDeltas = ()
    refusal: Refusal | None = None


class Allocated(Struct, frozen=True):
    """An allocation of a resource, as reported to an observer for explanations."""

    resource: str
    container: str | None
    """Name of the container. None means that the allocation belongs to the pod as a whole."""
    before: Promises
    after: Promises
    refusal: Refusal | None
    spread: tuple[tuple[int, int], ...] = ()
    """NUMA nodes with the shares by which memory should be spread. There are none if the memory shouldn't be spread."""


class Share(Struct, frozen=True):
    """Allocated and allocatable part of an amount on some NUMA nodes, in the unit of the amount."""

    nodes: NumaMask
    allocated: int
    allocatable: int
    """Allocatable amount. No other share in the same list counts this amount."""


class HoldingChange(Struct, frozen=True):
    """Loss or change of a holding of a container."""

    resource: str
    """Name of the resource for users, for example `CPUs` or `memory nodes`."""
    before: str
    after: str
    why: str


class ResourceFailedError(Exception):
    """A resource can't decide on a pod, for example because one of the resource's plugins has failed. The pod is refused with this text."""

    reason: ClassVar[Reason]


class Resource(Struct, frozen=True):
    """A kind of resource that is allocated to pods. Abstract methods must be implemented, and all other methods have a default."""

    name: ClassVar[str]
    """Name of the resource in traces of decisions."""
    holdings: ClassVar[type[Holdings]]
    """Type of a pod's holdings of the resource."""
    gives_way: ClassVar[bool] = False
    """Whether the hints for CPUs take precedence over this resource's hints if `preferCPUsNumaNode` is set."""

    @property
    def managed(self) -> frozenset[str]:
        """Return the names of the extended resources that only this resource allocates, by number. A pod that requests an extended
        resource which nobody manages is refused.
        """
        return frozenset()

    def explainer(self) -> "Explainer | None":
        """Return the resource's explainer. None means that the resource's hints and `ResourceKind.describe` are sufficient explanations.

        The explainer's code is loaded only for explanations.
        """
        return None

    # Methods for the admission of a pod. The pod holds only resources that it requests.

    def amounts(self, promises: Promises) -> Mapping[str, int]:
        """Return the node's amount of each managed extended resource. These amounts are part of the node's capacity, which is checked
        before each decision.
        """
        return {}

    def limited_to(self, pod: PodDemand) -> Self:
        """Return the resource limited to the part that the pod may use, such as one NUMA node, a class of cores, or whole cores."""
        return self

    def without_preferred_nodes(self) -> Self:
        """Return the resource without the settings that prefer NUMA nodes. kubelet doesn't have these settings."""
        return self

    def add_limits(self, refusal: Refusal, pod: PodDemand) -> Refusal:
        """Extend the message of a refusal by the limits that applied to this resource for this pod."""
        return refusal

    @abstractmethod
    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        """Return the NUMA nodes that could provide a container's request. This method is called before the container's allocation,
        except under policy none.
        """

    @abstractmethod
    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        """Return the NUMA nodes that could provide the request of a pod as a whole. In scope `pod`, this method is called instead of
        `container_hints`.
        """

    def fits_on_each(
        self, promises: Promises, pod: PodDemand, container: ContainerDemand | None, nodes: NumaMask
    ) -> bool:
        """Tell whether each of these NUMA nodes, which form a hint, can provide a part of the request (sameNumaNodes). If `container` is
        None, the request is that of the pod as a whole.
        """
        return True

    def count_by_node(self, held: PodPromises, name: str) -> tuple[tuple[int, int], ...]:
        """Return the NUMA nodes of a container's holdings, with the amount on each node. Only resources near which huge pages should be
        return amounts (spreadHugePages).
        """
        return ()

    def list_shares(self, promises: Promises, name: str) -> tuple[Share, ...]:
        """Return the allocated shares of the resource's amount, by NUMA nodes. The shares determine the scores of sets of NUMA nodes
        (KEP-6007).

        `name` is the name of a list of hints, or of the resource itself. The result is empty if the resource isn't scored.
        """
        return ()

    @abstractmethod
    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        """Allocate a container's request under its stored hint. The containers before it already have their allocations."""

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        """Allocate the request of a pod as a whole under the hint of its first container. Divide the allocation among the containers.

        By default, the resource is allocated to each container separately, because containers can't share it.
        """
        for container in pod.containers:
            allocation = self.allocate_container(promises, pod, container)
            if allocation.refusal is not None:
                return allocation
            promises = allocation.promises
        return Allocation(promises)

    def end_reuse(self, promises: Promises) -> Promises:
        """Forget the amounts of init containers that later containers could have reused. This method is called once the pod is admitted."""
        return promises

    # Methods that read the holdings of a pod

    @abstractmethod
    def is_asked(self, container: ContainerDemand) -> bool:
        """Whether the container requests an amount of this resource."""

    @abstractmethod
    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        """Whether the container holds everything that it requests. A plain init container may already have released its holdings."""

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        """Whether the pod as a whole holds everything that it requests."""
        return all(self.has_container(held, container) for container in pod.containers)

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        """Return the NUMA nodes of the container's holdings."""
        return NumaSet()

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        """Return the changes of metrics that kubelet counts for a container that already holds its request."""
        return ()

    # Methods called when containers start, are resized or end

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        """Release the holdings that plain init containers no longer need when a later container starts."""
        return promises

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        """Whether a resize lowers the container's request. Such containers are resized first, because others may need the released
        amounts.
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
        """Adapt a running container's holdings to its new request. CPUs and memory that the container keeps stay where they are.

        This method is called for each container of a resized pod, even if the container's own request is unchanged. `pod` has the new
        amounts, and `promises` has the old holdings.
        """
        return promises

    @abstractmethod
    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        """Release a container's holdings, except those shared with another container of the pod. This method is called when the
        container or its pod has ended.
        """

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        """Release the holdings of the pod as a whole. This method is called after the containers' holdings were released."""
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
        """Return a running pod's holdings according to its cgroups. None means that cgroups don't show this resource.

        Args:
            entry: the pod, with the past starts of its containers.
            pod: the pod's requests.
            groups: the cgroups of the pod's containers, by container name.
            observed: all cgroups.
            by_pod: whether the pod gets one set, which its containers share.
        """
        return None

    def is_contradicted(self, held: PodPromises, container: str, group: ObservedCgroup, *, is_mixed: bool) -> bool:
        """Whether a container's cgroup contradicts the recorded holdings. If it does, no record of the pod is used."""
        return False

    @abstractmethod
    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        """Allocate those former holdings that a pod may keep on this machine. This method is called for each pod in the order of admission.

        At that time, the promises contain the holdings of earlier pods only.
        """

    def lacks(self, held: PodPromises, pod: PodDemand, *, by_pod: bool) -> bool:
        """Whether the pod holds less than it requests. This method is called once all pods have allocated what they keep."""
        return not by_pod and not self.has_pod(held, pod)

    def is_away(self, held: PodPromises) -> bool:
        """Whether some of the pod's holdings are unusable now, but may become usable again."""
        return False

    def fill(self, topology: TopologyManager, promises: Promises, pod: Pod, demand: PodDemand) -> Sequence[Promises]:
        """Return possible promises in which missing amounts near the pod's holdings are added, the best ones first.

        An admission then completes each result. If no admission succeeds, a new decision is made on the whole pod.
        """
        return (promises,)

    def differences(
        self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises, name: str, *, by_pod: bool
    ) -> Iterator[HoldingChange]:
        """Yield the differences of a container's holdings from its earlier holdings and from its request, after all pods were placed."""
        yield from ()

    def machine_changes(self, before: Promises, after: Promises) -> Iterator[MachineChange]:
        """Yield those values of the node that differ from the saved promises. The allocations of pods aren't affected."""
        yield from ()

    # Methods for invariants and metrics

    def validate(self, promises: Promises) -> Promises | StartRefused:
        """Check stored promises against the current machine and configuration, and apply those changes that need no decision."""
        return promises

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        """Yield a violation for each invariant that the promises break. This method is called before each save and after each load."""
        yield from ()

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """Yield the allocations for which the machine has too little at present."""
        yield from ()

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        """Return the values of the resource's metrics right after a start."""
        return ()

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        """Return the resource's gauges, computed from the promises."""
        return ()
