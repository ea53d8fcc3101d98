"""CPUs in an explanation: the chosen CPUs, the free CPUs of each NUMA node, and why there are too few."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import ClassVar

from msgspec import Struct

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.resources.cpu.explainer import CpuChoice, CpuExplainer, CpuHeadroom, CpuStep
from nodeagent.core.resources.cpu.layout import CpuLayout
from nodeagent.core.resources.cpu.manager import CpuManager, reusable_cpus
from nodeagent.core.resources.cpu.observing import PluginAnswered
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.explainer import AllocationStep, ResourceEvent
from nodeagent.views.explain.lacking import (
    MOST_NODES,
    Document,
    ExplanationView,
    RefusedDecision,
    format_other_nodes,
)
from nodeagent.views.wording.words import format_count

_MOST_HOLDERS = 8


class CpuDemand(Struct, frozen=True):
    """Requested CPUs. Implements `ResourceDemand` (views/explain/lacking.py)."""

    amount: int
    nodes: int
    whole_cores: bool = False
    """Whether only the CPUs of completely free cores can satisfy the request."""
    name: ClassVar[str] = "CPUs"

    def format_amount(self, amount: int) -> str:
        return format_count(amount, "CPU")

    def format_free(self, amount: int) -> str:
        return self.format_amount(amount) + (" in whole cores" if self.whole_cores else "")

    def format_missing(self, amount: int) -> str:
        return f"{amount} short"

    def free_on(self, node: NodeHeadroom) -> int:
        own = node.of(CpuHeadroom)
        return len(own.free - own.split if self.whole_cores else own.free)

    def capacity_of(self, node: NodeHeadroom) -> int:
        return len(node.of(CpuHeadroom).cpus)

    def describe_on(self, node: NodeHeadroom) -> str:
        free, has, split = self.free_on(node), self.capacity_of(node), node.of(CpuHeadroom).split
        if not has:
            return ""
        found = f"{self.format_free(free)} free of {has}"
        if self.whole_cores and split:
            found += f" ({split} are in partly used cores)"
        if self.nodes > 1:
            return found if free < has else ""
        return f"{found}, {self.format_missing(self.amount - free)}" if free < self.amount else ""


def _find_manager(before: WhatIf) -> CpuManager:
    return before.managers.providers.of(CpuResource).manager


def _list_demands(pod: RefusedDecision, demand: PodDemand | ContainerDemand) -> Iterator[CpuDemand]:
    manager = _find_manager(pod.before)
    if demand.cpus:
        nodes = 1 if pod.trace.demand.numa_node is not None else manager.layout.fewest_nodes(demand.cpus)
        yield CpuDemand(demand.cpus, nodes, manager.picking.whole_cores)


def _format_requested(pod: RefusedDecision, demand: PodDemand | ContainerDemand) -> Iterator[str]:
    if demand.cpus:
        yield format_count(demand.cpus, "CPU") + pod.format_class()


def describe_headroom(node: NodeHeadroom) -> Document:
    """Describe the CPUs of a NUMA node."""
    own = node.of(CpuHeadroom)
    return {
        "caches": own.caches,
        "cpus": str(own.cpus),
        "free": str(own.free),
        "freeCount": len(own.free),
        "holders": [{"container": h.container, "cpus": str(h.cpus), "pod": h.pod} for h in own.holders],
        "reserved": str(own.reserved),
        "splitCpus": str(own.split),
        "wholeCaches": own.whole_caches,
        "wholeCores": own.whole_cores,
    }


def measure_fragmentation(node: NodeHeadroom) -> int:
    """Return the percentage of a node's free CPUs that are on partly used cores."""
    own = node.of(CpuHeadroom)
    return 100 * len(own.split) // len(own.free) if own.free else 0


def count_free_cpus(what_if: WhatIf, nodes: Sequence[NodeHeadroom]) -> tuple[int, int]:
    """Return the number of free CPUs on the given nodes, and the number of CPUs of the largest container that fits on one of them."""
    own = [node.of(CpuHeadroom) for node in nodes]
    explainer = CpuExplainer(what_if.managers.providers.of(CpuResource))
    return sum(len(node.free) for node in own), explainer.find_largest_usable(what_if.promises, own)


def _describe_step(step: AllocationStep) -> Document | None:
    if not isinstance(step, CpuStep):
        return None
    return {
        **({"answers": [_describe_event(answer) for answer in step.answers]} if step.answers else {}),
        "choices": [_describe_choice(choice) for choice in step.choices],
        "container": step.container,
        "cpus": str(step.cpus),
        "refused": step.refused,
        "reused": str(step.reused),
        "step": "cpus",
    }


def _describe_event(event: ResourceEvent) -> Document | None:
    """Describe the answer of a CPU plugin. None means that the event is about another resource."""
    if not isinstance(event, PluginAnswered):
        return None
    return {"cpus": str(event.cpus), "plugin": event.plugin, "point": event.point, "score": event.score}


def _describe_choice(choice: CpuChoice) -> Document:
    return {
        "available": str(choice.available),
        "container": choice.container,
        "count": choice.count,
        "groups": [
            {
                "cpus": str(g.cpus),
                **({} if g.plugin is None else {"plugin": g.plugin}),
                "remainder": g.is_remainder,
                "rule": g.rule.value,
                "shareOf": g.share_of,
            }
            for g in choice.groups
        ],
        "isolated": choice.isolated,
        "source": choice.source.value,
    }


def _explain_step(pod: RefusedDecision, step: AllocationStep) -> Iterable[str] | None:
    return _explain_cpus(pod, step) if isinstance(step, CpuStep) else None


