"""The judge of overlaps knows promises that change while a container runs: a CPU that is granted, and one that is given up."""

import pytest

from integration.overlap.events import Event, Exit
from integration.overlap.exceptions import AgentsRecord, Resize
from integration.overlap.intervals import Findings, Witness
from integration.test_exceptions import PROGRAM, on_cpu, started

OWN, OTHER, SHARED = "/pods/podgrows/app", "/pods/podother/app", "/pods/podshares/app"
PROMISED = {("grows", "app"): frozenset({1}), ("other", "app"): frozenset({3})}
GROWN = Resize(50_000, 60_000, frozenset({1, 2}), 60_000)
SHRUNK = Resize(100_000, 105_000, frozenset({1}), 110_000)
OWN_PID, OTHER_PID, SHARED_PID = 11, 12, 13


def judged(*events: list[Event], resizes: tuple[Resize, ...] = (GROWN, SHRUNK)) -> Findings:
    """Next to one that shares and one that has CPU 3, a container with CPU 1 gets CPU 2 and gives it up again."""
    record = AgentsRecord((), (), PROMISED, resizes={("grows", "app"): resizes})
    witness = Witness(lambda cgroup: "/pod" in cgroup, {PROGRAM}, record)
    everything: list[list[Event]] = [
        started(OWN_PID, OWN, 2_000, 1, 1),
        started(OTHER_PID, OTHER, 3_000, 3, 3),
        started(SHARED_PID, SHARED, 4_000, 0, 0)[:2],
        *events,
        [Exit(200_000, 0, pid) for pid in (OWN_PID, OTHER_PID, SHARED_PID)],
    ]
    for event in sorted((event for part in everything for event in part), key=lambda event: event.at_ns):
        witness.see(event)
    return witness.finish()


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "found_ns"),
    [
        (40_000, 55_000, 0),
        (40_000, 60_000, 0),
        (40_000, 60_500, 500),
        (70_000, 71_000, 1_000),
        (99_000, 105_000, 1_000),
        (100_000, 150_000, 0),
        (55_000, 150_000, 40_000),
    ],
    ids=[
        "before it is granted",
        "until it is in the cpuset",
        "longer",
        "while it is the container's",
        "before it is given up",
        "when it may have been given up",
        "from before until after",
    ],
)
def test_others_are_on_a_cpu_only_before_it_is_granted_and_when_it_was_given_up(
    start_ns: int, end_ns: int, found_ns: int
) -> None:
    found = judged(on_cpu(SHARED_PID, 2, start_ns, end_ns))
    assert [one.duration_ns for one in found.overlaps] == ([found_ns] if found_ns else [])
    assert all((one.cpu, one.owner, one.owned) == (2, OWN, frozenset({1, 2})) for one in found.overlaps)
    assert len(found.faults) == found.granted_overlap_count == bool(found_ns)


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "found_ns"),
    [
        (40_000, 50_000, [10_000]),
        (49_000, 70_000, [1_000]),
        (50_000, 110_000, []),
        (100_000, 110_001, [1]),
        (120_000, 121_000, [1_000]),
        (40_000, 120_000, [10_000, 10_000]),
    ],
    ids=[
        "before it is granted",
        "until it may be granted",
        "while it is its own",
        "when it has left it",
        "later",
        "from before until after",
    ],
)
def test_it_is_on_a_cpu_only_while_that_may_be_its_own(start_ns: int, end_ns: int, found_ns: list[int]) -> None:
    found = judged(on_cpu(OWN_PID, 2, start_ns, end_ns))
    assert [one.duration_ns for one in found.strays] == found_ns
    assert len(found.faults) == len(found_ns)


def test_its_first_cpu_is_its_own_all_the_time() -> None:
    assert judged(on_cpu(OWN_PID, 1, 5_000, 190_000)).faults == ()
    both = judged(on_cpu(SHARED_PID, 1, 55_000, 105_000))
    (found,) = both.overlaps
    assert (found.duration_ns, both.granted_overlap_count) == (50_000, 0)


def test_without_word_of_a_resize_the_first_promise_counts() -> None:
    found = judged(on_cpu(OWN_PID, 2, 70_000, 80_000), resizes=())
    assert (found.stray_count, found.overlap_count) == (1, 0)


def test_a_cpu_that_is_granted_while_another_has_it_has_two_owners() -> None:
    (fault,) = judged(resizes=(Resize(50_000, 60_000, frozenset({1, 3}), 60_000),)).faults
    assert fault == f"CPUs [3] belong to {OTHER} and to {OWN}"


def test_a_cpu_that_goes_from_one_to_the_other_has_one_owner() -> None:
    later: list[Event] = [Exit(90_000, 0, OTHER_PID)]
    found = judged(later, resizes=(Resize(85_000, 95_000, frozenset({1, 3}), 95_000),))
    assert found.faults == ()
    assert (found.granted, found.given_up, found.longest_unknown_ns) == (1, 0, 10_000)


def test_what_was_granted_and_given_up_is_counted() -> None:
    found = judged()
    assert (found.granted, found.given_up, found.owners) == (1, 1, 2)
