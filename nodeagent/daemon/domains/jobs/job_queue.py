"""Operation `queue` of the local API, which lists the running and waiting jobs with their expected starts, and the reservations. The
metrics also contain the expected starts.
"""

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.metrics.agent_metrics import JOBS_START_TIME
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.model.reservation import Reservation
from nodeagent.core.model.state import JOBS, NodeState
from nodeagent.core.turn.expected_starts import expect_starts, find_in_the_way
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.queue import expect_starts_inside, list_waiting, plan_jobs
from nodeagent.core.turn.reserving import find_obstacle
from nodeagent.daemon.domains.jobs.jobs import Jobs, make_terms
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.clock import read_clocks
from nodeagent.daemon.turn.decide import managers_with_devices
from nodeagent.formats.checkpoint.job_record import JobRecord
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_queue import ShownJob, ShownReservation, describe_queue

MOST_EXPECTED = 40
"""Maximum number of jobs whose start is predicted. Jobs further back in the queue have an unknown start."""

_SCRAPE_SECONDS = 2.0
"""Seconds for which a metrics scrape waits until the expected starts are computed. The limit is well below Prometheus' default scrape
timeout (10 s).
"""


class _Expectations(Struct, frozen=True):
    """Expected starts of jobs, together with the state, records and reservations from which they were computed."""

    state: NodeState
    records: tuple[JobRecord, ...]
    reservations: tuple[Reservation, ...]
    starts: Mapping[str, int | None]
    """Expected start by UID, in milliseconds since boot. None means that the start is unknown. Jobs after the first MOST_EXPECTED are
    missing.
    """
    endless: tuple[str, ...] = ()
    """UIDs of jobs without a time limit that occupy what the first job with an unknown start needs."""
    unmet: frozenset[str] = frozenset()
    """UIDs of the reservations for which there aren't enough CPUs or memory."""


class JobQueue:
    """Handler of requests for the queue. It predicts starts in a separate thread, and only if the jobs or the node's state have changed."""

    def __init__(self, jobs: Jobs, agent: Agent) -> None:
        self._jobs = jobs
        self._agent = agent
        self._thread = ThreadPoolExecutor(1, "job-queue")
        self._expected: _Expectations | None = None

    async def answer(self, _arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        """Describe all jobs to any user, because every user of a shared machine may see who else is waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._describe)

    async def measure_starts(self) -> Mapping[Series, float]:
        """Return the earliest and latest expected start of the waiting jobs, as metrics. The values are NaN if the computation takes too
        long.
        """
        starts: Mapping[str, float] = {"next": 0, "last": 0}
        if any(entry.is_queued for entry in self._agent.view.state.entries):
            computed = asyncio.get_running_loop().run_in_executor(self._thread, self._measure_starts)
            done, _ = await asyncio.wait((computed,), timeout=_SCRAPE_SECONDS)
            starts = computed.result() if done else dict.fromkeys(starts, math.nan)
        return {Series(JOBS_START_TIME, (("start", which),)): start for which, start in starts.items()}

    def _measure_starts(self) -> Mapping[str, float]:
        state, (now_ms, lead_ms) = self._agent.view.state, read_clocks()
        expected = self._expect(
            state, self._jobs.list_records(), self._jobs.reservations.list_current(), now_ms, lead_ms
        )
        starts = [expected.starts.get(entry.pod.uid) for entry in state.entries if entry.is_queued]
        known = [(start + lead_ms) / 1000 for start in starts if start is not None]
        is_complete = len(known) == len(starts)
        return {"next": min(known, default=math.nan), "last": max(known, default=0) if is_complete else math.nan}

    async def find_obstacle(self, new: Reservation, state: NodeState | None = None) -> str | None:
        """Return why a reservation can't be made, or None if it can be made.

        Args:
            new: the reservation.
            state: state in which room for the reservation is searched. None means the current state.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find_obstacle, new, state)

    def _find_obstacle(self, new: Reservation, state: NodeState | None) -> str | None:
        state = self._agent.view.state if state is None else state
        source = self._make_source(self._jobs.list_records(), self._jobs.reservations.list_current())
        now_ms, lead_ms = read_clocks()
        waiting = list_waiting(state, source)[:MOST_EXPECTED]
        return find_obstacle(new, self._make_node(state), state, source, waiting, now_ms, lead_ms)

    def _make_source(self, records: tuple[JobRecord, ...], reservations: tuple[Reservation, ...]) -> PodSource:
        return PodSource(name=JOBS, terms=tuple(map(make_terms, records)), reservations=reservations)

    def _make_node(self, state: NodeState) -> WhatIf:
        agent = self._agent
        allocatable = agent.node.allocatable if agent.node.config.check_allocatable else None
        return WhatIf.of_state(managers_with_devices(agent.edges, agent.memory), state, allocatable)

    def _describe(self) -> Mapping[str, object]:
        state, records = self._agent.view.state, self._jobs.list_records()
        reservations = self._jobs.reservations.list_current()
        now_ms, lead_ms = read_clocks()
        expected = self._expect(state, records, reservations, now_ms, lead_ms)
        shown = {}
        for record in records:
            entry, uid = state.entry(record.pod.uid), record.pod.uid
            is_waiting = entry is None or entry.refusal is not None
            if entry is None or (is_waiting and not record.ticket):
                continue  # there is no decision on the job yet, or the job is being refused
            start_ms = expected.starts.get(uid) if is_waiting else None
            shown[uid] = ShownJob(
                record.pod,
                record.user,
                record.pid,
                is_waiting,
                record.since_ms if is_waiting else entry.decided_at_ms,
                record.max_ms,
                record.ends_at_ms + lead_ms if record.ends_at_ms else None,
                "" if entry.refusal is None else entry.refusal.message,
                None if start_ms is None else start_ms + lead_ms,
                is_waiting and uid not in expected.starts,
                record.reservation,
            )
        reserved = [ShownReservation(one, one.pod.uid not in expected.unmet) for one in reservations]
        return describe_queue(
            [*shown.values()], [shown[uid] for uid in expected.endless if uid in shown], reserved, now_ms
        )

    def _expect(
        self,
        state: NodeState,
        records: tuple[JobRecord, ...],
        reservations: tuple[Reservation, ...],
        now_ms: int,
        lead_ms: int,
    ) -> _Expectations:
        before, boot_ms = self._expected, now_ms - lead_ms
        if (
            before is not None
            and before.state is state
            and (before.records, before.reservations) == (records, reservations)
            and not any(start is not None and start < boot_ms for start in before.starts.values())
        ):
            return before
        source = self._make_source(records, reservations)
        waiting = list_waiting(state, source)[:MOST_EXPECTED]
        plan = plan_jobs(self._make_node(state), state, source, boot_ms, lead_ms)
        found = expect_starts(plan, waiting)
        endless: tuple[str, ...] | None = ()
        if None in found.starts and not found.has_given_up:
            unlimited = [record.pod.uid for record in records if not (record.max_ms or record.ends_at_ms)]
            endless = find_in_the_way(found.last, waiting[found.starts.index(None)].pod, unlimited)
        starts = {job.pod.uid: start for job, start in zip(waiting, found.starts, strict=True)}
        starts |= expect_starts_inside(state, source, boot_ms, lead_ms)
        unmet = frozenset(one.pod.uid for one, _ in plan.list_unmet())
        self._expected = _Expectations(state, records, reservations, starts, endless or (), unmet)
        return self._expected
