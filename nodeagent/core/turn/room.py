"""Stage: decide due refused pods again, because resources have been released or a device plugin has reported devices."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, in_turn
from nodeagent.core.admission.node_capacity import usage_of
from nodeagent.core.admission.units import find_taken_unit
from nodeagent.core.model.waiting import RequestKind
from nodeagent.core.turn.decision import Decide, decide_pod, find_orphan_cpus
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.due import list_due
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.core.turn.world import World


def retry_refused(draft: Draft, world: World, decide: Decide) -> Draft:
    """Decide refused pods again in the order of their refusals, before new pods take the resources.

    A pod that is refused again keeps its position, and only its shown reason changes. A pod without a known manifest stays due.
    """
    due = [one.entry for one in list_due(draft.state, draft.seen_room, world) if one.kind is RequestKind.POD]
    due.sort(key=lambda entry: 0 if entry.refusal is None else entry.refusal.at_ms)
    for entry in in_turn(world.managers, due, lambda entry: entry.pod):
        refusal, manifest = entry.refusal, draft.manifests.get(entry.pod.full_name)
        if refusal is None or manifest is None or manifest.pod != entry.pod:
            continue
        if find_taken_unit(entry.pod, draft.state.pods_of_units()) is not None:
            continue
        usage = usage_of(draft.state.holding_pods(), pod_level_resources=world.pod_level_resources)
        orphans = find_orphan_cpus(draft.state, world)
        decision = decide_pod(draft.state, entry.pod, usage, orphans, world, decide)
        if isinstance(decision, Admitted):
            admitted = new_entry(manifest, world.now_ms, pod_level_resources=world.pod_level_resources)
            draft = draft.plus(draft.state.without(entry.pod.uid)).with_admitted(admitted, manifest, decision)
        elif isinstance(decision, Rejected) and decision.is_postponed:
            draft = draft.postponing(entry.pod, decision.message)
        else:
            again = replace(entry, refusal=replace(refusal, reason=decision.reason, message=decision.message))
            deltas = decision.deltas if isinstance(decision, Rejected) else ()
            draft = draft.plus(draft.state.with_entry(again), deltas=deltas)
            draft = draft.having_refused(again, RequestKind.POD, world)
    return draft
