"""Stage: decide on pods, first on the refused ones that are due, in the order of their refusals, then on the new ones, in the order of
their manifests.
"""

from typing import NamedTuple

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, in_turn
from nodeagent.core.admission.node_capacity import Insufficient, usage_of
from nodeagent.core.admission.units import find_taken_unit
from nodeagent.core.model.refusals import WAITS_FOR_JOBS
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import RequestKind, Waiting
from nodeagent.core.turn.decision import Decide, decide_pod, find_orphan_cpus
from nodeagent.core.turn.draft import Draft, make_note_events, make_refusal_event, record_refusal
from nodeagent.core.turn.due import list_due
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.core.turn.queue import (
    MOST_OVERTAKING,
    can_overtake,
    decide_alone,
    find_first_waiting,
    find_reservation_wait,
    make_refusal,
    may_overtake,
    measure_holdings,
)
from nodeagent.core.turn.world import World


def admit(draft: Draft, world: World, decide: Decide) -> Draft:
    """Admit or refuse each pod that needs a decision. If a pod is refused once more, it keeps its position in the order and the time of its
    first refusal.
    """
    again = in_turn(world.managers, _list_due_refused(draft, world), lambda one: one[1].pod)
    new = in_turn(world.managers, draft.new, lambda manifest: manifest.pod)
    if not again and not new:
        return draft
    gate = world.pod_level_resources
    usage = usage_of(draft.state.holding_pods(), pod_level_resources=gate)
    orphans = find_orphan_cpus(draft.state, world)
    examined = 0  # number of jobs for which an early start, before jobs ahead of them in the queue, was examined
    for known, manifest, is_due in (*again, *((None, manifest, True) for manifest in new)):
        pod, entry = manifest.pod, new_entry(manifest, world.now_ms, pod_level_resources=gate)
        # If a pod stays refused and no user has asked for a new decision, nothing is reported.
        is_silent = known is not None and pod.uid not in world.retried
        # most pods pin no units, so no list of pinned units is made for them
        taken = find_taken_unit(entry.unit_keys, draft.state.unit_holders()) if pod.units else None
        if is_silent and taken is not None:
            continue
        undecided, draft = draft, draft if is_silent else draft.plus(draft.state, *make_note_events(manifest))
        wait = _look_at_queue(draft, world, known, manifest, is_due=is_due, may_examine=examined < MOST_OVERTAKING)
        waits, examined = wait.waits, examined + wait.was_examined
        if wait.stays_due:
            draft = replace(draft, is_unfinished=True)
        if waits is not None and known is not None and waits == known.refusal:
            if is_due and not wait.stays_due:
                draft = draft.having_refused(known, RequestKind.POD, world)
            continue
        decision = waits or taken or decide_pod(draft.state, pod, usage, orphans, world, decide)
        if isinstance(decision, Admitted):
            others = draft.state if known is None else draft.state.without(pod.uid)
            draft = draft.plus(others).with_admitted(entry, manifest, decision)
            usage = usage.plus(pod, pod_level_resources=gate)
            continue
        report, refusal = None, Waiting(decision.reason, decision.message, world.now_ms)
        if isinstance(decision, Rejected):
            if decision.is_postponed:
                draft = undecided.postponing(replace(known or entry, refusal=refusal, containers=()))
                continue
            report = decision.report
            draft = draft.plus(replace(draft.state, promises=decision.promises), deltas=decision.deltas)
        if isinstance(decision, Rejected | Insufficient):
            refusal = make_refusal(decision, manifest, world)
        if known is None or known.refusal is None:
            state = record_refusal(draft.state, entry, refusal)
        else:
            entry = replace(known, refusal=replace(refusal, at_ms=known.refusal.at_ms))
            state = draft.state.with_entry(entry)
        draft = draft.plus(state, *(() if is_silent else (make_refusal_event(entry, refusal, report),)))
        if not wait.stays_due:
            draft = draft.having_refused(replace(entry, refusal=refusal), RequestKind.POD, world)
    return draft


class _QueueLook(NamedTuple):
    waits: Waiting | None = None
    """Reason why the pod must wait instead of being decided now. None means that it needn't wait."""
    was_examined: bool = False
    """Whether this call has examined whether the job may start before jobs ahead of it. The number of such examinations per turn is
    limited.
    """
    stays_due: bool = False
    """Whether the pod's request remains due, because a later turn must examine it."""


def _look_at_queue(
    draft: Draft, world: World, known: PodEntry | None, manifest: Manifest, *, is_due: bool, may_examine: bool
) -> _QueueLook:
    """Find out whether a pod has to wait for jobs ahead of it or because of a reservation. `known` is the entry of a refused pod, or None
    for a new pod.
    """
    first = find_first_waiting(draft.state, manifest, world)
    waits = first or find_reservation_wait(draft.state, manifest, world)
    if waits is None:
        return _QueueLook()
    if known is not None and known.refusal is not None:
        waits = replace(waits, at_ms=known.refusal.at_ms)
        if waits == known.refusal and not is_due:
            return _QueueLook(waits)
    elif not isinstance(alone := decide_alone(manifest, world), Admitted):
        return _QueueLook(Waiting(alone.reason, alone.message, world.now_ms))
    if first is None or not can_overtake(draft.state, manifest, world):
        return _QueueLook(waits)
    if not may_examine:
        return _QueueLook(waits, stays_due=True)
    return _QueueLook(None if may_overtake(draft.state, manifest, world) else waits, was_examined=True)


def _list_due_refused(draft: Draft, world: World) -> list[tuple[PodEntry, Manifest, bool]]:
    """Return the refused pods to examine in this turn, in order. The flag is true if the pod is due or a user wants a new decision. It is
    false if the job only waits for jobs ahead of it, and is examined for an early start.

    A pod whose manifest can't be read is left out, and stays due. Jobs that wait for jobs ahead of them come last. Among these, jobs of
    users whose running jobs have few CPUs in relation to the user's weight come first.
    """
    due = {one.pod_uid for one in list_due(draft.state, draft.seen_room, world) if one.kind is RequestKind.POD}
    due |= world.retried
    found = []
    for entry in [entry for entry in draft.state.entries if entry.refusal is not None]:
        manifest, is_due = draft.manifests.get(entry.pod.full_name), entry.pod.uid in due
        is_behind = entry.refusal is not None and entry.refusal.reason == WAITS_FOR_JOBS
        if manifest is not None and manifest.pod == entry.pod and (is_due or is_behind):
            found.append((entry, manifest, is_due))
    held = measure_holdings(draft.state, world) if found else {}
    terms = {one.uid: one for source in world.sources for one in source.terms} if found else {}

    def rank(one: tuple[PodEntry, Manifest, bool]) -> tuple[int, int]:
        refusal, own = one[0].refusal, terms.get(one[0].pod.uid)
        assert refusal is not None
        is_behind = refusal.reason == WAITS_FOR_JOBS
        return (1 + held.get(own.user, 0) // own.weight if is_behind and own is not None else 0), refusal.at_ms

    return sorted(found, key=rank)
