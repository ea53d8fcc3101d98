"""Stage: begin to end the pods whose manifests were removed, and the pods that a user wants to end."""

from msgspec.structs import replace

from nodeagent.core.model.state import PodEntry
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import is_wanted
from nodeagent.core.turn.world import EventKind, RequestKey, TurnEvent, World


def end_pods(draft: Draft, world: World) -> Draft:
    """Begin to end the pods whose manifests were removed, and the pods that a user wants to end. Refused and finished pods have no
    processes, so they are removed from the state at once.
    """
    for entry in world.awake(draft.state.entries):
        if entry.deleting_since_ms is not None or (entry.is_active and entry.pod.uid in draft.changed):
            continue
        has_manifest = is_wanted(entry, draft.manifests, world.sources)
        if has_manifest and (entry.refusal is None or not _is_new_again(entry, draft, world)):
            continue
        if entry.is_active:
            draft = draft.with_ending(entry, world)
            continue
        events = () if has_manifest else (TurnEvent(EventKind.POD_REMOVED, entry.pod, entry.origin),)
        draft = draft.plus(draft.state.without(entry.pod.uid), *events)
        if entry.is_queued:  # jobs that were behind the ended job in the queue may start earlier now
            draft = replace(
                draft, seen_room={key: room for key, room in draft.seen_room.items() if not _waits(key, draft)}
            )
    for entry in draft.state.own_entries() if world.released else ():
        if entry.pod.uid not in world.released or not entry.is_active or entry.is_released:
            continue
        released = replace(entry, is_released=True)
        draft = draft.plus(draft.state.with_entry(released))
        if entry.deleting_since_ms is None:  # an ending pod is only marked, so that it isn't admitted again
            draft = draft.with_ending(released, world)
    return draft


def _is_new_again(entry: PodEntry, draft: Draft, world: World) -> bool:
    """Return whether a refused pod that a user wants to retry is removed and then decided like a new pod. This is so if its manifest has
    changed, or if it pins units for which it may have to wait.
    """
    manifest = draft.manifests.get(entry.pod.full_name) if entry.pod.uid in world.retried else None
    return manifest is not None and (bool(entry.pod.units) or manifest.pod != entry.pod)


def _waits(key: RequestKey, draft: Draft) -> bool:
    entry = draft.state.entry(key.pod_uid)
    return entry is not None and entry.is_queued
