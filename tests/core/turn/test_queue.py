"""The queue of jobs over whole days: an independent count of CPUs judges who starts when, with the agent killed in between.

On this machine a count of free CPUs is the whole decision: one NUMA node, and no rule about cores.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.state import JOBS, Origin
from nodeagent.core.turn import admit as admit_stage
from nodeagent.core.turn.expected_starts import expect_starts
from nodeagent.core.turn.pod_sources import JobTerms, Manifest, PodSource
from nodeagent.core.turn.queue import MOST_OVERTAKING, RELEASE_MS, find_ends, list_waiting, may_overtake
from nodeagent.formats.manifest.job_pod import job_pod
from tests.support.node_model import Agent, CrashError, Machine
from tests.support.world import SMALL, node

NODE = node(SMALL)
CPUS = 7
"""CPUs that can be exclusive: CPU 0 is reserved."""
USERS = 5
SECOND = 1000


class Job:
    def __init__(self, number: int, user: int, cpus: int, max_ms: int, takes_ms: int) -> None:
        self.pod = job_pod(f"job{number}", f"uid-{number}", {"cpu": str(cpus), "memory": "1Mi"})
        self.user, self.cpus, self.max_ms, self.takes_ms = user, cpus, max_ms, takes_ms
        self.started_ms: int | None = None
        self.promised_ms: int | None = None
        """Latest start that was ever told."""

    @property
    def ends_at_ms(self) -> int | None:
        """When its command ends, or the agent ends it."""
        if self.started_ms is None:
            return None
        return self.started_ms + (min(self.takes_ms, self.max_ms) if self.max_ms else self.takes_ms)


class Day:
    """A machine, an agent that may die, and jobs that come, wait, run and go."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = Machine(NODE)
        self.agent = Agent(self.machine)
        self.jobs: dict[str, Job] = {}
        self.done: list[Job] = []
        self.overtook = 0

    @property
    def now_ms(self) -> int:
        return self.machine.now_ms

    def source(self) -> PodSource:
        manifests = tuple(Manifest(job.pod, Origin(job.pod.name, JOBS)) for job in self.jobs.values())
        return PodSource(manifests, name=JOBS, terms=tuple(self.terms()))

    def terms(self) -> Iterator[JobTerms]:
        for uid, job in self.jobs.items():
            ends = 0 if job.started_ms is None or not job.max_ms else job.started_ms + job.max_ms
            yield JobTerms(uid, job.user, job.max_ms, ends, is_queued=True)

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.started_ms is None]

    def settle(self) -> None:
        """Let the agent do all that it can, and judge each start as it comes."""
        for _ in range(60):
            before = self.agent.state
            self.agent.other_sources = (self.source(),)
            self.turn()
            for uid in list(self.jobs):
                entry = self.agent.state.entry(uid)
                if self.jobs[uid].started_ms is None and entry is not None and entry.is_active:
                    self.judge_start(self.jobs[uid])
                    self.jobs[uid].started_ms = self.now_ms
            wakes_at_ms = self.agent.last.wake_at_ms
            if self.agent.state == before and (wakes_at_ms is None or wakes_at_ms > self.now_ms):
                return
        pytest.fail("it doesn't come to rest")

    def turn(self) -> None:
        """Do a turn, in which the agent may be killed; then another process goes on."""
        if self.random.random() < 0.1:
            self.agent.dies_at = self.agent.effects + self.random.randint(1, 4)
        try:
            self.agent.turn()
        except CrashError:
            self.agent.restart()
            self.agent.turn()
        self.agent.dies_at = None

    # the judge: profiles of free CPUs over time, without the agent's code

    def starts_by_count(self, jobs: list[Job], running: list[tuple[int | None, int]]) -> list[int | None]:
        """Return when each job starts, one after the other, if each takes all of its time. `running`: latest ends and CPUs."""
        running, starts, at_ms = list(running), [], self.now_ms
        for job in jobs:
            while CPUS - sum(cpus for _, cpus in running) < job.cpus:
                ends = sorted(end for end, _ in running if end is not None)
                if not ends:
                    return [*starts, *[None] * (len(jobs) - len(starts))]
                at_ms = max(at_ms, ends[0])
                running.remove(next(one for one in running if one[0] == ends[0]))
            starts.append(at_ms)
            running.append((at_ms + job.max_ms + RELEASE_MS if job.max_ms else None, job.cpus))
        return starts

    def running(self) -> list[tuple[int | None, int]]:
        return [
            (None if not job.max_ms else job.started_ms + job.max_ms + RELEASE_MS, job.cpus)
            for job in self.jobs.values()
            if job.started_ms is not None
        ]

    def may_start(self, job: Job) -> bool:
        before = []
        for one in self.waiting():
            if one is job:
                break
            before.append(one)
        running = self.running()
        if sum(cpus for _, cpus in running) + job.cpus > CPUS:
            return False
        if not before:
            return True
        starts = self.starts_by_count(before, running)
        if not job.max_ms or None in starts:
            return False
        later = self.starts_by_count(before, [*running, (self.now_ms + job.max_ms + RELEASE_MS, job.cpus)])
        return all(new is not None and old is not None and new <= old for old, new in zip(starts, later, strict=True))

    def judge_start(self, job: Job) -> None:
        assert self.may_start(job), f"{job.pod.name} delays another"
        if job.promised_ms is not None:
            assert self.now_ms <= job.promised_ms, f"{job.pod.name} was promised an earlier start"
        self.overtook += job is not self.waiting()[0]

    def judge_rest(self) -> None:
        """Nobody waits who may start, and what is told is no later than what was told before."""
        waiting = self.waiting()
        assert [job.pod.name for job in waiting if self.may_start(job)] == []
        state, source = self.agent.state, self.source()
        told = expect_starts(
            WhatIf.of(NODE.managers, state.promises, state.holding_pods(), NODE.allocatable),
            list_waiting(state, source),
            find_ends(state, source.terms, self.now_ms),
            self.now_ms,
            RELEASE_MS,
        )
        assert list(told) == self.starts_by_count(waiting, self.running()), "the agent tells what the count says"
        for job, start in zip(waiting, told, strict=True):
            assert job.promised_ms is None or (start is not None and start <= job.promised_ms)
            job.promised_ms = start

    def live(self, count: int) -> None:
        for number in range(count):
            self.advance_to(self.now_ms + self.random.randint(0, 40) * SECOND)
            max_ms = self.random.choice((0, *[self.random.randint(5, 300) * SECOND] * 4))
            takes_ms = self.random.randint(1, 400) * SECOND
            job = Job(number, self.random.randrange(USERS), self.random.randint(1, CPUS), max_ms, takes_ms)
            self.jobs[job.pod.uid] = job
            if self.random.random() < 0.1 and self.waiting():  # somebody loses patience
                gone = self.random.choice(self.waiting())
                del self.jobs[gone.pod.uid]
            self.settle()
            self.judge_rest()
        while self.jobs:
            ends = [job.ends_at_ms for job in self.jobs.values() if job.ends_at_ms is not None]
            assert ends, "somebody starves"
            self.advance_to(min(ends))

    def advance_to(self, until_ms: int) -> None:
        """Let the time pass; jobs end on the way."""
        while True:
            ends = {job.ends_at_ms: uid for uid, job in self.jobs.items() if job.ends_at_ms is not None}
            if not ends or min(ends) > until_ms:
                break
            self.machine.now_ms = max(self.now_ms, min(ends))
            self.done.append(self.jobs.pop(ends[min(ends)]))
            self.settle()
            self.judge_rest()
        self.machine.now_ms = max(self.now_ms, until_ms)
        self.settle()


