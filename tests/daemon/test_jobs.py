"""Jobs through the agent's turns and over real sockets: admitted, let in, ended with their owners, known again after a restart.

Owners are real processes; the cgroups that they enter are the model's.
"""

import asyncio
import json
import math
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.metrics.agent_metrics import JOBS_START_TIME
from nodeagent.core.model.config import JobBounds, JobShare
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import ProcessSettings, Profile, QuietSettings
from nodeagent.core.model.state import JOBS
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import exclusive_cpus, own_set_of
from nodeagent.core.turn import admit as admit_stage
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.jobs import domain as jobs_domain, job_queue, job_requests, jobs as jobs_module
from nodeagent.daemon.domains.jobs.job_requests import JobRequestError, JobRequests, Limits
from nodeagent.daemon.domains.jobs.jobs import JobNotKeptError, JobRefusal, Jobs, job_directory
from nodeagent.daemon.domains.jobs.reservations import Reservations
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.reports.publisher import JOB_SOCKET, Publisher
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.edge.processes.job_owners import open_caller
from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.edge.transport.local_api_client import ApiError, call
from nodeagent.formats.config.config_text import hash_config
from nodeagent.formats.manifest.job_pod import job_pod
from nodeagent.formats.wire.exchange import Peer
from nodeagent.launcher.records import read_parent_and_start_ticks
from tests.edge.test_metrics import connect
from tests.support.daemon_model import Daemon, Steps, answered, watched
from tests.support.node_model import CrashError, Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

Answer = Future[ContainerPlacement | JobRefusal]
LARGEST = str(len(node(SMALL).managers.topology.online) - 1)
"""CPUs: all that one job can have."""


