"""The latest starts of waiting jobs, judged by playing every job for all of its time."""

from hypothesis import given, strategies as st

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.expected_starts import JobPlan, QueuedJob, expect_starts
from nodeagent.formats.manifest.job_pod import job_pod
from tests.support.world import SMALL, empty_state, node

NODE = node(SMALL)
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""
RELEASE_MS = 12_000


def job(name: str, cpus: int) -> Pod:
    return job_pod(name, f"uid-{name}", {"cpu": str(cpus), "memory": "1Mi"})


def running(*jobs: Pod) -> WhatIf:
    state: NodeState = empty_state(NODE)
    found = WhatIf.of(NODE.managers, state.promises)
    for each in jobs:
        decision = found.judge(each)
        assert isinstance(decision, Admitted)
        found = found.after(each, decision)
    return found


def test_each_starts_when_enough_of_those_before_it_have_ended() -> None:
    there = running(job("a", 4), job("b", 3))
    queue = (QueuedJob(job("c", 2), 60_000), QueuedJob(job("d", 6), 0), QueuedJob(job("e", 1), 5_000))
    starts = expect_starts(JobPlan.of(there, {"uid-a": 100_000, "uid-b": 30_000}, 10_000, RELEASE_MS), queue).starts
    assert starts == (42_000, 114_000, 114_000), "d waits for c, which ends after a; e doesn't overtake it"
    assert expect_starts(JobPlan.of(there, {"uid-a": 5_000}, 10_000, RELEASE_MS), queue).starts[0] == 22_000, (
        "its time is over already"
    )


def test_what_has_no_time_limit_makes_the_starts_behind_it_unknown() -> None:
    there = running(job("a", 4), job("b", 3))
    queue = (QueuedJob(job("c", 2), 60_000), QueuedJob(job("d", 4), 1_000), QueuedJob(job("e", 1), 1_000))
    assert expect_starts(JobPlan.of(there, {"uid-b": 30_000}, 10_000, RELEASE_MS), queue).starts == (42_000, None, None)
    assert expect_starts(JobPlan.of(there, {"uid-b": 30_000}, 10_000, RELEASE_MS), ()).starts == ()


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), max_size=2),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 50)), max_size=8),
)
def test_one_after_the_other_and_never_more_than_there_is(
    first: list[tuple[int, int]], then: list[tuple[int, int]]
) -> None:
    """Without NUMA and caches, a count of CPUs is the whole decision."""
    there = running(*(job(f"r{number}", cpus) for number, (cpus, _) in enumerate(first)))
    ends = {f"uid-r{number}": time * 1000 for number, (_, time) in enumerate(first)}
    queue = [QueuedJob(job(f"q{number}", cpus), time * 1000) for number, (cpus, time) in enumerate(then)]
    starts = expect_starts(JobPlan.of(there, ends, 0, RELEASE_MS), queue).starts
    known = [start for start in starts if start is not None]
    assert (len(known), known) == (len(then), sorted(known))
    spans = [(0, time * 1000 + RELEASE_MS, cpus) for cpus, time in first]
    for start, (cpus, time) in zip(known, then, strict=True):
        earlier = [(begin, end, size) for begin, end, size in spans if end > start]
        assert sum(size for _, _, size in earlier) + cpus <= 7, "it fits when it is to start"
        before = max([begin for begin, _, _ in spans[len(first) :]], default=0)
        if start > before:
            at_last = [size for _, end, size in spans if end >= start]
            assert sum(at_last) + cpus > 7, "and a moment before it didn't"
        spans.append((start, start + time * 1000 + RELEASE_MS, cpus))
