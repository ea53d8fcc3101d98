"""One decision on a pod, step by step: the merges, then what each manager allocated and by which rule.

The admission itself runs with observers; what they saw is put in order here. Nothing is decided a second time.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.asked_for import seen_by
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.one_pod import Allocated, DecidedAnew
from nodeagent.core.admission.resource_kinds import describe_further_holdings
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.explain.merge_trace import MergeTrace, trace_merge
from nodeagent.core.explain.what_if import Refused, WhatIf
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Hint, Promises
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings
from nodeagent.core.resources.cpu.observing import Choosing, PluginAnswered, Rule, Source, Spread, Took
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.core.resources.resource import Resource


class TakenTogether(Struct, frozen=True):
    """CPUs that were taken together."""

    rule: Rule
    cpus: CpuSet
    share_of: int | None = None
    """The NUMA node whose share it is (distribute-cpus-across-numa)."""
    is_remainder: bool = False
    """It is part of what equal shares left over."""
    plugin: str | None = None
    """The CPU plugin whose choice it is."""


class CpuChoice(Struct, frozen=True):
    """CPUs chosen out of one source."""

    source: Source
    available: CpuSet
    count: int
    isolated: bool
    container: str | None
    """The container whose slice of the pod's set it is."""
    groups: tuple[TakenTogether, ...]


class CpuStep(Struct, frozen=True):
    """What the CPU manager did for a container, or for a pod as a whole."""

    container: str | None
    cpus: CpuSet
    """Allocated; empty if it was refused."""
    reused: CpuSet
    """Those that the pod's init containers had before."""
    choices: tuple[CpuChoice, ...]
    refused: bool
    answers: tuple[PluginAnswered, ...] = ()
    """Of CPU plugins, in the order in which they were asked."""


class MemoryStep(Struct, frozen=True):
    """What the memory manager did for a container, or for a pod as a whole."""

    container: str | None
    hint: Hint
    blocks: Blocks
    """Allocated; empty if it was refused."""
    taken: tuple[tuple[int, str, int], ...]
    """(NUMA node, resource, bytes) newly taken; the rest of the blocks is from init containers."""
    refused: bool

    @property
    def nodes(self) -> NumaSet:
        nodes = NumaSet()
        for block in self.blocks:
            nodes |= block.nodes
        return nodes


class DeviceStep(Struct, frozen=True):
    """What the device manager did for a container, or for all of a pod."""

    container: str | None
    devices: tuple[HeldDevice, ...]
    """Allocated; empty if it was refused."""
    refused: bool


class ResourceStep(Struct, frozen=True):
    """What a further resource did for a container, or for all of a pod, in its own words."""

    container: str | None
    resource: str
    given: str
    """Empty if it was refused."""


TraceStep = MergeTrace | CpuStep | MemoryStep | DeviceStep | ResourceStep


class Trace(Struct, frozen=True):
    pod: Pod
    demand: PodDemand
    """As it was decided on: with the class of cores that the pod prefers, or without one."""
    decision: Admitted | Refused
    steps: tuple[TraceStep, ...]
    """In the order in which they were taken."""


_Pick = Choosing | Spread | Took | PluginAnswered
_Seen = _Pick | Allocated


def trace(what_if: WhatIf, pod: Pod) -> Trace:
    """Decide on the pod, and trace how."""
    seen: list[_Seen] = []
    decision = what_if.judge(pod, _observed(what_if.managers, seen))
    demand = demand_of(what_if.managers.rules, pod)
    if isinstance(decision, Insufficient | UnitTaken):
        return Trace(pod, demand, decision, ())
    demand = replace(demand, core_class=decision.report.core_class)
    own = replace(what_if.managers, providers=seen_by(what_if.managers.providers, demand))
    return Trace(pod, demand, decision, tuple(_steps(replace(what_if, managers=own), decision, seen, pod, demand)))


def _observed(managers: Managers, seen: list[_Seen]) -> Managers:
    """Return the managers so that they tell what leads to their decision; what comes to nothing is forgotten."""

    def allocated(event: Allocated | DecidedAnew) -> None:
        if isinstance(event, DecidedAnew):
            seen.clear()
        else:
            seen.append(event)

    watched = CpuResource(managers.providers.of(CpuResource).manager.observed_by(seen.append))
    return replace(managers, providers=replace(managers.providers.having(watched), observer=allocated))


def _steps(
    what_if: WhatIf,
    decision: Admitted | Rejected,
    seen: list[_Seen],
    pod: Pod,
    demand: PodDemand,
) -> list[TraceStep]:
    """Put the merges before what was allocated under them."""
    steps: list[TraceStep] = []
    merges = list(decision.report.merges)
    promises = what_if.promises
    picks: list[_Pick] = []
    asked: list[PluginAnswered] = []

    def merge() -> MergeTrace:
        answers = tuple(asked)
        asked.clear()
        return replace(trace_merge(what_if.managers, promises, merges.pop(0), demand), answers=answers)

    for event in seen:
        if isinstance(event, PluginAnswered) and event.is_for_hints:
            asked.append(event)
            continue
        if not isinstance(event, Allocated):
            picks.append(event)
            continue
        if merges and (merges[0].container is None or merges[0].container == event.container):
            steps.append(merge())
        promises = event.after
        step = _step(what_if.managers, event, picks, pod)
        if step is not None:
            steps.append(step)
        picks = []
    # A merge that admitted nothing has no allocation after it.
    while merges:
        steps.append(merge())
    return steps


