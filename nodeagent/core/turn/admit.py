"""Stage: decide new pods, in the order of their manifests."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, in_turn
from nodeagent.core.admission.node_capacity import usage_of
from nodeagent.core.admission.units import find_taken_unit
from nodeagent.core.model.waiting import RequestKind, Waiting
from nodeagent.core.turn.decision import Decide, decide_pod, find_orphan_cpus
from nodeagent.core.turn.draft import Draft, make_note_events, make_refusal_event, record_refusal
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.core.turn.world import World


def admit_new(draft: Draft, world: World, decide: Decide) -> Draft:
    """Admit or refuse each new pod."""
    if not draft.new:
        return draft
    gate = world.pod_level_resources
    usage = usage_of(draft.state.holding_pods(), pod_level_resources=gate)
    orphans = find_orphan_cpus(draft.state, world)
    for manifest in in_turn(world.managers, draft.new, lambda manifest: manifest.pod):
        pod, entry = manifest.pod, new_entry(manifest, world.now_ms, pod_level_resources=gate)
        undecided, draft = draft, draft.plus(draft.state, *make_note_events(manifest))
        taken = find_taken_unit(pod, draft.state.pods_of_units()) if pod.units else None  # most pods pin no unit
        if taken is not None:
            refusal = Waiting(taken.reason, taken.message, world.now_ms)
            draft = draft.plus(record_refusal(draft.state, entry, refusal), make_refusal_event(entry, refusal))
            continue
        decision = decide_pod(draft.state, pod, usage, orphans, world, decide)
        if isinstance(decision, Admitted):
            draft = draft.with_admitted(entry, manifest, decision)
            usage = usage.plus(pod, pod_level_resources=gate)
            continue
        report = None
        if isinstance(decision, Rejected):
            if decision.is_postponed:
                draft = undecided.postponing(pod, decision.message)
                continue
            report = decision.report
            draft = draft.plus(replace(draft.state, promises=decision.promises), deltas=decision.deltas)
        refusal = Waiting(decision.reason, decision.message, world.now_ms)
        draft = draft.plus(record_refusal(draft.state, entry, refusal), make_refusal_event(entry, refusal, report))
        draft = draft.having_refused(draft.state.entries[-1], RequestKind.POD, world)
    return draft
