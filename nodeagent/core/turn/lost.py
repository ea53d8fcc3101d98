"""Stages that matter only after a loss of the state. They release the recorded devices and claims of ended pods, and adopt running pods
before other pods can get their CPUs.
"""

from msgspec.structs import replace

from nodeagent.core.admission.units import find_taken_unit
from nodeagent.core.model.promises import UnrecoveredPod
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.turn.adoption import find_admitted, find_place, find_populated_pods, find_possibly_running
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.core.turn.recovery import place_recovered
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def release_lost(draft: Draft, world: World) -> Draft:
    """Release the devices and claims of lost pods whose processes have all ended."""
    lost = draft.state.promises.unrecovered
    if not lost:
        return draft
    own = {manifest.pod.uid for manifest in draft.manifests.values()}
    coming = (
        new_entry(manifest, world.now_ms, pod_level_resources=world.pod_level_resources)
        for manifest in draft.manifests.values()
        if manifest.pod.units
    )
    pinned = {entry.pod.uid for entry in coming if _has_pinned_units(entry, draft.state, world)}
    made = {(entry.key.pod_uid, entry.key.name) for entry in draft.state.runtime.entries if entry.made}
    left = {
        one.uid: one
        for one in find_possibly_running(lost, world.observed, own, has_reported_all=world.has_reported_all, made=made)
    }
    left |= {one.uid: one for one in lost if one.uid in pinned}
    return draft.plus(_replace_unrecovered(draft.state, tuple(one for _, one in sorted(left.items()))))


def adopt_running(draft: Draft, world: World) -> Draft:
    """Adopt pods that have no entry but already have processes, before their CPUs are allocated to other pods. The state was lost, and the
    manifests of these pods appeared only afterwards.

    A pod waits while its cgroup contains processes of containers that aren't in its manifest.
    """
    entries = [
        find_place(new_entry(m, world.now_ms, pod_level_resources=world.pod_level_resources), world.observed)
        for m in draft.new
    ]
    exists = any(entry.pod_path in world.observed for entry in entries)
    running = find_populated_pods(world.observed) if exists else frozenset()
    running_entries = [
        entry for entry in entries if entry.pod_path in running or _has_pinned_units(entry, draft.state, world)
    ]
    waiting = {entry.pod.uid for entry in running_entries if world.runs is None or entry.pod_path in running}
    draft = replace(draft, new=tuple(manifest for manifest in draft.new if manifest.pod.uid not in waiting))
    if not running_entries or world.runs is None:  # only the launcher knows to which containers the processes belong
        return draft
    lost = {one.uid: one.held for one in draft.state.promises.unrecovered}
    known = find_admitted(
        world.managers, running_entries, observed=world.observed, runs=world.runs, recorded=lost, now_ms=world.now_ms
    )
    pods = tuple(pod for pod in known if pod.recovered.stays)
    origins = {pod.entry.pod.uid: pod.entry.origin for pod in pods}
    draft = draft.plus(
        _replace_unrecovered(
            draft.state, tuple(one for one in draft.state.promises.unrecovered if one.uid not in origins)
        )
    )
    placed = place_recovered(world.managers, tuple(pod.recovered for pod in pods), draft.state.promises)
    assert not placed.refused, "running pods are never refused"
    state = replace(draft.state, promises=placed.promises, entries=(*draft.state.entries, *(pod.entry for pod in pods)))
    events = [TurnEvent(EventKind.POD_ADOPTED, pod.entry.pod, pod.entry.origin) for pod in pods]
    events += [
        TurnEvent(EventKind.PROMISE_CHANGED, each.pod, origins[each.pod.uid], each.container, each.fields)
        for each in placed.differences
    ]
    left = tuple(manifest for manifest in draft.new if manifest.pod.uid not in origins)
    return replace(draft.plus(state, *events), new=left)


def _has_pinned_units(entry: PodEntry, state: NodeState, world: World) -> bool:
    """Return whether all units of a pod still have settings that the agent made for an earlier pod, which is unknown now."""
    if not entry.pins_units or find_taken_unit(entry.unit_keys, state.unit_holders()) is not None:
        return False
    units = [world.observed.get(entry.container_path(status.name)) for status in entry.containers]
    return all(unit is not None and unit.unit_before not in {None, unit.unit} for unit in units)


def _replace_unrecovered(state: NodeState, lost: tuple[UnrecoveredPod, ...]) -> NodeState:
    return replace(state, promises=replace(state.promises, unrecovered=lost))
