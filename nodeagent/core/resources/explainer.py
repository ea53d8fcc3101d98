"""Contract of a resource's explainer: the events and steps of the resource, its free amounts, and smaller amounts that are worth a trial.

Some resources are explained sufficiently by their hints and by `ResourceKind.describe`. All others have an `explainer`, which extends
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
"""Number of amounts that are tried one by one before the search continues by halving."""
MAX_AMOUNT = 2**62
"""Largest amount in the search. Machines never have more of a resource."""


class ResourceEvent(Protocol):
    """Event of a resource during the decision on a pod, reported to an observer."""

    @property
    def is_for_hints(self) -> bool:
        """Whether the event precedes the resource's hints. Otherwise it precedes an allocation."""


class AllocationStep(Protocol):
    """Allocation of a resource, as a step of an explanation. Each resource has its own type."""

    @property
    def container(self) -> str | None:
        """Name of the container. None means the pod as a whole."""


class SoughtAmount(Struct, frozen=True):
    """A requested amount of a refused pod: CPUs in thousandths, other resources in bytes or counts."""

    resource: str
    asked: int
    floor: int
    """Smallest allowed amount."""
    shared: int
    """Part of the requested amount that isn't for exclusive CPUs."""
    least_demand: PodDemand
    """Demand of the pod if it requested an amount of 1 of this resource."""
    demand: PodDemand
    """Demand of the pod with the requested amount of this resource."""

    @property
    def bounded(self) -> int:
        """Requested amount, limited to `MAX_AMOUNT` for a search."""
        return min(self.asked, MAX_AMOUNT)


class SmallerAmounts(Struct, frozen=True):
    """Amounts below a request that are worth a trial."""

    amounts: range
    """Amounts, largest first."""
    one_by_one: int = 0
    """Number of amounts that are tried one by one. The others are searched by halving."""
    is_by_nodes: bool = False
    """Whether the result for one amount applies only to amounts that need the same number of NUMA nodes."""


class Explainer(Struct, frozen=True):
    """Explanations of one resource. The methods of this base class explain nothing."""

    def observed_by(self, _observer: Callable[[ResourceEvent], None]) -> Resource | None:
        """Return the resource with an observer of its events. None means that the resource has no events."""
        return None

    def explain_step(self, event: Allocated, events: Sequence[ResourceEvent], pod: Pod) -> AllocationStep | None:
        """Describe an allocation with the events before it. None means that nothing was allocated."""
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
        """Return the free amounts on each of the NUMA nodes. Empty means that the resource reports no free amounts.

        Args:
            _promises: the current promises.
            _nodes: the IDs of the NUMA nodes.
            _names: the names of the active pods, by UID.
            _asking: the pod that may use the free resources. None means any pod.
        """
        return ()

    def count_fewest_nodes(self, _promises: Promises, _demand: PodDemand | ContainerDemand) -> int:
        """Return the number of NUMA nodes that the demand needs on an empty machine. The value 0 means that the demand doesn't depend on
        nodes.
        """
        return 0

    def list_smaller(self, _sought: SoughtAmount) -> SmallerAmounts | None:
        """Return smaller amounts that are worth a trial. None means that the amount is a plain count, or belongs to another resource."""
        return None

    def list_larger(self, _sought: SoughtAmount) -> Sequence[int]:
        """Return larger amounts that are worth a trial, smallest first."""
        return ()

    def round_amount(self, _resource: str, _container: Container, _demand: ContainerDemand) -> tuple[int, int] | None:
        """Return the nearest amounts below and above a request that can be allocated. None means that the requested amount itself can be
        allocated.
        """
        return None

    def list_additions(self) -> Sequence[Mapping[str, int]]:
        """Return additional pod-level amounts that are worth a trial, on top of the sum of the containers' amounts."""
        return ()


def list_explainers(resources: Iterable[Resource]) -> tuple[Explainer, ...]:
    """Return the explainers of the resources that have one, in the order of the resources."""
    return tuple(filter(None, (each.explainer() for each in resources)))
