"""Interface that the modules in views/explain/resources implement, and texts that they share."""

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
"""Maximum number of sets of NUMA nodes that are listed if all have the same result. If there are more sets, one is named, and the others
are counted.
"""
MOST_NODES = 8
"""Maximum number of NUMA nodes that are listed one by one. The nodes with the smallest shortages are listed."""


class RefusedDecision(Struct, frozen=True):
    """Refused pod, and the node on which it was refused."""

    before: WhatIf
    """Node before the decision, reduced to the resources that the pod may get."""
    trace: Trace
    promises: Promises
    """Allocations at the time of the refusal. They include what the pod's earlier containers had already been allocated."""
    nodes: tuple[NodeHeadroom, ...]
    """NUMA nodes from which the pod may get resources, with their free resources."""

    def find_request(self, container: str | None) -> tuple[str, PodDemand | ContainerDemand]:
        """Return the name and the demand of a container. If `container` is None, return a name for the whole pod, and its demand."""
        if container is None:
            return "the pod as a whole", self.trace.demand
        return f"container {container}", next(c for c in self.trace.demand.containers if c.name == container)

    def format_class(self) -> str:
        """Format the required class of cores, such as ` on performance cores`. The result is empty if the pod requires no class."""
        core_class = self.trace.demand.core_class
        return "" if core_class is None else f" on {core_class} cores"

    def format_node(self) -> str:
        """Format the required NUMA node, such as ` on the required NUMA node 1`. The result is empty if the pod requires no node."""
        node = self.trace.demand.numa_node
        return "" if node is None else f" on the required NUMA node {node}"


class ResourceDemand(Protocol):
    """Requested amount of a resource, and the fewest NUMA nodes that could provide this amount on a machine without allocations."""

    @property
    def name(self) -> str: ...

    @property
    def amount(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def format_amount(self, amount: int) -> str:
        """Format an amount of the resource with its unit."""

    def format_free(self, amount: int) -> str:
        """Format a free amount of the resource, such as `4 CPUs in whole cores`."""

    def format_missing(self, amount: int) -> str:
        """Format a missing amount of the resource."""

    def free_on(self, node: NodeHeadroom) -> int:
        """Return the free amount of the resource on a NUMA node."""

    def capacity_of(self, node: NodeHeadroom) -> int:
        """Return how much of the resource a NUMA node has if nothing on it is allocated."""

    def describe_on(self, node: NodeHeadroom) -> str:
        """Describe the shortage of the resource on one NUMA node.

        The result is empty if the node has enough for its part of the request, or if it has none of the resource even when nothing is
        allocated.
        """


class ExplanationView(Struct, frozen=True):
    """Functions that describe one resource in an explanation. The defaults describe nothing."""

    step: Callable[[AllocationStep], Document | None]
    """Function that describes one step in the allocation of the resource. It returns None for a step that concerns another resource."""
    explain_step: Callable[[RefusedDecision, AllocationStep], Iterable[str] | None]
    """Function that explains why the allocation of the resource failed. It returns None for a step about another resource."""
    event: Callable[[ResourceEvent], Document | None] = lambda _: None
    """Function that describes an event that happened before the NUMA hints were made, such as the answer of a CPU plugin. It returns None
    for an event of another resource.
    """
    headroom: Callable[[NodeHeadroom], Document] = lambda _: {}
    """Function that describes the resource's free amounts on a NUMA node."""
    demands: Callable[[RefusedDecision, PodDemand | ContainerDemand], Iterable[ResourceDemand]] = lambda _pod, _demand: ()
    """Function that returns the amounts that a pod or container requests and that NUMA nodes must provide."""
    requested: Callable[[RefusedDecision, PodDemand | ContainerDemand], Iterable[str]] = lambda _pod, _demand: ()
    """Function that formats the amounts that a pod or container requests."""
    notes: Callable[[Sequence[ResourceDemand], NodeHeadroom], str] = lambda _demands, _node: ""
    """Function that describes why a request may be unable to use a NUMA node's free amounts."""
    holders: Callable[[NodeHeadroom], str] = lambda _: ""
    """Function that lists, in brackets, the pods that use the resource on a NUMA node. The result is empty if there are none."""
    reuse: Callable[[RefusedDecision], Iterable[str]] = lambda _: ()
    """Function that describes amounts allocated to the pod's init containers. The pod's other containers can get these amounts as if they
    were free.
    """


def format_node_count(demands: Iterable[ResourceDemand]) -> str:
    """Format the minimum number of NUMA nodes that could provide the demanded amounts, such as `on 2 NUMA nodes, the fewest that could hold
    it`.
    """
    counts = {demand.nodes for demand in demands} or {1}
    if counts == {1}:
        return "on a single NUMA node"
    if len(counts) == 1:
        return f"on {counts.pop()} NUMA nodes, the fewest that could hold it"
    each = ", ".join(f"{demand.name} on {demand.nodes}" for demand in demands)
    return f"each on the fewest NUMA nodes that could hold it: {each}"


def describe_total_shortages(demands: Iterable[ResourceDemand], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe each demand that exceeds what is free on all nodes together, or on any choice of as many nodes as the request needs."""
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
    """Format how many NUMA nodes are left out of a list. Yield nothing if the list contains all nodes."""
    if len(nodes) > MOST_NODES:
        yield f"and {format_count(len(nodes) - MOST_NODES, 'NUMA node')} more (-o json has all)"


def format_node_sets(sets: Sequence[str]) -> str:
    """Format sets of NUMA nodes that have the same result. If there are many sets, name the first one and count the others."""
    return " or ".join(sets) if len(sets) <= FEW_SETS else f"{sets[0]} and {len(sets) - 1} more sets"
