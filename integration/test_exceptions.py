"""The judge of overlaps excuses what the agent's record accounts for, and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.overlap.disturbance import CpusChanged
from integration.overlap.events import Attach, Event, Exec, Exit, Fork, Switch, Told
from integration.overlap.exceptions import RESCAN_NS, SLACK_NS, AgentsRecord, lines
from integration.overlap.intervals import Findings, Witness
from integration.overlap.workload import PodPlan, promised
from integration.test_no_overlap import complaints

LONE, SIBLING, OTHER = "/pods/podlone/app", "/pods/podlone/sibling", "/pods/podother/app"
UNIT = "nodeagent.service"
ALL = (0, 1, 2, 3)
PROGRAM = "exclusive"


def entry(at_us: int, event: str, **fields: object) -> bytes:
    message = {"event": event, "pod_uid": "lone", "container": "app", **fields}
    return json.dumps(
        {"__MONOTONIC_TIMESTAMP": str(at_us), "_SYSTEMD_UNIT": UNIT, "MESSAGE": json.dumps(message)}
    ).encode()


PROMISED = {("lone", "app"): frozenset({1}), ("lone", "sibling"): frozenset({2}), ("other", "app"): frozenset({2})}
PROBLEM = "CPUs 1 of 1 are offline"
SHORT, KEPT = entry(50, "promise_short", problem=PROBLEM), entry(90, "promise_kept_again", problem=PROBLEM)
LOST = (CpusChanged(0, 1_000, ALL), CpusChanged(40_000, 41_000, (0, 2, 3)), CpusChanged(80_000, 81_000, ALL))


def started(pid: int, cgroup: str, at_ns: int, cpu: int, *told: int, asked: int = 1) -> list[Event]:
    return [
        Fork(at_ns, 0, 1, pid),
        Attach(at_ns + 1, 0, pid, cgroup),
        Exec(at_ns + 2, cpu, pid, pid, PROGRAM),
        Told(at_ns + 3, cpu, pid, asked, frozenset(told)),
    ]


def on_cpu(pid: int, cpu: int, start_ns: int, end_ns: int) -> list[Event]:
    return [Switch(start_ns, cpu, 0, pid), Switch(end_ns, cpu, pid, 0)]


def judged(
    *events: list[Event],
    journal: tuple[bytes, ...] = (),
    changes: tuple[CpusChanged, ...] = LOST,
    promised: Mapping[tuple[str, str], frozenset[int]] = PROMISED,
    interruptions: tuple[int, ...] = (),
) -> Findings:
    record = AgentsRecord(lines(b"\n".join(journal)), changes, promised, interruptions=interruptions)
    witness = Witness(lambda cgroup: "/pod" in cgroup, {PROGRAM}, record)
    for event in sorted((event for part in events for event in part), key=lambda event: event.at_ns):
        witness.see(event)
    return witness.finish()


def lone_on(
    cpu: int,
    start_ns: int,
    end_ns: int,
    *journal: bytes,
    changes: tuple[CpusChanged, ...] = LOST,
    other: str = SIBLING,
) -> Findings:
    """The findings for a container with CPU 1 that is on another one for a while, next to a container with CPU 2."""
    return judged(
        started(11, LONE, 2_000, 1, 1),
        started(12, other, 3_000, 2, 2),
        on_cpu(11, cpu, start_ns, end_ns),
        [Exit(200_000, 0, 11), Exit(200_001, 0, 12)],
        journal=journal,
        changes=changes,
    )


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "faults"),
    [(41_000, 50_000, 0), (41_000, 50_001, 1), (39_999, 45_000, 2), (60_000, 61_000, 1), (95_000, 96_000, 2)],
    ids=[
        "before the agent has seen it",
        "longer",
        "with its CPU there",
        "when the agent has seen it",
        "when all is over",
    ],
)
def test_on_a_siblings_cpu_only_until_the_agent_has_seen_the_loss(start_ns: int, end_ns: int, faults: int) -> None:
    found = lone_on(2, start_ns, end_ns, SHORT, KEPT)
    assert len(found.faults) == faults
    assert (found.excused_overlap_count, found.excused_stray_count) == (int(faults == 0), int(faults < 2))


def test_never_on_another_pods_cpu() -> None:
    found = lone_on(2, 41_000, 50_000, SHORT, KEPT, other=OTHER)
    assert (found.overlap_count, found.excused_overlap_count) == (1, 0)


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "faults"),
    [(41_000, 50_000, 0), (60_000, 61_000, 0), (85_000, 90_000, 0), (85_000, 90_001, 1), (95_000, 96_000, 1)],
    ids=["at once", "when the agent has seen it", "until it is brought back", "longer", "when all is over"],
)
def test_in_the_pool_until_the_agent_has_brought_it_back(start_ns: int, end_ns: int, faults: int) -> None:
    assert len(lone_on(3, start_ns, end_ns, SHORT, KEPT).faults) == faults


REFUSED = (LOST[0], LOST[1], CpusChanged(41_000, 41_000, ALL, is_refusal=True))


@pytest.mark.parametrize(("end_ns", "faults"), [(60_000, 0), (60_001, 1)])
def test_where_a_cpu_refused_to_go_until_its_processes_are_gathered(end_ns: int, faults: int) -> None:
    gathered = entry(60, "processes_gathered", found="3", cpus="1")
    assert len(lone_on(3, 45_000, end_ns, gathered, changes=REFUSED).faults) == faults
    assert len(lone_on(2, 45_000, 50_000, gathered, changes=REFUSED, other=OTHER).faults) == 1, "not on another pod's"
    assert not lone_on(3, 45_000, 150_000, changes=REFUSED).faults, "the line may have been lost"
    assert len(lone_on(3, 45_000, 150_000, changes=(*REFUSED[:2], REFUSED[2]._replace(is_refusal=False))).faults) == 1


def test_an_agent_that_starts_in_between_has_brought_it_back_when_it_is_ready() -> None:
    restarted = (SHORT, entry(70, "started"), entry(95, "ready"))
    assert not lone_on(3, 85_000, 95_000, *restarted).faults
    assert len(lone_on(3, 85_000, 95_001, *restarted).faults) == 1


def test_one_that_starts_before_and_is_ready_after_the_return_has_still_to_bring_it_back() -> None:
    restarted = (entry(70, "started"), entry(82, "promise_short", problem=PROBLEM), entry(83, "ready"), KEPT)
    assert not lone_on(3, 85_000, 90_000, *restarted).faults
    assert len(lone_on(3, 85_000, 90_001, *restarted).faults) == 1


def mixed_on(cpu: int, *, allowed: tuple[int, ...] = (0, 1)) -> Findings:
    """The findings for a container with CPU 1 and others that it shares, which is on a CPU for a while, next to one with CPU 2."""
    *before, told = started(11, LONE, 2_000, 1, 1)
    assert isinstance(told, Told)
    return judged(
        [*before, told._replace(allowed=frozenset(allowed))],
        started(12, OTHER, 3_000, 2, 2),
        on_cpu(11, cpu, 5_000, 6_000),
        on_cpu(12, 1, 7_000, 8_000) if cpu == 1 else [],
        [Exit(200_000, 0, 11), Exit(200_001, 0, 12)],
        changes=LOST[:1],
    )


def test_a_mixed_container_may_be_in_the_pool_and_on_nobody_elses_cpu_and_others_not_on_its_own() -> None:
    assert mixed_on(3).faults == (), "the pool is whatever nobody owns"
    assert [f.intruder for f in mixed_on(2).overlaps] == [LONE]
    found = mixed_on(1)
    assert [(f.owner, f.intruder) for f in found.overlaps] == [(LONE, OTHER)]
    assert found.stray_count == 1, "the other one's, as it isn't mixed"
    assert "was told of CPUs [1], which it may not use" in mixed_on(0, allowed=(0,)).promises[0]


LATE_NS = 81_000 + RESCAN_NS + SLACK_NS
"""By then an agent has to have seen that the CPU is back."""
BACK_LATE = entry(LATE_NS // 1000 + 50, "promise_kept_again", problem=PROBLEM)


@pytest.mark.parametrize("more", [(), (BACK_LATE,)], ids=["never", "late"])
@pytest.mark.parametrize(("late_ns", "faults"), [(0, 0), (1, 1)])
def test_an_agent_that_does_not_bring_it_back_in_time_is_at_fault(
    late_ns: int, faults: int, more: tuple[bytes, ...]
) -> None:
    found = judged(
        started(11, LONE, 2_000, 1, 1),
        on_cpu(11, 3, LATE_NS - 1_000, LATE_NS + late_ns),
        [Exit(LATE_NS + 1_000_000, 0, 11)],
        journal=(SHORT, *more),
    )
    assert len(found.faults) == faults


@pytest.mark.parametrize(("late_ns", "broken"), [(-10, 0), (1, 1)])
def test_who_starts_short_long_after_the_return_has_a_broken_promise(late_ns: int, broken: int) -> None:
    found = judged(
        started(11, LONE, LATE_NS + late_ns, 0, 0, asked=2),
        [Exit(LATE_NS + 1_000_000, 0, 11)],
        journal=(SHORT,),
        promised={("lone", "app"): frozenset({0, 1})},
    )
    assert len(found.promises) == broken


@pytest.mark.parametrize("left", [ALL, (0, 1, 3)], ids=["none", "another"])
def test_no_word_of_the_agent_excuses_who_has_his_cpu(left: tuple[int, ...]) -> None:
    changes = (CpusChanged(0, 1_000, ALL), CpusChanged(40_000, 41_000, left))
    assert len(lone_on(3, 45_000, 46_000, SHORT, changes=changes).faults) == 1


def test_what_the_agent_has_not_seen_ends_when_the_cpu_is_back() -> None:
    assert not lone_on(2, 79_000, 81_000).faults
    assert len(lone_on(2, 79_000, 81_001).faults) == 2


def test_others_stay_off_a_cpu_that_is_away() -> None:
    found = judged(
        started(11, LONE, 2_000, 1, 1),
        started(12, OTHER, 3_000, 2, 2),
        on_cpu(12, 1, 85_000, 86_000),
        [Exit(200_000, 0, 11), Exit(200_001, 0, 12)],
        journal=(SHORT, KEPT),
    )
    assert len(found.faults) == 2


@pytest.mark.parametrize(
    ("at_ns", "told", "excused"),
    [(45_000, (0,), 1), (45_000, (0, 3), 0), (2_000, (0,), 0)],
    ids=["one is away", "another one instead", "all are there"],
)
def test_a_container_may_start_with_fewer_cpus_while_some_are_away(
    at_ns: int, told: tuple[int, ...], excused: int
) -> None:
    promised = frozenset({0, 1} if told == (0,) else {0, 1, 2})
    found = judged(
        started(11, LONE, at_ns, 0, *told, asked=len(promised)),
        [Exit(200_000, 0, 11)],
        journal=(SHORT, KEPT),
        promised={("lone", "app"): promised},
    )
    assert (found.excused_starts, len(found.promises)) == (excused, 1 - excused)


@pytest.mark.parametrize("pool", [(0, 2, 3), (0, 3), (3,)], ids=["more", "other", "as many"])
def test_a_container_that_starts_in_the_pool_owns_what_it_was_promised_though_the_agent_died_before_it_logged(
    pool: tuple[int, ...],
) -> None:
    found = judged(
        started(11, LONE, 45_000, 3, *pool),
        started(12, OTHER, 46_000, 2, 2),
        on_cpu(11, 3, 50_000, 60_000),
        on_cpu(12, 2, 50_000, 60_000),
        [Exit(70_000, 0, 11), Exit(70_001, 0, 12)],
    )
    assert (found.faults, found.excused_starts, found.excused_stray_count) == ((), 1, 1)


@pytest.mark.parametrize("promised", [{}, {("lone", "app"): frozenset({2})}], ids=["nothing", "another"])
def test_who_has_as_many_cpus_as_it_asked_for_but_was_not_promised_them_has_a_broken_promise(
    promised: dict[tuple[str, str], frozenset[int]],
) -> None:
    found = judged(started(11, LONE, 2_000, 1, 1), [Exit(3_000, 0, 11)], promised=promised)
    assert len(found.promises) == 1


@pytest.mark.parametrize(("changes", "faults"), [(LOST, 0), (LOST[:1], 1)], ids=["its CPU is away", "all are there"])
def test_who_was_promised_a_cpu_that_is_away_may_be_on_a_siblings_before_its_program_is_loaded(
    changes: tuple[CpusChanged, ...], faults: int
) -> None:
    found = judged(
        started(12, SIBLING, 3_000, 2, 2),
        [Fork(41_000, 0, 1, 11), Attach(41_001, 0, 11, LONE)],
        on_cpu(11, 2, 42_000, 43_000),
        [Exit(44_000, 0, 11), Exit(70_001, 0, 12)],
        changes=changes,
    )
    assert (found.overlap_count, found.excused_overlap_count) == (faults, 1 - faults)


def test_each_container_was_promised_what_its_own_process_has_found(tmp_path: Path) -> None:
    """The agent died between the two, and chose another CPU for what did not run when it came back."""
    plan = PodPlan(7, (1,), init_cpus=2)
    for container, cpus in {"init": {"init": "1-2", "app0": "1"}, "app0": {"init": "2-3", "app0": "3"}}.items():
        keep_state(tmp_path / f"{plan.name}-{container}.state", {plan.name: {"cpus": cpus}})
    keep_state(tmp_path / "overlap-00008-app0.state", {"overlap-00008": {"cpus": {"app0": "5"}}})

    assert promised(plan, tmp_path) == {"init": "1-2", "app0": "3"}


def test_a_container_that_no_state_file_knows_has_no_promise(tmp_path: Path) -> None:
    plan = PodPlan(7, (1,))
    keep_state(tmp_path / f"{plan.name}-app0.state", {})
    assert promised(plan, tmp_path) == {}


def keep_state(file: Path, pods: dict[str, object]) -> None:
    file.write_text(f"{{}}\n{json.dumps({'promises': {'pods': pods}})}\n")


GONE = "nodeagent_state does not fit this node: CPUs or memory allocated to pods are gone"


@pytest.mark.parametrize(
    ("event", "fields", "complained"),
    [
        ("state_recovered", {"problems": [GONE]}, 0),
        (
            "state_recovered",
            {"problems": ["shared CPUs: 0-3 → 0-2: the machine differs from nodeagent_state: accepted"]},
            0,
        ),
        ("state_recovered", {"problems": [GONE, "cannot use cpu_manager_state: the checksum does not match"]}, 1),
        ("state_recovered", {"problems": ["cannot use nodeagent_state: the checksum does not match"]}, 1),
        ("state_set_aside", {"file": "nodeagent_state"}, 0),
        ("state_set_aside", {"file": "cpu_manager_state"}, 1),
        ("promise_changed", {"before": "5", "after": "8", "why": "CPUs 5 are not online"}, 0),
        ("pod_refused", {}, 1),
    ],
)
def test_only_what_cpus_that_have_gone_account_for_is_no_complaint(
    event: str, fields: dict[str, object], complained: int
) -> None:
    assert len(complaints(lines(entry(1, event, **fields)))) == complained


UNASKED = "/kubepods.slice/podcri/cri-containerd-abc.scope"
FOUND = entry(10, "container_began_unasked", container_id="abc")
PLACED = entry(50, "container_put_right", container_id="abc")
KILLED_NS = 1_000


def of_runtime(at_us: int, text: str) -> bytes:
    return json.dumps(
        {"__MONOTONIC_TIMESTAMP": str(at_us), "_SYSTEMD_UNIT": "containerd.service", "MESSAGE": text}
    ).encode()


LINKED = of_runtime(40, 'level=info msg="plugin \\"90-nodeagent\\" connected"')
PUSHED = of_runtime(30, 'level=info msg="plugin \\"91-nodeagent-push\\" connected"')
FAILED = of_runtime(20, 'level=info msg="failed to synchronize plugin: ttrpc: closed"')
DIED = of_runtime(20, 'level=info msg="plugin \\"90-nodeagent\\" connected"')
CREATED = of_runtime(2, 'msg="CreateContainer within sandbox \\"1\\" for x returns container id \\"abc\\""')
DENIED = entry(45, "container_denied", container_id="abc")
OTHERS = entry(50, "container_put_right", container_id="def")


def unasked_on(
    cpu: int, end_ns: int, *journal: bytes, interruptions: tuple[int, ...] = (), began_ns: int = 3_000
) -> Findings:
    """The findings for a runtime's container that is on a CPU, next to one with CPU 1."""
    return judged(
        started(11, LONE, 2_000, 1, 1),
        [Fork(began_ns, 0, 1, 12), Attach(began_ns + 1, 0, 12, UNASKED)],
        on_cpu(12, cpu, began_ns + 2_000, end_ns),
        [Exit(200_000, 0, 11), Exit(200_001, 0, 12)],
        journal=journal,
        changes=LOST[:1],
        interruptions=interruptions,
    )


