"""Contract of a resource's explainer, which describes the steps of an allocation, the free amounts, and other amounts that a refused pod
could request.

A resource needs no `Explainer` if NUMA hints and `ResourceKind.describe` explain its decisions well enough. Decisions don't depend on
explainers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import Holdings
from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import Refusal
from nodeagent.core.resources.resource import Allocated, Resource

NEAREST = 16
"""Number of amounts closest to the request that are tried one by one, before the search continues as a binary search."""
MAX_AMOUNT = 2**62
"""Upper limit of the amounts that a search tries. No machine has that much of a resource."""


class ResourceEvent(Protocol):
    """Event that a resource reports to an observer while the agent decides on a pod."""

    @property
    def is_for_hints(self) -> bool:
        """Whether the event is part of the computation of NUMA hints. Otherwise it is part of an allocation."""


class AllocationStep(Protocol):
    """One allocation, as a step in the explanation of a decision. Each resource has its own type of step."""

    @property
    def container(self) -> str | None:
        """Return the name of the container that gets the allocation. None means that the pod as a whole gets it."""


class SoughtAmount(Struct, frozen=True):
    """Requested amount of one resource, for which a search finds another amount that admits the pod. CPUs are in thousandths, other
    resources in bytes or counts.
    """

    resource: str
    asked: int
    floor: int
    """Smallest amount that the search may try."""
    shared: int
    """Part of a CPU request that doesn't become exclusive CPUs. It is 0 for other resources."""
    least_demand: PodDemand
    """Demand of the pod if it requested only the amount 1 of this resource. If this demand equals `demand`, the amount doesn't affect
    allocations."""
    demand: PodDemand
    """Demand of the pod with the amount that it requests now."""

    @property
    def bounded(self) -> int:
        """Return the requested amount, limited to `MAX_AMOUNT` for a search."""
        return min(self.asked, MAX_AMOUNT)


class SmallerAmounts(Struct, frozen=True):
    """Amounts below a request that are worth a trial."""

    amounts: range
    """Amounts to try, in descending order."""
    one_by_one: int = 0
    """Number of amounts that are tried one by one, from the largest. The others are tried by binary search."""
    is_by_nodes: bool = False
    """Whether one trial is valid only for amounts that need the same number of NUMA nodes. The binary search is then repeated for each
    number of nodes."""


class Explainer(Struct, frozen=True):
    """Explanations for one resource. The methods of this base class return results that mean "nothing to explain"."""

    def observed_by(self, _observer: Callable[[ResourceEvent], None]) -> Resource | None:
        """Return a copy of the resource that reports its events to the observer. None means that the resource has no events."""
        return None

    def explain_step(self, event: Allocated, events: Sequence[ResourceEvent], pod: Pod) -> AllocationStep | None:
        """Describe an allocation as a step of an explanation. None means that nothing was allocated.

        Args:
            event: the allocation.
            events: the events that the resource reported before the allocation.
            pod: the pod that gets the allocation.
        """
        raise NotImplementedError

    def find_lasting(self, _held: PodPromises, _apps: frozenset[str]) -> Holdings | None:
        """Return the part of a pod's holdings that the pod keeps while it runs. None means that it keeps all of them.

        Args:
            _held: the pod's holdings after its admission.
            _apps: the names of the pod's app containers.
        """
        return None

    def check_pod(self, _pod: PodDemand) -> Refusal | None:
        """Return the refusal of a pod whose pod-level amounts are invalid. None means that the amounts are valid."""
        return None

    def find_headroom(
        self, _promises: Promises, _nodes: Sequence[int], _names: Mapping[str, str], _asking: PodDemand | None
    ) -> Sequence[Struct]:
        """Return the free amounts on each of the NUMA nodes. An empty result means that the resource doesn't report free amounts.

        Args:
            _promises: the current promises.
            _nodes: the IDs of the NUMA nodes.
            _names: the names of the active pods, by UID.
            _asking: the pod for which the amounts are free, which may reuse amounts of its init containers. None means any pod.
        """
        return ()

    def count_fewest_nodes(self, _promises: Promises, _demand: PodDemand | ContainerDemand) -> int:
        """Return the smallest number of NUMA nodes that could provide the demand on an empty machine. 0 means that the demand doesn't
        depend on NUMA nodes.
        """
        return 0

    def list_smaller(self, _sought: SoughtAmount) -> SmallerAmounts | None:
        """Return smaller amounts that a search should try. None means that this resource has no rule for the amount. The search may then
        try every smaller whole number.
        """
        return None

    def list_larger(self, _sought: SoughtAmount) -> Sequence[int]:
        """Return larger amounts that a search should try, in ascending order."""
        return ()

    def round_amount(self, _resource: str, _container: Container, _demand: ContainerDemand) -> tuple[int, int] | None:
        """Return the nearest smaller and larger amount that can be allocated, if the requested amount can't. None means that the requested
        amount can be allocated.
        """
        return None

    def list_additions(self) -> Sequence[Mapping[str, int]]:
        """Return the amounts that a search should try to add to the pod-level request, by resource. A pod-level request that exceeds the
        sum of its containers' requests leaves a part for containers without exclusive CPUs.
        """
        return ()


def list_explainers(resources: Iterable[Resource]) -> tuple[Explainer, ...]:
    """Return the explainers of the resources, in the same order. Resources without an explainer are skipped."""
    return tuple(filter(None, (each.explainer() for each in resources)))