class Owners:
    """Processes that ask for jobs."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def close(self) -> None:
        for name in tuple(self.running):
            self.ends(name)

    def asks(self, name: str, cpu: str = "1", ticket: str = "", near: str | None = None, max_ms: int = 0) -> Answer:
        self.running[name] = subprocess.Popen(["sleep", "infinity"])
        owner = open_caller(self.running[name].pid, os.getuid())
        asked = job_pod(name, f"uid-{name}", {"cpu": cpu, "memory": "64Mi"}, near=near)
        return self._daemon.jobs.ask(asked, os.getuid(), owner, ticket, max_ms)

    def session_and_start(self, name: str) -> tuple[int, int]:
        """Return the leader of the process's session, and the process's start time."""
        pid = self.running[name].pid
        return os.getsid(pid), read_parent_and_start_ticks(pid)[1]

    def asks_again(self, name: str) -> Answer:
        """Ask for the answer of a waiting job, as its owner does once the agent has been restarted."""
        owner = open_caller(self.running[name].pid, os.getuid())
        found = self._daemon.jobs.resume(owner, name)
        owner.close()
        assert found is not None
        assert found[0].name == name
        return found[1]

    def ends(self, name: str, *, leaving: bool = False, stubborn: bool = False) -> None:
        """It ends; what it leaves behind in its cgroup ends by itself only if nothing is left."""
        running = self.running.pop(name)
        running.kill()
        running.wait()
        group = self._daemon.machine.groups.get(path(name))
        if group is not None:
            group.processes.clear()
            if leaving:
                self._daemon.machine.enter(path(name), stubborn=stubborn)


def path(name: str) -> str:
    return f"poduid-{name}/main"


@pytest.fixture
def owners(daemon: Daemon) -> Iterator[Owners]:
    owners = Owners(daemon)
    yield owners
    owners.close()


def names(daemon: Daemon) -> list[str]:
    return [entry.pod.name for entry in daemon.agent.state.entries]


def placement(answer: Answer) -> ContainerPlacement:
    placed = answer.result(0)
    assert isinstance(placed, ContainerPlacement)
    return placed


def refusal(answer: Answer) -> JobRefusal:
    refused = answer.result(0)
    assert isinstance(refused, JobRefusal)
    return refused


def test_a_job_is_let_in_when_its_cpus_are_its_own_and_gone_with_its_owner(daemon: Daemon, owners: Owners) -> None:
    daemon.files.pods = (pod("shares", app()),)
    daemon.rest()
    answer = owners.asks("one", "2")
    assert daemon.agent.wakeups.wait(0) >= {WakeUpReason.JOBS}
    daemon.rest()
    cpus = placement(answer).exclusive_cpus
    assert (len(cpus), placement(answer).shared_cpus) == (2, CpuSet())
    assert cpus == own_set_of(daemon.agent.state.promises, "uid-one", "main")
    assert daemon.machine.effective(path("one")) == cpus
    assert not daemon.machine.effective("shared/pool/payload/besteffort/poduid-shares/app") & cpus
    (entry,) = [entry for entry in daemon.agent.state.entries if entry.origin.source == JOBS]
    assert entry.pod.full_name == "jobs/one"

    owners.ends("one", leaving=True)
    daemon.rest()
    assert daemon.machine.signals[-1:] == [("TERM", path("one"))], "what it left behind is asked to end"
    assert names(daemon) == ["shares"]
    assert not PlacementFiles(job_directory(daemon.agent.node.config)).read()


def test_a_job_that_the_oom_killer_has_ended_is_logged_as_such(daemon: Daemon, owners: Owners) -> None:
    for name, kills in (("one", 2), ("two", 0)):
        owners.asks(name, "1")
        daemon.rest()
        daemon.machine.groups[path(name)].oom_kills = kills
        owners.ends(name)
        daemon.rest()
    ends = [line for line in map(json.loads, daemon.log.getvalue().splitlines()) if line["event"] == "pod_ending"]
    assert [(line["pod"], line.get("oom_kills")) for line in ends] == [("jobs/one", 2), ("jobs/two", None)]


MEMORY_ENDS = {
    "limit": ("oom 1\noom_kill 3\n", "67108864\n"),
    "machine": ("oom 0\noom_kill 1\n", None),
    "exit": ("oom 0\noom_kill 0\n", "4096\n"),
    "unreadable": (None, None),
}
"""Texts of memory.events and memory.peak, by job."""


@pytest.mark.parametrize("restarts", [False, True])
def test_the_terminal_of_a_job_says_that_the_oom_killer_has_ended_it(
    daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    def read(cgroup: str) -> tuple[str | None, str | None]:
        return MEMORY_ENDS[Path(cgroup).name.removeprefix("poduid-")]

    monkeypatch.setattr(jobs_domain, "read_memory_end", read)
    for name in MEMORY_ENDS:
        owners.asks(name)
    ids = {name: owners.session_and_start(name) for name in MEMORY_ENDS}
    daemon.rest()
    if restarts:
        daemon.start()
        daemon.rest()
    for name in MEMORY_ENDS:
        owners.ends(name)
        daemon.rest()
    said = "nodeagent: the OOM killer has ended jobs/{}: memory peak {} of --memory 64Mi; {}"
    assert daemon.told == [
        (*ids["limit"], said.format("limit", "64Mi", "request more memory")),
        (*ids["machine"], said.format("machine", "unknown", "the machine itself was out of memory")),
    ]


@pytest.mark.parametrize("error", [LauncherError(Path("/run/x"), "it refuses: no operation (bad_request)")])
def test_a_line_that_nobody_takes_is_dropped(
    daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(jobs_domain, "read_memory_end", lambda _: MEMORY_ENDS["limit"])
    monkeypatch.setattr(daemon, "tell", refuse)
    daemon.start()
    owners.asks("limit")
    daemon.rest()
    owners.ends("limit")
    daemon.rest()
    assert names(daemon) == []
    assert daemon.agent.view.problems == ()


def test_its_release_is_told_when_its_cgroup_is_closed(daemon: Daemon, owners: Owners) -> None:
    owners.asks("one", "2")
    daemon.rest()
    jobs = daemon.jobs
    before = jobs.watch_release("uid-one")
    daemon.rest()
    assert not before.done()
    owners.ends("one", leaving=True, stubborn=True)
    daemon.turn(WakeUpReason.JOBS)
    assert (names(daemon), before.done()) == (["one"], False), "a process is left, and keeps the CPUs"
    given_up = jobs.watch_release("uid-one")
    given_up.cancel()
    daemon.machine.now_ms += 11_000
    daemon.rest()
    assert (names(daemon), before.done()) == ([], True)
    assert path("one") not in daemon.machine.groups
    after = jobs.watch_release("uid-one")
    daemon.turn(WakeUpReason.JOBS)
    assert after.done()


def test_a_refused_job_is_forgotten(daemon: Daemon, owners: Owners) -> None:
    answer = owners.asks("large", "99")
    daemon.rest()
    assert refusal(answer).reason == "OutOfcpu"
    assert daemon.machine.populated() == ()
    assert names(daemon) == []


def test_a_job_waits_for_what_an_ended_one_still_holds(daemon: Daemon, owners: Owners) -> None:
    first = owners.asks("first", LARGEST)
    daemon.rest()
    assert placement(first)
    owners.ends("first", leaving=True, stubborn=True)
    second = owners.asks("second", LARGEST)
    daemon.turn()
    daemon.turn()
    assert not second.done(), "the first one's processes have their grace period"
    daemon.machine.now_ms += 11_000
    daemon.rest()
    assert ("KILL", path("first")) in daemon.machine.signals
    assert placement(second)
    third = owners.asks("third", LARGEST)
    daemon.rest()
    assert refusal(third), "nothing is about to go"


def test_one_that_does_not_fit_even_then_is_refused(daemon: Daemon, owners: Owners) -> None:
    owners.asks("first", LARGEST)
    daemon.rest()
    owners.ends("first", leaving=True, stubborn=True)
    second = owners.asks("second", "99")
    daemon.turn()
    assert not second.done()
    daemon.machine.now_ms += 11_000
    daemon.rest()
    assert refusal(second).reason == "OutOfcpu"


def test_a_name_that_a_pod_has_is_refused(daemon: Daemon, owners: Owners) -> None:
    daemon.files.pods = (replace(pod("one", app(), uid="uid-other"), namespace="jobs"),)
    daemon.rest()
    answer = owners.asks("one")
    daemon.rest()
    assert refusal(answer).message == "there is a pod jobs/one already"
    assert daemon.agent.state.entry("uid-other") is not None, "the pod stays"


def test_another_process_of_the_agent_knows_it(daemon: Daemon, owners: Owners) -> None:
    answer, waiting = owners.asks("one", "2"), owners.asks("two")
    daemon.turn()
    daemon.rest()
    cpus, before = placement(answer).exclusive_cpus, daemon.agent.state
    writes = len(daemon.machine.writes)
    assert placement(waiting)
    daemon.start()
    daemon.rest()
    assert daemon.agent.state.entries == before.entries
    assert own_set_of(daemon.agent.state.promises, "uid-one", "main") == cpus
    assert len(daemon.machine.writes) == writes
    assert [job.pod.name for job in daemon.jobs.records_of_user(os.getuid())[0]] == ["one", "two"]

    (daemon.directory / "nodeagent_state").unlink()
    daemon.start()
    daemon.rest()
    assert own_set_of(daemon.agent.state.promises, "uid-one", "main") == cpus, "found in what runs"

    owners.ends("one")
    daemon.start()
    daemon.rest()
    assert names(daemon) == ["two"]


def test_after_a_boot_it_is_gone(daemon: Daemon, owners: Owners) -> None:
    owners.asks("one", "2")
    daemon.rest()
    PlacementFiles(job_directory(daemon.agent.node.config)).remove("uid-one/job")
    for group in daemon.machine.groups.values():
        group.processes.clear()
    daemon.start()
    daemon.rest()
    assert (names(daemon), len(daemon.agent.state.promises.pods)) == ([], 0)


def test_whatever_moment_the_agent_dies_at_the_job_is_whole_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is told nothing then, and ends."""
    died = 0
    for moment in range(1000):
        machine = Machine(node(SMALL))
        daemon = Daemon(machine, tmp_path / str(moment), steps=Steps())
        daemon.directory.mkdir()
        with watched(monkeypatch, machine, daemon.steps):
            daemon.start()
            daemon.rest()
            owners = Owners(daemon)
            answer = owners.asks("one", "2")
            daemon.steps.dies_at = len(daemon.steps.done) + moment
            try:
                daemon.rest()
            except CrashError:
                died += 1
            daemon.steps.dies_at = None
            told = answer.done()
            if not told:
                owners.ends("one")
            daemon.start()
            daemon.rest()
            assert names(daemon) == (["one"] if told else [])
            assert len(exclusive_cpus(daemon.agent.state.promises)) == (2 if told else 0)
            if told:
                owners.ends("one")
        if told:
            break
    assert died > 10


