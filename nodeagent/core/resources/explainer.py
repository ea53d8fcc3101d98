"""Contract of a resource's explainer. It explains the resource's events and steps, its free amounts, and the smaller amounts that are worth
a trial.

For some resources, hints and `ResourceKind.describe` are a sufficient explanation. All others have an `explainer`, which extends
`Explainer`. No decision depends on explainers.
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
"""Number of amounts that are tried one by one before the search continues as a binary search."""
MAX_AMOUNT = 2**62
"""Largest amount in a search. No machine has that much of a resource."""


class ResourceEvent(Protocol):
    """Event of a resource during the decision on a pod. It is reported to an observer."""

    @property
    def is_for_hints(self) -> bool:
        """Whether the event precedes the resource's hints. Otherwise it precedes an allocation."""


class AllocationStep(Protocol):
    """Allocation of a resource, as a step of an explanation. Each resource has its own type for this."""

    @property
    def container(self) -> str | None:
        """Return the name of the container. None means that the step belongs to the pod as a whole."""


class SoughtAmount(Struct, frozen=True):
    """A requested amount of a refused pod: CPUs in thousandths, other resources in bytes or counts."""

    resource: str
    asked: int
    floor: int
    """Smallest amount that is allowed in the search."""
    shared: int
    """Part of the requested amount that doesn't consist of exclusive CPUs."""
    least_demand: PodDemand
    """Demand that the pod would have with an amount of 1 of this resource."""
    demand: PodDemand
    """Demand of the pod with the requested amount of this resource."""

    @property
    def bounded(self) -> int:
        """Return the requested amount, limited to `MAX_AMOUNT` for a search."""
        return min(self.asked, MAX_AMOUNT)


class SmallerAmounts(Struct, frozen=True):
    """Amounts below a request that are worth a trial."""

    amounts: range
    """Amounts in descending order."""
    one_by_one: int = 0
    """Number of amounts that are tried one by one. The others are searched by binary search."""
    is_by_nodes: bool = False
    """Whether the result for one amount holds only for amounts that need the same number of NUMA nodes."""


class Explainer(Struct, frozen=True):
    """Explanations of one resource. The methods of this base class explain nothing."""

    def observed_by(self, _observer: Callable[[ResourceEvent], None]) -> Resource | None:
        """Return the resource with an observer of its events. None means that the resource has no events."""
        return None

    def explain_step(self, event: Allocated, events: Sequence[ResourceEvent], pod: Pod) -> AllocationStep | None:
        """Describe an allocation, together with the events before it. None means that nothing was allocated."""
        raise NotImplementedError

    def find_lasting(self, _held: PodPromises, _apps: frozenset[str]) -> Holdings | None:
        """Return the holdings that don't change while a pod with these app containers runs. None means all holdings."""
        return None

    def check_pod(self, _pod: PodDemand) -> Refusal | None:
        """Return the refusal of invalid pod-level amounts. None means that they are valid."""
        return None

    def find_headroom(
        self, _promises: Promises, _nodes: Sequence[int], _names: Mapping[str, str], _asking: PodDemand | None
    ) -> Sequence[Struct]:
        """Return the free amounts on each of the NUMA nodes. The result is empty if the resource reports no free amounts.

        Args:
            _promises: the current promises.
            _nodes: the IDs of the NUMA nodes.
            _names: the names of the active pods, by UID.
            _asking: the pod that may use the free resources. None means any pod.
        """
        return ()

    def count_fewest_nodes(self, _promises: Promises, _demand: PodDemand | ContainerDemand) -> int:
        """Return the number of NUMA nodes that the demand needs on an empty machine. 0 means that the demand doesn't depend on nodes."""
        return 0

    def list_smaller(self, _sought: SoughtAmount) -> SmallerAmounts | None:
        """Return smaller amounts that are worth a trial. None means that the resource has no rule for them, because the amount is a
        plain count or belongs to another resource.
        """
        return None

    def list_larger(self, _sought: SoughtAmount) -> Sequence[int]:
        """Return larger amounts that are worth a trial, in ascending order."""
        return ()

    def round_amount(self, _resource: str, _container: Container, _demand: ContainerDemand) -> tuple[int, int] | None:
        """Return the nearest amounts below and above a request that can be allocated. None means that the requested amount itself can be
        allocated.
        """
        return None

    def list_additions(self) -> Sequence[Mapping[str, int]]:
        """Return amounts that are worth adding in a trial to the sum of the containers' amounts, as pod-level amounts."""
        return ()


def list_explainers(resources: Iterable[Resource]) -> tuple[Explainer, ...]:
    """Return the explainers, in the order of the resources. Resources without an explainer are skipped."""
    return tuple(filter(None, (each.explainer() for each in resources)))
