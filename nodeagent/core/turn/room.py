"""Stage: decide pods again that were refused for room, once resources have been released (`retryRefused: room`)."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected
from nodeagent.core.admission.node_capacity import usage_of
from nodeagent.core.admission.units import find_taken_unit
from nodeagent.core.model.promises import Promises
from nodeagent.core.turn.decision import admit_off_orphans, decide_pod, find_orphan_cpus
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.core.turn.world import World


def retry_refused(draft: Draft, before: Promises, world: World, *, has_room: bool = False) -> Draft:
    """Decide refused pods again in the order of their arrival, before new pods take the resources.

    A pod that is refused again keeps its place, and only its shown reason changes.

    Args:
        draft: the turn's draft.
        before: promises of the last decision on these pods.
        world: the observations.
        has_room: whether resources are available for another reason than a released promise.
    """
    if not world.config.retries_for_room or not (has_room or has_released(before, draft.state.promises)):
        return draft
    arrived = ((entry.refusal.at_ms, entry) for entry in draft.state.entries if entry.refusal is not None)
    for _, entry in sorted(arrived, key=lambda one: one[0]):
        refusal, manifest = entry.refusal, draft.manifests.get(entry.pod.full_name)
        if refusal is None or not refusal.is_for_room or manifest is None or manifest.pod != entry.pod:
            continue
        if find_taken_unit(entry.pod, draft.state.pods_of_units()) is not None:
            continue
        usage = usage_of(draft.state.holding_pods(), pod_level_resources=world.pod_level_resources)
        orphans = find_orphan_cpus(draft.state, world)
        decision = decide_pod(draft.state, entry.pod, usage, orphans, world, admit_off_orphans)
        if isinstance(decision, Admitted):
            admitted = new_entry(manifest, world.now_ms, pod_level_resources=world.pod_level_resources)
            draft = draft.plus(draft.state.without(entry.pod.uid)).with_admitted(admitted, manifest, decision)
            draft = replace(draft, is_unfinished=True)  # the next turn may have to start its containers
        elif isinstance(decision, Rejected) and decision.is_postponed:
            draft = draft.postponing(entry.pod, decision.message)
        else:
            again = replace(refusal, reason=decision.reason, message=decision.message)
            draft = draft.plus(draft.state.with_entry(replace(entry, refusal=again)))
    return draft


def has_released(before: Promises, after: Promises) -> bool:
    """Whether a pod no longer holds everything that it held before."""
    if before.unrecovered != after.unrecovered:
        return True
    return before.pods != after.pods and any(after.pods.get(uid) != held for uid, held in before.pods)