def test_released_it_ends_and_is_forgotten_with_its_owner(daemon: Daemon, owners: Owners) -> None:
    owners.asks("one", "2")
    daemon.rest()
    daemon.agent.requests.put(TurnRequest(released=frozenset({"uid-one"})))
    daemon.rest()
    assert ("TERM", path("one")) in daemon.machine.signals
    owners.ends("one")
    daemon.rest()
    assert names(daemon) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_whose_time_is_over_ends_though_its_owner_lives(
    daemon: Daemon, owners: Owners, *, restarts: bool
) -> None:
    """Its time begins with its start, whatever the clock is set to, and an agent that is started meanwhile knows it."""
    holder = owners.asks("holder", LARGEST)
    daemon.rest()
    placement(holder)
    answer = owners.asks("one", "2", ticket="one", max_ms=60_000)
    daemon.rest()
    daemon.machine.now_ms += 90_000
    owners.ends("holder")
    daemon.rest()
    placement(answer)
    end_ms = daemon.jobs.find_end_ms("uid-one")
    assert end_ms == daemon.machine.now_ms - daemon.machine.set_by_ms + 60_000
    if restarts:
        daemon.start()
    daemon.machine.now_ms += 59_999
    daemon.rest()
    assert names(daemon) == ["one"]
    daemon.machine.now_ms += 3_600_000
    daemon.machine.set_by_ms += 3_600_000  # the clock is set forward
    daemon.rest()
    assert (names(daemon), daemon.jobs.find_end_ms("uid-one")) == (["one"], end_ms)
    daemon.machine.now_ms += 1
    daemon.rest()
    assert ("TERM", path("one")) in daemon.machine.signals
    owners.ends("one")
    daemon.rest()
    assert names(daemon) == []


def test_a_ticket_renews_no_time(daemon: Daemon, owners: Owners) -> None:
    """The command has its owner's process ID, and may ask as the owner."""
    placement_of = owners.asks("one", "2", ticket="one", max_ms=60_000)
    daemon.rest()
    placement(placement_of)
    end_ms = daemon.jobs.find_end_ms("uid-one")
    daemon.machine.now_ms += 50_000
    again = owners.asks_again("one")
    daemon.turn(WakeUpReason.JOBS)
    assert (placement(again).exclusive_cpus, daemon.jobs.find_end_ms("uid-one")) == (
        placement(placement_of).exclusive_cpus,
        end_ms,
    )
    daemon.machine.now_ms += 10_000
    daemon.rest()
    assert ("TERM", path("one")) in daemon.machine.signals


def test_the_time_of_a_job_begins_with_its_cpus_though_its_owner_does_not_ask_again(
    daemon: Daemon, owners: Owners
) -> None:
    """Its owner is stopped while it waits, and the agent is restarted."""
    owners.asks("big", LARGEST)
    daemon.rest()
    owners.asks("one", LARGEST, ticket="one", max_ms=60_000)
    daemon.rest()
    daemon.start()
    owners.ends("big")
    daemon.rest()
    assert daemon.jobs.find_end_ms("uid-one") == daemon.machine.now_ms - daemon.machine.set_by_ms + 60_000
    daemon.machine.now_ms += 60_000
    daemon.rest()
    assert names(daemon) == []


def test_an_owner_that_asks_again_gets_one_answer(daemon: Daemon, owners: Owners) -> None:
    owners.asks("big", LARGEST)
    daemon.rest()
    before = owners.asks("one", "1", ticket="one")
    daemon.rest()
    again = owners.asks_again("one")
    with pytest.raises(JobNotKeptError, match="the job's owner has asked again"):
        before.result(0)
    owners.ends("big")
    daemon.rest()
    placement(again)


def test_the_order_of_the_queue_survives_a_clock_that_is_set_back(
    daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners.asks("big", LARGEST)
    daemon.rest()
    owners.asks("second", LARGEST, ticket="second")
    monkeypatch.setattr(jobs_module, "time", SimpleNamespace(time_ns=lambda: 1))
    owners.asks("first", LARGEST, ticket="first")
    daemon.rest()
    daemon.start()
    assert [record.pod.name for record in daemon.jobs.list_records()] == ["big", "second", "first"]


def test_a_job_whose_end_cannot_be_recorded_does_not_start(daemon: Daemon, owners: Owners) -> None:
    """A restarted agent would not end it."""
    answer = owners.asks("one", "2", max_ms=60_000)
    record = Path(job_directory(daemon.agent.node.config), "uid-one")
    (record / "job").unlink()
    record.rmdir()
    record.touch()
    daemon.rest()
    assert refusal(answer).reason == "StateNotSaved"
    owners.ends("one")
    daemon.rest()
    assert names(daemon) == []


def test_a_cgroup_that_takes_nobody_in_is_a_refusal(
    daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, _pid: int, _is_alive: object) -> bool:
        raise CgroupError("cannot write", path=path, error=1, hint="see dmesg")

    monkeypatch.setattr(daemon.agent.edges.tree, "take_in", refuse)
    answer = owners.asks("one")
    daemon.rest()
    assert refusal(answer) == JobRefusal("CannotEnter", "cannot write (see dmesg)")
    assert names(daemon) == []


def test_an_owner_that_ends_before_it_is_let_in_has_no_job(daemon: Daemon, owners: Owners) -> None:
    answer = owners.asks("one")
    owners.ends("one")
    daemon.rest()
    assert isinstance(answer.exception(0), JobNotKeptError)
    assert names(daemon) == []


def test_an_owner_that_takes_another_job_leaves_its_first(daemon: Daemon, owners: Owners) -> None:
    owners.asks("one")
    daemon.rest()
    asked = job_pod("two", "uid-two", {"cpu": "1", "memory": "64Mi"})
    pid = owners.running["one"].pid
    daemon.jobs.ask(asked, os.getuid(), open_caller(pid, os.getuid()))
    daemon.turn()
    daemon.machine.groups[path("one")].processes.clear()
    daemon.rest()
    assert names(daemon) == ["two"]


def test_records_that_cannot_be_read_end_no_job(daemon: Daemon, owners: Owners) -> None:
    owners.asks("one", "2")
    daemon.rest()
    directory = Path(job_directory(daemon.agent.node.config))
    directory.rename(directory.with_name("away"))
    directory.touch()
    daemon.start()
    daemon.rest()
    assert names(daemon) == ["one"]
    assert any("Not a directory" in problem for problem in daemon.agent.view.problems)
    directory.unlink()
    directory.with_name("away").rename(directory)
    daemon.rest()
    assert names(daemon) == ["one"]
    assert daemon.agent.view.problems == ()


def test_what_is_no_record_is_removed_and_one_that_cannot_be_written_is_no_job(daemon: Daemon, owners: Owners) -> None:
    files = PlacementFiles(job_directory(daemon.agent.node.config))
    files.write("uid-x/job", b"nonsense")
    files.write("uid-y/else", b"")
    directory = Path(job_directory(daemon.agent.node.config))
    (directory / "uid-z").mkdir()  # by a writer that died, or that could not write its file in a full /run
    daemon.start()
    assert files.read() == {}
    directory.rmdir()
    directory.touch()
    with pytest.raises(PlacementFileError):
        owners.asks("one")
    assert daemon.jobs.records_of_user(os.getuid()) == ((), ())


def test_nothing_is_taken_before_the_earlier_jobs_are_known(tmp_path: Path) -> None:
    jobs = Jobs(
        PlacementFiles(str(tmp_path / "jobs")), Reservations(str(tmp_path), lambda: None, make_log()), lambda: None
    )
    asked = job_pod("one", "uid-one", {"cpu": "1", "memory": "64Mi"})
    with pytest.raises(JobNotKeptError):
        jobs.ask(asked, 0, open_caller(os.getpid(), os.getuid()))
    assert jobs.look(rescan=False) == PodSource(name=JOBS)


# The queue


def waits(daemon: Daemon) -> dict[str, str]:
    """Return the reason of each waiting job, in the order of the state."""
    return {entry.pod.name: entry.refusal.reason for entry in daemon.agent.state.entries if entry.refusal is not None}


def test_waiting_jobs_start_first_come_first_served(daemon: Daemon, owners: Owners) -> None:
    owners.asks("holds", "4")
    daemon.rest()
    large, small = owners.asks("large", "5", ticket="large"), owners.asks("small", "1", ticket="small")
    daemon.rest()
    assert waits(daemon) == {"large": "WaitingForRoom", "small": "WaitingForJobs"}
    assert not sum(daemon.agent.view.wrong.values()), "nobody has to act"
    assert not large.done()
    assert not small.done()
    now = owners.asks("now", "1")
    daemon.rest()
    assert refusal(now) == JobRefusal("WaitingForJobs", "jobs/large is before it in the queue")
    owners.ends("holds")
    daemon.rest()
    assert len(placement(large).exclusive_cpus) == 5
    assert len(placement(small).exclusive_cpus) == 1


def test_the_metrics_count_waiting_jobs_and_tell_since_when(daemon: Daemon, owners: Owners) -> None:
    def told() -> tuple[float, float]:
        lines = daemon.agent.metrics.exposition.text().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("nodeagent_jobs_waiting"))
        return float(values["nodeagent_jobs_waiting"]), float(values["nodeagent_jobs_waiting_timestamp_seconds"])

    owners.asks("holds", LARGEST)
    daemon.rest()
    assert told() == (0, 0)
    began = daemon.machine.now_ms // 1000
    owners.asks("first", "1", ticket="first")
    daemon.rest()
    daemon.machine.now_ms += 5000
    owners.asks("second", "1", ticket="second")
    daemon.rest()
    assert told() == (2, began)
    owners.ends("holds")
    daemon.rest()
    assert told() == (0, 0)


