"""Queue of waiting jobs, which start in the order in which they were submitted. A job may start before jobs ahead of it only if it delays
none of them (D66), and uses nothing that a reservation needs (D69).
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from nodeagent.core.admission.managers import Admitted, Rejected, initial
from nodeagent.core.admission.node_capacity import Insufficient, Usage
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import CPU
from nodeagent.core.model.refusals import (
    NEEDED_LATER,
    RESERVATION_OVER,
    WAITS_FOR_JOBS,
    WAITS_FOR_RESERVATION,
    WAITS_FOR_ROOM,
)
from nodeagent.core.model.state import JOBS, NodeState, PodEntry
from nodeagent.core.model.waiting import Waiting, is_for_room
from nodeagent.core.turn.decision import admit_off_orphans, decide_pod
from nodeagent.core.turn.expected_starts import (
    Blocked,
    JobPlan,
    QueuedJob,
    ReservedTime,
    expect_starts,
    find_in_the_way,
)
from nodeagent.core.turn.pod_sources import JobTerms, Manifest, PodSource
from nodeagent.core.turn.world import World

RELEASE_MS = 12_000
"""Longest time from the end of a job's time limit to the release of its CPUs, in milliseconds: the grace period of a job plus two turns."""


MOST_OVERTAKING = 2
"""Maximum number of jobs per turn that are examined for an early start, that is, a start before jobs ahead of them in the queue."""
_MOST_BEFORE = 32
"""Maximum number of jobs ahead of a job in the queue. If there are more, the job isn't examined for an early start, because the forecast of
so many starts would take too long.
"""
_MOST_TRIALS = 200
"""Maximum number of trial decisions per forecast of a job's start and of the starts of jobs ahead of it."""


def list_waiting(state: NodeState, source: PodSource, reservation: str = "") -> list[QueuedJob]:
    """Return the jobs of a source that wait in the queue, in order. The jobs in a reservation have a queue of their own."""
    entries = {entry.pod.uid: entry for entry in state.entries if entry.is_queued} if source.terms else {}
    queued = ((one, entries.get(one.uid)) for one in source.terms if one.is_queued and one.reservation == reservation)
    return [QueuedJob(entry.pod, terms.max_ms) for terms, entry in queued if entry is not None]


def find_ends(state: NodeState, terms: Iterable[JobTerms], boot_ms: int) -> dict[str, int]:
    """Return when each running job with a time limit ends at the latest, by UID, in milliseconds since boot."""
    known, ends = {one.uid: one for one in terms}, {}
    for entry in state.entries:
        one = known.get(entry.pod.uid)
        if entry.origin.source != JOBS or not entry.is_active:
            continue
        if one is None or entry.deleting_since_ms is not None:
            ends[entry.pod.uid] = boot_ms
        elif one.max_ms or one.ends_at_ms:
            ends[entry.pod.uid] = one.ends_at_ms or boot_ms + one.max_ms
    return ends


def list_reserved(state: NodeState, source: PodSource, lead_ms: int) -> tuple[ReservedTime, ...]:
    """Return the reservations of a source, with their times in milliseconds since boot.

    Args:
        state: the state, which contains the running jobs.
        source: the source of jobs and reservations.
        lead_ms: wall-clock time minus the time since boot, in milliseconds.
    """
    return tuple(
        ReservedTime(
            one.pod,
            one.from_ms - lead_ms,
            one.until_ms - lead_ms,
            frozenset(entry.pod.uid for entry in _list_inside(state, source, one.name)),
        )
        for one in source.reservations
    )


def _list_inside(state: NodeState, source: PodSource, reservation: str) -> list[PodEntry]:
    """Return the running jobs that use a reservation."""
    uids = {terms.uid for terms in source.terms if terms.reservation == reservation}
    return [entry for entry in state.entries if entry.is_active and entry.pod.uid in uids]


