"""A refusal in plain words: what was missing where, and what would help. Single sentences; the layout is in text.py."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from nodeagent.core.admission.asked_for import seen_by
from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.explain.merge_trace import MergeTrace, Opinion
from nodeagent.core.explain.numa_headroom import NodeHeadroom, headroom
from nodeagent.core.explain.remedy import Amount, Remedy, RequestChange
from nodeagent.core.explain.trace import CpuStep, DeviceStep, MemoryStep, ResourceStep, Trace
from nodeagent.core.explain.what_if import WhatIf
from nodeagent.core.model.demand import Amounts, why_shared
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import CPU, ContainerKind
from nodeagent.core.model.pod_resources import is_device
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason
from nodeagent.core.resources.cpu.holdings import CpuBooks
from nodeagent.core.resources.cpu.pods import check_pod as check_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import MemoryBooks
from nodeagent.core.resources.memory.pods import check_pod as check_memory
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.views.explain.lacking import (
    MOST_NODES,
    demands_of,
    lacking,
    lacking_in_all,
    on_one_node,
    sets_text,
    taken_text,
    wanted_where,
)
from nodeagent.views.wording.words import bytes_text, counted


def why_refused(before: WhatIf, trace: Trace) -> list[str]:
    """Explain what was missing where.

    Args:
        before: the node on which the pod was refused.
        trace: of the decision.
    """
    decision = trace.decision
    assert not isinstance(decision, Admitted), "only a refusal has a why"
    if isinstance(decision, UnitTaken):
        return [f"a unit has one pod, and pod {decision.holder} is that of {decision.unit}"]
    if isinstance(decision, Insufficient):
        return list(_capacity(before, decision))
    if decision.reason is Reason.EMPTY_POD_SHARED_POOL:
        return list(_budget(trace))
    if decision.reason in {Reason.CPU_PLUGIN_FAILED, Reason.CPU_PLUGIN_REFUSED}:
        return ["the message says it all"]
    if decision.reason is Reason.CORE_CLASS and trace.demand.asks_for_cpus:
        return ["the message says it all"]
    # Where it asks for a class of cores, only these count in what follows.
    own = seen_by(before.managers.providers, trace.demand)
    before = replace(before, managers=replace(before.managers, providers=own))
    last = trace.steps[-1] if trace.steps else None
    there = decision.attempted  # with what the pod's earlier containers got
    reuse = there.of(CpuBooks).reuse
    lent = CpuSet() if reuse is None or reuse.pod_uid != trace.pod.uid else reuse.cpus
    nodes = headroom(before.managers, there, (*before.pods, trace.pod), lent, trace.demand.core_class)
    if trace.demand.numa_node is not None:
        nodes = tuple(node for node in nodes if node.id == trace.demand.numa_node)
    if isinstance(last, MergeTrace):
        return [*_merge(before, trace, last, nodes), *_reusable(before, there, trace.pod.uid, lent)]
    if isinstance(last, CpuStep):
        return [*_cpus(before, trace, last, nodes), *_reusable(before, there, trace.pod.uid, lent)]
    if isinstance(last, DeviceStep | ResourceStep):
        return ["the message says it all"]
    if isinstance(last, MemoryStep):
        return [*_memory(before, trace, last, nodes), *_reusable(before, there, trace.pod.uid, CpuSet())]
    shared = [(c.name, why_shared(before.managers.placement, trace.pod, c)) for c in trace.pod.containers]
    return [f"container {name} has no CPUs of its own: {why.value}" for name, why in shared if why is not None] or [
        "the message says it all"
    ]


def _capacity(before: WhatIf, short: Insufficient) -> Iterator[str]:
    missing = short.requested - (short.capacity - short.used)
    if short.resource == "pods":
        yield f"the node takes {short.capacity} pods (maxPods, podsPerCore), and has {short.used}"
        return
    left = max(0, short.capacity - short.used)
    yield (
        f"the pod requests {_amount(short.resource, short.requested)} {short.resource}; of {_amount(short.resource, short.capacity)} "
        f"for pods, {_amount(short.resource, left)} left: {_amount(short.resource, missing)} short"
    )
    if before.pods:
        verb = "requests" if len(before.pods) == 1 else "request"
        yield f"the {counted(len(before.pods), 'pod')} on the node {verb} {_amount(short.resource, short.used)} of it"
    yield "this is counted for the node as a whole (checkAllocatable), before any CPU or NUMA node is looked at"


def _amount(resource: str, amount: int) -> str:
    if is_device(resource):
        return str(amount)
    if resource != CPU:
        return bytes_text(amount) if amount else "0"
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def _budget(trace: Trace) -> Iterator[str]:
    """The pod-level amounts, and what its containers take exclusively."""
    demand = trace.demand
    unread = [c.name for c in demand.containers if c.memory is None]
    if unread:
        yield (
            f"the memory of {', '.join(unread)} is not read as whole bytes: write it without a point or m and with few digits, 1536Mi for "
            "1.5Gi"
        )
        return
    staying = [c for c in demand.containers if c.kind is not ContainerKind.INIT]
    for name, amount in (("CPUs", demand.cpus), *(demand.memory or ())):
        taken = [(c.name, c.cpus if name == "CPUs" else dict(c.memory or ()).get(name, 0)) for c in staying]
        alone = [(container, size) for container, size in taken if size]
        said = ", ".join(f"{container} {_size(name, size)}" for container, size in alone)
        left = max(0, amount - sum(size for _, size in alone))
        yield (
            f"of the pod's {_size(name, amount)} {name} its containers take alone: {said or 'nothing'}; "
            f"left: {_size(name, left)}"
        )
    sharing = [c.name for c in demand.containers if not c.cpus]
    if sharing:
        yield f"{', '.join(sharing)} can only have what is left"


def _size(name: str, amount: int) -> str:
    return str(amount) if name == "CPUs" or not amount else bytes_text(amount)


def _wanted(trace: Trace, container: str | None) -> tuple[str, int, Amounts]:
    """Which container wants how many CPUs and how much memory."""
    if container is None:
        return "the pod as a whole", trace.demand.cpus, trace.demand.memory or ()
    demand = next(c for c in trace.demand.containers if c.name == container)
    return f"container {container}", demand.cpus, demand.memory or ()


def _merge(before: WhatIf, trace: Trace, merge: MergeTrace, nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    over = _over_budget(before, trace) if merge.container is None else None
    if over is not None:
        yield over
        yield from _budget(trace)
        return
    who, cpus, memory = _wanted(trace, merge.container)
    topology = before.managers.providers.topology
    single = topology.rules.single_node
    demands = demands_of(cpus, memory, before)
    where = "on a single NUMA node" if single else wanted_where(demands)
    if trace.demand.numa_node is not None:
        single, demands, where = True, on_one_node(demands), f"on {_asked_for(trace)}"
    yield f"{who} wants {_wants(cpus, memory, trace.demand.core_class)} {where} (topologyManagerPolicy {topology.policy.value})"
    largest = {demand: max((demand.has(node) for node in nodes), default=0) for demand in demands}
    too_large = [demand for demand in demands if single and demand.amount > largest[demand]]
    if too_large:
        those = "no NUMA node is that large: the largest" if len(nodes) > 1 else "the node is not that large: it"
        yield from (f"{those} has {demand.size(largest[demand])}" for demand in too_large)
        return
    yield from lacking(demands, nodes)
    yield from _of_devices(trace, merge)
    fitting = {
        resource: [str(c.nodes) for c in merge.candidates if dict(c.opinions)[resource] is Opinion.PREFERRED]
        for resource, _ in (merge.candidates[0].opinions if merge.candidates else ())
    }
    suited = {resource: found for resource, found in fitting.items() if found}
    if len(suited) > 1:
        said = "; ".join(f"{resource} would go to {sets_text(found)}" for resource, found in suited.items())
        yield f"no set of NUMA nodes suits all of it: {said}"


def _of_devices(trace: Trace, merge: MergeTrace) -> Iterator[str]:
    """Describe which of the pod's own devices are free on too many NUMA nodes, or on none."""
    own = {resource for resource, _ in trace.demand.devices}
    for resource, _ in merge.candidates[0].opinions if merge.candidates and merge.all_sets else ():
        offered = [(dict(each.opinions)[resource], str(each.nodes)) for each in merge.candidates]
        opinions = {opinion for opinion, _ in offered}
        if resource not in own or opinions & {Opinion.PREFERRED, Opinion.ANY}:
            continue
        if Opinion.POSSIBLE in opinions:
            sets = sets_text([nodes for opinion, nodes in offered if opinion is Opinion.POSSIBLE])
            yield f"{resource}: enough are free on NUMA {sets} only, and fewer nodes would do if nobody had any"
        else:
            yield f"{resource}: too few are free, on whatever NUMA nodes"


