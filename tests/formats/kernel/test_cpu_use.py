"""Who ran how long follows from sums alone: compared with adding up every run of a drawn course of events."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_use import Handling, TaskRun, cpu_filter, derive_cpu_use, descendants
from nodeagent.formats.kernel.histogram import HistogramSyntaxError
from tests.support import kernel_histograms as kernel

BEGAN = 303_000_000_000_000
CPUS = CpuSet.of(3)


def course(draw_steps: list[tuple[int, int]], first: int) -> tuple[list[tuple[int, int, int, int]], int, Counter[int]]:
    """Switch at each step; returns events, the end, and how long each task ran."""
    at, running, ran = BEGAN, first, Counter[int]()
    events = []
    for lasts, after in draw_steps:
        at += lasts
        ran[running] += lasts
        if after != running:
            events.append((at, 3, running, after))
            running = after
    ran[running] += 1_000
    return events, at + 1_000, ran


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 4)), min_size=1, max_size=60), st.integers(0, 4))
def test_times_are_those_of_every_single_run(steps: list[tuple[int, int]], first: int) -> None:
    events, ended, ran = course(steps, first)

    use = derive_cpu_use(kernel.record(kernel.switches(events, {}), began_ns=BEGAN, ended_ns=ended), CPUS)

    if events:
        switched = {task for _, _, before, after in events for task in (before, after)}
        assert {run.task: run.ns for run in use.runs} == {task: ran[task] for task in switched if task}
        assert use.unobserved == CpuSet()
    else:
        assert (use.runs, use.unobserved) == ((), CPUS)
    assert use.elapsed_ns == ended - BEGAN


def test_how_often_and_under_which_name() -> None:
    events = [(BEGAN + 10, 3, 0, 7), (BEGAN + 30, 3, 7, 0), (BEGAN + 40, 3, 0, 7), (BEGAN + 45, 3, 7, 9)]
    early, late = kernel.switches(events[:2], {7: "sh"}), kernel.switches(events[2:], {7: "sleep"})
    both = early.split(b"\nTotals")[0] + late.split(b"#\n\n")[1].replace(b"Entries: 2", b"Entries: 4")

    use = derive_cpu_use(kernel.record(both, began_ns=BEGAN, ended_ns=BEGAN + 100), CPUS)

    assert use.runs == (TaskRun(3, 7, "sleep", 2, 25), TaskRun(3, 9, "", 1, 55))


def test_other_cpus_in_a_table_are_left_out() -> None:
    events = [(BEGAN + 10, 4, 0, 7), (BEGAN + 30, 4, 7, 0)]
    use = derive_cpu_use(kernel.record(kernel.switches(events, {}), began_ns=BEGAN, ended_ns=BEGAN + 100), CPUS)
    assert (use.runs, use.unobserved) == ((), CPUS)


def test_events_without_room_are_counted_and_no_time_is_longer_than_all() -> None:
    switched = kernel.switches([(BEGAN + 90, 3, 7, 0), (BEGAN + 95, 3, 7, 0)], {}, dropped=1)
    use = derive_cpu_use(kernel.record(switched, began_ns=BEGAN, ended_ns=BEGAN + 100), CPUS)
    assert (use.runs, use.dropped) == ((TaskRun(3, 7, "task", 2, 100),), 1)


@pytest.mark.parametrize(
    ("entries", "exits", "times", "ns"),
    [
        ([20, 50], [25, 56], 2, 11),
        ([20, 96], [25], 2, 9),  # one is under way at the end
        ([20], [4, 25], 1, 5),  # one began before entries were counted; at 5, as far as is known
        ([20, 50, 96], [4, 25, 56], 3, 15),  # both
        ([20], [2, 5, 8, 25], 1, 5),
        ([20], [1, 2, 3, 25], 1, 0),  # less than what is unknown
    ],
)
def test_interrupts_that_were_under_way(entries: list[int], exits: list[int], times: int, ns: int) -> None:
    events = [(BEGAN + at, 3, 25) for at in entries], [(BEGAN + at, 3, 25) for at in exits]
    use = derive_cpu_use(kernel.record(began_ns=BEGAN, ended_ns=BEGAN + 100, interrupts=events, gap_ns=10), CPUS)
    (found,) = use.interrupts
    assert found == Handling(3, 25, times, pytest.approx(ns, abs=1))


def test_softirqs_are_counted_by_kind_and_cpu() -> None:
    events = [(BEGAN + 10, 3, 1), (BEGAN + 50, 4, 1)], [(BEGAN + 12, 3, 1), (BEGAN + 53, 4, 1)]
    use = derive_cpu_use(kernel.record(began_ns=BEGAN, ended_ns=BEGAN + 100, softirqs=events), CpuSet.of(3, 4))
    assert use.softirqs == (Handling(3, 1, 1, 2), Handling(4, 1, 1, 3))


def test_families_and_moves_are_read() -> None:
    use = derive_cpu_use(
        kernel.record(began_ns=0, ended_ns=1, forks=[(1, 2), (1, 3), (2, 4), (4, 1)], joins=[(9, 77)], exits=[5, 6]),
        CPUS,
    )
    assert descendants(use.children, [2]) == {1, 2, 3, 4}, "also where ids were used again"
    assert descendants(use.children, [3]) == {3}
    assert use.joined == {77: (9,)}
    assert use.exiting == {5, 6}


@pytest.mark.parametrize(
    ("cpus", "condition"),
    [
        ("3", "CPU==3"),
        ("3-4,7", "CPU>=3&&CPU<=4||CPU==7"),
        (",".join(map(str, range(0, 1024, 2))), "CPU>=0&&CPU<=1022"),
    ],
)
def test_a_condition_fits_into_a_trigger(cpus: str, condition: str) -> None:
    assert cpu_filter(CpuSet.parse(cpus)) == condition


def test_what_the_kernel_does_not_write_is_an_error_that_names_the_event() -> None:
    with pytest.raises(HistogramSyntaxError, match=r"^cannot parse the histogram of sched_switch: it has no totals$"):
        derive_cpu_use(kernel.record(b"garbage", began_ns=0, ended_ns=1), CPUS)
