"""Stages for pods that pin systemd units (D30). They record the units' original settings, and release a pod's allocation while its units
are inactive.
"""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, remove_pod
from nodeagent.core.admission.node_capacity import usage_of
from nodeagent.core.model.state import Idle, NodeState, PodEntry
from nodeagent.core.model.waiting import RequestKind, Waiting
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.decision import Decide, admit_off_orphans, decide_pod, find_orphan_cpus
from nodeagent.core.turn.draft import Draft, make_refusal_event
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def _list_pinning_entries(state: NodeState, world: World) -> list[PodEntry]:
    return [
        entry
        for entry in world.awake(state.entries)
        if entry.is_active and entry.pins_units and entry.deleting_since_ms is None
    ]


def note_settings(draft: Draft, world: World) -> Draft:
    """Record the settings of each pinned unit when it is first observed. They are restored once no pod pins the unit any more.

    After a reboot, the settings are recorded once more, because systemd has dropped all changes that the agent had made at run time,
    including those for `hostIsolation`.
    """
    state = draft.state
    if state.units_boot_id and world.boot_id not in {"", state.units_boot_id}:
        state = replace(state, units_boot_id="")
        for entry in state.entries:
            if entry.pins_units:
                statuses = tuple(replace(status, unit_before=None) for status in entry.containers)
                state = state.with_entry(replace(entry, containers=statuses))
    for entry in _list_pinning_entries(state, world):
        recorded = lifecycle.record_unit_settings(entry, world.observed)
        state = state.with_entry(recorded)
        if not state.units_boot_id and any(status.unit_before for status in recorded.containers):
            state = replace(state, units_boot_id=world.boot_id)
    return draft.plus(state)


def rest(draft: Draft, world: World) -> Draft:
    """Release the allocations of pods whose units are all inactive. The pods become idle but keep their entries. When a unit of an idle pod
    is started, it runs in the shared pool until the pod gets an allocation.
    """
    for entry in _list_pinning_entries(draft.state, world):
        if entry.idle == Idle() or not lifecycle.is_to_rest(entry, world.inactive_units):
            continue
        promises, deltas = remove_pod(world.managers, draft.state.promises, entry.pod.uid)
        state = replace(draft.state.with_entry(replace(entry, idle=Idle())), promises=promises)
        events = () if entry.idle else (TurnEvent(EventKind.POD_RESTED, entry.pod, entry.origin),)
        draft = draft.plus(state, *events, deltas=deltas)
    return draft


def resume(draft: Draft, world: World, decide: Decide) -> Draft:
    """Decide on idle pods one of whose units is active again. This stage comes before the decisions on new pods.

    If a pod is refused for lack of resources, its units run in the shared pool until there is more room. The refusal is reported once, and
    again only if its reason changes.
    """
    for entry in _list_pinning_entries(draft.state, world):
        if entry.idle is None or not lifecycle.is_to_resume(entry, world.observed, world.inactive_units):
            continue
        known = entry.idle.refusal
        if known is not None and not draft.is_due(entry, RequestKind.RESUME, world):
            continue
        usage = usage_of(draft.state.holding_pods(), pod_level_resources=world.pod_level_resources)
        orphans = find_orphan_cpus(draft.state, world)
        decision = decide_pod(
            draft.state, entry.pod, usage, orphans, world, decide if known is None else admit_off_orphans
        )
        if isinstance(decision, Admitted):
            state = replace(draft.state.with_entry(replace(entry, idle=None)), promises=decision.promises)
            event = TurnEvent(EventKind.POD_RESUMED, entry.pod, entry.origin, report=decision.report)
            draft = draft.plus(state, event, deltas=decision.deltas)
            continue
        refusal = Waiting(decision.reason, decision.message, world.now_ms)
        if isinstance(decision, Rejected) and decision.is_postponed:
            draft = draft.postponing(replace(entry, idle=Idle(refusal)))
            continue
        if known is not None and (known.reason, known.message) == (decision.reason, decision.message):
            draft = draft.having_refused(entry, RequestKind.RESUME, world)
            continue
        event = make_refusal_event(entry, refusal, kind=EventKind.RESUME_REFUSED)
        refused = replace(entry, idle=Idle(refusal))
        draft = draft.plus(draft.state.with_entry(refused), event).having_refused(refused, RequestKind.RESUME, world)
    return draft
