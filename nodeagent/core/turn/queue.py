"""Queue of jobs: first come, first served. A job starts before the ones before it only if none of them starts later for it (D66)."""

from collections.abc import Iterable, Mapping
from itertools import takewhile

from nodeagent.core.admission.managers import Admitted, Rejected, initial
from nodeagent.core.admission.node_capacity import Insufficient, Usage
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import CPU
from nodeagent.core.model.refusals import WAITS_FOR_JOBS, WAITS_FOR_ROOM
from nodeagent.core.model.state import JOBS, NodeState
from nodeagent.core.model.waiting import Waiting, is_for_room
from nodeagent.core.turn.decision import admit_off_orphans, decide_pod
from nodeagent.core.turn.expected_starts import QueuedJob, expect_starts
from nodeagent.core.turn.pod_sources import JobTerms, Manifest, PodSource
from nodeagent.core.turn.world import World

RELEASE_MS = 12_000
"""Longest time between the end of a job's time and the release of its CPUs: the grace period of a job, and two turns."""


MOST_OVERTAKING = 2
"""Limit on the jobs that a turn examines for an earlier start."""
_MOST_BEFORE = 32
"""Limit on the waiting jobs before a job that may overtake them."""
_MOST_TRIALS = 100
"""Limit on the decisions for the starts of these jobs."""


def list_waiting(state: NodeState, source: PodSource) -> list[QueuedJob]:
    """Return the jobs of a source that wait in its queue, in order."""
    entries = {entry.pod.uid: entry for entry in state.entries if entry.is_queued} if source.terms else {}
    queued = ((terms, entries.get(terms.uid)) for terms in source.terms if terms.is_queued)
    return [QueuedJob(entry.pod, terms.max_ms) for terms, entry in queued if entry is not None]


def find_ends(state: NodeState, terms: Iterable[JobTerms], boot_ms: int) -> dict[str, int]:
    """Return the latest end of each running job that has one, in milliseconds since boot, by UID."""
    known, ends = {one.uid: one for one in terms}, {}
    for entry in state.entries:
        one = known.get(entry.pod.uid)
        if entry.origin.source != JOBS or not entry.is_active:
            continue
        if one is None or entry.deleting_since_ms is not None:
            ends[entry.pod.uid] = boot_ms
        elif one.max_ms:
            ends[entry.pod.uid] = one.ends_at_ms or boot_ms + one.max_ms
    return ends


def find_first_waiting(state: NodeState, manifest: Manifest, world: World) -> Waiting | None:
    """Return why a pod must wait for others of its source, or None if no pod before it waits.

    A pod outside of the queue comes after the whole queue.
    """
    before = _list_before(state, manifest, world)
    if not before:
        return None
    return Waiting(WAITS_FOR_JOBS, f"{before[0].pod.full_name} waits for room before it", world.now_ms)


def can_overtake(state: NodeState, manifest: Manifest, world: World) -> bool:
    """Whether a job may start before others at all: it is in the queue, has a time limit, and not too many wait before it."""
    source = _find_source(manifest, world)
    return (
        source is not None
        and any(one.uid == manifest.pod.uid and one.is_queued and one.max_ms for one in source.terms)
        and len(_list_before(state, manifest, world)) <= _MOST_BEFORE
    )


def may_overtake(state: NodeState, manifest: Manifest, world: World) -> bool:
    """Whether a job that can overtake may start before the ones before it: it fits, and each of them starts no later than without it.

    That is known only if the starts of all these jobs are known. To bound the time of a turn, it is not worked out behind many jobs.
    """
    source = _find_source(manifest, world)
    assert source is not None
    before = _list_before(state, manifest, world)
    gives = world.allocatable if world.config.check_allocatable else None
    node = WhatIf.of(world.managers, state.promises, state.holding_pods(), gives, state.idle_pods())
    decision = node.judge(manifest.pod) if len(before) <= _MOST_BEFORE else None
    if not isinstance(decision, Admitted):
        return False
    boot_ms = world.now_ms - world.lead_ms
    ends = find_ends(state, source.terms, boot_ms)
    starts = expect_starts(node, before, ends, boot_ms, RELEASE_MS, _MOST_TRIALS)
    if None in starts:
        return False
    max_ms = next(one.max_ms for one in source.terms if one.uid == manifest.pod.uid)
    ends[manifest.pod.uid] = boot_ms + max_ms
    later = expect_starts(node.after(manifest.pod, decision), before, ends, boot_ms, RELEASE_MS, _MOST_TRIALS)
    return all(new is not None and old is not None and new <= old for old, new in zip(starts, later, strict=True))


def measure_holdings(state: NodeState, world: World) -> Mapping[int, int]:
    """Return the CPUs of each user's running jobs, in billionths, by user ID."""
    users = {one.uid: one.user for source in world.sources for one in source.terms}
    held: dict[int, int] = {}
    for entry in state.entries if users else ():
        user = users.get(entry.pod.uid)
        if user is not None and entry.is_active:
            limits = (dict(container.resources.limits).get(CPU) for container in entry.pod.containers)
            held[user] = held.get(user, 0) + sum(limit.nano for limit in limits if limit is not None)
    return held


def _find_source(manifest: Manifest, world: World) -> PodSource | None:
    return next((source for source in world.sources if source.name == manifest.origin.source), None)


def _list_before(state: NodeState, manifest: Manifest, world: World) -> list[QueuedJob]:
    """Return the waiting jobs before a pod. Most calls of a turn are about the same state."""
    source = _find_source(manifest, world)
    if source is None or not source.terms:
        return []
    if not world.last_waiting or world.last_waiting[0][0] is not state or world.last_waiting[0][1] is not source:
        world.last_waiting[:] = [(state, source, list_waiting(state, source))]
    return list(takewhile(lambda job: job.pod.uid != manifest.pod.uid, world.last_waiting[0][2]))


def decide_alone(manifest: Manifest, world: World) -> Admitted | Rejected | Insufficient:
    """Decide a pod on the node without any pods. What is refused there can't be met by waiting."""
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
    """Return the refusal of a pod. A queued pod waits for room if it would fit on a node without pods."""
    refusal = Waiting(decision.reason, decision.message, world.now_ms)
    is_queued = any(manifest.pod.uid in source.queue for source in world.sources)
    if not is_queued or not is_for_room(decision.reason):
        return refusal
    alone = decide_alone(manifest, world)
    if not isinstance(alone, Admitted):
        return refusal
    return Waiting(WAITS_FOR_ROOM, f"{decision.reason}: {decision.message}", world.now_ms)
