"""The operation `queue` of the local API: which jobs run and wait, and when each is expected to start."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nodeagent.core.explain.expected_starts import QueuedJob, expect_starts
from nodeagent.core.explain.what_if import WhatIf
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.domains.jobs.jobs import Jobs
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.clock import read_clocks
from nodeagent.daemon.turn.decide import managers_with_devices
from nodeagent.formats.checkpoint.job_record import JobRecord
from nodeagent.formats.manifest.job_pod import GRACE_SECONDS
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_queue import ShownJob, describe_queue

_RELEASE_MS = (GRACE_SECONDS + 2) * 1000
"""Longest time between the end of a job's time and its release: the grace period, and two turns."""
_MOST_EXPECTED = 40
"""Limit on the jobs whose starts are worked out. The starts of the jobs behind them are unknown."""


class JobQueue:
    """Answers about the queue. A thread of its own works them out, one at a time, and only if something has changed."""

    def __init__(self, jobs: Jobs, agent: Agent) -> None:
        self._jobs = jobs
        self._agent = agent
        self._thread = ThreadPoolExecutor(1, "job-queue")
        self._expected: tuple[tuple[NodeState, tuple[JobRecord, ...]] | None, Mapping[str, int]] = (None, {})
        """Expected starts by UID, in milliseconds since boot, with the state and the records that they follow from."""

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
                    expected[uid] + lead_ms if uid in expected and is_waiting else None,
                )
            )
        return describe_queue(shown, now_ms)

    def _expect(self, state: NodeState, records: tuple[JobRecord, ...], boot_ms: int) -> Mapping[str, int]:
        before, expected = self._expected
        if before is not None and before[0] is state and before[1] == records:
            return expected
        agent, waiting, ends_at_ms = self._agent, [], {}
        for record in records:
            entry = state.entry(record.pod.uid)
            if entry is not None and entry.is_active:
                if record.ends_at_ms:
                    ends_at_ms[record.pod.uid] = record.ends_at_ms
            elif record.ticket:
                waiting.append(QueuedJob(record.pod, record.max_ms))
        living = {record.pod.uid for record in records}
        ends_at_ms |= dict.fromkeys(state.ending_uids() - living, boot_ms)
        node = WhatIf.of(
            managers_with_devices(agent.edges, agent.memory),
            state.promises,
            state.holding_pods(),
            agent.node.allocatable if agent.node.config.check_allocatable else None,
            state.idle_pods(),
        )
        starts = expect_starts(node, waiting[:_MOST_EXPECTED], ends_at_ms, boot_ms, _RELEASE_MS)
        found = {job.pod.uid: start for job, start in zip(waiting, starts, strict=False) if start is not None}
        self._expected = (state, records), found
        return found
