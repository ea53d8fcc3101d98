"""The queue of jobs over whole days: an independent count of CPUs judges who starts when, with the agent killed in between.

On this machine a count of free CPUs is the whole decision: one NUMA node, and no rule about cores.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.refusals import WAITS_FOR_RESERVATION
from nodeagent.core.model.state import JOBS, Origin
from nodeagent.core.turn import admit as admit_stage
from nodeagent.core.turn.expected_starts import JobPlan, expect_starts
from nodeagent.core.turn.pod_sources import JobTerms, Manifest, PodSource
from nodeagent.core.turn.queue import (
    MOST_OVERTAKING,
    RELEASE_MS,
    expect_starts_inside,
    find_ends,
    list_reserved,
    list_waiting,
    may_overtake,
)
from nodeagent.core.turn.reserving import find_obstacle
from nodeagent.core.turn.world import EventKind
from nodeagent.formats.checkpoint.reservation_list import make_reservation
from nodeagent.formats.manifest.job_pod import job_pod
from tests.support.node_model import Agent, CrashError, Machine
from tests.support.world import SMALL, node

NODE = node(SMALL)
CPUS = 7
"""CPUs that can be exclusive: CPU 0 is reserved."""
USERS = 5
WEIGHTS = {0: 50, 1: 100, 2: 100, 3: 200, 4: 1000}
"""Weights by user."""
SECOND = 1000


class Reserved:
    def __init__(self, number: int, cpus: int, from_ms: int, for_ms: int) -> None:
        self.cpus, self.from_ms, self.until_ms = cpus, from_ms, from_ms + for_ms
        amounts = {"cpu": str(cpus)}
        self.it = make_reservation(f"r{number}", 0, f"uid-r{number}", amounts, from_ms, self.until_ms)


class Job:
    def __init__(
        self, number: int, user: int, cpus: int, max_ms: int, takes_ms: int, inside: Reserved | None = None
    ) -> None:
        self.pod = job_pod(f"job{number}", f"uid-{number}", {"cpu": str(cpus), "memory": "1Mi"})
        self.user, self.cpus, self.max_ms, self.takes_ms, self.inside = user, cpus, max_ms, takes_ms, inside
        self.started_ms: int | None = None
        self.promised_ms: int | None = None
        """Latest start that was ever told."""

    @property
    def latest_end_ms(self) -> int | None:
        """When the agent ends it."""
        assert self.started_ms is not None
        ends = [self.started_ms + self.max_ms] if self.max_ms else []
        return min([*ends, self.inside.until_ms] if self.inside else ends, default=None)

    @property
    def ends_at_ms(self) -> int | None:
        """When its command ends, or the agent ends it."""
        if self.started_ms is None:
            return None
        ends, latest = self.started_ms + self.takes_ms, self.latest_end_ms
        return ends if latest is None else min(ends, latest)


Held = tuple[int, int | None, int]
"""CPUs that are held: from when, until when if that is known, and how many."""


class Day:
    """A machine, an agent that may die, jobs that come, wait, run and go, and reservations."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = Machine(NODE)
        self.agent = Agent(self.machine)
        self.jobs: dict[str, Job] = {}
        self.done: list[Job] = []
        self.reserved: list[Reserved] = []
        self.overtook = self.refused = self.ran_inside = self.held_back = self.passed = 0

    @property
    def now_ms(self) -> int:
        return self.machine.now_ms

    def source(self) -> PodSource:
        manifests = tuple(Manifest(job.pod, Origin(job.pod.name, JOBS)) for job in self.jobs.values())
        reservations = tuple(one.it for one in self.reserved)
        return PodSource(manifests, name=JOBS, terms=tuple(self.terms()), reservations=reservations)

    def terms(self) -> Iterator[JobTerms]:
        for uid, job in self.jobs.items():
            ends = 0 if job.started_ms is None else job.latest_end_ms or 0
            inside = "" if job.inside is None else job.inside.it.name
            weight = WEIGHTS[job.user]
            yield JobTerms(uid, job.user, job.max_ms, ends, is_queued=True, reservation=inside, weight=weight)

    def waiting(self, inside: Reserved | None = None) -> list[Job]:
        return [job for job in self.jobs.values() if job.started_ms is None and job.inside is inside]

    def settle(self) -> None:
        """Let the agent do all that it can, and judge each start as it comes."""
        for _ in range(60):
            before = self.agent.state
            known = [job for job in self.waiting() if before.entry(job.pod.uid) is not None]
            shares = {user: self.weigh(user) for user in WEIGHTS}
            self.agent.other_sources = (self.source(),)
            self.turn()
            admitted = [event.pod.uid for event in self.agent.last.events if event.kind is EventKind.POD_ADMITTED]
            active = {entry.pod.uid for entry in self.agent.state.entries if entry.is_active}
            order = [
                self.jobs[uid] for uid in dict.fromkeys((*admitted, *self.jobs)) if uid in active & self.jobs.keys()
            ]
            started = [job for job in order if job.started_ms is None]
            while started:  # nobody has seen the order of those that an agent admitted before it was killed
                job = next(filter(self.may_start, started), started[0])
                started.remove(job)
                self.judge_start(job)
                self.judge_share(job, known, shares)
                job.started_ms = self.now_ms
                self.judge_room()
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

    # the judge: profiles of held CPUs over time, without the agent's code

    def held(self, reserved: list[Reserved]) -> list[Held]:
        """Return what running jobs and reservations hold. What jobs in a reservation hold is the reservation's."""
        found: list[Held] = [(one.from_ms, one.until_ms + RELEASE_MS, one.cpus) for one in reserved]
        for job in self.jobs.values():
            if job.started_ms is not None and job.inside not in reserved:
                ends = job.latest_end_ms
                found.append((job.started_ms, None if ends is None else ends + RELEASE_MS, job.cpus))
        return found

    def fits(self, cpus: int, at_ms: int, until_ms: int | None, held: list[Held]) -> bool:
        """Whether so many CPUs are free from one time to the other. No second time means for ever."""
        moments = {at_ms, *(begin for begin, _, _ in held if begin > at_ms and (until_ms is None or begin < until_ms))}
        return all(
            cpus + sum(more for begin, end, more in held if begin <= moment and (end is None or moment < end)) <= CPUS
            for moment in moments
        )

    def span(self, job: Job, at_ms: int) -> tuple[int, int | None]:
        return at_ms, at_ms + job.max_ms + RELEASE_MS if job.max_ms else None

    def starts_by_count(self, jobs: list[Job], held: list[Held]) -> list[int | None]:
        """Return when each job starts, one after the other, if each takes all of its time."""
        held, starts, at_ms = list(held), [], self.now_ms
        for job in jobs:
            ends = sorted({end for _, end, _ in held if end is not None and end > at_ms})
            start = next((at for at in (at_ms, *ends) if self.fits(job.cpus, *self.span(job, at), held)), None)
            if start is None:
                return [*starts, *[None] * (len(jobs) - len(starts))]
            at_ms = start
            starts.append(start)
            held.append((*self.span(job, start), job.cpus))
        return starts

    def may_start(self, job: Job) -> bool:
        if job.inside is not None:
            taken = sum(
                one.cpus for one in self.jobs.values() if one.inside is job.inside and one.started_ms is not None
            )
            is_first = self.waiting(job.inside)[0] is job
            return is_first and job.inside.from_ms <= self.now_ms and taken + job.cpus <= job.inside.cpus
        held, before = self.held(self.reserved), []
        for one in self.waiting():
            if one is job:
                break
            before.append(one)
        if not self.fits(job.cpus, *self.span(job, self.now_ms), held):
            return False
        if not before:
            return True
        starts = self.starts_by_count(before, held)
        if not job.max_ms or None in starts:
            return False
        later = self.starts_by_count(before, [*held, (*self.span(job, self.now_ms), job.cpus)])
        return all(new is not None and old is not None and new <= old for old, new in zip(starts, later, strict=True))

    def may_reserve(self, new: Reserved) -> bool:
        before, after = self.held(self.reserved), self.held([*self.reserved, new])
        if not self.fits(new.cpus, new.from_ms, new.until_ms + RELEASE_MS, before):
            return False
        starts = (self.starts_by_count(self.waiting(), held) for held in (before, after))
        return all(old is None or (new is not None and new <= old) for old, new in zip(*starts, strict=True))

    def judge_start(self, job: Job) -> None:
        assert self.may_start(job), f"{job.pod.name} delays another, or holds what is reserved"
        if job.promised_ms is not None:
            assert self.now_ms <= job.promised_ms, f"{job.pod.name} was promised an earlier start"
        self.overtook += job is not self.waiting(job.inside)[0]
        self.ran_inside += job.inside is not None

    def weigh(self, user: int) -> Fraction:
        """Return the CPUs of a user's running jobs for its weight."""
        running = (job.cpus for job in self.jobs.values() if job.user == user and job.started_ms is not None)
        return Fraction(sum(running), WEIGHTS[user])

    def judge_share(self, job: Job, known: list[Job], shares: dict[int, Fraction]) -> None:
        """Of those that may start before others, the one whose user holds least for its weight has started."""
        first = self.waiting(job.inside)[0]
        if job.inside is not None or job is first:
            return
        for other in known:
            if other not in {first, job} and other.started_ms is None and shares[other.user] < shares[job.user]:
                assert not self.may_start(other), f"{other.pod.name} comes before {job.pod.name}"
                self.passed += 1

    def judge_room(self) -> None:
        """All of what is reserved now is free for its own jobs."""
        own = sum(one.cpus for one in self.reserved if one.from_ms <= self.now_ms)
        others = [job.cpus for job in self.jobs.values() if job.started_ms is not None and job.inside is None]
        assert own + sum(others) <= CPUS

    def judge_rest(self) -> None:
        """Nobody waits who may start, and what is told is no later than what was told before."""
        self.judge_room()
        waiting = [job for inside in (None, *self.reserved) for job in self.waiting(inside)]
        assert [job.pod.name for job in waiting if self.may_start(job)] == []
        state, source = self.agent.state, self.source()
        plan = JobPlan.of(
            self.node(),
            find_ends(state, source.terms, self.now_ms),
            self.now_ms,
            RELEASE_MS,
            list_reserved(state, source, 0),
        )
        told = expect_starts(plan, list_waiting(state, source)).starts
        assert list(plan.list_unmet()) == []
        in_order = self.starts_by_count(self.waiting(), self.held(self.reserved))
        assert list(told) == in_order, "the agent tells what the count says"
        inside = expect_starts_inside(state, source, self.now_ms, 0)
        assert {job.pod.uid for job in waiting if job.inside} == inside.keys()
        for job, start in zip(waiting, [*told, *(inside[job.pod.uid] for job in waiting if job.inside)], strict=True):
            assert job.promised_ms is None or (start is not None and start <= job.promised_ms)
            job.promised_ms = start
            entry = state.entry(job.pod.uid)
            assert entry is not None
            assert entry.refusal is not None
            self.held_back += entry.refusal.reason == WAITS_FOR_RESERVATION and job.inside is None

    def node(self) -> WhatIf:
        state = self.agent.state
        return WhatIf.of(NODE.managers, state.promises, state.holding_pods(), NODE.allocatable)

    def reserve(self, number: int) -> None:
        """Ask for a reservation. What the agent decides is what the count says."""
        begin_ms = self.now_ms + self.random.choice((0, *[self.random.randint(1, 600) * SECOND] * 3))
        new = Reserved(number, self.random.randint(1, CPUS), begin_ms, self.random.randint(60, 400) * SECOND)
        state, source = self.agent.state, self.source()
        obstacle = find_obstacle(new.it, self.node(), state, source, list_waiting(state, source), self.now_ms, 0)
        assert (obstacle is None) == self.may_reserve(new), obstacle
        self.refused += obstacle is not None
        self.reserved += [new] if obstacle is None else []

    def live(self, count: int, *, reserves: bool) -> None:
        for number in range(count):
            self.advance_to(self.now_ms + self.random.randint(0, 40) * SECOND)
            if reserves and self.random.random() < 0.4:
                self.reserve(number)
                self.settle()
                self.judge_rest()
            if reserves and self.random.random() < 0.05 and self.reserved:
                self.end_reservation(self.random.choice(self.reserved))
            max_ms = self.random.choice((0, *[self.random.randint(5, 300) * SECOND] * 4))
            takes_ms, cpus = self.random.randint(1, 400) * SECOND, self.random.randint(1, CPUS)
            inside = self.random.choice(self.reserved) if self.reserved and self.random.random() < 0.4 else None
            job = Job(
                number,
                self.random.randrange(USERS),
                cpus if inside is None else min(cpus, inside.cpus),
                max_ms,
                takes_ms,
                inside,
            )
            self.jobs[job.pod.uid] = job
            if self.random.random() < 0.1 and self.waiting():  # somebody loses patience
                gone = self.random.choice(self.waiting())
                del self.jobs[gone.pod.uid]
            self.settle()
            self.judge_rest()
        while self.jobs:
            moments = [job.ends_at_ms for job in self.jobs.values() if job.ends_at_ms is not None]
            moments += [at for one in self.reserved for at in (one.from_ms, one.until_ms) if at > self.now_ms]
            assert moments, "somebody starves"
            self.advance_to(min(moments))

    def end_reservation(self, one: Reserved) -> None:
        """End it, as its time is over or somebody cancels it. Its waiting jobs go, and its running jobs keep their times."""
        for job in self.waiting(one):
            del self.jobs[job.pod.uid]
        self.reserved.remove(one)
        self.settle()
        self.judge_rest()

    def advance_to(self, until_ms: int) -> None:
        """Let the time pass; jobs end on the way, and reservations begin and end."""
        while True:
            ends = [(job.ends_at_ms, 0, uid) for uid, job in self.jobs.items() if job.ends_at_ms is not None]
            ends += [(one.until_ms, 1, one.it.pod.uid) for one in self.reserved]
            ends += [(one.from_ms, 2, one.it.pod.uid) for one in self.reserved if one.from_ms > self.now_ms]
            if not ends or min(ends)[0] > until_ms:
                break
            at_ms, kind, uid = min(ends)
            self.machine.now_ms = max(self.now_ms, at_ms)
            if kind == 1:
                self.end_reservation(next(one for one in self.reserved if one.it.pod.uid == uid))
            elif kind == 0:
                self.done.append(self.jobs.pop(uid))
            self.settle()
            self.judge_rest()
        self.machine.now_ms = max(self.now_ms, until_ms)
        self.settle()