def expect_starts_inside(state: NodeState, source: PodSource, boot_ms: int, lead_ms: int) -> dict[str, int | None]:
    """Return the latest start of each job that waits for its reservation, by UID, in milliseconds since boot.

    A job starts when its reservation begins, if the jobs ahead of it leave enough room in the reservation. None means that the start is
    unknown.
    """
    starts: dict[str, int | None] = {}
    for own in source.reservations:
        pods = [entry.pod for entry in _list_inside(state, source, own.name)]
        for job in list_waiting(state, source, own.name):
            is_first, begins_ms = own.find_excess(pods, job.pod) is None, own.from_ms - lead_ms
            starts[job.pod.uid] = begins_ms if is_first and begins_ms > boot_ms else None
            pods.append(job.pod)
    return starts


def find_first_waiting(state: NodeState, manifest: Manifest, world: World) -> Waiting | None:
    """Return the reason why a pod must wait for jobs of its source that are ahead of it. None means that there are no such jobs. All
    waiting jobs are ahead of a pod that isn't in the queue itself.
    """
    before = _list_before(state, manifest, world)
    if not before:
        return None
    return Waiting(WAITS_FOR_JOBS, f"{before[0].pod.full_name} is before it in the queue", world.now_ms)


def find_reservation_wait(state: NodeState, manifest: Manifest, world: World) -> Waiting | None:
    """Return the reason why reservations prevent a job from starting now. None means that they don't.

    Only jobs have to wait for reservations. If a job doesn't fit even without reservations, the result is None, so that the decision names
    the missing resource.
    """
    source = _find_source(manifest, world)
    terms = None if source is None else source.find_terms(manifest.pod.uid)
    if source is None or terms is None or not (source.reservations or terms.reservation):
        return None
    if terms.reservation:
        own = next((one for one in source.reservations if one.name == terms.reservation), None)
        if own is None:
            return Waiting(RESERVATION_OVER, f"reservation {terms.reservation} has ended", world.now_ms)
        if own.from_ms > world.now_ms:
            return Waiting(WAITS_FOR_RESERVATION, f"reservation {own.name} has not begun", world.now_ms)
        inside = [entry.pod for entry in _list_inside(state, source, own.name)]
        excess = own.find_excess(inside, manifest.pod)
        return None if excess is None else Waiting(WAITS_FOR_RESERVATION, excess, world.now_ms)
    plan = _make_plan(state, source, world)
    started = plan.starting(QueuedJob(manifest.pod, terms.max_ms))
    if not isinstance(started, Blocked):
        return None
    reservations = {one.pod.uid: one for one in source.reservations}
    uid = started.reservation
    if uid is None:
        begun = (pod.uid for pod in plan.node.pods if pod.uid in reservations)
        uid = next(iter(find_in_the_way(plan.node, manifest.pod, begun) or ()), None)
    if uid is None:
        return None
    needs = NEEDED_LATER if reservations[uid].from_ms > world.now_ms else "needs until it ends"
    message = f"it would use resources that reservation {reservations[uid].name} {needs}"
    return Waiting(WAITS_FOR_RESERVATION, message, world.now_ms)


def _make_plan(state: NodeState, source: PodSource, world: World) -> JobPlan:
    node = WhatIf.of_state(world.managers, state, world.allocatable if world.config.check_allocatable else None)
    return plan_jobs(node, state, source, world.now_ms - world.lead_ms, world.lead_ms, _MOST_TRIALS)


def plan_jobs(
    node: WhatIf, state: NodeState, source: PodSource, boot_ms: int, lead_ms: int, most_trials: int = 10_000
) -> JobPlan:
    """Create the forecast for a source's jobs and reservations.

    Args:
        node: the node with all its pods.
        state: the state with these pods.
        source: the source of jobs and reservations.
        boot_ms: the present time, in milliseconds since boot.
        lead_ms: wall-clock time minus the time since boot, in milliseconds.
        most_trials: the maximum number of trial decisions.
    """
    ends, reserved = find_ends(state, source.terms, boot_ms), list_reserved(state, source, lead_ms)
    return JobPlan.of(node, ends, boot_ms, RELEASE_MS, reserved, most_trials)


