"""Queue of jobs: first come, first served. A job starts only if no job before it waits for room."""

from itertools import takewhile

from nodeagent.core.admission.managers import Admitted, Rejected, initial
from nodeagent.core.admission.node_capacity import Insufficient, Usage
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.refusals import OF_QUEUE, WAITS_FOR_JOBS, WAITS_FOR_ROOM
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.waiting import Waiting, is_for_room
from nodeagent.core.turn.decision import admit_off_orphans, decide_pod
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.core.turn.world import World


def find_first_waiting(state: NodeState, manifest: Manifest, world: World) -> Waiting | None:
    """Return why a pod must wait for others of its source, or None if no pod before it waits.

    A pod outside of the queue comes after the whole queue.
    """
    queue = next((source.queue for source in world.sources if source.name == manifest.origin.source), ())
    for uid in takewhile(lambda uid: uid != manifest.pod.uid, queue):
        entry = state.entry(uid)
        if entry is not None and entry.refusal is not None and entry.refusal.reason in OF_QUEUE:
            return Waiting(WAITS_FOR_JOBS, f"{entry.pod.full_name} waits for room before it", world.now_ms)
    return None


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
