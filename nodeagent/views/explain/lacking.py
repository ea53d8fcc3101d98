"""Contract of a resource's module in views/explain/resources, and what is missing of all resources on several NUMA nodes."""

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
"""Largest number of NUMA nodes with the same shortage that are all named."""
MOST_NODES = 8
"""Largest number of NUMA nodes listed one by one: the nodes with the smallest shortages."""


class RefusedDecision(Struct, frozen=True):
    """A refused pod, and the node on which it was refused."""

    before: WhatIf
    """The node with only the resources that the pod may have."""
    trace: Trace
    promises: Promises
    """Promises at the time of the refusal, including the allocations of the pod's earlier containers."""
    nodes: tuple[NodeHeadroom, ...]
    """The NUMA nodes that the pod may have."""

    def find_request(self, container: str | None) -> tuple[str, PodDemand | ContainerDemand]:
        """Return the name of the requester and its demand. A container of None means the pod as a whole."""
        if container is None:
            return "the pod as a whole", self.trace.demand
        return f"container {container}", next(c for c in self.trace.demand.containers if c.name == container)

    def format_class(self) -> str:
        """Format the required class of cores. Empty without one."""
        core_class = self.trace.demand.core_class
        return "" if core_class is None else f" on {core_class} cores"

    def format_node(self) -> str:
        """Format the required NUMA node. Empty without one."""
        node = self.trace.demand.numa_node
        return "" if node is None else f" on the required NUMA node {node}"


class ResourceDemand(Protocol):
    """Requested amount of a resource, with the fewest NUMA nodes that could provide it on an empty machine."""

    @property
    def name(self) -> str: ...

    @property
    def amount(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    def format_amount(self, amount: int) -> str:
        """Format an amount of the resource."""

    def format_free(self, amount: int) -> str:
        """Format a free amount of the resource."""

    def format_missing(self, amount: int) -> str:
        """Format a missing amount."""

    def free_on(self, node: NodeHeadroom) -> int:
        """Return the free amount on a node."""

    def capacity_of(self, node: NodeHeadroom) -> int:
        """Return the amount on a node when it is empty."""

    def describe_on(self, node: NodeHeadroom) -> str:
        """Describe the shortage of a node. Empty if the node has enough for its part, or none of the resource even when empty."""


class ExplanationView(Struct, frozen=True):
    """Parts of an explanation that are about one resource. By default, there are none."""

    step: Callable[[AllocationStep], Document | None]
    """Describes an allocation of the resource. None means that the step is another resource's."""
    explain_step: Callable[[RefusedDecision, AllocationStep], Iterable[str] | None]
    """Explains why the resource's allocation failed. None means that the step is another resource's."""
    event: Callable[[ResourceEvent], Document | None] = lambda _: None
    """Describes an event before hints."""
    headroom: Callable[[NodeHeadroom], Document] = lambda _: {}
    """Describes the free amounts of a NUMA node."""
    demands: Callable[[RefusedDecision, PodDemand | ContainerDemand], Iterable[ResourceDemand]] = lambda _pod, _demand: ()
    """Returns the requested amounts that NUMA nodes must provide."""
    requested: Callable[[RefusedDecision, PodDemand | ContainerDemand], Iterable[str]] = lambda _pod, _demand: ()
    """Formats the requested amounts."""
    notes: Callable[[Sequence[ResourceDemand], NodeHeadroom], str] = lambda _demands, _node: ""
    """Describes why a NUMA node's amounts may be unusable for the request."""
    holders: Callable[[NodeHeadroom], str] = lambda _: ""
    """Names in brackets the pods that have the amounts of a NUMA node. Empty without any."""
    reuse: Callable[[RefusedDecision], Iterable[str]] = lambda _: ()
    """Describes the amounts of the pod's init containers, which count as free for the pod."""


def format_node_count(demands: Iterable[ResourceDemand]) -> str:
    """Format the number of NUMA nodes."""
    counts = {demand.nodes for demand in demands} or {1}
    if counts == {1}:
        return "on a single NUMA node"
    if len(counts) == 1:
        return f"on {counts.pop()} NUMA nodes, the fewest that could hold it"
    each = ", ".join(f"{demand.name} on {demand.nodes}" for demand in demands)
    return f"each on the fewest NUMA nodes that could hold it: {each}"


def describe_total_shortages(demands: Iterable[ResourceDemand], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe the shortages of all nodes together, or of as many as are needed."""
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
    """Format the number of NUMA nodes beyond those listed one by one."""
    if len(nodes) > MOST_NODES:
        yield f"and {format_count(len(nodes) - MOST_NODES, 'NUMA node')} more (-o json has all)"


def format_node_sets(sets: Sequence[str]) -> str:
    """Format sets of nodes with the same result. A few are all named, more are replaced by an example and their number."""
    return " or ".join(sets) if len(sets) <= FEW_SETS else f"{sets[0]} and {len(sets) - 1} more sets"