def test_a_waiting_job_that_leaves_lets_the_next_one_start(daemon: Daemon, owners: Owners) -> None:
    owners.asks("holds", "4")
    daemon.rest()
    owners.asks("large", "5", ticket="large")
    small = owners.asks("small", "1", ticket="small")
    daemon.rest()
    assert not small.done()
    owners.ends("large")
    assert daemon.agent.wakeups.wait(5) >= {WakeUpReason.JOBS}
    daemon.rest()
    assert placement(small)
    assert "large" not in names(daemon)
    assert "uid-large/job" not in PlacementFiles(job_directory(daemon.agent.node.config)).read()


def test_a_job_behind_others_is_decided_with_the_devices_that_it_is_to_be_near(daemon: Daemon, owners: Owners) -> None:
    card = Device("0000:3b:00.0", DeviceKind.NETWORK, 0x020000, names=("eth0",))
    daemon.hardware.placed = PlacedDevices.of((card,), daemon.hardware.topology)
    owners.asks("holds", "4")
    daemon.rest()
    owners.asks("large", "5", ticket="large")
    near = owners.asks("near", "1", ticket="near", near="eth0")
    daemon.rest()
    assert waits(daemon) == {"large": "WaitingForRoom", "near": "WaitingForJobs"}
    daemon.hardware.placed = PlacedDevices()
    daemon.turn(WakeUpReason.START)
    owners.ends("large")
    daemon.turn(WakeUpReason.JOBS)
    daemon.turn(WakeUpReason.JOBS)
    assert refusal(near).reason == "DeviceUnavailable"


def test_a_job_that_can_never_fit_waits_for_nothing(daemon: Daemon, owners: Owners) -> None:
    owners.asks("holds", "2")
    daemon.rest()
    assert refusal_of(daemon, owners.asks("huge", "99", ticket="huge")).reason == "OutOfcpu"
    assert placement_of(daemon, owners.asks("small", "1", ticket="small")), "nobody waits before it"
    waiting = owners.asks("large", LARGEST, ticket="large")
    daemon.rest()
    assert refusal_of(daemon, owners.asks("behind", "99", ticket="behind")).reason == "OutOfcpu"
    assert waits(daemon) == {"large": "WaitingForRoom"}
    assert not waiting.done()


def refusal_of(daemon: Daemon, answer: Answer) -> JobRefusal:
    daemon.rest()
    return refusal(answer)


def placement_of(daemon: Daemon, answer: Answer) -> ContainerPlacement:
    daemon.rest()
    return placement(answer)


@pytest.mark.parametrize("is_state_lost", [False, True])
def test_a_restart_keeps_every_place(daemon: Daemon, owners: Owners, *, is_state_lost: bool) -> None:
    owners.asks("holds", "4")
    daemon.rest()
    for name in ("z", "y", "x"):
        owners.asks(name, "5", ticket=name)
        daemon.machine.now_ms += 1000
        daemon.rest()
    if is_state_lost:
        (daemon.directory / "nodeagent_state").unlink()
    daemon.start()
    daemon.rest()
    assert waits(daemon) == {"z": "WaitingForRoom", "y": "WaitingForJobs", "x": "WaitingForJobs"}
    answers = {name: owners.asks_again(name) for name in ("x", "y", "z")}
    for ends, starts in (("holds", "z"), ("z", "y"), ("y", "x")):
        assert [name for name, answer in answers.items() if answer.done()] == []
        owners.ends(ends)
        daemon.rest()
        assert len(placement(answers.pop(starts)).exclusive_cpus) == 5


def test_a_job_admitted_while_its_owner_could_not_ask_starts_when_it_asks_again(daemon: Daemon, owners: Owners) -> None:
    owners.asks("holds", "4")
    owners.asks("one", "5", ticket="one")
    daemon.rest()
    owners.ends("holds")
    daemon.start()
    daemon.rest()
    assert waits(daemon) == {}
    answer = owners.asks_again("one")
    assert daemon.agent.wakeups.wait(0) >= {WakeUpReason.JOBS}
    daemon.turn(WakeUpReason.JOBS)
    assert len(placement(answer).exclusive_cpus) == 5
    owner = open_caller(owners.running["one"].pid, os.getuid())
    assert daemon.jobs.resume(owner, "another ticket") is None
    owner.close()