def _step(managers: Managers, event: Allocated, picks: list[_Pick], pod: Pod) -> TraceStep | None:
    match event.manager:
        case "cpu":
            return _cpu_step(event, picks, pod)
        case "memory":
            return _memory_step(event, pod)
        case "devices":
            return _device_step(event, pod)
        case name:
            return _resource_step(next(one for one in managers.providers.resources if one.name == name), event, pod)


def _resource_step(resource: Resource, event: Allocated, pod: Pod) -> ResourceStep | None:
    names = [c.name for c in pod.containers] if event.container is None else [event.container]
    held = event.after.of_pod(pod.uid)
    given = ", ".join(filter(None, (describe_further_holdings(held, name).get(resource.name) for name in names)))
    if event.refusal is not None:
        return ResourceStep(event.container, resource.name, "")
    is_new = held.of(resource.holdings) != event.before.of_pod(pod.uid).of(resource.holdings)
    return ResourceStep(event.container, resource.name, given) if is_new else None


def _device_step(event: Allocated, pod: Pod) -> DeviceStep | None:
    before, after = event.before.of_pod(pod.uid), event.after.of_pod(pod.uid)
    if event.refusal is not None:
        return DeviceStep(event.container, (), refused=True)
    if after.of(DeviceHoldings).devices == before.of(DeviceHoldings).devices:
        return None
    given = tuple(
        one for name, own in after.of(DeviceHoldings).devices for one in own if event.container in {None, name}
    )
    return DeviceStep(event.container, given, refused=False)


def _cpu_step(event: Allocated, picks: list[_Pick], pod: Pod) -> CpuStep | None:
    before, after = event.before.of_pod(pod.uid), event.after.of_pod(pod.uid)
    given = (
        after.of(CpuHoldings).pod_cpus if event.container is None else after.of(CpuHoldings).own_set(event.container)
    )
    if event.refusal is None and (given is None or after.of(CpuHoldings).cpus == before.of(CpuHoldings).cpus):
        return None
    reuse = event.before.of(CpuBooks).reuse
    reusable = CpuSet() if reuse is None or reuse.pod_uid != pod.uid else reuse.cpus
    cpus = CpuSet() if event.refusal is not None or given is None else given
    answers = tuple(pick for pick in picks if isinstance(pick, PluginAnswered))
    return CpuStep(event.container, cpus, cpus & reusable, _choices(picks), event.refusal is not None, answers)


def _choices(picks: list[_Pick]) -> tuple[CpuChoice, ...]:
    choices: list[CpuChoice] = []
    share: Spread | None = None
    for pick in picks:
        match pick:
            case Choosing(source, available, count, isolated, container):
                if not isolated:
                    # A look at isolated CPUs alone that was abandoned is not part of the trace.
                    choices = [choice for choice in choices if not choice.isolated]
                choices.append(CpuChoice(source, CpuSet(available), count, isolated, container, ()))
                share = None
            case Spread():
                share = pick
            case Took():
                last = choices[-1]
                group = _group(pick, share)
                choices[-1] = replace(last, groups=_joined(last.groups, group))
    return tuple(choice for choice in choices if choice.count > 0)


def _group(took: Took, share: Spread | None) -> TakenTogether:
    if share is None:
        return TakenTogether(took.rule, CpuSet(took.cpus), plugin=took.plugin)
    return TakenTogether(took.rule, CpuSet(took.cpus), share.node, share.is_remainder)


def _joined(groups: tuple[TakenTogether, ...], group: TakenTogether) -> tuple[TakenTogether, ...]:
    """Join what the same rule took consecutively."""
    if groups and replace(groups[-1], cpus=group.cpus) == group:
        return (*groups[:-1], replace(group, cpus=groups[-1].cpus | group.cpus))
    return (*groups, group)


def _memory_step(event: Allocated, pod: Pod) -> MemoryStep | None:
    after = event.after.of_pod(pod.uid)
    given = (
        after.of(MemoryHoldings).pod_memory
        if event.container is None
        else after.of(MemoryHoldings).blocks(event.container)
    )
    if event.refusal is None and (given is None or memory_accounts(event.after) == memory_accounts(event.before)):
        return None
    name = pod.containers[0].name if event.container is None else event.container
    blocks = () if event.refusal is not None or given is None else given
    return MemoryStep(
        event.container,
        event.before.hint(pod.uid, name),
        blocks,
        _taken(event.before, event.after),
        event.refusal is not None,
    )


def _taken(before: Promises, after: Promises) -> tuple[tuple[int, str, int], ...]:
    return tuple(
        (node.id, resource, old.free - new.free)
        for node, then in zip(memory_accounts(before), memory_accounts(after), strict=True)
        for (resource, old), (_, new) in zip(node.tables, then.tables, strict=True)
        if old.free != new.free
    )
