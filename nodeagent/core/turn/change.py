"""Stage: end the pods whose changed manifests would be admitted, so that the changed pods can replace them (D7)."""

from collections.abc import Collection, Iterable, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Rejected, admit, remove_pod
from nodeagent.core.admission.node_capacity import Insufficient, Usage, insufficient, usage_of
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState, PodEntry, UnitKey
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn.draft import Draft, is_to_try
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.core.turn.world import World


def follow_changes(draft: Draft, world: World) -> Draft:
    """End the pods whose changed manifests would be admitted. Refuse all other changes, so that these pods keep running unchanged.

    Several pods may change in one turn, and may end in any order. Each changed pod is therefore tried twice: with all other pods unchanged,
    and with the pods before it already replaced.
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
    """Return the reason and the message of each refused change, by the pod's UID.

    A pod whose change is refused keeps its units. If another changed pod would take over one of these units, that change is refused, too.
    """
    refused: dict[str, tuple[str, str]] = {}
    while True:
        refused |= _find_refused_units(state, tried, changed, frozenset(refused))
        shortage = _find_refused_amounts(state, [one for one in tried if one[0].pod.uid not in refused], changed, world)
        refused |= shortage
        if not any(entry.pod.units for entry, _ in tried if entry.pod.uid in shortage):
            return refused


def _find_refused_units(
    state: NodeState,
    tried: Collection[tuple[PodEntry, Manifest]],
    changed: Mapping[str, Manifest],
    staying: frozenset[str],
) -> dict[str, tuple[str, str]]:
    """Return the changes that are refused because another pod keeps a unit that they need.

    Pods may exchange units by simultaneous changes. What counts is that in the end, each unit is pinned by one pod only.
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
            taken_units = sorted(manifest.unit_keys & holders.keys())
            if taken_units:
                taken = UnitTaken(taken_units[0][1], holders[taken_units[0]])
                refused[entry.pod.uid] = (taken.reason, taken.message)
            else:
                holders |= dict.fromkeys(manifest.unit_keys, manifest.pod.full_name)
        if not leaving & refused.keys():
            return refused
        moving = [(entry, manifest) for entry, manifest in moving if entry.pod.uid not in refused]


def _list_lasting_units(entry: PodEntry, changed: Mapping[str, Manifest]) -> frozenset[UnitKey]:
    """Return the units that a pod will pin after all changes. For a pod that is being ended, these are the units in its changed
    manifest.
    """
    if entry.deleting_since_ms is None:
        return entry.unit_keys
    successor = None if entry.is_released else changed.get(entry.pod.uid)
    return frozenset() if successor is None else successor.unit_keys


class _Occupancy(Struct, frozen=True):
    """Promises of a node with the pods that hold them, as the basis of a trial decision."""

    promises: Promises
    pods: tuple[Pod, ...]
    usage: Usage


def _find_refused_amounts(
    state: NodeState, tried: Iterable[tuple[PodEntry, Manifest]], changed: Mapping[str, Manifest], world: World
) -> dict[str, tuple[str, str]]:
    """Return the changes that are refused because the node has too little of a resource."""
    pods = state.holding_pods()
    now = then = _Occupancy(state.promises, pods, usage_of(pods, pod_level_resources=world.pod_level_resources))
    for entry in state.entries:
        if entry.is_active and entry.deleting_since_ms is not None and entry.pod.uid in changed:
            after = _replace_pod(then, changed[entry.pod.uid].pod, world)
            then = after if isinstance(after, _Occupancy) else then
    refused = {}
    for entry, manifest in tried:
        answers = [_replace_pod(held, manifest.pod, world) for held in (now, then)]
        shortage = next((answer for answer in answers if not isinstance(answer, _Occupancy)), None)
        if shortage is None:
            (_, then) = cast("list[_Occupancy]", answers)
        else:
            refused[entry.pod.uid] = (shortage.reason, shortage.message)
    return refused


def _replace_pod(before: _Occupancy, new: Pod, world: World) -> _Occupancy | Insufficient | Rejected:
    """Replace, as a trial, the pods that have the name or UID of a new pod. Return the result, or the refusal of the new pod."""
    managers, gate = world.managers, world.pod_level_resources
    promises, usage = before.promises, before.usage
    left = tuple(pod for pod in before.pods if pod.uid != new.uid and pod.full_name != new.full_name)
    for pod in before.pods:
        if pod.uid != new.uid and pod.full_name != new.full_name:
            continue
        promises, _ = remove_pod(managers, promises, pod.uid)
        usage = usage.minus(pod, pod_level_resources=gate)
    if world.config.check_allocatable:
        managers_with_amounts = managers.with_amounts(world.allocatable, promises)
        shortage = insufficient(new, usage, managers_with_amounts, pod_level_resources=gate)
        if shortage is not None:
            return shortage
    decision = admit(managers.tried_out(), promises, new)
    if isinstance(decision, Rejected):
        return decision
    return _Occupancy(decision.promises, (*left, new), usage.plus(new, pod_level_resources=gate))