def _reusable(before: WhatIf, there: Promises, uid: str, lent: CpuSet) -> Iterator[str]:
    """Describe what the pod's init containers leave to later ones."""
    if lent:
        yield (
            f"{'CPU' if len(lent) == 1 else 'CPUs'} {lent} of the pod's init containers, on NUMA {before.managers.topology.numa_of(lent)}, "
            f"{'counts' if len(lent) == 1 else 'count'} as free for it, and it has to be there"
        )
    reuse = there.of(MemoryBooks).reuse
    for (nodes, resource), size in () if reuse is None or reuse.pod_uid != uid else reuse.amounts:
        if size:
            yield (
                f"{bytes_text(size)} of {resource} that its init containers have on NUMA {nodes} counts in where it takes exactly "
                f"{'this node' if len(nodes) == 1 else 'these nodes'}"
            )


def _over_budget(before: WhatIf, trace: Trace) -> str | None:
    """Explain what is wrong with the pod-level amounts, for which there are no hints at all."""
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


def _wants(cpus: int, memory: Amounts, core_class: str | None) -> str:
    parts = [counted(cpus, "CPU") + _of_class(core_class)] if cpus else []
    parts += [f"{bytes_text(size)} of {resource}" for resource, size in memory if size]
    return " and ".join(parts) or "nothing of its own"


