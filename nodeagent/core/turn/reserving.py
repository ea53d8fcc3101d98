"""Decision on a new reservation. It is accepted only if earlier reservations and waiting jobs keep the times that were announced for them
(D69).
"""

from collections.abc import Sequence

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.reservation import Reservation
from nodeagent.core.model.state import JOBS, NodeState
from nodeagent.core.turn.expected_starts import QueuedJob, expect_starts, find_in_the_way
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.queue import plan_jobs


def find_obstacle(
    new: Reservation,
    node: WhatIf,
    state: NodeState,
    source: PodSource,
    waiting: Sequence[QueuedJob],
    now_ms: int,
    lead_ms: int,
) -> str | None:
    """Return the reason why a reservation can't be made, as a text for users. None means that it can be made.

    Args:
        new: the requested reservation.
        node: the node with all its pods.
        state: the state with these pods.
        source: the source of jobs and of the other reservations.
        waiting: the waiting jobs, in order, whose announced starts must not become later.
        now_ms: the present time, in milliseconds since the epoch.
        lead_ms: wall-clock time minus the time since boot, in milliseconds.
    """
    with_new = replace(source, reservations=(*source.reservations, new))
    before, after = (plan_jobs(node, state, each, now_ms - lead_ms, lead_ms) for each in (source, with_new))
    known, unmet = ({one.pod.uid: there for one, there in plan.list_unmet()} for plan in (before, after))
    if new.pod.uid in unmet:
        return _describe_lack(new, unmet[new.pod.uid], state, source)
    for one in source.reservations:
        if one.pod.uid in unmet and one.pod.uid not in known:
            return f"reservation {one.name} needs the same resources"
    starts = zip(waiting, expect_starts(before, waiting).starts, expect_starts(after, waiting).starts, strict=True)
    for job, start, later in starts:
        if start is not None and (later is None or later > start):
            return f"{job.pod.full_name}, which waits already, would start later"
    return None


def _describe_lack(new: Reservation, node: WhatIf, state: NodeState, source: PodSource) -> str:
    """Describe what prevents the reservation from getting its resources when it begins."""
    names = {one.pod.uid: f"reservation {one.name}" for one in source.reservations}
    names |= {entry.pod.uid: entry.pod.full_name for entry in state.entries if entry.origin.source == JOBS}
    there = {pod.uid for pod in node.pods}
    in_the_way = find_in_the_way(node, new.pod, (uid for uid in names if uid in there))
    if in_the_way:
        return f"{', '.join(names[uid] for uid in in_the_way)} may still hold its resources at that time"
    decision = node.judge(new.pod)
    return "there is no room for it" if isinstance(decision, Admitted) else f"{decision.reason}: {decision.message}"
