"""Reservations through the agent's turns and over the real socket: made, kept over restarts, respected, cancelled."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.model.config import JobBounds
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import RESERVATION_OVER, WAITS_FOR_RESERVATION
from nodeagent.core.model.reservation import Reservation
from nodeagent.daemon.domains.jobs import job_requests, reservation_requests
from nodeagent.daemon.domains.jobs.job_queue import JobQueue
from nodeagent.daemon.domains.jobs.job_requests import JobRequestError, JobRequests, Limits
from nodeagent.daemon.domains.jobs.reservation_requests import ReservationError, ReservationRequests
from nodeagent.daemon.domains.jobs.reservations import FILE
from nodeagent.daemon.reports.publisher import JOB_SOCKET, Publisher
from nodeagent.edge.files import state_files
from nodeagent.edge.processes.job_owners import open_caller
from nodeagent.edge.transport.local_api_client import ApiError, call
from nodeagent.formats.checkpoint.reservation_list import make_reservation
from nodeagent.formats.manifest.job_pod import job_pod
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.inspect.document import inspect_node
from tests.daemon.test_jobs import Answer, Owners, addresses, in_group, names, placement, refusal, waits
from tests.support.daemon_model import Daemon, Steps, answered, watched
from tests.support.node_model import CrashError, Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

MINUTE = 60_000
HOUR = 60 * MINUTE
CPUS = 7
"""CPUs that can be exclusive."""


@pytest.fixture
def owners(daemon: Daemon) -> Iterator[Owners]:
    owners = Owners(daemon)
    yield owners
    for name in tuple(owners.running):
        owners.ends(name)


@pytest.fixture
def served(daemon: Daemon) -> Iterator[Daemon]:
    with Publisher(daemon.agent, addresses(daemon), daemon.agent.edges.log, daemon.jobs) as publisher:
        publisher.listen()
        yield daemon


def ask(daemon: Daemon, operation: str, **arguments: Any) -> Any:
    socket = f"{daemon.directory}/{JOB_SOCKET}"
    return answered(daemon, lambda: call(socket, operation, timeout_seconds=60, **arguments))


def reserve(daemon: Daemon, name: str, cpus: int, begin_ms: int, length_ms: int = HOUR, **more: Any) -> Any:
    from_ms = daemon.machine.now_ms + begin_ms
    return ask(daemon, "reserve", name=name, amounts={"cpu": str(cpus)}, fromMs=from_ms, forMs=length_ms, **more)


def keep(daemon: Daemon, name: str, cpus: int, begin_ms: int, length_ms: int = HOUR) -> Reservation:
    """Make a reservation without a question."""
    from_ms = daemon.machine.now_ms + begin_ms
    made = make_reservation(name, os.getuid(), f"uid-of-{name}", {"cpu": str(cpus)}, from_ms, from_ms + length_ms)
    daemon.jobs.reservations.keep(made)
    return made


def asks_inside(owners: Owners, daemon: Daemon, name: str, reservation: str, cpus: int = 1, max_ms: int = 0) -> Answer:
    """Ask for a job in a reservation, which waits for it."""
    owners.asks(name, "1", ticket=name)
    daemon.jobs.give_up(f"uid-{name}")
    owner = open_caller(owners.running[name].pid, os.getuid())
    asked = job_pod(name, f"uid-{name}", {"cpu": str(cpus), "memory": "64Mi"})
    return daemon.jobs.ask(asked, os.getuid(), owner, name, max_ms, reservation)


def pass_time(daemon: Daemon, span_ms: int) -> None:
    daemon.machine.now_ms += span_ms
    daemon.rest()


def lacks(daemon: Daemon, name: str) -> str:
    entry = daemon.agent.state.entry(f"uid-{name}")
    assert entry is not None
    assert entry.refusal is not None
    return entry.refusal.message


def test_other_jobs_leave_it_its_room_and_its_own_run_in_it_until_its_end(served: Daemon, owners: Owners) -> None:
    made = reserve(served, "nightly", 6, HOUR, 2 * HOUR)["reservation"]
    assert (made["name"], made["user"], made["cpus"], made["memory"]) == ("nightly", os.getuid(), "6", None)
    assert (made["fromMs"], made["untilMs"] - made["fromMs"]) == (served.machine.now_ms + HOUR, 2 * HOUR)
    beside, short = owners.asks("beside", "1"), owners.asks("short", "2", max_ms=30 * MINUTE)
    long = owners.asks("long", "2", ticket="long", max_ms=HOUR)
    inside = asks_inside(owners, served, "inside", "nightly", 4)
    served.rest()
    assert placement(beside)
    assert placement(short)
    assert waits(served) == {"long": WAITS_FOR_RESERVATION, "inside": WAITS_FOR_RESERVATION}
    assert lacks(served, "long").endswith("that reservation nightly needs when it begins"), "`short` ends before"
    assert lacks(served, "inside") == "reservation nightly has not begun"
    shown = ask(served, "queue")
    starts = {job["name"]: job["startsByMs"] for job in shown["jobs"]}
    assert starts["jobs/inside"] == made["fromMs"]
    assert starts["jobs/long"] == made["untilMs"] + 12_000
    (listed,) = shown["reservations"]
    assert listed == {**made, "jobs": ["jobs/inside"]}
    assert inspected(served) == [{name: value for name, value in listed.items() if name != "hasRoom"}]

    pass_time(served, 30 * MINUTE)
    owners.ends("short")
    pass_time(served, 30 * MINUTE)
    assert len(placement(inside).exclusive_cpus) == 4
    assert not long.done()
    assert lacks(served, "long").endswith("that reservation nightly needs until it ends")
    assert ask(served, "queue")["jobs"][1]["endsByMs"] == made["untilMs"]
    second = asks_inside(owners, served, "second", "nightly", 3)
    served.rest()
    assert "reservation nightly has cpu 6 for all its jobs together" in str(served.agent.state.entry("uid-second"))
    pass_time(served, 2 * HOUR)
    served.rest()
    assert ("TERM", "poduid-inside/main") in [signal[:2] for signal in served.machine.signals] or "inside" not in names(
        served
    )
    assert refusal(second).reason == RESERVATION_OVER
    assert ask(served, "queue")["reservations"] == []
    assert inspected(served) == []
    owners.ends("inside")
    served.rest()
    assert len(placement(long).exclusive_cpus) == 2


def inspected(daemon: Daemon) -> Any:
    return inspect_node(daemon.agent.view)["node"]["reservations"]


def test_the_view_and_the_metrics_tell_of_a_reservation_once_it_is_made_and_until_its_end(daemon: Daemon) -> None:
    def shown() -> tuple[list[str], float]:
        lines = daemon.agent.metrics.exposition.text().decode().splitlines()
        (counted,) = (float(line.split()[1]) for line in lines if line.startswith("nodeagent_reservations "))
        return [one.name for one in daemon.agent.view.reservations or ()], counted

    reservations, now_ms = daemon.jobs.reservations, daemon.machine.now_ms
    assert shown() == ([], 0)
    times = (now_ms + HOUR, now_ms + 2 * HOUR)
    held = make_reservation("held", os.getuid(), "uid-held", {"cpu": "2"}, *times)
    answer = reservations.hold(held)
    daemon.rest()
    assert answer.done(), "a turn has respected it"
    assert shown() == ([], 0)
    reservations.keep(held)
    daemon.rest()
    assert shown() == (["held"], 1)
    pass_time(daemon, HOUR)
    assert shown() == (["held"], 1)
    pass_time(daemon, HOUR)
    assert shown() == ([], 0)


def test_what_is_in_the_way_of_a_reservation_refuses_it(served: Daemon, owners: Owners) -> None:
    owners.asks("endless", "3")
    owners.asks("limited", "1", max_ms=HOUR)
    served.rest()
    assert "jobs/endless may still hold" in reserve(served, "a", 5, 0)["refused"]
    assert "jobs/endless may still hold" in reserve(served, "a", 5, 9 * HOUR)["refused"]
    assert "may still hold" in reserve(served, "a", 4, HOUR)["refused"], "its last processes may be left for 12 s"
    assert "OutOfcpu" in reserve(served, "a", 8, 9 * HOUR)["refused"]
    assert reserve(served, "a", 4, HOUR + MINUTE)["reservation"]["name"] == "a"
    assert "reservation a may still hold" in reserve(served, "b", 1, HOUR + 2 * MINUTE)["refused"]
    assert "reservation a needs the same resources" in reserve(served, "b", 1, 30 * MINUTE)["refused"]
    assert reserve(served, "b", 1, 30 * MINUTE, 20 * MINUTE)["reservation"]["name"] == "b"
    with pytest.raises(ApiError, match="there is a reservation b already"):
        reserve(served, "b", 1, 30 * MINUTE)


def test_a_job_that_waits_already_starts_no_later_for_a_reservation(served: Daemon, owners: Owners) -> None:
    owners.asks("runs", "7", max_ms=HOUR)
    owners.asks("waits", "7", ticket="waits", max_ms=HOUR)
    served.rest()
    assert "jobs/waits, which waits already, would start later" in reserve(served, "a", 1, 2 * HOUR)["refused"]
    assert reserve(served, "a", 1, 2 * HOUR + MINUTE)["reservation"]
    assert ask(served, "queue")["jobs"][1]["startsByMs"] == served.machine.now_ms + HOUR + 12_000


def test_a_reservation_is_kept_over_a_restart_and_a_reboot(served: Daemon, owners: Owners) -> None:
    made = reserve(served, "nightly", 6, HOUR)["reservation"]
    inside = asks_inside(owners, served, "inside", "nightly", 4)
    served.rest()
    assert not inside.done()
    served.start()
    served.rest()
    (known,) = served.jobs.reservations.list_current()
    assert (known.name, known.from_ms, known.until_ms) == ("nightly", made["fromMs"], made["untilMs"])
    answer = owners.asks_again("inside")
    served.machine.set_by_ms += HOUR  # less time since boot, and the same time of the day
    pass_time(served, HOUR)
    assert len(placement(answer).exclusive_cpus) == 4
    served.machine.now_ms += HOUR
    served.start()
    assert served.jobs.reservations.list_current() == ()


def test_whatever_moment_the_agent_dies_at_the_reservation_is_whole_or_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = 0
    for moment in range(100):
        machine = Machine(node(SMALL))
        daemon = Daemon(machine, tmp_path / str(moment), steps=Steps())
        daemon.directory.mkdir()
        with watched(monkeypatch, machine, daemon.steps):
            daemon.start()
            daemon.rest()
            keep(daemon, "first", 1, HOUR)
            daemon.steps.dies_at = len(daemon.steps.done) + moment
            daemon.steps.halfway = bool(moment % 2)
            try:
                keep(daemon, "second", 1, HOUR)
                has_died = False
            except CrashError:
                has_died = True
            daemon.steps.dies_at = None
            daemon.start()
            known = [one.name for one in daemon.jobs.reservations.list_current()]
        assert known in ([["first", "second"]] if not has_died else [["first"], ["first", "second"]])
        died += has_died
        if not has_died:
            break
    assert died > 3


def test_an_ended_reservation_is_gone_also_if_the_clock_is_set_back_before_a_restart(daemon: Daemon) -> None:
    keep(daemon, "ended", 1, 0)
    keep(daemon, "later", 1, 3 * HOUR)
    pass_time(daemon, HOUR)
    daemon.machine.now_ms -= HOUR // 2
    daemon.machine.set_by_ms -= HOUR // 2
    daemon.start()
    assert [one.name for one in daemon.jobs.reservations.list_current()] == ["later"]


def test_an_end_that_cannot_be_saved_is_saved_by_a_later_turn(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(daemon, "ended", 1, 0)
    path = str(daemon.directory / FILE)
    with monkeypatch.context() as patched:
        write = state_files.write_atomically

        def is_full(file: str, content: bytes, **more: Any) -> None:
            if file == path:
                raise state_files.StateFileError("full", path=path, error=errno.ENOSPC, hint="make room")
            write(file, content, **more)

        patched.setattr(state_files, "write_atomically", is_full)
        pass_time(daemon, HOUR)
        assert daemon.jobs.reservations.list_current() == ()
        assert b"ended" in Path(path).read_bytes()
    pass_time(daemon, MINUTE)
    daemon.jobs.reservations.wake()
    daemon.rest()
    assert b"ended" not in Path(path).read_bytes()


def test_a_reservation_that_is_saved_while_a_turn_forgets_an_ended_one_stays(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(daemon, "ended", 1, 0)
    reservations, path = daemon.jobs.reservations, daemon.directory / FILE
    daemon.machine.now_ms += HOUR
    now_ms = daemon.machine.now_ms
    new = make_reservation("new", os.getuid(), "uid-new", {"cpu": "1"}, now_ms, now_ms + HOUR)
    reservations.hold(new)
    list_current, keeper = reservations.list_current, threading.Thread(target=reservations.keep, args=(new,))

    def list_and_let_it_be_saved() -> tuple[Reservation, ...]:
        found = list_current()
        if keeper.ident is None:
            keeper.start()
            keeper.join()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(reservations, "list_current", list_and_let_it_be_saved)
        assert [one.name for one in reservations.list_for_turn()] == ["new"]
    assert [one.name for one in reservations.list_current()] == ["new"]
    assert (b"new" in path.read_bytes(), b"ended" in path.read_bytes()) == (True, False)


def test_a_reservation_whose_request_is_cut_short_while_it_is_saved_is_respected_and_has_its_name_all_the_time(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on, listed = threading.Event(), threading.Event(), list[list[str]]()
    reservations, write = daemon.jobs.reservations, state_files.write_atomically

    def wait_and_write(file: str, content: bytes, **more: Any) -> None:
        if file == str(daemon.directory / FILE):
            began.set()
            goes_on.wait()
        write(file, content, **more)

    monkeypatch.setattr(state_files, "write_atomically", wait_and_write)
    reserving = ReservationRequests(
        reservations, JobRequests(daemon.jobs, daemon.agent), JobQueue(daemon.jobs, daemon.agent)
    )
    asked = {"name": "night", "amounts": {"cpu": "2"}, "fromMs": daemon.machine.now_ms, "forMs": HOUR}

    async def cut_short() -> None:
        first, second = (reserving.answer(asked, Peer(os.getuid(), frozenset(), os.getpid())) for _ in range(2))
        request = asyncio.create_task(first)
        await asyncio.to_thread(began.wait)
        request.cancel()
        of_same_name = asyncio.create_task(second)
        for _ in range(100):
            await asyncio.sleep(0)
        listed.append([one.name for one in reservations.list_for_turn()])
        goes_on.set()
        with suppress(asyncio.CancelledError):
            await request
        with pytest.raises(ReservationError, match="there is a reservation night already"):
            await of_same_name

    answered(daemon, lambda: asyncio.run(cut_short()))
    listed += [[one.name for one in found] for found in (reservations.list_for_turn(), reservations.list_current())]
    assert listed == [["night"], ["night"], ["night"]]


def test_a_clock_that_is_set_moves_the_begin_and_not_the_ends_of_jobs(daemon: Daemon, owners: Owners) -> None:
    keep(daemon, "nightly", 6, 2 * HOUR)
    short = owners.asks("short", "6", ticket="short", max_ms=HOUR)
    pass_time(daemon, 0)
    assert placement(short)
    owners.ends("short")
    daemon.machine.now_ms += 90 * MINUTE
    daemon.machine.set_by_ms += 90 * MINUTE  # forward: 30 minutes are left before its begin
    daemon.rest()
    owners.asks("late", "6", ticket="late", max_ms=HOUR)
    daemon.rest()
    assert waits(daemon) == {"late": WAITS_FOR_RESERVATION}
    daemon.machine.now_ms -= HOUR
    daemon.machine.set_by_ms -= HOUR  # back
    daemon.rest()
    owners.asks("behind", "1", ticket="behind", max_ms=HOUR)
    daemon.rest()
    assert waits(daemon) == {}


def test_pods_that_are_no_jobs_are_not_held_back_and_the_queue_says_so(served: Daemon, owners: Owners) -> None:
    reserve(served, "nightly", 6, HOUR)
    served.files.pods = (pod("web", app(cpu="3")),)
    served.rest()
    assert "web" in names(served)
    assert [one["hasRoom"] for one in ask(served, "queue")["reservations"]] == [False]
    inside = asks_inside(owners, served, "inside", "nightly", 6)
    pass_time(served, HOUR)
    assert waits(served) == {"inside": "WaitingForRoom"}
    other = owners.asks("other", "1", ticket="other", max_ms=MINUTE)
    served.rest()
    assert waits(served)["other"] == WAITS_FOR_RESERVATION
    served.files.pods = ()
    served.rest()
    assert placement(inside)
    assert placement(other)


def test_a_cancelled_reservation_lets_others_start_and_its_running_jobs_keep_their_times(
    served: Daemon, owners: Owners
) -> None:
    made = reserve(served, "nightly", 6, 0)["reservation"]
    running = asks_inside(owners, served, "running", "nightly", 4)
    late = asks_inside(owners, served, "late", "nightly", 4)
    owners.asks("other", "3", ticket="other")
    served.rest()
    assert placement(running)
    assert waits(served) == {"late": WAITS_FOR_RESERVATION, "other": WAITS_FOR_RESERVATION}
    assert ask(served, "cancel-reservation", name="nightly")["reservation"] == made
    served.rest()
    assert refusal(late).reason == RESERVATION_OVER
    assert waits(served) == {}
    (shown,) = [job for job in ask(served, "queue")["jobs"] if job["name"] == "jobs/running"]
    assert shown["endsByMs"] == made["untilMs"]
    with pytest.raises(ApiError, match="there is no reservation nightly"):
        ask(served, "cancel-reservation", name="nightly")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"forMs": MINUTE - 1}, "--for must be a time from 1m to 168h"),
        ({"forMs": 8 * 24 * HOUR}, "--for must be"),
        ({"fromMs": 1}, "--from must be a time from now to 31 days ahead"),
        ({"fromMs": 2**52}, "--from must be"),
        ({"amounts": {"cpu": "0"}}, "--cpus 0 must be above 0"),
        ({"amounts": {"cpu": "many"}}, "--cpus"),
        ({"amounts": {"memory": "1Gi"}}, "only CPUs, and memory with them, can be reserved"),
        ({"amounts": {"cpu": "1", "example.com/nic": "1"}}, "only CPUs, and memory with them"),
        ({"name": "Not a name"}, "--name"),
        ({"name": 1}, "malformed request"),
    ],
)
def test_a_request_that_is_wrong(served: Daemon, asked: dict[str, Any], said: str) -> None:
    right = {"name": "a", "amounts": {"cpu": "1"}, "fromMs": served.machine.now_ms, "forMs": HOUR}
    with pytest.raises(ApiError, match=said):
        ask(served, "reserve", **(right | asked))
    assert served.jobs.reservations.list_for_turn() == ()


def as_user(daemon: Daemon, operation: str, **arguments: Any) -> Any:
    """Ask as this process, whose user has bounds like any other's."""
    requests = JobRequests(daemon.jobs, daemon.agent, Limits(unbounded=frozenset()))
    peer = Peer(os.getuid(), frozenset(), os.getpid())
    reserving = ReservationRequests(daemon.jobs.reservations, requests, JobQueue(daemon.jobs, daemon.agent))
    answer = {"reserve": reserving.answer, "cancel": reserving.answer_cancel, "job": requests.answer}[operation]
    return answered(daemon, lambda: asyncio.run(answer(arguments, peer)))


