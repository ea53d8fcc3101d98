"""Allocations of the CPU manager as steps of an explanation: the chosen CPUs, their source, and the applied rules."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings
from nodeagent.core.resources.cpu.observing import Choosing, Pick, PluginAnswered, Rule, Source, Spread, Took
from nodeagent.core.resources.resource import Allocated


class TakenTogether(Struct, frozen=True):
    """CPUs that were taken together by one rule."""

    rule: Rule
    cpus: CpuSet
    share_of: int | None = None
    """NUMA node whose equal share contains the CPUs (distribute-cpus-across-numa)."""
    is_remainder: bool = False
    """Whether the CPUs belong to the remainder after equal shares."""
    plugin: str | None = None
    """CPU plugin that made the choice."""


class CpuChoice(Struct, frozen=True):
    """CPUs chosen from one source."""

    source: Source
    available: CpuSet
    count: int
    isolated: bool
    container: str | None
    """Container that gets this slice of the pod's set."""
    groups: tuple[TakenTogether, ...]


class CpuStep(Struct, frozen=True):
    """Allocation of CPUs to a container, or to a pod as a whole."""

    container: str | None
    cpus: CpuSet
    """Allocated CPUs. Empty after a refusal."""
    reused: CpuSet
    """CPUs that the pod's init containers had before."""
    choices: tuple[CpuChoice, ...]
    refused: bool
    answers: tuple[PluginAnswered, ...] = ()
    """Answers of CPU plugins, in the order of calls."""


def cpu_step(event: Allocated, picks: Sequence[Pick], pod: Pod) -> CpuStep | None:
    """Describe an allocation with the choices before it. None means that nothing was allocated."""
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
    return CpuStep(event.container, cpus, cpus & reusable, _list_choices(picks), event.refusal is not None, answers)


def _list_choices(picks: Sequence[Pick]) -> tuple[CpuChoice, ...]:
    choices: list[CpuChoice] = []
    share: Spread | None = None
    for pick in picks:
        match pick:
            case Choosing(source, available, count, isolated, container):
                if not isolated:
                    # An abandoned choice from isolated CPUs is not part of the explanation.
                    choices = [choice for choice in choices if not choice.isolated]
                choices.append(CpuChoice(source, CpuSet(available), count, isolated, container, ()))
                share = None
            case Spread():
                share = pick
            case Took():
                group = TakenTogether(pick.rule, CpuSet(pick.cpus), plugin=pick.plugin)
                if share is not None:
                    group = TakenTogether(pick.rule, CpuSet(pick.cpus), share.node, share.is_remainder)
                groups = choices[-1].groups
                if groups and replace(groups[-1], cpus=group.cpus) == group:  # merge groups that the same rule took
                    groups, group = groups[:-1], replace(group, cpus=groups[-1].cpus | group.cpus)
                choices[-1] = replace(choices[-1], groups=(*groups, group))
    return tuple(choice for choice in choices if choice.count > 0)
