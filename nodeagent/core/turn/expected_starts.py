"""Expected starts of waiting jobs: the latest ones, if every running job takes all of its time."""

import heapq
from collections.abc import Mapping, Sequence

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.pod import Pod


class QueuedJob(Struct, frozen=True):
    pod: Pod
    max_ms: int
    """Longest time from the job's start to its end. 0 means no limit."""


def expect_starts(
    node: WhatIf,
    queue: Sequence[QueuedJob],
    ends_at_ms: Mapping[str, int],
    now_ms: int,
    release_ms: int,
    most_trials: int = 10_000,
) -> tuple[int | None, ...]:
    """Expect the start of each waiting job, by the same decisions as the agent's.

    The jobs start in the order of the queue. A job may start earlier, because others may end earlier.

    Args:
        node: the node with its pods.
        queue: the waiting jobs, in order.
        ends_at_ms: the latest end of each running job with a time limit, by UID.
        now_ms: the time now, in milliseconds like all times here.
        release_ms: the longest time between the end of a job's time and its release.
        most_trials: limit on the decisions.

    Returns:
        The expected starts. None means that a start is unknown: what the job or one before it needs is held without a time limit, or too
        many decisions would be needed.
    """
    ends = [(max(end_ms, now_ms) + release_ms, uid) for uid, end_ms in ends_at_ms.items()]
    heapq.heapify(ends)
    starts: list[int] = []
    at_ms, trials = now_ms, 0
    for job in queue:
        trials += 1
        decision = node.judge(job.pod)
        while not isinstance(decision, Admitted):
            trials += 1
            if not ends or trials > most_trials:
                return (*starts, *[None] * (len(queue) - len(starts)))
            at_ms, uid = heapq.heappop(ends)
            node = node.without(frozenset({uid}))
            decision = node.judge(job.pod)
        starts.append(at_ms)
        node = node.after(job.pod, decision)
        if job.max_ms:
            heapq.heappush(ends, (at_ms + job.max_ms + release_ms, job.pod.uid))
    return tuple(starts)