@pytest.mark.parametrize(
    ("end_ns", "journal", "apart"),
    [
        (50_000, (FOUND, PLACED), 1),
        (50_001, (FOUND, PLACED), 0),
        (10_000, (FOUND,), 1),
        (10_001, (FOUND, OTHERS), 0),
        (40_000, (FOUND, LINKED), 1),
        (40_001, (FOUND, LINKED), 0),
        (6_000, (PLACED,), 0),
    ],
    ids=["until it is placed", "longer", "at once", "another one's", "by the next agent", "after that", "it was asked"],
)
def test_who_began_unasked_is_counted_apart_until_it_is_placed(
    end_ns: int, journal: tuple[bytes, ...], apart: int
) -> None:
    found = unasked_on(1, end_ns, *journal)
    assert (found.unasked_overlap_count, found.overlap_count) == (apart, 1 - apart)
    assert unasked_on(3, end_ns, *journal).faults == (), "in the pool nobody minds"


@pytest.mark.parametrize(
    ("end_ns", "journal", "apart"),
    [
        (40_000, (PUSHED, LINKED), 1),
        (40_001, (PUSHED, LINKED), 0),
        (40_000, (FAILED, DIED, LINKED), 1),
        (40_001, (FAILED, DIED, LINKED), 0),
        (20_001, (DIED, LINKED), 0),
        (50_000, (LINKED, PLACED), 1),
        (50_001, (LINKED, PLACED), 0),
        (150_000, (LINKED, DENIED), 1),
    ],
    ids=[
        "connected",
        "longer",
        "gone",
        "longer than gone",
        "connected early",
        "until it is placed",
        "after that",
        "it never begins",
    ],
)
def test_so_is_who_came_and_went_while_the_agent_was_away(end_ns: int, journal: tuple[bytes, ...], apart: int) -> None:
    found = unasked_on(1, end_ns, *journal, interruptions=(KILLED_NS,))
    assert (found.unasked_overlap_count, found.overlap_count) == (apart, 1 - apart)
    late = unasked_on(1, 60_000, *journal, interruptions=(KILLED_NS,), began_ns=41_000)
    assert late.overlap_count == 1, "it was asked"


