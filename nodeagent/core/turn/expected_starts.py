"""Forecast of when waiting jobs start. Each predicted start is the latest possible one, because all running jobs and reservations are
assumed to use all their time.
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
    """Time limit of the job, from its start, in milliseconds. 0 means that there is no limit."""


class ReservedTime(Struct, frozen=True):
    """Reservation, with its times in milliseconds since boot."""

    pod: Pod
    """Pod that requests the reserved amounts, for trial decisions."""
    from_ms: int
    until_ms: int
    inside: frozenset[str] = frozenset()
    """UIDs of the running jobs that use the reservation. Their amounts are a part of the reserved amounts."""


class Blocked(Struct, frozen=True):
    """Reason why a job can't start at a certain time of the forecast."""

    reservation: str | None
    """UID of a reservation that needs the resources. None means that there is too little room even without reservations."""


class JobPlan(Struct, frozen=True):
    """Forecast at one point in time: the node, and the events that are expected afterwards, such as ends of jobs."""

    node: WhatIf
    at_ms: int
    release_ms: int
    """Longest time, in milliseconds, from the end of a job's time limit to the release of its resources."""
    ends: tuple[tuple[int, str], ...]
    """Expected releases of resources by jobs and reservations, as (time, UID), sorted by time."""
    reserved: tuple[ReservedTime, ...]
    """All reservations that haven't ended, sorted by begin."""
    coming: tuple[ReservedTime, ...]
    """Reservations that haven't begun at this point, sorted by begin."""
    unmet: frozenset[str] = frozenset()
    """UIDs of the reservations that have begun without enough room. No job may start before they end."""
    trials: list[int] = field(default_factory=list)
    """Number of trial decisions that are left, as the only item of a list. All forecasts that are derived from this one share the list, and
    so the limit. A negative number means that a decision was skipped and counted as a refusal.
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
        """Create the forecast for the present time.

        Args:
            node: the node with its pods.
            ends_at_ms: the latest end of each running job that has a time limit, by UID.
            now_ms: the present time. All times are in milliseconds since boot.
            release_ms: the longest time from the end of a job's time limit to the release of its resources.
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
        """Decide on one more pod, as a trial. None means that the pod isn't admitted."""
        self.trials[0] -= 1
        decision = self.node.judge(pod) if self.trials[0] >= 0 else None
        return decision if isinstance(decision, Admitted) else None

    def go_on(self) -> "JobPlan | None":
        """Return the forecast after the next event, which is a release of resources or the begin of a reservation. None means that no
        further event is expected.
        """
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
        """Return the forecast after a start of the job at `at_ms`, or the reason why the job can't start then."""
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
        """Yield each reservation that lacks room at its begin, with the node at that time. Only reservations that begin before `until_ms`
        are examined, or all of them if it is None.
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
    """Latest start of each waiting job, in milliseconds since boot. None means that the start is unknown. Either pods without a time limit
    hold resources that this or an earlier job needs, or too many trial decisions would be needed.
    """
    last: WhatIf
    """Node after the last known start. If some start is unknown, it is the node after all jobs and reservations with a known end have
    ended.
    """
    has_given_up: bool
    """Whether the forecast was stopped because it needed too many trial decisions."""


def expect_starts(plan: JobPlan, queue: Sequence[QueuedJob]) -> Expected:
    """Predict the starts of the waiting jobs by trial decisions with the agent's rules.

    The jobs start in the order of the queue. The real start may be earlier, because running jobs may end before their time limits.
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
    """Return a group of pods whose end lets another pod be admitted. If any one of them stays, the pod isn't admitted.

    Args:
        node: the node with all its pods.
        pod: the pod that isn't admitted.
        candidates: the UIDs of the pods that may be in the group. Earlier ones are preferred.

    Returns:
        The UIDs, in the order of the candidates. None means that the pod isn't admitted even if all candidates end.
    """
    left = tuple(dict.fromkeys(candidates))
    if not isinstance(node.without(frozenset(left)).judge(pod), Admitted):
        return None
    for uid in reversed(left):
        fewer = tuple(one for one in left if one != uid)
        if isinstance(node.without(frozenset(fewer)).judge(pod), Admitted):
            left = fewer
    return left
