"""Interface of the modules in views/explain/resources, and the total shortage of a request on several NUMA nodes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.explain.trace import Trace
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.explainer import AllocationStep, ResourceEvent
from nodeagent.views.wording.words import format_count

Document = dict[str, Any]
FEW_SETS = 3
"""Maximum number of sets of NUMA nodes that are all named, if they have the same result. Of more sets, only an example is named."""
MOST_NODES = 8
"""Maximum number of NUMA nodes listed one by one. The nodes with the smallest shortages are listed."""


class RefusedDecision(Struct, frozen=True):
    """Refused pod, and the node on which it was refused."""

    before: WhatIf
    """Node before the decision. It contains only the resources that the pod may get."""
    trace: Trace
    promises: Promises
    """Allocations at the time of the refusal, including the allocations of the pod's earlier containers."""
    nodes: tuple[NodeHeadroom, ...]
    """NUMA nodes from which the pod may get resources."""

    def find_request(self, container: str | None) -> tuple[str, PodDemand | ContainerDemand]:
        """Return the name and the demand of a container. If the container is None, return the pod's name and the demand of the whole
        pod.
        """
        if container is None:
            return "the pod as a whole", self.trace.demand
        return f"container {container}", next(c for c in self.trace.demand.containers if c.name == container)

    def format_class(self) -> str:
        """Format the required class of cores. The result is empty if the pod requires none."""
        core_class = self.trace.demand.core_class
        return "" if core_class is None else f" on {core_class} cores"

    def format_node(self) -> str:
        """Format the required NUMA node. The result is empty if the pod requires none."""
        node = self.trace.demand.numa_node
        return "" if node is None else f" on the required NUMA node {node}"


class ResourceDemand(Protocol):
    """Requested amount of a resource, with the minimum number of NUMA nodes that could provide this amount on an empty machine."""

    @property
    def name(self) -> str: ...

    @property
    def amount(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def format_amount(self, amount: int) -> str:
        """Format an amount of the resource with its unit."""

    def format_free(self, amount: int) -> str:
        """Format a free amount of the resource."""

    def format_missing(self, amount: int) -> str:
        """Format a missing amount of the resource."""

    def free_on(self, node: NodeHeadroom) -> int:
        """Return the free amount of the resource on a node."""

    def capacity_of(self, node: NodeHeadroom) -> int:
        """Return the amount of the resource on an empty node."""

    def describe_on(self, node: NodeHeadroom) -> str:
        """Describe the shortage of the resource on one NUMA node.

        The text is empty if the node has enough for its part of the request, or if it has none of the resource even when empty.
        """


class ExplanationView(Struct, frozen=True):
    """Parts of an explanation that concern one resource. The default of each part is empty."""

    step: Callable[[AllocationStep], Document | None]
    """Function that describes an allocation of the resource. None means that the step is about another resource."""
    explain_step: Callable[[RefusedDecision, AllocationStep], Iterable[str] | None]
    """Function that explains why the resource's allocation failed. None means that the step is about another resource."""
    event: Callable[[ResourceEvent], Document | None] = lambda _: None
    """Function that describes an event that happened before the hints were made."""
    headroom: Callable[[NodeHeadroom], Document] = lambda _: {}
    """Function that describes the free amounts on a NUMA node."""
    demands: Callable[[RefusedDecision, PodDemand | ContainerDemand], Iterable[ResourceDemand]] = lambda _pod, _demand: ()
    """Function that returns the requested amounts that NUMA nodes must provide."""
    requested: Callable[[RefusedDecision, PodDemand | ContainerDemand], Iterable[str]] = lambda _pod, _demand: ()
    """Function that formats the requested amounts."""
    notes: Callable[[Sequence[ResourceDemand], NodeHeadroom], str] = lambda _demands, _node: ""
    """Function that describes why a request may be unable to use the free amounts of a NUMA node."""
    holders: Callable[[NodeHeadroom], str] = lambda _: ""
    """Function that returns, in brackets, the names of the pods that use the resource on a NUMA node. Without such pods, the text is
    empty.
    """
    reuse: Callable[[RefusedDecision], Iterable[str]] = lambda _: ()
    """Function that describes the amounts of the pod's init containers. They count as free for the pod's other containers."""


def format_node_count(demands: Iterable[ResourceDemand]) -> str:
    """Format the minimum number of NUMA nodes that could provide the demanded amounts, as part of a sentence."""
    counts = {demand.nodes for demand in demands} or {1}
    if counts == {1}:
        return "on a single NUMA node"
    if len(counts) == 1:
        return f"on {counts.pop()} NUMA nodes, the fewest that could hold it"
    each = ", ".join(f"{demand.name} on {demand.nodes}" for demand in demands)
    return f"each on the fewest NUMA nodes that could hold it: {each}"


def describe_total_shortages(demands: Iterable[ResourceDemand], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe the shortages of all nodes together, or of as many nodes as the request needs."""
    for demand in demands:
        free = sorted((demand.free_on(node) for node in nodes), reverse=True)
        total, largest = sum(free), sum(free[: demand.nodes])
        if total < demand.amount:
            missing = demand.format_missing(demand.amount - total)
            yield f"{demand.format_free(total)} can still be allocated in total: {missing}"
        elif demand.nodes > 1 and largest < demand.amount:
            missing = demand.format_missing(demand.amount - largest)
            yield f"no {demand.nodes} NUMA nodes together have more than {demand.format_free(largest)} free: {missing}"


def format_other_nodes(nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Format the number of NUMA nodes that are not listed one by one."""
    if len(nodes) > MOST_NODES:
        yield f"and {format_count(len(nodes) - MOST_NODES, 'NUMA node')} more (-o json has all)"


def format_node_sets(sets: Sequence[str]) -> str:
    """Format sets of NUMA nodes with the same result. A few sets are all named; more are replaced by an example and their number."""
    return " or ".join(sets) if len(sets) <= FEW_SETS else f"{sets[0]} and {len(sets) - 1} more sets"