def test_whatever_moment_the_agent_dies_at_a_waiting_job_starts_when_it_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = 0
    for moment in range(1000):
        machine = Machine(node(SMALL))
        daemon = Daemon(machine, tmp_path / str(moment), steps=Steps())
        daemon.directory.mkdir()
        with watched(monkeypatch, machine, daemon.steps):
            daemon.start()
            owners = Owners(daemon)
            owners.asks("holds", "4")
            daemon.rest()
            answer = owners.asks("one", "5", ticket="one")
            daemon.turn(WakeUpReason.JOBS)
            owners.ends("holds")
            daemon.steps.dies_at = len(daemon.steps.done) + moment
            try:
                daemon.rest()
            except CrashError:
                died += 1
            daemon.steps.dies_at = None
            has_started = answer.done()
            daemon.start()
            daemon.rest()
            if not has_started:
                answer = owners.asks_again("one")
                daemon.turn(WakeUpReason.JOBS)
            assert len(placement(answer).exclusive_cpus) == 5
            assert names(daemon) == ["one"]
            owners.ends("one")
        if has_started:
            break
    assert died > 10


def test_waiting_jobs_cost_a_turn_nothing(daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    owners.asks("holds", LARGEST)
    for number in range(20):
        owners.asks(f"w{number}", "1", ticket=f"w{number}")
    daemon.rest()
    decided: list[str] = []

    def refuse(_state: object, pod: Pod, *_rest: object) -> None:
        decided.append(pod.name)

    monkeypatch.setattr(admit_stage, "decide_pod", refuse)
    before = daemon.agent.state
    daemon.turn(WakeUpReason.TIMER)
    daemon.turn(WakeUpReason.JOBS)
    assert decided == []
    assert daemon.agent.state is before


# Over the socket


@pytest.fixture
def served(daemon: Daemon) -> Iterator[Daemon]:
    with Publisher(daemon.agent, addresses(daemon), daemon.agent.edges.log, daemon.jobs) as publisher:
        publisher.listen()
        yield daemon


def addresses(daemon: Daemon, jobs: JobBounds | None = None) -> Any:
    return SimpleNamespace(
        runtime_directory=str(daemon.directory), metrics_bind_address="", pod_resources_socket="", jobs=jobs
    )


def test_a_group_that_is_not_there_is_a_problem_and_root_may_run_jobs(daemon: Daemon) -> None:
    with Publisher(
        daemon.agent, addresses(daemon, JobBounds("no group")), daemon.agent.edges.log, daemon.jobs
    ) as publisher:
        assert publisher.listen() == ("there is no group no group (jobs.group): only root may run jobs",)
        assert asked(daemon)["pod"] == "jobs/one"
    assert (daemon.directory / JOB_SOCKET).exists() is False, "it is gone with what served it"


def asked(daemon: Daemon, name: str = "one", **amounts: str) -> Any:
    """Ask as this process, which is the job's owner then."""
    named = {"cpu": "2", "memory": "64Mi"} | amounts
    socket = f"{daemon.directory}/{JOB_SOCKET}"
    return answered(daemon, lambda: call(socket, "job", timeout_seconds=60, name=name, amounts=named))


def test_who_asks_is_told_where_it_is(served: Daemon) -> None:
    answer = asked(served)
    (entry,) = served.agent.state.entries
    own = str(own_set_of(served.agent.state.promises, entry.pod.uid, "main"))
    assert (answer["pod"], answer["exclusiveCPUs"], answer["sharedCPUs"]) == ("jobs/one", own, "")
    assert answer["numaNodes"] == "0"
    assert answer["cgroup"] == f"{served.agent.edges.tree.root}/{entry.container_path('main')}"
    environment = answer["environment"]
    assert environment["NODEAGENT_EXCLUSIVE_CPUS"] == own
    assert f"NODEAGENT_EXCLUSIVE_CPUS={own}\n" in Path(environment["NODEAGENT_PLACEMENT_FILE"]).read_text()


def test_the_queue_is_told_with_the_latest_starts(served: Daemon, owners: Owners) -> None:
    """The time of a job that runs counts from its start, and that of a wait from the request, whoever restarts."""
    assert asked(served)["endsAtMs"] == 0
    owners.asks("limited", "2", max_ms=60_000)
    owners.asks("waits", "5", ticket="waits", max_ms=1_000)
    owners.asks("behind", "1", ticket="behind")
    served.rest()
    served.machine.now_ms += 10_000
    socket = f"{served.directory}/{JOB_SOCKET}"
    shown = {job["name"]: job for job in answered(served, lambda: call(socket, "queue"))["jobs"]}
    assert [*shown] == ["jobs/one", "jobs/limited", "jobs/waits", "jobs/behind"]
    assert [job["state"] for job in shown.values()] == ["running", "running", "waiting", "waiting"]
    limited, waits = shown["jobs/limited"], shown["jobs/waits"]
    assert limited["endsByMs"] - limited["sinceMs"] == 60_000
    assert waits["startsByMs"] - limited["endsByMs"] == 12_000
    assert "no room" not in waits["lacks"]
    assert "OutOfcpu" in waits["lacks"]
    assert shown["jobs/behind"]["startsByMs"] - waits["startsByMs"] == 1_000 + 12_000
    owners.ends("limited")
    served.rest()
    again = {job["name"]: job for job in answered(served, lambda: call(socket, "queue"))["jobs"]}
    assert (again["jobs/waits"]["state"], again["jobs/behind"]["state"]) == ("running", "waiting")
    assert again["jobs/behind"]["startsByMs"] is not None


def test_a_start_that_is_not_worked_out_is_told_as_that(
    served: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_queue, "MOST_EXPECTED", 1)
    for name, cpus in (("runs", "4"), ("first", "5"), ("far", "5")):
        owners.asks(name, cpus, ticket=name, max_ms=60_000)
    served.rest()
    socket = f"{served.directory}/{JOB_SOCKET}"
    jobs = answered(served, lambda: call(socket, "queue"))["jobs"]
    assert [job["startUnknown"] for job in jobs] == [None, None, "it is computed only for the first waiting jobs"]


def test_a_scrape_tells_the_latest_starts_and_which_of_them_is_unknown(
    daemon: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket, config = f"{daemon.directory}/{JOB_SOCKET}", addresses(daemon)
    config.metrics_bind_address = f"unix:{daemon.directory}/metrics.sock"

    def scraped() -> list[float]:
        with connect(config.metrics_bind_address) as channel:
            channel.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            lines = channel.makefile().read().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(JOBS_START_TIME))
        return [float(values[f'{JOBS_START_TIME}{{start="{start}"}}']) for start in ("next", "last")]

    def told() -> list[float]:
        starts = [job["startsByMs"] for job in answered(daemon, lambda: call(socket, "queue"))["jobs"]]
        return [start / 1000 for start in starts if start is not None]

    with Publisher(daemon.agent, config, daemon.agent.edges.log, daemon.jobs):
        assert scraped() == [0, 0]
        owners.asks("holds", LARGEST, max_ms=60_000)
        owners.asks("limited", LARGEST, ticket="limited", max_ms=1_000)
        owners.asks("behind", "1", ticket="behind")
        daemon.rest()
        assert scraped() == told() == [told()[0], told()[0] + 13]
        owners.asks("never", LARGEST, ticket="never")
        daemon.rest()
        assert scraped() == [told()[0], pytest.approx(math.nan, nan_ok=True)], "behind has no time limit"
        is_over = threading.Event()
        monkeypatch.setattr(job_queue, "_SCRAPE_SECONDS", 0)
        monkeypatch.setattr(job_queue, "expect_starts", lambda *_: is_over.wait())
        owners.ends("never")
        daemon.rest()
        assert scraped() == pytest.approx([math.nan, math.nan], nan_ok=True), "not worked out in time"
        is_over.set()


def test_the_time_of_a_wait_is_bounded(served: Daemon, owners: Owners) -> None:
    owners.asks("holds", "4")
    served.rest()
    socket, amounts = f"{served.directory}/{JOB_SOCKET}", {"cpu": "5", "memory": "64Mi"}
    answer = answered(served, lambda: call(socket, "job", name="late", amounts=amounts, wait=1, ticket="t"))
    assert answer["refused"]["reason"] == "WaitedTooLong"
    assert "OutOfcpu" in answer["refused"]["message"]
    served.rest()
    assert names(served) == ["holds"]
    with pytest.raises(ApiError, match="malformed"):
        call(socket, "job", name="late", amounts=amounts, wait=0, ticket="t")
    with pytest.raises(ApiError, match="malformed"):
        call(socket, "job", name="late", amounts=amounts, wait=1)


def test_the_number_of_waiting_jobs_is_bounded(served: Daemon) -> None:
    requests = JobRequests(served.jobs, served.agent, Limits(queued=0))
    arguments = {"name": "one", "amounts": {"cpu": "1", "memory": "64Mi"}, "wait": 5, "ticket": "t"}
    with pytest.raises(JobRequestError, match="already waiting for room"):
        asyncio.run(requests.answer(arguments, Peer(os.getuid(), frozenset(), os.getpid())))


def test_a_refusal_is_an_answer(served: Daemon) -> None:
    assert asked(served, cpu="99")["refused"]["reason"] == "OutOfcpu"


def test_a_numa_node_is_part_of_the_request(served: Daemon) -> None:
    def on(node: str) -> Any:
        amounts = {"cpu": "1", "memory": "64Mi"}
        socket = f"{served.directory}/{JOB_SOCKET}"
        return answered(served, lambda: call(socket, "job", name=f"on-{node}", amounts=amounts, numa=node))

    assert on("0")["environment"]["NODEAGENT_MEMORY_NODES"] == "0"
    assert served.agent.state.entries[0].pod.numa_node == 0
    refused = on("7")["refused"]
    assert refused["message"] == "it requires NUMA node 7, but the NUMA nodes of this machine are 0"


def test_a_quiet_job_is_told_what_is_quiet_and_what_is_not(served: Daemon) -> None:
    def quiet(name: str, cpus: str) -> Any:
        amounts = {"cpu": cpus, "memory": "64Mi"}
        socket = f"{served.directory}/{JOB_SOCKET}"
        return answered(served, lambda: call(socket, "job", name=name, amounts=amounts, quiet="quiet"))

    def core_of(answer: Any) -> CpuSet:
        own = CpuSet.parse(answer["exclusiveCPUs"])
        return next(core for core in served.agent.node.topology.cores.values() if own <= core)

    first = quiet("first", "1")
    core = core_of(first)
    applied = {f"idle latency of CPU {cpu}": "5" for cpu in core}
    applied |= {f"frequency governor of CPU {cpu}": "performance" for cpu in core}
    assert first["quiet"] == {"profile": "quiet", "process": {}, "applied": applied, "missing": {}}
    assert {served.machine.values[Setting(SettingKind.IDLE_LATENCY, str(cpu))] for cpu in core} == {"5"}
    served.machine.values.clear()  # another kernel
    served.turn(WakeUpReason.TIMER)
    second = quiet("second", "1")
    assert second["quiet"] == {
        "profile": "quiet",
        "process": {},
        "applied": {},
        "missing": {
            f"{what} of CPU {cpu}": "this machine or kernel doesn't have it per CPU"
            for what in ("idle latency", "frequency governor")
            for cpu in core_of(second)
        },
    }
    assert quiet("shared", "500m")["quiet"] == {"profile": "quiet", "process": {}, "applied": {}, "missing": {}}
    assert "quiet" not in asked(served, "loud", cpu="1")


def test_a_class_of_cores_is_part_of_the_request(served: Daemon) -> None:
    amounts = {"cpu": "1", "memory": "64Mi"}
    socket = f"{served.directory}/{JOB_SOCKET}"
    answer = answered(served, lambda: call(socket, "job", name="fast", amounts=amounts, coreClass="performance"))
    assert answer["refused"] == {
        "reason": "CoreClassUnavailable",
        "message": "it requires performance cores, but all cores of this machine are of one kind",
    }
    assert asked(served)["coreClass"] is None


def test_devices_are_part_of_the_request(served: Daemon) -> None:
    def near(name: str) -> Any:
        amounts = {"cpu": "1", "memory": "64Mi"}
        socket = f"{served.directory}/{JOB_SOCKET}"
        return answered(served, lambda: call(socket, "job", name="forwarder", amounts=amounts, near=name))

    card = Device("0000:3b:00.0", DeviceKind.NETWORK, 0x020000, names=("eth0",))
    served.hardware.placed = PlacedDevices.of((card,), served.hardware.topology)
    assert near("eth9")["refused"] == {
        "reason": "DeviceUnavailable",
        "message": "it asks to be near eth9, but this machine has only eth0 (network)",
    }
    assert near("eth0")["near"] == ["eth0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "name: is missing"),
        ({"name": "one", "amounts": {"cpu": 2}}, "must be a string"),
        ({"name": "One", "amounts": {"cpu": "1", "memory": "1Gi"}}, '--name "One": must be'),
        ({"name": "one", "amounts": {"cpu": "1", "memory": "64MB"}}, '--memory "64MB": '),
        ({"name": "one", "amounts": {"cpu": "two", "memory": "1Gi"}}, '--cpus "two": '),
        ({"name": "one", "amounts": {"cpu": "0", "memory": "1Gi"}}, "--cpus 0 must be above 0"),
        ({"name": "one", "amounts": {"cpu": "1", "memory": "1Gi", "a.com/b": "0"}}, "--device 0 must be above 0"),
        ({"name": "one", "amounts": {"cpu": "1", "memory": "1Gi"}, "numa": "x"}, "--numa "),
        ({"name": "one", "amounts": {"cpu": "x", "memory": "1Gi"}}, '"x"'),
        ({"name": "one", "amounts": {"cpu": "1", "memory": "1Gi"}, "numa": "a"}, "must be the number of a NUMA node"),
        ({"name": "one", "amounts": {"cpu": "1", "memory": "1Gi"}, "numa": 1}, "numa: must be a string"),
        ({"name": "one", "amounts": {"cpu": "1", "memory": "1Gi"}, "coreClass": "fast"}, "must be one of performance"),
        (
            {"name": "one", "amounts": {"cpu": "1", "memory": "1Gi"}, "near": "a/b"},
            "must list devices or kinds of devices",
        ),
    ],
)
def test_a_request_that_is_none_is_refused(served: Daemon, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as caught:
        answered(served, lambda: call(f"{served.directory}/{JOB_SOCKET}", "job", **arguments))
    assert said in caught.value.message


def test_others_than_root_need_a_configuration_and_keep_within_its_bounds(
    served: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_requests, "is_member", in_group("runners"))
    with pytest.raises(JobRequestError, match="only root may run jobs here"):
        asked_as_user(served)
    configured = replace(served.agent.node.config, jobs=JobBounds("runners", max_cpus=Quantity.of(2)))
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    assert asked_as_user(served)["pod"] == "jobs/one"
    with pytest.raises(JobRequestError, match=r"your limit is 2 \(jobs\.maxCPUs\)"):
        asked_as_user(served, "two", cpu="1")
    with pytest.raises(
        JobRequestError, match=r"only root's jobs may have exclusive devices, and this job requests \S+/nic"
    ):
        asked_as_user(served, "three", cpu="1", **{"example.com/nic": "1"})


def test_a_job_keeps_the_settings_of_its_profile(served: Daemon) -> None:
    def configure(profile: Profile) -> None:
        config = replace(served.agent.node.config, profiles=(("fast", profile),), run_thresholds=(("steal", 50),))
        served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=config))

    def ask(name: str, quiet: str) -> Any:
        socket, amounts = f"{served.directory}/{JOB_SOCKET}", {"cpu": "2", "memory": "64Mi"}
        return answered(served, lambda: call(socket, "job", name=name, amounts=amounts, report=True, quiet=quiet))

    configure(Profile(QuietSettings(governor="schedutil"), ProcessSettings(nice=5), (("sibling", 5),)))
    answer = ask("one", "fast, idleLatency=2us")
    assert set(answer["quiet"]["applied"].values()) == {"schedutil", "2"}
    assert (answer["quiet"]["profile"], answer["quiet"]["process"]) == ("fast", {"nice": 5})
    assert answer["runThresholds"] == {"steal": 50, "sibling": 5}
    configure(Profile(QuietSettings(governor="conservative")))
    served.turn(WakeUpReason.TIMER)
    assert {"2", "schedutil"} <= set(served.machine.values.values())
    assert "conservative" not in served.machine.values.values()
    with pytest.raises(ApiError, match="--quiet: there is no profile slow"):
        ask("two", "slow")
    with pytest.raises(ApiError, match=r"--quiet .*boost must be true or false"):
        ask("two", "boost=off")
    configure(Profile(run_thresholds=(("sibling", 5),)))
    answer = ask("three", "fast")
    assert answer["quiet"] == {"profile": "fast", "process": {}, "applied": {}, "missing": {}}
    assert answer["runThresholds"] == {"steal": 50, "sibling": 5}


