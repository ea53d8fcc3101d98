"""Sentences about a refusal: the resources missing on each NUMA node, and the remedies. text.py lays them out."""

from collections.abc import Callable, Iterator
from itertools import groupby

from msgspec.structs import replace

from nodeagent.core.admission.asked_for import limit_to_pod
from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.merge_trace import MergeTrace, Opinion
from nodeagent.core.explain.numa_headroom import headroom
from nodeagent.core.explain.remedy import Amount, Remedy, RequestChange
from nodeagent.core.explain.trace import Trace
from nodeagent.core.model.demand import why_shared
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, ContainerKind
from nodeagent.core.model.pod_resources import is_device
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import Reason
from nodeagent.core.resources.explainer import list_explainers
from nodeagent.views.explain.lacking import RefusedDecision, format_node_count, format_node_sets
from nodeagent.views.explain.resources.by_resource import (
    describe_shortages,
    explain_allocation,
    explain_reuse,
    format_requested,
    list_demands,
)
from nodeagent.views.explain.resources.memory import explain_unread
from nodeagent.views.wording.words import format_bytes, format_count, format_missing_bytes, format_requested_bytes

_MOST_ENDED = 8
"""Maximum number of pods that are named in a list of pods that would have to end. Further pods are only counted."""


def explain_refusal(before: WhatIf, trace: Trace) -> list[str]:
    """Explain why a pod was refused, in most cases by the resources that were missing on each NUMA node.

    Args:
        before: the node on which the pod was refused.
        trace: the steps and result of the decision.
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
    # If the pod requires a class of cores, only cores of this class count from here on.
    own = limit_to_pod(before.managers.providers, trace.demand)
    before = replace(before, managers=replace(before.managers, providers=own))
    promises = decision.attempted
    nodes = headroom(before.managers, promises, (*before.pods, trace.pod), trace.demand)
    if trace.demand.numa_node is not None:
        nodes = tuple(node for node in nodes if node.id == trace.demand.numa_node)
    refused = RefusedDecision(before, trace, promises, nodes)
    last = trace.steps[-1] if trace.steps else None
    if isinstance(last, MergeTrace):
        return [*_explain_merge(refused, last), *explain_reuse(refused)]
    found = None if last is None else explain_allocation(refused, last)
    if found is not None:
        return found
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
        f"{_format_amount(short.resource, missing, format_missing_bytes)} short"
    )
    if before.pods:
        verb = "requests" if len(before.pods) == 1 else "request"
        yield f"the {format_count(len(before.pods), 'pod')} on the node {verb} {_format_amount(short.resource, short.used)} of it"
    yield "this is checked for the whole node (checkAllocatable), before single CPUs and NUMA nodes"


def _format_amount(resource: str, amount: int, as_bytes: Callable[[int], str] = format_bytes) -> str:
    if is_device(resource):
        return str(amount)
    if resource != CPU:
        return as_bytes(amount) if amount else "0"
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def _explain_budget(trace: Trace) -> Iterator[str]:
    """Explain how much of the pod-level amounts the containers with exclusive resources leave for the pod's other containers."""
    demand = trace.demand
    unread = list(explain_unread(trace))
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


def _format_size(name: str, amount: int) -> str:
    return str(amount) if name == "CPUs" or not amount else format_bytes(amount)


def _explain_merge(refused: RefusedDecision, merge: MergeTrace) -> Iterator[str]:
    providers, trace, nodes = refused.before.managers.providers, refused.trace, refused.nodes
    if merge.container is None and trace.demand.is_managed:
        checks = (each.check_pod(trace.demand) for each in list_explainers(providers.resources))
        invalid = next(filter(None, checks), None)
        if invalid is not None:
            yield invalid.message
            yield from _explain_budget(trace)
            return
    name, demand = refused.find_request(merge.container)
    demands, topology = list_demands(refused, demand), providers.topology
    single = topology.rules.single_node or trace.demand.numa_node is not None
    where = " on a single NUMA node" if topology.rules.single_node else f" {format_node_count(demands)}"
    yield (
        f"{name} wants {format_requested(refused, demand)}{refused.format_node() or where} "
        f"(topologyManagerPolicy {topology.policy.value})"
    )
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
    """Explain why extended resources prevented the merge: too few devices of a resource are free, or the free ones are spread over too many
    NUMA nodes.
    """
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


def _format_amounts(amounts: tuple[Amount, ...]) -> str:
    return ", and ".join(
        f"{'the pod as a whole' if name is None else f'container {name}'} request "
        + " and ".join(f"{each.resource} {each.after} instead of {_format_before(each)}" for each in own)
        for name, own in groupby(amounts, key=lambda each: each.container)
    )


def _format_before(amount: Amount) -> str:
    is_memory = amount.resource == MEMORY or amount.resource.startswith(HUGEPAGES_PREFIX)
    return format_requested_bytes(Quantity.parse(amount.before)) if is_memory else amount.before


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