def test_who_was_created_while_the_agent_was_away_and_is_denied_when_it_begins_never_counts() -> None:
    found = unasked_on(1, 60_000, CREATED, LINKED, DENIED, interruptions=(KILLED_NS,), began_ns=41_000)
    assert (found.unasked_overlap_count, found.overlap_count) == (1, 0)


@pytest.mark.parametrize(
    ("program", "cgroup", "apart"),
    [
        ("/usr/sbin/runc", UNASKED, 1),
        ("/proc/self/exe", UNASKED, 1),
        ("/proc/self/fd/6", UNASKED, 1),
        ("/bin/busybox", UNASKED, 0),
        ("/proc/self/exe", OTHER, 0),
    ],
)
def test_what_is_not_the_containers_process_yet_is_counted_apart(program: str, cgroup: str, apart: int) -> None:
    found = judged(
        started(11, LONE, 2_000, 1, 1),
        [Fork(3_000, 0, 1, 12), Exec(3_001, 0, 12, 12, program), Attach(3_002, 0, 12, cgroup)],
        on_cpu(12, 1, 4_000, 5_000),
        [Exec(5_500, 3, 12, 12, "/bin/busybox")],
        on_cpu(12, 3, 5_600, 6_000),
        [Exit(200_000, 0, 11), Exit(200_001, 0, 12)],
        changes=LOST[:1],
    )
    assert (found.runtimes_own_count, found.overlap_count) == (apart, 1 - apart)
    assert found.longest_runtimes_own_ns == 1_000 * apart


def test_what_a_container_that_began_unasked_tells_is_no_promise() -> None:
    def told(*journal: bytes, interruptions: tuple[int, ...] = ()) -> Findings:
        events = started(12, UNASKED, 3_000, 1, 0, 1, 2, 3)
        return judged(events, [Exit(9_000, 0, 12)], journal=journal, interruptions=interruptions)

    for found in (told(FOUND), told(LINKED, interruptions=(KILLED_NS,))):
        assert (found.unasked_starts, found.owners, found.promises) == (1, 0, [])
    assert len(told(LINKED).promises) == 1, "it was asked"