def test_with_idle_siblings_a_job_has_the_cpus_that_it_asks_for_and_takes_whole_cores(served: Daemon) -> None:
    def ask(name: str, cpus: str, quiet: str) -> Any:
        socket, amounts = f"{served.directory}/{JOB_SOCKET}", {"cpu": cpus, "memory": "64Mi"}
        return answered(served, lambda: call(socket, "job", name=name, amounts=amounts, quiet=quiet))

    cores = served.agent.node.topology.cores.values()
    assert {len(core) for core in cores} == {2}
    answer = ask("one", "2", "idleSiblings=true")
    runs = CpuSet.parse(answer["exclusiveCPUs"])
    assert [len(core & runs) for core in cores if core & runs] == [1, 1]
    held = own_set_of(served.agent.state.promises, answer["uid"], "main")
    assert held == CpuSet.from_ids(cpu for core in cores if core & runs for cpu in core)
    whole = CpuSet.parse(ask("two", "2", "quiet, idleSiblings=false")["exclusiveCPUs"])
    assert whole in cores
    assert ask("three", "1", "governor=performance, idleSiblings=false")["refused"] == {
        "reason": "SMTAlignmentError",
        "message": "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2 (settings of cores need whole cores)",
        "cpus": "1",
    }
    assert ask("four", "64", "idleSiblings=true")["refused"]["cpus"] == "128"


