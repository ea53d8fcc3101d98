"""Expected starts of waiting jobs. A start is the latest possible one, because every running job and every reservation is assumed to use
all its time.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.pod import Pod


class QueuedJob(Struct, frozen=True):
    pod: Pod
    max_ms: int
    """Longest time from the job's start to its end, in milliseconds. 0 means that there is no limit."""


class ReservedTime(Struct, frozen=True):
    """A reservation whose times are on the plan's time scale."""

    pod: Pod
    """Pod with the reserved amounts."""
    from_ms: int
    until_ms: int
    inside: frozenset[str] = frozenset()
    """UIDs of the running jobs in the reservation. The amounts of these jobs are part of the reserved amounts."""


class Blocked(Struct, frozen=True):
    """Obstacle to a job's start at a certain time of the plan."""

    reservation: str | None
    """UID of the reservation that needs the same room. None means that there would be too little room even without reservations."""


class JobPlan(Struct, frozen=True):
    """The node at one point of the forecast, with the events that are expected after this point, such as ends of jobs."""

    node: WhatIf
    at_ms: int
    release_ms: int
    """Longest time, in milliseconds, from the end of a job's time to the release of its resources."""
    ends: tuple[tuple[int, str], ...]
    """Expected later releases of the resources of jobs and reservations, as (time, UID), sorted by time."""
    reserved: tuple[ReservedTime, ...]
    """All reservations, sorted by begin."""
    coming: tuple[ReservedTime, ...]
    """Reservations that haven't begun yet, sorted by begin."""
    unmet: frozenset[str] = frozenset()
    """UIDs of the reservations for which room was missing when they began. No job starts before these reservations end."""
    trials: list[int] = field(default_factory=list)
    """Number of trial decisions that are left. All plans derived from this plan share it. A negative number means that a trial was
    skipped, and counted as a refusal.
    """

    @classmethod
    def of(
        cls,
        node: WhatIf,
        ends_at_ms: Mapping[str, int],
        now_ms: int,
        release_ms: int,
        reserved: Sequence[ReservedTime] = (),
        most_trials: int = 10_000,
    ) -> "JobPlan":
        """Create the plan for the present time.

        Args:
            node: the node with its pods.
            ends_at_ms: the latest end of each running job with a time limit, by UID.
            now_ms: the present time. All times are in milliseconds.
            release_ms: the longest time from the end of a job's time to the release of its resources.
            reserved: the reservations that haven't ended.
            most_trials: the maximum number of trial decisions.
        """
        ends = tuple(sorted((max(end_ms, now_ms) + release_ms, uid) for uid, end_ms in ends_at_ms.items()))
        coming = tuple(sorted(reserved, key=lambda one: (one.from_ms, one.pod.uid)))
        plan = cls(node, now_ms, release_ms, ends, coming, coming, trials=[most_trials])
        while plan.coming and plan.coming[0].from_ms <= now_ms:
            plan = plan._begin_next()
        return plan

    def judge(self, pod: Pod) -> Admitted | None:
        """Decide on one more pod. None means that there is too little room for the pod."""
        self.trials[0] -= 1
        decision = self.node.judge(pod) if self.trials[0] >= 0 else None
        return decision if isinstance(decision, Admitted) else None

    def go_on(self) -> "JobPlan | None":
        """Return the plan after the next event, which is a release or the begin of a reservation. None means that no event is left."""
        if self.coming and (not self.ends or self.coming[0].from_ms < self.ends[0][0]):
            return self._begin_next()
        if not self.ends:
            return None
        (at_ms, uid), *rest = self.ends
        return replace(
            self, node=self.node.without(frozenset({uid})), at_ms=at_ms, ends=tuple(rest), unmet=self.unmet - {uid}
        )

    def _begin_next(self) -> "JobPlan":
        one, *coming = self.coming
        without = replace(
            self, node=self.node.without(one.inside), at_ms=max(self.at_ms, one.from_ms), coming=tuple(coming)
        )
        decision = without.judge(one.pod)
        ends = [end for end in self.ends if decision is None or end[1] not in one.inside]
        insort(ends, (one.until_ms + self.release_ms, one.pod.uid))
        if decision is None:
            return replace(without, node=self.node, ends=tuple(ends), unmet=self.unmet | {one.pod.uid})
        return replace(without, node=without.node.after(one.pod, decision), ends=tuple(ends))

    def starting(self, job: QueuedJob) -> "JobPlan | Blocked":
        """Return the plan after a start of the job at the plan's time, or the reason why the job can't start then."""
        decision = self.judge(job.pod)
        if decision is None or self.unmet:
            return Blocked(None if decision is None else min(self.unmet))
        ends = list(self.ends)
        ends_at_ms = self.at_ms + job.max_ms + self.release_ms if job.max_ms else None
        if ends_at_ms is not None:
            insort(ends, (ends_at_ms, job.pod.uid))
        started = replace(self, node=self.node.after(job.pod, decision), ends=tuple(ends))
        unmet = next(started.list_unmet(ends_at_ms), None)
        return started if unmet is None else Blocked(unmet[0].pod.uid)

    def list_unmet(self, until_ms: int | None = None) -> "Iterator[tuple[ReservedTime, WhatIf]]":
        """Yield each reservation that begins before `until_ms` and lacks room, with the node at its begin. If `until_ms` is None, all
        reservations are examined.
        """
        for one in self.reserved:
            if one.pod.uid in self.unmet:
                yield one, self.node
        plan = self
        while plan.coming and (until_ms is None or plan.coming[0].from_ms < until_ms):
            first, there = plan.coming[0], plan.node.without(plan.coming[0].inside)
            plan = plan.go_on() or plan
            if first.pod.uid in plan.unmet:
                yield first, there