def _explain_cpus(pod: RefusedDecision, step: CpuStep) -> Iterator[str]:
    name, demand = pod.find_request(step.container)
    cpus, with_cpus = demand.cpus, [(node, own) for node in pod.nodes if (own := node.of(CpuHeadroom)).cpus]
    free = sum(len(own.free) for _, own in with_cpus)
    if _find_manager(pod.before).options.full_pcpus_only:
        yield from _explain_whole_cores(pod, name, cpus)
        if not _is_alignable(pod.before, cpus):
            return
    else:
        where = pod.format_class() + pod.format_node()
        yield f"{name} wants {format_count(cpus, 'CPU')} exclusively{where}, and {free} can still be allocated: {max(0, cpus - free)} short"
    for node, own in with_cpus[:MOST_NODES]:
        yield f"NUMA {node.id}: {len(own.free)} of {len(own.cpus)} free{format_holders(node)}"
    yield from format_other_nodes([node for node, _ in with_cpus])
    if pod.before.managers.placement.isolated_cpus == "only":
        yield "isolatedCPUs is only: only isolated CPUs are allocated"


def _explain_whole_cores(pod: RefusedDecision, name: str, cpus: int) -> Iterator[str]:
    """Explain why whole cores can't provide the requested CPUs: no combination of whole cores has this number of CPUs, or too few cores are
    free.
    """
    manager, nodes = _find_manager(pod.before), [node.of(CpuHeadroom) for node in pod.nodes]
    layout, of = manager.layout, pod.format_class()
    wants = f"{name} wants {format_count(cpus, 'CPU')}{of}, and full-pcpus-only allocates only whole cores"
    # kubelet uses the average size of cores instead of the size of each core.
    uneven = manager.picking.whole_cores and layout.core_size is None
    yield wants + (
        f": {_format_cores(layout, layout.online)}" if uneven else f" of {format_count(layout.per_core, 'CPU')}"
    )
    if not _is_alignable(pod.before, cpus):
        if manager.picking.whole_cores and cpus > (total := layout.online.bit_count()):
            yield f"all cores together have {format_count(total, 'CPU')}"
            return
        unaligned = [
            f"{c.cpus} (container {c.name})"
            for c in pod.trace.demand.containers
            if f"container {c.name}" != name
            and c.cpus <= layout.online.bit_count()
            and not _is_alignable(pod.before, c.cpus)
        ]
        more = f", nor is {', nor '.join(unaligned)}" if unaligned else ""
        yield (f"{cpus} is not a sum of these" if uneven else f"{cpus} is not a multiple of {layout.per_core}") + more
        return
    free = sum(len(node.free) for node in nodes)
    if uneven:
        whole = CpuMask(reduce(or_, ((node.free - node.split).bits for node in nodes), 0))
        yield f"completely free: {_format_cores(layout, whole) or 'none'}, of {format_count(free, 'free CPU')} in total"
        return
    cores, split = sum(node.whole_cores for node in nodes), [str(node.split) for node in nodes if node.split]
    halves = f"; {','.join(split)} are in partly used cores" if split else ""
    yield f"{format_count(cores, 'core')} {'is' if cores == 1 else 'are'} completely free, {format_count(free, 'CPU')} in total{halves}"


def _is_alignable(before: WhatIf, cpus: int) -> bool:
    """Return whether whole cores could provide exactly this number of CPUs, as full-pcpus-only requires, if the machine were empty."""
    manager = _find_manager(before)
    if manager.picking.whole_cores:
        return manager.layout.can_take_whole_cores(manager.layout.online, cpus)
    return cpus % (manager.layout.per_core or 1) == 0


def _format_cores(layout: CpuLayout, cpus: CpuMask) -> str:
    """Format how many cores of each size are among the CPUs, such as `2 cores of 2 CPUs`. The largest cores come first."""
    sizes = Counter(core.size for core in layout.cores if core.cpus & cpus)
    return ", ".join(
        f"{format_count(number, 'core')} of {format_count(size, 'CPU')}"
        for size, number in sorted(sizes.items(), reverse=True)
    )


def format_holders(node: NodeHeadroom) -> str:
    """Return the names of the owners of a node's CPUs, in brackets. The result is empty if there are no owners."""
    own = node.of(CpuHeadroom)
    holders = [f"{h.pod} {h.container or ''}".rstrip() + f" has {h.cpus}" for h in own.holders]
    more = len(holders) - _MOST_HOLDERS
    held = ", ".join(holders if more <= 0 else [*holders[:_MOST_HOLDERS], f"and {more} more (-o json has all)"])
    reserved = f"reserved {own.reserved}" if own.reserved else ""
    taken = "; ".join(part for part in (held, reserved) if part)
    return f" ({taken})" if taken else ""


def _explain_reuse(pod: RefusedDecision) -> Iterator[str]:
    lent = CpuSet(reusable_cpus(pod.promises, pod.trace.pod.uid))
    if lent:
        yield (
            f"{'CPU' if len(lent) == 1 else 'CPUs'} {lent} of the pod's init containers, on NUMA "
            f"{pod.before.managers.topology.numa_of(lent)}, "
            f"{'counts' if len(lent) == 1 else 'count'} as free for the pod, which must run there"
        )


VIEW = ExplanationView(
    step=_describe_step,
    explain_step=_explain_step,
    event=_describe_event,
    headroom=describe_headroom,
    demands=_list_demands,
    requested=_format_requested,
    holders=format_holders,
    reuse=_explain_reuse,
)