@pytest.mark.parametrize("quiet", [None, "quiet"])
@pytest.mark.parametrize("left_out", ["cpu", "memory"])
def test_a_job_has_cpus_and_memory_whoever_asks(served: Daemon, left_out: str, quiet: str | None) -> None:
    amounts = {name: amount for name, amount in {"cpu": "1", "memory": "64Mi"}.items() if name != left_out}
    more = {} if quiet is None else {"quiet": quiet}
    with pytest.raises(ApiError, match=f"malformed request for a job: it has no {left_out}"):
        call(f"{served.directory}/{JOB_SOCKET}", "job", name="one", amounts=amounts, **more)


def test_cores_of_several_sizes_leave_open_how_many_siblings_are_idle(served: Daemon) -> None:
    odd = served.agent.node.topology
    odd = Topology.of(odd.cpus[:-1], odd.numa)
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, topology=odd))
    socket, amounts = f"{served.directory}/{JOB_SOCKET}", {"cpu": "2", "memory": "64Mi"}
    with pytest.raises(ApiError, match="the cores have 1 or 2 threads, so it is ambiguous how many of them stay idle"):
        answered(served, lambda: call(socket, "job", name="one", amounts=amounts, quiet="idleSiblings=true"))


def test_a_share_of_a_user_or_group_has_its_own_limits_and_weight(
    served: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"runners", "students"}
    monkeypatch.setattr(job_requests, "is_member", lambda user, group: user == os.getuid() and group in own)
    monkeypatch.setattr(job_requests, "find_user_id", {"me": os.getuid(), "other": os.getuid() + 1}.get)
    shares = (
        JobShare(user="other", max_cpus=Quantity.of(1)),
        JobShare(group="staff", max_cpus=Quantity.of(1)),
        JobShare(group="students", max_cpus=Quantity.of(3), weight=50),
        JobShare(user="me", max_cpus=Quantity.of(7)),
    )
    bounds = JobBounds("runners", max_cpus=Quantity.of(2), max_per_user=4, shares=shares)
    configured = replace(served.agent.node.config, jobs=bounds)
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    with pytest.raises(JobRequestError, match=r"your limit is 3 \(jobs\.maxCPUs\)"):
        asked_as_user(served, cpu="4")
    assert asked_as_user(served, cpu="3")["pod"] == "jobs/one"
    assert [record.weight for record in served.jobs.list_records()] == [50]
    served.start()
    served.rest()
    assert [record.weight for record in served.jobs.list_records()] == [50], "after a restart, too"