class Expected(NamedTuple):
    starts: tuple[int | None, ...]
    """Start of each waiting job. None means that the start is unknown. Either pods without a time limit hold resources needed by this or
    an earlier job, or too many decisions would be needed.
    """
    last: WhatIf
    """Node at the last start. If a start is unknown, this is the node after the end of all jobs and reservations that have an end."""
    has_given_up: bool
    """Whether the prediction was given up, because it would need too many decisions."""


def expect_starts(plan: JobPlan, queue: Sequence[QueuedJob]) -> Expected:
    """Predict the starts of the waiting jobs, by trial decisions like the agent's.

    The jobs start in the order of the queue. A job may start earlier than predicted, because other jobs may end earlier.
    """
    starts: list[int | None] = []
    for job in queue:
        started = plan.starting(job)
        while isinstance(started, Blocked) and (later := plan.go_on()) is not None:
            plan = later
            started = plan.starting(job)
        if isinstance(started, Blocked):
            break
        starts.append(plan.at_ms)
        plan = started
    unknown = [None] * (len(queue) - len(starts))
    return Expected((*starts, *unknown), plan.node, plan.trials[0] < 0)


def find_in_the_way(node: WhatIf, pod: Pod, candidates: Iterable[str]) -> tuple[str, ...] | None:
    """Return the pods that together prevent the admission of a pod. The pod fits as soon as all of them have ended, but not before.

    Args:
        node: the node with all pods.
        pod: the pod that isn't admitted.
        candidates: the UIDs to choose from. If there is a choice, the first ones are chosen.

    Returns:
        The UIDs in the order of the candidates. None means that the pod wouldn't fit even without the candidates.
    """
    left = tuple(dict.fromkeys(candidates))
    if not isinstance(node.without(frozenset(left)).judge(pod), Admitted):
        return None
    for uid in reversed(left):
        fewer = tuple(one for one in left if one != uid)
        if isinstance(node.without(frozenset(fewer)).judge(pod), Admitted):
            left = fewer
    return left