def _cpus(before: WhatIf, trace: Trace, step: CpuStep, nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    who, cpus, _ = _wanted(trace, step.container)
    layout = before.managers.providers.of(CpuResource).manager.layout
    free = sum(len(node.free) for node in nodes)
    options = before.managers.providers.of(CpuResource).manager.options
    if options.full_pcpus_only:
        cores = sum(node.whole_cores for node in nodes)
        split = [str(node.split) for node in nodes if node.split]
        of = _of_class(trace.demand.core_class)
        yield f"{who} wants {counted(cpus, 'CPU')}{of}, and full-pcpus-only gives whole cores of {layout.per_core} only"
        odd = [(f"container {c.name}", c.cpus) for c in trace.demand.containers if c.cpus % (layout.per_core or 1)]
        if cpus % (layout.per_core or 1):
            also = [f"{count} ({name})" for name, count in odd if name != who]
            yield f"{cpus} is not a multiple of {layout.per_core}" + (f", nor is {', nor '.join(also)}" if also else "")
            return
        halves = f"; {','.join(split)} are halves of cores" if split else ""
        yield f"{counted(cores, 'core')} {'is' if cores == 1 else 'are'} free as a whole, {counted(free, 'CPU')} in all{halves}"
    else:
        where = "" if trace.demand.numa_node is None else f" on {_asked_for(trace)}"
        where = _of_class(trace.demand.core_class) + where
        yield f"{who} wants {counted(cpus, 'CPU')} of its own{where}, and {free} can still be given: {max(0, cpus - free)} short"
    yield from _holders(nodes)
    if before.managers.placement.isolated_cpus == "only":
        yield "isolatedCPUs is only: no other CPUs than the isolated ones are given"


def _holders(nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    having = [node for node in nodes if node.cpus]
    for node in having[:MOST_NODES]:
        yield f"NUMA {node.id}: {len(node.free)} of {len(node.cpus)} free{taken_text(node)}"
    yield from _others(having)


def _others(nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    if len(nodes) > MOST_NODES:
        yield f"and {counted(len(nodes) - MOST_NODES, 'NUMA node')} more (-o json has all)"


def _memory(before: WhatIf, trace: Trace, step: MemoryStep, nodes: tuple[NodeHeadroom, ...]) -> Iterator[str]:
    who, _, memory = _wanted(trace, step.container)
    wanted = ", ".join(f"{bytes_text(size)} of {resource}" for resource, size in memory)
    first = (
        "" if step.hint.mask is None else f": of NUMA {step.hint.mask} first, as the hint says, or of others with it"
    )
    demands = demands_of(0, memory, before)
    if trace.demand.numa_node is not None:
        demands, first = on_one_node(demands), f" on {_asked_for(trace)}"
    yield f"{who} wants {wanted}{first}"
    yield from lacking_in_all(demands, nodes)
    for node in nodes[:MOST_NODES]:
        free = {m.resource: m.free_bytes for m in node.memory}
        amounts = ", ".join(f"{_amount(r, free.get(r, 0))} of {r}" for r, _ in memory)
        group = "" if node.group is None else f", given only together with that of NUMA {node.group}"
        yield f"NUMA {node.id}: free are {amounts}{group}"
    yield from _others(nodes)
    total = {r: sum(m.free_bytes for node in nodes for m in node.memory if m.resource == r) for r, _ in memory}
    if len(nodes) > 1 and all(total[resource] >= size for resource, size in memory):
        yield "in all there is enough; but a NUMA node whose memory is in use by itself, or in a group, can't be taken into another group"


def _of_class(core_class: str | None) -> str:
    return "" if core_class is None else f" on {core_class} cores"


def _asked_for(trace: Trace) -> str:
    return f"NUMA {trace.demand.numa_node}, for which it asks"


def _other_amounts(amounts: tuple[Amount, ...]) -> str:
    return ", and ".join(
        f"{'the pod as a whole' if name is None else f'container {name}'} request "
        + " and ".join(f"{each.resource} {each.after} instead of {each.before}" for each in own)
        for name, own in groupby(amounts, key=lambda each: each.container)
    )


def remedy_text(remedy: Remedy) -> str:
    """Describe what to change."""
    match remedy.change:
        case RequestChange.REQUEST:
            return f"let {_other_amounts(remedy.amounts)}"
        case RequestChange.CLAIM:
            claim, request = remedy.subject
            devices = f"request {request} of claim {claim} be for {remedy.after} instead of {remedy.before}"
            return f"let {devices}" + (f", and {_other_amounts(remedy.amounts)}" if remedy.amounts else "")
        case RequestChange.NODE:
            return f"let it be on {f'NUMA {remedy.after}' if remedy.after else 'any NUMA node'} instead of NUMA {remedy.before}"
        case RequestChange.CORE_CLASS:
            if not remedy.after:
                return f"let it prefer {remedy.before} cores instead of requiring them"
            return f"let it be on {remedy.after} cores instead of {remedy.before} cores"
        case RequestChange.DEVICES:
            return f"let it not ask to be near {' and '.join(remedy.subject)}"
        case RequestChange.CONFIGURATION:
            field, _, option = remedy.subject[0].partition(".")
            if option:
                return f"set {field} without {option}"
            return f"set {field}: {remedy.after} (it is {remedy.before})"
        case RequestChange.REMOVAL:
            if len(remedy.subject) == 1:
                return f"end pod {remedy.subject[0]}"
            return f"end {len(remedy.subject)} pods: {', '.join(remedy.subject)}"