@pytest.mark.parametrize("is_member", [True, False])
def test_when_its_turn_comes_a_job_starts_only_if_its_user_is_still_a_member(
    served: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch, *, is_member: bool
) -> None:
    members = {os.getuid()}
    monkeypatch.setattr(job_requests, "is_member", lambda user, _group: user in members)
    configured = replace(served.agent.node.config, jobs=JobBounds("runners"))
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    owners.asks("holds", "7")
    served.rest()
    asked_at = served.jobs.ask

    def ask(*arguments: Any) -> Answer:
        """Once the job waits, the user may leave the group, and then there is room."""
        answer = asked_at(*arguments)
        if not is_member:
            members.clear()
        owners.ends("holds")
        return answer

    monkeypatch.setattr(served.jobs, "ask", ask)
    arguments = {"name": "one", "amounts": {"cpu": "5", "memory": "64Mi"}, "wait": 60, "ticket": "t"}
    requests = JobRequests(served.jobs, served.agent, NOBODY_UNBOUNDED)
    peer = Peer(os.getuid(), frozenset(), os.getpid())
    if is_member:
        assert answered(served, lambda: asyncio.run(requests.answer(arguments, peer)))["pod"] == "jobs/one"
        return
    with pytest.raises(JobRequestError, match="is not in the group runners"):
        answered(served, lambda: asyncio.run(requests.answer(arguments, peer)))
    served.rest()
    assert names(served) == []


def test_who_writes_a_report_is_told_the_rules_for_it(served: Daemon) -> None:
    configured = replace(served.agent.node.config, run_thresholds=(("steal", 50),))
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    socket, amounts = f"{served.directory}/{JOB_SOCKET}", {"cpu": "2", "memory": "64Mi"}
    answer = answered(served, lambda: call(socket, "job", timeout_seconds=60, name="one", amounts=amounts, report=True))
    assert (answer["runThresholds"], answer["configurationHash"]) == ({"steal": 50}, hash_config(configured))


NOBODY_UNBOUNDED = Limits(unbounded=frozenset())


def asked_as_user(daemon: Daemon, name: str = "one", limits: Limits = NOBODY_UNBOUNDED, **amounts: str) -> Any:
    """Ask as this process, whose user has bounds like any other's."""
    arguments = {"name": name, "amounts": {"cpu": "2", "memory": "64Mi"} | amounts}
    requests, peer = JobRequests(daemon.jobs, daemon.agent, limits), Peer(os.getuid(), frozenset(), os.getpid())
    return answered(daemon, lambda: asyncio.run(requests.answer(arguments, peer)))


def in_group(group: str) -> Callable[[int, str], bool]:
    """Return a user database that has this process's user in one group."""
    return lambda user, asked: (user, asked) == (os.getuid(), group)


def test_ids_that_no_user_of_the_group_has_run_no_jobs(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subordinate ids of a user namespace keep the group and may connect, but the database doesn't know them."""
    monkeypatch.setattr(job_requests, "is_member", in_group("others"))
    configured = replace(served.agent.node.config, jobs=JobBounds("runners"))
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    with pytest.raises(JobRequestError, match=rf"user {os.getuid()} is not in the group runners \(jobs\.group\)"):
        asked_as_user(served)
    assert names(served) == []


def test_a_user_database_that_does_not_answer_is_waited_for_a_while(
    served: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(job_requests, "is_member", lambda _user, _group: answers.wait())
    configured = replace(served.agent.node.config, jobs=JobBounds("runners"))
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    try:
        with pytest.raises(JobRequestError, match="the user database has not answered within 0 s whether user"):
            asked_as_user(served, limits=replace(NOBODY_UNBOUNDED, lookup_seconds=0.0))
    finally:
        answers.set()
    assert names(served) == []


@pytest.mark.parametrize("bound", ["waiting", "waiting_per_user"])
def test_no_more_wait_than_there_is_room_for(served: Daemon, bound: str) -> None:
    with pytest.raises(JobRequestError, match=r"^0 jobs \(0 of yours\) are already waiting for a decision"):
        asked_as_user(served, limits=replace(NOBODY_UNBOUNDED, **{bound: 0}))


def test_what_an_ended_job_holds_counts_until_it_has_gone(
    served: Daemon, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_requests, "is_member", in_group("runners"))
    configured = replace(served.agent.node.config, jobs=JobBounds("runners", max_per_user=1))
    served.agent.memory = replace(served.agent.memory, node=replace(served.agent.node, config=configured))
    first = owners.asks("first")
    served.rest()
    assert placement(first)
    owners.ends("first", leaving=True, stubborn=True)
    assert [len(some) for some in served.jobs.records_of_user(os.getuid())] == [0, 1], "before anybody has looked"
    served.turn()
    assert [len(some) for some in served.jobs.records_of_user(os.getuid())] == [0, 1]

    class Passing:
        """Each look at the bounds takes six seconds."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, _seconds: float) -> None:
            served.machine.now_ms += 6_000
            served.agent.wakeups.wake(WakeUpReason.JOBS)
            await asyncio.sleep(0.01)

    monkeypatch.setattr(job_requests, "asyncio", Passing())
    assert asked_as_user(served)["pod"] == "jobs/one"
    assert ("KILL", path("first")) in served.machine.signals


def test_one_that_is_not_let_in_in_time_is_no_job(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_requests, "MAX_TURN_SECONDS", 0.0)
    with pytest.raises(ApiError, match="could not start within 0 s"):
        asked(served)
    served.rest()
    assert names(served) == []
