"""Stage: release what ended pods held, once their cgroups are empty (D11)."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import remove_pod
from nodeagent.core.model.refusals import RELEASED
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import Manifest, is_wanted, new_entry
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def release_ended(draft: Draft, world: World) -> Draft:
    """Remove the pods that have ended. A pod that was ended on request and still has its manifest stays, refused."""
    for entry in draft.state.entries:
        if entry.deleting_since_ms is None or not lifecycle.is_gone(entry, world.runs or {}, world.observed):
            continue
        if world.runs is None and any(status.is_started for status in entry.containers):
            continue  # unknown whether a start is in progress
        promises, deltas = remove_pod(world.managers, draft.state.promises, entry.pod.uid)
        others = tuple(e for e in draft.state.entries if e.pod.uid != entry.pod.uid)
        state = replace(draft.state, promises=promises, entries=others)
        removed = TurnEvent(EventKind.POD_REMOVED, entry.pod, entry.origin)
        if entry.is_released and _has_same_manifest(entry, draft, world):
            refused = _refused_for_good(entry, world)
            taken = {key for e in others for key in (("name", e.pod.full_name), ("uid", e.pod.uid))}
            if taken.isdisjoint((("name", refused.pod.full_name), ("uid", refused.pod.uid))):
                place = draft.state.entries.index(entry)
                state = replace(state, entries=(*others[:place], refused, *others[place:]))
                removed = TurnEvent(EventKind.POD_RELEASED, entry.pod, entry.origin)
        draft = draft.plus(state, removed, deltas=deltas)
    return draft


def _has_same_manifest(entry: PodEntry, draft: Draft, world: World) -> bool:
    """Whether the manifest is the one that was decided last. A change that was refused has been decided."""
    if is_wanted(entry, draft.manifests, world.sources):
        return True
    changed, known = draft.changed.get(entry.pod.uid), entry.refused_change
    return changed is not None and known is not None and changed.pod == known.pod


def _refused_for_good(entry: PodEntry, world: World) -> PodEntry:
    """Return the entry of the manifest's pod as refused, so that it comes back only on request."""
    refusal = Waiting(RELEASED, "it was ended by `nodeagent release`", world.now_ms)
    pod = entry.pod if entry.refused_change is None else entry.refused_change.pod
    manifest = Manifest(pod, entry.origin)
    entry = new_entry(manifest, world.now_ms, pod_level_resources=world.pod_level_resources)
    return replace(entry, refusal=refusal, containers=())