def can_overtake(state: NodeState, manifest: Manifest, world: World) -> bool:
    """Return whether a job is allowed to start before jobs ahead of it, if it would delay none of them. It must be in the common queue and
    have a time limit, and not too many jobs may be ahead of it.
    """
    source = _find_source(manifest, world)
    own = None if source is None else source.find_terms(manifest.pod.uid)
    is_able = own is not None and own.is_queued and own.max_ms > 0 and not own.reservation
    return is_able and len(_list_before(state, manifest, world)) <= _MOST_BEFORE


def may_overtake(state: NodeState, manifest: Manifest, world: World) -> bool:
    """Return whether a job can start now, before jobs ahead of it, without delaying any of them. `can_overtake` must be true for the job.

    The starts of all jobs ahead must be known. Their forecast takes time, so it is limited to few jobs per turn.
    """
    source = _find_source(manifest, world)
    own = None if source is None else source.find_terms(manifest.pod.uid)
    assert source is not None
    assert own is not None
    before = _list_before(state, manifest, world)
    if len(before) > _MOST_BEFORE:
        return False
    plan = _make_plan(state, source, world)
    started = plan.starting(QueuedJob(manifest.pod, own.max_ms))
    if isinstance(started, Blocked):
        return False
    starts, later = expect_starts(plan, before).starts, expect_starts(started, before).starts
    return all(new is not None and old is not None and new <= old for old, new in zip(starts, later, strict=True))


def measure_holdings(state: NodeState, world: World) -> Mapping[int, int]:
    """Return the CPUs of each user's running jobs, by user ID, in billionths of a CPU."""
    users = {one.uid: one.user for source in world.sources for one in source.terms}
    held: dict[int, int] = {}
    for entry in state.entries if users else ():
        user = users.get(entry.pod.uid)
        if user is not None and entry.is_active:
            held[user] = held.get(user, 0) + entry.pod.sum_limits(CPU)
    return held


def _find_source(manifest: Manifest, world: World) -> PodSource | None:
    return next((source for source in world.sources if source.name == manifest.origin.source), None)


def _list_before(state: NodeState, manifest: Manifest, world: World) -> list[QueuedJob]:
    """Return the waiting jobs ahead of a pod in its queue. The last result is cached, because most calls in a turn are for the
    same state.
    """
    source = _find_source(manifest, world)
    if source is None or not source.terms:
        return []
    terms = source.find_terms(manifest.pod.uid)
    own = "" if terms is None else terms.reservation
    known = world.last_waiting
    if not known or known[0][0] is not state or known[0][1] is not source or known[0][2] != own:
        world.last_waiting[:] = [(state, source, own, list_waiting(state, source, own))]
    return list(takewhile(lambda job: job.pod.uid != manifest.pod.uid, known[0][3]))


def decide_alone(manifest: Manifest, world: World) -> Admitted | Rejected | Insufficient:
    """Decide on a pod as if the node had no other pods. If the pod is refused even then, it would wait in vain."""
    trial = World(
        config=world.config,
        managers=world.managers.tried_out(),
        allocatable=world.allocatable,
        sources=(),
        runs=None,
        observed={},
        now_ms=world.now_ms,
    )
    free = NodeState(promises=initial(trial.managers), entries=())
    return decide_pod(free, manifest.pod, Usage(), CpuSet(), trial, admit_off_orphans)


def make_refusal(decision: Rejected | Insufficient, manifest: Manifest, world: World) -> Waiting:
    """Return the refusal of a pod. If the pod is in the queue and would be admitted on a node without other pods, it waits for room instead
    of being refused for good.
    """
    refusal = Waiting(decision.reason, decision.message, world.now_ms)
    is_queued = any(manifest.pod.uid in source.queue for source in world.sources)
    if not is_queued or not is_for_room(decision.reason):
        return refusal
    alone = decide_alone(manifest, world)
    if not isinstance(alone, Admitted):
        return refusal
    return Waiting(WAITS_FOR_ROOM, f"{decision.reason}: {decision.message}", world.now_ms)
