"""Sentences about a refusal: the resources missing on each NUMA node, and the remedies. The layout is in text.py."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import or_

from msgspec.structs import replace

from nodeagent.core.admission.asked_for import limit_to_pod
from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.merge_trace import MergeTrace, Opinion
from nodeagent.core.explain.numa_headroom import NodeHeadroom, headroom
from nodeagent.core.explain.remedy import Amount, Remedy, RequestChange
from nodeagent.core.explain.trace import Trace
from nodeagent.core.model.demand import Amounts, why_shared
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, ContainerKind
from nodeagent.core.model.pod_resources import is_device
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import Reason
from nodeagent.core.resources.cpu.holdings import CpuBooks
from nodeagent.core.resources.cpu.layout import CpuLayout
from nodeagent.core.resources.cpu.pods import check_pod as check_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.cpu.steps import CpuStep
from nodeagent.core.resources.devices.steps import DeviceStep
from nodeagent.core.resources.memory.holdings import MemoryBooks
from nodeagent.core.resources.memory.pods import check_pod as check_memory
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.resources.memory.steps import MemoryStep
from nodeagent.views.explain.lacking import (
    MOST_NODES,
    describe_shortages,
    describe_total_shortages,
    find_demands,
    format_holders,
    format_node_count,
    format_node_sets,
    require_one_node,
)
from nodeagent.views.wording.words import format_bytes, format_count

_MOST_ENDED = 8
"""Number of pods to end that are named."""


def explain_refusal(before: WhatIf, trace: Trace) -> list[str]:
    """Explain which resources were missing on which NUMA nodes.

    Args:
        before: the node on which the pod was refused.
        trace: the trace of the decision.
    """
    decision = trace.decision
    assert not isinstance(decision, Admitted), "only a refusal has a why"
    if isinstance(decision, UnitTaken):
        return [f"a unit has only one pod, and {decision.unit} already belongs to pod {decision.holder}"]
    if isinstance(decision, Insufficient):
        return list(_explain_capacity(before, decision))
    if decision.reason is Reason.EMPTY_POD_SHARED_POOL:
        return list(_explain_budget(trace))
    if decision.reason in {Reason.CPU_PLUGIN_FAILED, Reason.CPU_PLUGIN_REFUSED}:
        return ["see the message"]
    if decision.reason is Reason.CORE_CLASS and trace.demand.asks_for_cpus:
        return ["see the message"]
    # If the pod requires a class of cores, only these cores count from here on.
    own = limit_to_pod(before.managers.providers, trace.demand)
    before = replace(before, managers=replace(before.managers, providers=own))
    last = trace.steps[-1] if trace.steps else None
    promises = decision.attempted  # including the allocations of the pod's earlier containers
    reuse = promises.of(CpuBooks).reuse
    lent = CpuSet() if reuse is None or reuse.pod_uid != trace.pod.uid else reuse.cpus
    nodes = headroom(before.managers, promises, (*before.pods, trace.pod), lent, trace.demand.core_class)
    if trace.demand.numa_node is not None:
        nodes = tuple(node for node in nodes if node.id == trace.demand.numa_node)
    if isinstance(last, MergeTrace):
        return [*_explain_merge(before, trace, last, nodes), *_explain_reuse(before, promises, trace.pod.uid, lent)]
    if isinstance(last, CpuStep):
        return [*_explain_cpus(before, trace, last, nodes), *_explain_reuse(before, promises, trace.pod.uid, lent)]
    if isinstance(last, DeviceStep):
        return ["see the message"]
    if isinstance(last, MemoryStep):
        return [
            *_explain_memory(before, trace, last, nodes),
            *_explain_reuse(before, promises, trace.pod.uid, CpuSet()),
        ]
    shared = [(c.name, why_shared(before.managers.placement, trace.pod, c)) for c in trace.pod.containers]
    return [f"container {name} has no exclusive CPUs: {why.value}" for name, why in shared if why is not None] or [
        "see the message"
    ]


def _explain_capacity(before: WhatIf, short: Insufficient) -> Iterator[str]:
    missing = short.requested - (short.capacity - short.used)
    if short.resource == "pods":
        yield f"the node allows {short.capacity} pods (maxPods, podsPerCore) and has {short.used}"
        return
    left = max(0, short.capacity - short.used)
    yield (
        f"the pod requests {_format_amount(short.resource, short.requested)} {short.resource}; "
        f"of {_format_amount(short.resource, short.capacity)} for pods, {_format_amount(short.resource, left)} left: "
        f"{_format_amount(short.resource, missing)} short"
    )
    if before.pods:
        verb = "requests" if len(before.pods) == 1 else "request"
        yield f"the {format_count(len(before.pods), 'pod')} on the node {verb} {_format_amount(short.resource, short.used)} of it"
    yield "this is checked for the whole node (checkAllocatable), before single CPUs and NUMA nodes"


def _format_amount(resource: str, amount: int) -> str:
    if is_device(resource):
        return str(amount)
    if resource != CPU:
        return format_bytes(amount) if amount else "0"
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def _explain_budget(trace: Trace) -> Iterator[str]:
    """Compare the pod-level amounts with the exclusive amounts of the containers."""
    demand = trace.demand
    unread = list(_explain_unread_memory(trace))
    if unread:
        yield from unread
        return
    staying = [c for c in demand.containers if c.kind is not ContainerKind.INIT]
    for name, amount in (("CPUs", demand.cpus), *(demand.memory or ())):
        taken = [(c.name, c.cpus if name == "CPUs" else dict(c.memory or ()).get(name, 0)) for c in staying]
        alone = [(container, size) for container, size in taken if size]
        exclusive_amounts = ", ".join(f"{container} {_format_size(name, size)}" for container, size in alone)
        left = max(0, amount - sum(size for _, size in alone))
        yield (
            f"of the pod's {_format_size(name, amount)} {name} its containers take exclusively: {exclusive_amounts or 'nothing'}; "
            f"left: {_format_size(name, left)}"
        )
    sharing = [c.name for c in demand.containers if not c.cpus]
    if sharing:
        yield f"{', '.join(sharing)} can have only the rest"


def _explain_unread_memory(trace: Trace) -> Iterator[str]:
    """Name the amounts that the memory manager can't read. There are none if each is a whole number of bytes."""
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
                    more = Quantity.of_bytes(-(-amount.value() // 2**20) * 2**20)
                    yield f"{owner} requests {amount} of {resource}, which is not a whole number of bytes: write {more}, for instance"


def _format_size(name: str, amount: int) -> str:
    return str(amount) if name == "CPUs" or not amount else format_bytes(amount)


def _find_request(trace: Trace, container: str | None) -> tuple[str, int, Amounts]:
    """Return the name of the requester (the pod or a container), its CPUs and its memory."""
    if container is None:
        return "the pod as a whole", trace.demand.cpus, trace.demand.memory or ()
    demand = next(c for c in trace.demand.containers if c.name == container)
    return f"container {container}", demand.cpus, demand.memory or ()


def _explain_merge(before: WhatIf, trace: Trace, merge: MergeTrace, nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    budget_error = _explain_invalid_budget(before, trace) if merge.container is None else None
    if budget_error is not None:
        yield budget_error
        yield from _explain_budget(trace)
        return
    name, cpus, memory = _find_request(trace, merge.container)
    amounts = [format_count(cpus, "CPU") + _format_class(trace.demand.core_class)] if cpus else []
    amounts += [f"{format_bytes(size)} of {resource}" for resource, size in memory if size]
    request = " and ".join(amounts) or "nothing of its own"
    topology = before.managers.providers.topology
    single = topology.rules.single_node
    demands = find_demands(cpus, memory, before)
    where = "on a single NUMA node" if single else format_node_count(demands)
    if trace.demand.numa_node is not None:
        single, demands, where = True, require_one_node(demands), f"on {_format_node(trace)}"
    yield f"{name} wants {request} {where} (topologyManagerPolicy {topology.policy.value})"
    largest = {demand: max((demand.capacity_of(node) for node in nodes), default=0) for demand in demands}
    too_large = [demand for demand in demands if single and demand.amount > largest[demand]]
    if too_large:
        subject = "no NUMA node is large enough: the largest" if len(nodes) > 1 else "the node is not large enough: it"
        yield from (f"{subject} has {demand.format_amount(largest[demand])}" for demand in too_large)
        return
    yield from describe_shortages(demands, nodes)
    yield from _explain_devices(trace, merge)
    fitting = {
        resource: [str(c.nodes) for c in merge.candidates if dict(c.opinions)[resource] is Opinion.PREFERRED]
        for resource, _ in (merge.candidates[0].opinions if merge.candidates else ())
    }
    suited = {resource: found for resource, found in fitting.items() if found}
    if len(suited) > 1:
        locations = "; ".join(f"{resource} would be on {format_node_sets(found)}" for resource, found in suited.items())
        yield f"no set of NUMA nodes suits all resources: {locations}"


def _explain_devices(trace: Trace, merge: MergeTrace) -> Iterator[str]:
    """Describe each extended resource with too few free devices, or with free devices on too many NUMA nodes."""
    own = {resource for resource, _ in trace.demand.devices}
    for resource, _ in merge.candidates[0].opinions if merge.candidates and merge.all_sets else ():
        offered = [(dict(each.opinions)[resource], str(each.nodes)) for each in merge.candidates]
        opinions = {opinion for opinion, _ in offered}
        if resource not in own or opinions & {Opinion.PREFERRED, Opinion.ANY}:
            continue
        if Opinion.POSSIBLE in opinions:
            sets = format_node_sets([nodes for opinion, nodes in offered if opinion is Opinion.POSSIBLE])
            yield f"{resource}: enough are free only on NUMA {sets}, while an empty machine would need fewer nodes"
        else:
            yield f"{resource}: too few are free on all NUMA nodes together"


def _explain_reuse(before: WhatIf, promises: Promises, uid: str, lent: CpuSet) -> Iterator[str]:
    """Describe the resources of the pod's init containers, which count as free for the pod."""
    if lent:
        yield (
            f"{'CPU' if len(lent) == 1 else 'CPUs'} {lent} of the pod's init containers, on NUMA {before.managers.topology.numa_of(lent)}, "
            f"{'counts' if len(lent) == 1 else 'count'} as free for the pod, which must run there"
        )
    reuse = promises.of(MemoryBooks).reuse
    for (nodes, resource), size in () if reuse is None or reuse.pod_uid != uid else reuse.amounts:
        if size:
            yield (
                f"{format_bytes(size)} of {resource} of its init containers on NUMA {nodes} counts as free only if the pod gets exactly "
                f"{'this node' if len(nodes) == 1 else 'these nodes'}"
            )


def _explain_invalid_budget(before: WhatIf, trace: Trace) -> str | None:
    """Explain an error in the pod-level amounts. None means that they are valid."""
    demand, providers = trace.demand, before.managers.providers
    if not demand.is_managed:
        return None
    refusal = (
        check_cpus(providers.of(CpuResource).manager, demand)
        if providers.of(CpuResource).manager.static and demand.cpus
        else None
    )
    if refusal is None and providers.of(MemoryResource).manager.static and demand.memory is not None:
        refusal = check_memory(providers.of(MemoryResource).manager, demand)
    return None if refusal is None else refusal.message


def _explain_cpus(before: WhatIf, trace: Trace, step: CpuStep, nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    name, cpus, _ = _find_request(trace, step.container)
    free = sum(len(node.free) for node in nodes)
    options = before.managers.providers.of(CpuResource).manager.options
    if options.full_pcpus_only:
        yield from _explain_whole_cores(before, trace, name, cpus, nodes)
        if not _is_alignable(before, cpus):
            return
    else:
        where = "" if trace.demand.numa_node is None else f" on {_format_node(trace)}"
        where = _format_class(trace.demand.core_class) + where
        yield f"{name} wants {format_count(cpus, 'CPU')} exclusively{where}, and {free} can still be allocated: {max(0, cpus - free)} short"
    with_cpus = [node for node in nodes if node.cpus]
    for node in with_cpus[:MOST_NODES]:
        yield f"NUMA {node.id}: {len(node.free)} of {len(node.cpus)} free{format_holders(node)}"
    yield from _format_other_nodes(with_cpus)
    if before.managers.placement.isolated_cpus == "only":
        yield "isolatedCPUs is only: only isolated CPUs are allocated"


def _explain_whole_cores(
    before: WhatIf, trace: Trace, name: str, cpus: int, nodes: tuple[NodeHeadroom, ...]
) -> Iterator[str]:
    """Compare the request with the sizes of the machine's cores, or else with the cores that are free."""
    manager = before.managers.providers.of(CpuResource).manager
    layout, of = manager.layout, _format_class(trace.demand.core_class)
    wants = f"{name} wants {format_count(cpus, 'CPU')}{of}, and full-pcpus-only allocates only whole cores"
    # kubelet takes an average for the size of every core.
    uneven = manager.picking.whole_cores and layout.core_size is None
    yield wants + (
        f": {_format_cores(layout, layout.online)}" if uneven else f" of {format_count(layout.per_core, 'CPU')}"
    )
    if not _is_alignable(before, cpus):
        if manager.picking.whole_cores and cpus > (total := layout.online.bit_count()):
            yield f"all cores together have {format_count(total, 'CPU')}"
            return
        unaligned = [
            f"{c.cpus} (container {c.name})"
            for c in trace.demand.containers
            if f"container {c.name}" != name
            and c.cpus <= layout.online.bit_count()
            and not _is_alignable(before, c.cpus)
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
    """Whether whole cores of the empty machine can have this number of CPUs, as full-pcpus-only decides it."""
    manager = before.managers.providers.of(CpuResource).manager
    if manager.picking.whole_cores:
        return manager.layout.adds_up(manager.layout.online, cpus)
    return cpus % (manager.layout.per_core or 1) == 0


def _format_cores(layout: CpuLayout, cpus: CpuMask) -> str:
    """Format the numbers of the cores of each size, largest first."""
    sizes = Counter(core.size for core in layout.cores if core.cpus & cpus)
    return ", ".join(
        f"{format_count(number, 'core')} of {format_count(size, 'CPU')}"
        for size, number in sorted(sizes.items(), reverse=True)
    )


def _format_other_nodes(nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    if len(nodes) > MOST_NODES:
        yield f"and {format_count(len(nodes) - MOST_NODES, 'NUMA node')} more (-o json has all)"


def _explain_memory(before: WhatIf, trace: Trace, step: MemoryStep, nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    unread = list(_explain_unread_memory(trace))
    if unread:
        yield from unread
        return
    name, _, memory = _find_request(trace, step.container)
    wanted = ", ".join(f"{format_bytes(size)} of {resource}" for resource, size in memory)
    first = "" if step.hint.mask is None else f": first on NUMA {step.hint.mask} of the hint, or also on other nodes"
    demands = find_demands(0, memory, before)
    if trace.demand.numa_node is not None:
        demands, first = require_one_node(demands), f" on {_format_node(trace)}"
    yield f"{name} wants {wanted}{first}"
    yield from describe_total_shortages(demands, nodes)
    for node in nodes[:MOST_NODES]:
        free = {m.resource: m.free_bytes for m in node.memory}
        amounts = ", ".join(f"{_format_amount(r, free.get(r, 0))} of {r}" for r, _ in memory)
        group = "" if node.group is None else f", allocated only together with the memory of NUMA {node.group}"
        yield f"NUMA {node.id}: {amounts} free{group}"
    yield from _format_other_nodes(nodes)
    total = {r: sum(m.free_bytes for node in nodes for m in node.memory if m.resource == r) for r, _ in memory}
    if len(nodes) > 1 and all(total[resource] >= size for resource, size in memory):
        yield "there is enough in total, but a NUMA node whose memory is already in use alone or in a group can't join another group"


def _format_class(core_class: str | None) -> str:
    return "" if core_class is None else f" on {core_class} cores"


def _format_node(trace: Trace) -> str:
    return f"NUMA {trace.demand.numa_node}, which it requires"


def _format_amounts(amounts: tuple[Amount, ...]) -> str:
    return ", and ".join(
        f"{'the pod as a whole' if name is None else f'container {name}'} request "
        + " and ".join(f"{each.resource} {each.after} instead of {each.before}" for each in own)
        for name, own in groupby(amounts, key=lambda each: each.container)
    )


def format_remedy(remedy: Remedy) -> str:
    """Describe the change that a remedy proposes."""
    match remedy.change:
        case RequestChange.REQUEST:
            return f"let {_format_amounts(remedy.amounts)}"
        case RequestChange.CLAIM:
            claim, request = remedy.subject
            devices = f"request {request} of claim {claim} be for {remedy.after} instead of {remedy.before}"
            return f"let {devices}" + (f", and {_format_amounts(remedy.amounts)}" if remedy.amounts else "")
        case RequestChange.NODE:
            return f"let it require {f'NUMA {remedy.after}' if remedy.after else 'no NUMA node'} instead of NUMA {remedy.before}"
        case RequestChange.CORE_CLASS:
            if not remedy.after:
                return f"let it prefer {remedy.before} cores instead of requiring them"
            return f"let it require {remedy.after} cores instead of {remedy.before} cores"
        case RequestChange.DEVICES:
            return f"remove its preference to be near {' and '.join(remedy.subject)}"
        case RequestChange.CONFIGURATION:
            field, _, option = remedy.subject[0].partition(".")
            if option:
                return f"set {field} without {option}"
            return f"set {field}: {remedy.after} (now {remedy.before})"
        case RequestChange.REMOVAL:
            if len(remedy.subject) == 1:
                return f"end pod {remedy.subject[0]}"
            names, more = remedy.subject[:_MOST_ENDED], len(remedy.subject) - _MOST_ENDED
            if more > 0:
                names = (*names, f"and {more} more (-o json has all)")
            return f"end {len(remedy.subject)} pods: {', '.join(names)}"
