"""Explanation of all resources together, combined from the resources' modules. A resource without its own module is described in general
terms.
"""

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.explain.trace import ResourceStep
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.resources.explainer import AllocationStep, ResourceEvent
from nodeagent.views.explain.lacking import (
    MOST_NODES,
    Document,
    ExplanationView,
    RefusedDecision,
    ResourceDemand,
    describe_total_shortages,
)
from nodeagent.views.explain.resources import cpu, devices, memory
from nodeagent.views.wording.words import format_count

VIEWS: tuple[ExplanationView, ...] = (cpu.VIEW, memory.VIEW, devices.VIEW)
"""Views in the order in which the resources are allocated, except for devices.

Devices are allocated first, but their view is last, so that the explanation of a failed allocation of devices contains nothing about CPUs
and memory.
"""


def describe_headroom(node: NodeHeadroom) -> Document:
    """Describe the free resources of a NUMA node."""
    return {"node": node.id} | {name: value for view in VIEWS for name, value in view.headroom(node).items()}


def describe_events(events: Iterable[ResourceEvent]) -> list[Document]:
    """Describe events that happened before the NUMA hints were made, such as the answers of CPU plugins."""
    return [found for event in events for view in VIEWS if (found := view.event(event)) is not None]


def describe_allocation(step: AllocationStep) -> Document:
    """Describe one allocation of a resource."""
    found = next((found for view in VIEWS if (found := view.step(step)) is not None), None)
    if found is not None:
        return found
    assert isinstance(step, ResourceStep), "a resource with an explainer has a view"
    return {"container": step.container, "given": step.given, "resource": step.resource, "step": "resource"}


def explain_allocation(pod: RefusedDecision, step: AllocationStep) -> list[str] | None:
    """Explain why an allocation failed. None means that the refusal's message already says everything."""
    for at, view in enumerate(VIEWS):
        why = view.explain_step(pod, step)
        if why is not None:
            return [*why, *explain_reuse(pod, VIEWS[at:])]
    return None


def explain_reuse(pod: RefusedDecision, views: Iterable[ExplanationView] = VIEWS) -> Iterator[str]:
    """Describe the resources allocated to the pod's init containers. The pod's other containers can get these resources as if they were
    free.
    """
    return (line for view in views for line in view.reuse(pod))


def list_demands(pod: RefusedDecision, demand: PodDemand | ContainerDemand) -> list[ResourceDemand]:
    """Return the amounts that a pod or container requests and that NUMA nodes must provide."""
    return [each for view in VIEWS for each in view.demands(pod, demand)]


def format_requested(pod: RefusedDecision, demand: PodDemand | ContainerDemand) -> str:
    """Format the amounts of all resources that a pod or container requests."""
    return " and ".join(each for view in VIEWS for each in view.requested(pod, demand)) or "nothing of its own"


def describe_shortages(demands: Sequence[ResourceDemand], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe the shortages of all nodes together, then those of each node, the smallest shortage first."""
    yield from describe_total_shortages([demand for demand in demands if demand.nodes > 1], nodes)
    described = []
    for node in nodes:
        text = _describe_node(demands, node)
        # nodes are sorted by their shortage of the first requested resource, which is CPUs if CPUs are requested
        if text:
            demand = demands[0]
            wanted = demand.amount if demand.nodes == 1 else demand.capacity_of(node)
            described.append((wanted - demand.free_on(node), node.id, text))
    described.sort()
    yield from (text for _, _, text in described[:MOST_NODES])
    more = len(described) - MOST_NODES
    if more > 0:
        yield f"and {format_count(more, 'NUMA node')} that {'have' if more > 1 else 'has'} less"
    for demand in demands:
        without = [node for node in nodes if not demand.capacity_of(node) and not demand.describe_on(node)]
        if without:
            yield f"NUMA {NumaSet.from_ids(node.id for node in without)}: no {demand.name}"


def _describe_node(demands: Sequence[ResourceDemand], node: NodeHeadroom) -> str:
    """Describe the shortages of a node. The result is empty if the node has enough of every resource."""
    parts = [*(demand.describe_on(node) for demand in demands), *(view.notes(demands, node) for view in VIEWS)]
    found = "; ".join(filter(None, parts))
    return f"NUMA {node.id}: {found}{''.join(view.holders(node) for view in VIEWS)}" if found else ""
