"""Memory in an explanation: the allocated blocks, the free memory of each NUMA node, and the reason for a shortage."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.explain.trace import Trace
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.pod import HUGEPAGES_PREFIX, MEMORY
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.explainer import AllocationStep
from nodeagent.core.resources.memory.explainer import MemoryHeadroom, MemoryStep
from nodeagent.core.resources.memory.groups import fewest_nodes
from nodeagent.core.resources.memory.holdings import MemoryBooks, memory_accounts
from nodeagent.views.explain.lacking import (
    MOST_NODES,
    Document,
    ExplanationView,
    RefusedDecision,
    ResourceDemand,
    describe_total_shortages,
    format_other_nodes,
)
from nodeagent.views.wording.words import format_bytes, format_missing_bytes, format_requested_bytes


class MemoryDemand(Struct, frozen=True):
    """Requested memory or huge pages. Implements `ResourceDemand` (views/explain/lacking.py)."""

    name: str
    amount: int
    nodes: int

    def format_amount(self, amount: int) -> str:
        return f"{_format_bytes(amount)} of {self.name}"

    def format_free(self, amount: int) -> str:
        return self.format_amount(amount)

    def format_missing(self, amount: int) -> str:
        return f"{format_missing_bytes(amount)} short"

    def free_on(self, node: NodeHeadroom) -> int:
        return node.of(MemoryHeadroom).free_of(self.name)

    def capacity_of(self, node: NodeHeadroom) -> int:
        return node.of(MemoryHeadroom).allocatable_of(self.name)

    def describe_on(self, node: NodeHeadroom) -> str:
        if not node.of(MemoryHeadroom).amounts:
            return ""
        free, has = self.free_on(node), self.capacity_of(node)
        if self.nodes > 1:
            return f"{self.format_free(free)} free, of {format_bytes(has)}" if free < has else ""
        return f"{self.format_free(free)} free, {self.format_missing(self.amount - free)}" if free < self.amount else ""


def _format_bytes(amount: int) -> str:
    return format_bytes(amount) if amount else "0"


def _list_demands(pod: RefusedDecision, demand: PodDemand | ContainerDemand) -> Iterator[MemoryDemand]:
    """Yield the requested amounts of memory and huge pages. Yield nothing if the memory manager's policy isn't Static."""
    books = pod.before.promises
    wanted = tuple((resource, size) for resource, size in demand.memory or () if size and memory_accounts(books))
    for resource, size in wanted:
        yield MemoryDemand(resource, size, 1 if pod.trace.demand.numa_node is not None else fewest_nodes(books, wanted))


def _format_requested(_pod: RefusedDecision, demand: PodDemand | ContainerDemand) -> Iterator[str]:
    return (f"{format_bytes(size)} of {resource}" for resource, size in demand.memory or () if size)


def _describe_headroom(node: NodeHeadroom) -> Document:
    own = node.of(MemoryHeadroom)
    return {
        "group": None if own.group is None else str(own.group),
        "memory": {m.resource: {"allocatable": m.allocatable_bytes, "free": m.free_bytes} for m in own.amounts},
    }


def _describe_step(step: AllocationStep) -> Document | None:
    if not isinstance(step, MemoryStep):
        return None
    hint = step.hint
    return {
        "blocks": [{"bytes": b.size_bytes, "nodes": str(b.nodes), "resource": b.resource} for b in step.blocks],
        "container": step.container,
        "hint": None if hint.mask is None else str(hint.mask),
        "refused": step.refused,
        "spread": step.is_spread,
        "step": "memory",
        "taken": [{"bytes": size, "node": node, "resource": resource} for node, resource, size in step.taken],
    }


def _explain_step(pod: RefusedDecision, step: AllocationStep) -> Iterable[str] | None:
    return _explain_memory(pod, step) if isinstance(step, MemoryStep) else None


def _explain_memory(pod: RefusedDecision, step: MemoryStep) -> Iterator[str]:
    unread = list(explain_unread(pod.trace))
    if unread:
        yield from unread
        return
    name, demand = pod.find_request(step.container)
    memory, nodes = demand.memory or (), [(node, node.of(MemoryHeadroom)) for node in pod.nodes]
    wanted = ", ".join(f"{format_bytes(size)} of {resource}" for resource, size in memory)
    first = "" if step.hint.mask is None else f": first on NUMA {step.hint.mask} of the hint, or also on other nodes"
    yield f"{name} wants {wanted}{pod.format_node() or first}"
    yield from describe_total_shortages(_list_demands(pod, demand), pod.nodes)
    for node, own in nodes[:MOST_NODES]:
        amounts = ", ".join(f"{_format_bytes(own.free_of(r))} of {r}" for r, _ in memory)
        group = "" if own.group is None else f", allocated only together with the memory of NUMA {own.group}"
        yield f"NUMA {node.id}: {amounts} free{group}"
    yield from format_other_nodes(pod.nodes)
    if len(nodes) > 1 and all(sum(own.free_of(resource) for _, own in nodes) >= size for resource, size in memory):
        yield "there is enough in total, but a NUMA node whose memory is already in use alone or in a group can't join another group"


def explain_unread(trace: Trace) -> Iterator[str]:
    """Explain each requested amount that the memory manager can't read as a whole number of bytes."""
    unread = {c.name for c in trace.demand.containers if c.memory is None}
    requests = [(f"container {c.name}", c.resources.requests) for c in trace.pod.containers if c.name in unread]
    if trace.demand.memory is None and trace.pod.resources is not None:
        requests.append(("the pod as a whole", trace.pod.resources.requests))
    for owner, amounts in requests:
        for resource, amount in amounts:
            if (resource == MEMORY or resource.startswith(HUGEPAGES_PREFIX)) and amount.as_int64() is None:
                if amount.value() * 10**9 == amount.nano:
                    yield (
                        f"{owner} requests {resource} with a decimal point, an m or too many digits, which is not read as "
                        f"whole bytes: write {Quantity.of_bytes(amount.value())}"
                    )
                else:
                    yield f"{owner} requests {format_requested_bytes(amount)} of {resource}, which is not a whole number of bytes"


def _describe_group(demands: Sequence[ResourceDemand], node: NodeHeadroom) -> str:
    group = node.of(MemoryHeadroom).group
    if group is None or not any(isinstance(demand, MemoryDemand) for demand in demands):
        return ""
    return f"its memory is allocated only together with that of NUMA {group}"


def _explain_reuse(pod: RefusedDecision) -> Iterator[str]:
    reuse = pod.promises.of(MemoryBooks).reuse
    for (nodes, resource), size in () if reuse is None or reuse.pod_uid != pod.trace.pod.uid else reuse.amounts:
        if size:
            yield (
                f"{format_bytes(size)} of {resource} of its init containers on NUMA {nodes} counts as free only if the pod gets exactly "
                f"{'this node' if len(nodes) == 1 else 'these nodes'}"
            )


VIEW = ExplanationView(
    step=_describe_step,
    explain_step=_explain_step,
    headroom=_describe_headroom,
    demands=_list_demands,
    requested=_format_requested,
    notes=_describe_group,
    reuse=_explain_reuse,
)
