"""Stage: end the pods whose changed manifests fit, so that the changed pods can be admitted (D7)."""

from collections.abc import Collection, Iterable, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Rejected, admit, remove_pod
from nodeagent.core.admission.node_capacity import Insufficient, Usage, insufficient, usage_of
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn.draft import Draft, is_to_try
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.core.turn.world import World


def follow_changes(draft: Draft, world: World) -> Draft:
    """End the pods whose changed manifests fit. The others keep running unchanged, with the refusal.

    Several may change at once, and end in an unknown order. So each changed pod has to fit twice: with all others unchanged, and with those
    before it replaced.
    """
    tried = [
        (entry, draft.changed[entry.pod.uid])
        for entry in draft.state.entries
        if entry.pod.uid in draft.changed and is_to_try(draft, entry, draft.changed[entry.pod.uid], world)
    ]
    refusals = _find_refused_changes(draft.state, tried, draft.changed, world) if tried else {}
    for entry, manifest in tried:
        if entry.pod.uid not in refusals:
            draft = draft.with_ending(replace(entry, refused_change=None), world)
            continue
        reason, message = refusals[entry.pod.uid]
        draft = draft.with_refused_change(entry, manifest, Waiting(reason, message, world.now_ms))
    return draft


def _find_refused_changes(
    state: NodeState, tried: Collection[tuple[PodEntry, Manifest]], changed: Mapping[str, Manifest], world: World
) -> dict[str, tuple[str, str]]:
    """Return the reason and message of each refused change, by UID.

    A pod that stays keeps its units. Pods that would have taken over these units then stay, too.
    """
    refused: dict[str, tuple[str, str]] = {}
    while True:
        refused |= _find_refused_units(state, tried, changed, frozenset(refused))
        short = _find_refused_amounts(state, [one for one in tried if one[0].pod.uid not in refused], changed, world)
        refused |= short
        if not any(entry.pod.units for entry, _ in tried if entry.pod.uid in short):
            return refused


def _find_refused_units(
    state: NodeState,
    tried: Collection[tuple[PodEntry, Manifest]],
    changed: Mapping[str, Manifest],
    staying: frozenset[str],
) -> dict[str, tuple[str, str]]:
    """Return the changes with a unit that another pod keeps.

    Pods may exchange units in one change. Each unit may have one pod when all pods have been replaced.
    """
    refused: dict[str, tuple[str, str]] = {}
    moving = [(entry, manifest) for entry, manifest in tried if entry.pod.uid not in staying]
    while True:
        leaving = {entry.pod.uid for entry, _ in moving}
        holders = {
            unit: entry.pod.full_name
            for entry in state.entries
            if entry.is_active and entry.pod.uid not in leaving
            for unit in _list_lasting_units(entry, changed)
        }
        for entry, manifest in moving:
            both = sorted({*manifest.pod.units} & holders.keys())
            if both:
                taken = UnitTaken(both[0], holders[both[0]])
                refused[entry.pod.uid] = (taken.reason, taken.message)
            else:
                holders |= dict.fromkeys(manifest.pod.units, manifest.pod.full_name)
        if not leaving & refused.keys():
            return refused
        moving = [(entry, manifest) for entry, manifest in moving if entry.pod.uid not in refused]


def _list_lasting_units(entry: PodEntry, changed: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Return the units that a pod keeps, or that its changed manifest takes over from it while it ends."""
    if entry.deleting_since_ms is None:
        return entry.pod.units
    successor = None if entry.is_released else changed.get(entry.pod.uid)
    return () if successor is None else successor.pod.units


class _Occupancy(Struct, frozen=True):
    """Allocations of a node, with their pods."""

    promises: Promises
    pods: tuple[Pod, ...]
    usage: Usage


def _find_refused_amounts(
    state: NodeState, tried: Iterable[tuple[PodEntry, Manifest]], changed: Mapping[str, Manifest], world: World
) -> dict[str, tuple[str, str]]:
    """Return the changes with requests that don't fit."""
    pods = state.holding_pods()
    now = then = _Occupancy(state.promises, pods, usage_of(pods, pod_level_resources=world.pod_level_resources))
    for entry in state.entries:
        if entry.is_active and entry.deleting_since_ms is not None and entry.pod.uid in changed:
            after = _exchange(then, changed[entry.pod.uid].pod, world)
            then = after if isinstance(after, _Occupancy) else then
    refused = {}
    for entry, manifest in tried:
        answers = [_exchange(held, manifest.pod, world) for held in (now, then)]
        short = next((answer for answer in answers if not isinstance(answer, _Occupancy)), None)
        if short is None:
            (_, then) = cast("list[_Occupancy]", answers)
        else:
            refused[entry.pod.uid] = (short.reason, short.message)
    return refused


def _exchange(before: _Occupancy, new: Pod, world: World) -> _Occupancy | Insufficient | Rejected:
    """Replace the pods with the name or UID of a new pod by the new pod. Returns the occupancy afterwards, or the refusal."""
    managers, gate = world.managers, world.pod_level_resources
    promises, usage = before.promises, before.usage
    left = tuple(pod for pod in before.pods if pod.uid != new.uid and pod.full_name != new.full_name)
    for pod in before.pods:
        if pod.uid != new.uid and pod.full_name != new.full_name:
            continue
        promises, _ = remove_pod(managers, promises, pod.uid)
        usage = usage.minus(pod, pod_level_resources=gate)
    if world.config.check_allocatable:
        there = managers.with_amounts(world.allocatable, promises)
        short = insufficient(new, usage, there, pod_level_resources=gate)
        if short is not None:
            return short
    decision = admit(managers.tried_out(), promises, new)
    if isinstance(decision, Rejected):
        return decision
    return _Occupancy(decision.promises, (*left, new), usage.plus(new, pod_level_resources=gate))