def test_a_name_that_becomes_another_users_while_the_user_database_is_asked_is_not_the_jobs(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = replace(daemon.agent.node.config, jobs=JobBounds("runners", max_cpus=Quantity.of(4)))
    daemon.agent.memory = replace(daemon.agent.memory, node=replace(daemon.agent.node, config=configured))
    now_ms, me = daemon.machine.now_ms, os.getuid()
    own = make_reservation("nightly", me, "uid-own", {"cpu": "2"}, now_ms, now_ms + HOUR)
    others = make_reservation("nightly", me + 1, "uid-others", {"cpu": "4"}, now_ms, now_ms + 3 * HOUR)
    daemon.jobs.reservations.keep(own)

    def is_member(_user: int, group: str) -> bool:
        if daemon.jobs.reservations.find("nightly") == own:
            daemon.jobs.reservations.cancel(own)
            daemon.jobs.reservations.keep(others)
        return group == "runners"

    monkeypatch.setattr(job_requests, "is_member", is_member)
    with pytest.raises(JobRequestError, match="reservation nightly is another user's"):
        as_user(daemon, "job", name="one", amounts={"cpu": "2", "memory": "64Mi"}, reservation="nightly")
    assert daemon.jobs.list_records() == ()


def test_users_reserve_within_their_bounds_and_use_their_own(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_requests, "is_member", in_group("runners"))
    bounds = JobBounds("runners", max_cpus=Quantity.of(3), max_reservations=2)
    configured = replace(daemon.agent.node.config, jobs=bounds)
    daemon.agent.memory = replace(daemon.agent.memory, node=replace(daemon.agent.node, config=configured))
    now_ms = daemon.machine.now_ms
    asked = {"amounts": {"cpu": "2"}, "fromMs": now_ms, "forMs": HOUR}
    assert as_user(daemon, "reserve", name="a", **asked)["reservation"]["user"] == os.getuid()
    with pytest.raises(
        ReservationError, match=r"your reservations would have 4 CPUs together; your limit is 3 \(jobs\.maxCPUs\)"
    ):
        as_user(daemon, "reserve", name="b", **asked)
    assert as_user(daemon, "reserve", name="b", **(asked | {"amounts": {"cpu": "1"}}))["reservation"]
    with pytest.raises(
        ReservationError, match=r"you would have 3 reservations; your limit is 2 \(jobs\.maxReservations\)"
    ):
        as_user(daemon, "reserve", name="c", **(asked | {"amounts": {"cpu": "1"}}))
    with pytest.raises(ReservationError, match="only root may reserve for another user"):
        as_user(daemon, "reserve", name="c", user=os.getuid() + 1, **asked)
    amounts = {"cpu": "2", "memory": "64Mi"}
    assert as_user(daemon, "job", name="one", amounts=amounts, reservation="a")["endsAtMs"] == now_ms + HOUR
    with pytest.raises(JobRequestError, match="reservation b has cpu 1 for all its jobs together"):
        as_user(daemon, "job", name="two", amounts=amounts, reservation="b")
    with pytest.raises(JobRequestError, match="there is no reservation c"):
        as_user(daemon, "job", name="two", amounts=amounts, reservation="c")
    root = make_reservation("root", os.getuid() + 1, "uid-root", {"cpu": "1"}, now_ms, now_ms + HOUR)
    daemon.jobs.reservations.keep(root)
    with pytest.raises(JobRequestError, match="reservation root is another user's"):
        as_user(daemon, "cancel", name="root")
    with pytest.raises(JobRequestError, match="reservation root is another user's"):
        as_user(daemon, "job", name="two", amounts=amounts, reservation="root")
    monkeypatch.setattr(reservation_requests, "MOST", 3)
    as_user(daemon, "cancel", name="a")
    daemon.jobs.reservations.keep(replace(root, name="another"))
    with pytest.raises(ReservationError, match="there are already 3 reservations"):
        as_user(daemon, "reserve", name="c", **asked)


def test_cpus_of_a_cancelled_reservation_count_and_memory_without_one_always_does(
    daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_requests, "is_member", in_group("runners"))
    bounds = JobBounds("runners", max_cpus=Quantity.of(2), max_memory=Quantity.parse("128Mi"))
    configured = replace(daemon.agent.node.config, jobs=bounds)
    daemon.agent.memory = replace(daemon.agent.memory, node=replace(daemon.agent.node, config=configured))
    made = keep(daemon, "night", 4, 0)  # by root, so it may be larger
    one = {"cpu": "2", "memory": "64Mi"}
    with pytest.raises(
        JobRequestError, match=r"129Mi of memory and huge pages together; your limit is 128Mi \(jobs\.maxMemory\)"
    ):
        as_user(daemon, "job", name="big", amounts={"cpu": "4", "memory": "129Mi"}, reservation="night")
    inside = asks_inside(owners, daemon, "inside", "night", 4)
    daemon.rest()
    assert len(placement(inside).exclusive_cpus) == 4
    daemon.jobs.reservations.cancel(made)
    with pytest.raises(JobRequestError, match=r"6 CPUs together; your limit is 2 \(jobs\.maxCPUs\)"):
        as_user(daemon, "job", name="more", amounts=one)


def test_a_name_is_free_again_once_the_jobs_of_its_last_reservation_have_ended(served: Daemon, owners: Owners) -> None:
    reserve(served, "night", 5, 0, 2 * HOUR)
    inside = asks_inside(owners, served, "inside", "night", 5)
    served.rest()
    assert placement(inside)
    ask(served, "cancel-reservation", name="night")
    with pytest.raises(ApiError, match="a job of an earlier reservation night has not ended"):
        reserve(served, "night", 2, 0)
    owners.ends("inside")
    served.rest()
    assert reserve(served, "night", 2, 0)["reservation"]["name"] == "night"


def test_a_reservation_that_nothing_could_meet_holds_up_nobody(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Reservation] = []
    monkeypatch.setattr(served.jobs.reservations, "hold", held.append)
    assert "refused" in reserve(served, "huge", 1000, 0)
    assert held == []


def test_what_cannot_be_saved_is_not_reserved(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = keep(served, "first", 1, HOUR)
    path = served.directory / FILE
    path.unlink()
    path.mkdir()
    with pytest.raises(ApiError, match="cannot write"):
        reserve(served, "second", 1, HOUR)
    assert served.jobs.reservations.list_for_turn() == (made,)
    with pytest.raises(ApiError, match="cannot write"):
        ask(served, "cancel-reservation", name="first")
    assert served.jobs.reservations.list_for_turn() == (made,)
    monkeypatch.setattr(reservation_requests, "MAX_TURN_SECONDS", 0.0)
    with pytest.raises(ApiError, match="has not decided within 0 s, and nothing is reserved"):
        reserve(served, "second", 1, HOUR)


def test_a_file_that_is_no_list_of_reservations_is_set_aside(daemon: Daemon) -> None:
    keep(daemon, "first", 1, HOUR)
    path = daemon.directory / FILE
    whole = path.read_bytes()
    for content in (b"", b"{}", b"nonsense", whole.replace(b'"version": 1', b'"version": 2')):
        path.write_bytes(content)
        daemon.start()
        assert "reservations_unusable" in daemon.log.getvalue()
        assert daemon.jobs.reservations.list_current() == ()
    made = keep(daemon, "second", 1, HOUR)
    assert (daemon.directory / f"{FILE}.aside-1").read_bytes() == content
    daemon.start()
    assert daemon.jobs.reservations.list_current() == (made,)
    path.write_bytes(whole.replace(b'"cpu"', b'"example.com/nic"'))
    daemon.start()
    assert daemon.jobs.reservations.list_current() == ()
    path.unlink()  # by an administrator, and then there is nothing to set aside
    keep(daemon, "third", 1, HOUR)
    path.unlink()
    path.symlink_to("/etc/passwd")
    daemon.start()
    assert daemon.jobs.reservations.list_current() == ()
    assert state_files.read(str(daemon.directory / f"{FILE}.aside-1"), max_bytes=1 << 20) == content