@pytest.mark.parametrize("seed", range(6))
def test_fifty_jobs_of_five_users_start_as_the_rule_says_and_nobody_starves(seed: int) -> None:
    day = Day(seed)
    day.live(50)
    assert len(day.done) > 35
    assert day.agent.state.entries == ()
    if seed == 0:
        assert day.overtook > 0, "jobs that delay nobody don't wait"


def test_of_those_that_may_overtake_the_one_whose_user_holds_least_goes_first() -> None:
    day = Day(0)
    jobs = [
        Job(0, user=1, cpus=3, max_ms=100 * SECOND, takes_ms=100 * SECOND),
        Job(1, user=2, cpus=2, max_ms=100 * SECOND, takes_ms=100 * SECOND),
        Job(2, user=4, cpus=2, max_ms=50 * SECOND, takes_ms=10 * SECOND),
        Job(3, user=3, cpus=7, max_ms=50 * SECOND, takes_ms=10 * SECOND),
        Job(4, user=1, cpus=2, max_ms=20 * SECOND, takes_ms=20 * SECOND),
        Job(5, user=2, cpus=2, max_ms=20 * SECOND, takes_ms=20 * SECOND),
    ]
    for job in jobs:
        day.jobs[job.pod.uid] = job
        day.settle()
    assert [job.started_ms is not None for job in jobs] == [True, True, True, False, False, False]
    day.advance_to(day.now_ms + 10 * SECOND)
    assert [job.started_ms is not None for job in jobs[3:]] == [False, False, True]
    day.advance_to(day.now_ms + 20 * SECOND)
    assert [job.started_ms is not None for job in jobs[3:]] == [False, True, True]


def test_a_turn_examines_few_jobs_for_an_earlier_start_and_the_next_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many jobs wait, they don't keep the deciding thread busy."""
    examined = []

    def examine(*arguments: Any) -> bool:
        examined[-1].append(arguments[1].pod.name)
        return may_overtake(*arguments)

    monkeypatch.setattr(admit_stage, "may_overtake", examine)
    day = Day(0)
    holds = Job(0, user=1, cpus=6, max_ms=100 * SECOND, takes_ms=100 * SECOND)
    day.jobs[holds.pod.uid] = holds
    day.agent.other_sources = (day.source(),)
    day.agent.turn()
    holds.started_ms = day.now_ms
    for number in range(1, 9):
        job = Job(number, user=2, cpus=7, max_ms=9 * SECOND, takes_ms=SECOND)
        day.jobs[job.pod.uid] = job
    day.agent.other_sources = (day.source(),)
    while not examined or day.agent.last.wake_at_ms == day.now_ms:
        examined.append([])
        day.agent.turn()
    assert {name for names in examined for name in names} == {f"job{number}" for number in range(2, 9)}
    assert max(len(set(names)) for names in examined) == MOST_OVERTAKING
    examined.append([])
    day.agent.turn()
    assert examined[-1] == [], "until there is more room"
