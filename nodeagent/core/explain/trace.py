"""Steps of one decision on a pod: the merges of hints, and the allocations of each resource, with the rules that were applied.

The decision is made once, with observers that record events. This module only arranges the events as steps.
"""

from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.asked_for import limit_to_pod
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.one_pod import DecidedAnew, Providers
from nodeagent.core.admission.resource_kinds import describe_further_holdings
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.admission.what_if import Refused, WhatIf
from nodeagent.core.explain.merge_trace import MergeTrace, trace_merge
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.explainer import AllocationStep, ResourceEvent, list_explainers
from nodeagent.core.resources.resource import Allocated, Resource


class ResourceStep(Struct, frozen=True):
    """Step of an explanation: the allocation of a resource that has no explainer. The resource kind's `describe` supplies the text."""

    container: str | None
    resource: str
    given: str
    """Description of what was allocated. It is empty after a refusal."""


class Trace(Struct, frozen=True):
    pod: Pod
    demand: PodDemand
    """Requests on which the decision is based. `core_class` is set if the pod requires a class of cores, or if the decision used only the
    cores of the preferred class.
    """
    decision: Admitted | Refused
    steps: tuple[MergeTrace | AllocationStep, ...]
    """Merges and allocations, in the order in which they were made."""


_Event = ResourceEvent | Allocated


def trace(what_if: WhatIf, pod: Pod) -> Trace:
    """Decide on the pod as a trial, and return the steps of the decision."""
    events: list[_Event] = []
    decision = what_if.judge(pod, _observe(what_if.managers, events))
    demand = demand_of(what_if.managers.rules, pod)
    if isinstance(decision, Insufficient | UnitTaken):
        return Trace(pod, demand, decision, ())
    demand = replace(demand, core_class=decision.report.core_class)
    own = replace(what_if.managers, providers=limit_to_pod(what_if.managers.providers, demand))
    return Trace(
        pod, demand, decision, tuple(_order_steps(replace(what_if, managers=own), decision, events, pod, demand))
    )


def _observe(managers: Managers, events: list[_Event]) -> Managers:
    """Return the managers with observers that append events to `events`. If a decision starts anew, the events so far are removed."""

    def allocated(event: Allocated | DecidedAnew) -> None:
        if isinstance(event, DecidedAnew):
            events.clear()
        else:
            events.append(event)

    watched = [each.observed_by(events.append) for each in list_explainers(managers.providers.resources)]
    providers = reduce(Providers.having, filter(None, watched), managers.providers)
    return replace(managers, providers=replace(providers, observer=allocated))


def _order_steps(
    what_if: WhatIf,
    decision: Admitted | Rejected,
    events: list[_Event],
    pod: Pod,
    demand: PodDemand,
) -> list[MergeTrace | AllocationStep]:
    """Return merges and allocations as steps. Each merge comes before the allocations that it determines."""
    steps: list[MergeTrace | AllocationStep] = []
    merges = list(decision.report.merges)
    promises, resources = what_if.promises, {each.name: each for each in what_if.managers.providers.resources}
    before_hints: list[ResourceEvent] = []
    before_allocation: list[ResourceEvent] = []

    def merge() -> MergeTrace:
        own = tuple(before_hints)
        before_hints.clear()
        return replace(trace_merge(what_if.managers, promises, merges.pop(0), demand), events=own)

    for event in events:
        if not isinstance(event, Allocated):
            (before_hints if event.is_for_hints else before_allocation).append(event)
            continue
        if merges and (merges[0].container is None or merges[0].container == event.container):
            steps.append(merge())
        promises = event.after
        resource = resources[event.resource]
        explainer = resource.explainer()
        step = (
            _describe_allocation(resource, event, pod)
            if explainer is None
            else explainer.explain_step(event, before_allocation, pod)
        )
        if step is not None:
            steps.append(step)
        before_allocation.clear()
    # If a merge doesn't admit the pod, no allocation follows it.
    while merges:
        steps.append(merge())
    return steps


def _describe_allocation(resource: Resource, event: Allocated, pod: Pod) -> ResourceStep | None:
    names = [c.name for c in pod.containers] if event.container is None else [event.container]
    held = event.after.of_pod(pod.uid)
    description = ", ".join(filter(None, (describe_further_holdings(held, name).get(resource.name) for name in names)))
    if event.refusal is not None:
        return ResourceStep(event.container, resource.name, "")
    is_new = held.of(resource.holdings) != event.before.of_pod(pod.uid).of(resource.holdings)
    return ResourceStep(event.container, resource.name, description) if is_new else None