@pytest.mark.parametrize("seed", [*range(6), 90012])
def test_fifty_jobs_of_five_users_start_as_the_rule_says_and_nobody_starves(seed: int) -> None:
    day = Day(seed)
    day.live(50, reserves=False)
    assert len(day.done) > 35
    assert day.agent.state.entries == ()
    if seed == 0:
        assert day.overtook > 0, "jobs that delay nobody don't wait"
        assert day.passed > 0


@pytest.mark.parametrize("seed", range(100, 106))
def test_with_reservations_nobody_holds_what_another_has_reserved_and_nobody_starves(seed: int) -> None:
    day = Day(seed)
    day.live(40, reserves=True)
    assert len(day.done) > 20
    assert day.agent.state.entries == ()
    assert day.refused > 0
    assert day.held_back > 0
    if seed == 100:
        assert day.ran_inside > 5


@pytest.mark.parametrize(("weight_of_first", "first"), [(100, 5), (200, 4)])
def test_of_those_that_may_overtake_the_one_whose_user_holds_least_for_its_weight_goes_first(
    weight_of_first: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User 1 holds 3 CPUs, and user 2 holds 2."""
    monkeypatch.setitem(WEIGHTS, 1, weight_of_first)
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
    assert [job.started_ms is not None for job in jobs[3:]] == [False, first == 4, first == 5]
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
