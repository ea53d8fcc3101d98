"""Stage: release the allocations of ended pods once their cgroups contain no processes (D11)."""

from msgspec.structs import replace

from nodeagent.core.model.refusals import RELEASED
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import Manifest, is_wanted, new_entry
from nodeagent.core.turn.world import EventKind, World


def release_ended(draft: Draft, world: World) -> Draft:
    """Remove the pods that have ended, and release their allocations. A pod that a user ended with `nodeagent release` stays in the state
    as refused while its manifest exists, so that it isn't started again.
    """
    for entry in world.awake(draft.state.entries):
        if entry.deleting_since_ms is None or not lifecycle.is_gone(entry, world.runs or {}, world.observed):
            continue
        if world.runs is None and any(status.is_started for status in entry.containers):
            continue  # the launcher may just be starting a process of this pod
        stays = None
        if entry.is_released and _has_same_manifest(entry, draft, world):
            # The released pod stays listed as refused, and starts again only on request.
            refusal = Waiting(RELEASED, "the pod was ended by `nodeagent release`", world.now_ms)
            pod = entry.pod if entry.refused_change is None else entry.refused_change.pod
            manifest = Manifest(pod, entry.origin)
            stays = new_entry(manifest, world.now_ms, pod_level_resources=world.pod_level_resources)
            stays = replace(stays, refusal=refusal, containers=())
        position = draft.state.entries.index(entry)
        others = tuple(e for e in draft.state.entries if e is not entry)
        if stays is None or any(e.pod.full_name == stays.pod.full_name or e.pod.uid == stays.pod.uid for e in others):
            draft = draft.without(entry, world)
            continue
        draft = draft.without(entry, world, EventKind.POD_RELEASED)
        draft = draft.plus(replace(draft.state, entries=(*others[:position], stays, *others[position:])))
    return draft


def _has_same_manifest(entry: PodEntry, draft: Draft, world: World) -> bool:
    """Return whether the pod's present manifest is one on which the agent has already decided: the manifest of the pod itself, or of its
    refused change.
    """
    if is_wanted(entry, draft.manifests, world.sources):
        return True
    changed, known = draft.changed.get(entry.pod.uid), entry.refused_change
    return changed is not None and known is not None and changed.pod == known.pod
