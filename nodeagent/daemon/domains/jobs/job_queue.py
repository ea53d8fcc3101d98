"""The operation `queue` of the local API: which jobs run and wait, and when each is expected to start."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.state import JOBS, NodeState
from nodeagent.core.turn.expected_starts import expect_starts
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.queue import RELEASE_MS, find_ends, list_waiting
from nodeagent.daemon.domains.jobs.jobs import Jobs, make_terms
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.clock import read_clocks
from nodeagent.daemon.turn.decide import managers_with_devices
from nodeagent.formats.checkpoint.job_record import JobRecord
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_queue import ShownJob, describe_queue

MOST_EXPECTED = 40
"""Limit on the jobs whose starts are worked out. The starts of the jobs behind them are unknown."""


class JobQueue:
    """Answers about the queue. A thread of its own works them out, one at a time, and only if something has changed."""

    def __init__(self, jobs: Jobs, agent: Agent) -> None:
        self._jobs = jobs
        self._agent = agent
        self._thread = ThreadPoolExecutor(1, "job-queue")
        self._expected: tuple[tuple[NodeState, tuple[JobRecord, ...]] | None, Mapping[str, int | None]] = (None, {})
        """Expected starts by UID, in milliseconds since boot, with the state and the records that they follow from.

        None means that a start is unknown. A job behind the limit isn't contained.
        """

    async def answer(self, _arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        """Describe all jobs, whoever asks: who shares a machine may know who waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._describe)

    def _describe(self) -> Mapping[str, object]:
        state, records = self._agent.view.state, self._jobs.list_records()
        now_ms, lead_ms = read_clocks()
        expected = self._expect(state, records, now_ms - lead_ms)
        shown = []
        for record in records:
            entry, uid = state.entry(record.pod.uid), record.pod.uid
            is_waiting = entry is None or entry.refusal is not None
            if entry is None or (is_waiting and not record.ticket):
                continue  # it isn't decided yet, or is being refused
            start_ms = expected.get(uid) if is_waiting else None
            shown.append(
                ShownJob(
                    record.pod,
                    record.user,
                    record.pid,
                    is_waiting,
                    record.since_ms if is_waiting else entry.decided_at_ms,
                    record.max_ms,
                    record.ends_at_ms + lead_ms if record.ends_at_ms else None,
                    "" if entry.refusal is None else entry.refusal.message,
                    None if start_ms is None else start_ms + lead_ms,
                    is_waiting and uid not in expected,
                )
            )
        return describe_queue(shown, now_ms)

    def _expect(self, state: NodeState, records: tuple[JobRecord, ...], boot_ms: int) -> Mapping[str, int | None]:
        before, expected = self._expected
        is_past = any(start is not None and start < boot_ms for start in expected.values())
        if before is not None and before[0] is state and before[1] == records and not is_past:
            return expected
        agent, terms = self._agent, tuple(map(make_terms, records))
        waiting = list_waiting(state, PodSource(name=JOBS, terms=terms))[:MOST_EXPECTED]
        node = WhatIf.of(
            managers_with_devices(agent.edges, agent.memory),
            state.promises,
            state.holding_pods(),
            agent.node.allocatable if agent.node.config.check_allocatable else None,
            state.idle_pods(),
        )
        starts = expect_starts(node, waiting, find_ends(state, terms, boot_ms), boot_ms, RELEASE_MS)
        found = {job.pod.uid: start for job, start in zip(waiting, starts, strict=True)}
        self._expected = (state, records), found
        return found
