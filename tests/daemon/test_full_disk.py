"""A state that can't be saved: the pod is refused with the reason, who runs is left alone, the agent goes on and says so (E22)."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.refusals import RELEASED, STATE_NOT_SAVED
from nodeagent.core.model.state import NodeState, Phase
from nodeagent.core.model.waiting import RequestKind, Retry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.daemon.reports.status import report_readiness
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.state_files import lock_directory
from nodeagent.formats.checkpoint.node_state import decode_state
from nodeagent.formats.node_view import Observation, view_document
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render
from tests.support.daemon_model import Daemon, Steps, at_rest, is_as_saved, watched
from tests.support.figures import Recorder, keep, report
from tests.support.node_model import Machine, Unit
from tests.support.pods import app, init, pod, unit
from tests.support.world import SMALL, node

RUNNING = (pod("a", app("app", "2")), pod("b", app("app", "1")))
NEW = pod("new", init("first", "1"), app("app", "2"))
ERRORS = {
    "full": (errno.ENOSPC, "No space left on device"),
    "quota": (errno.EDQUOT, "Disk quota exceeded"),
    "read-only": (errno.EROFS, "Read-only file system"),
    "broken": (errno.EIO, "Input/output error"),
}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with at_rest(monkeypatch, tmp_path, node(SMALL), RUNNING) as daemon:
        yield daemon


def saved(daemon: Daemon) -> NodeState:
    return decode_state((daemon.directory / STATE_FILE).read_bytes()).state


def touched(daemon: Daemon) -> tuple[object, ...]:
    machine = daemon.machine
    return tuple(machine.writes), tuple(machine.starts), tuple(machine.signals), machine.running()


def shown(daemon: Daemon) -> str:
    return render(inspect_node(replace(daemon.agent.view, observation=Observation(daemon.machine.now_ms))), 10_000)


def metrics(daemon: Daemon) -> dict[str, float]:
    lines = daemon.agent.metrics.exposition.text().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("name", ERRORS)
def test_a_pod_that_cannot_be_saved_is_refused_and_admitted_later(daemon: Daemon, name: str) -> None:
    number, words = ERRORS[name]
    before, there = saved(daemon), touched(daemon)
    assert report_readiness(daemon.agent.view)[0]
    daemon.files.pods = (*RUNNING, NEW)
    daemon.steps.fails = lambda _number, _call: number
    for _ in range(3):
        assert daemon.turn() <= 1.0, "it is tried again soon"
    assert touched(daemon) == there, "nobody is touched, nobody is started"
    assert saved(daemon) == before
    entry = daemon.agent.view.state.entries[-1]
    assert (entry.pod.name, entry.phase) == ("new", Phase.FAILED)
    assert entry.refusal is not None
    assert entry.refusal.reason == STATE_NOT_SAVED
    assert words in entry.refusal.message
    assert str(daemon.directory / STATE_FILE) in entry.refusal.message
    assert len(daemon.agent.state.entries) == 2
    page = shown(daemon)
    assert "default/new  Refused" in page
    assert words in page
    assert "PROBLEMS" in page
    assert (report_readiness(daemon.agent.view)[0], words in report_readiness(daemon.agent.view)[1]) == (False, True)
    found = metrics(daemon)
    assert found[f'nodeagent_state_save_errors_total{{reason="{errno.errorcode[number]}"}}'] == 3
    assert found[f'nodeagent_pod_refusals_total{{reason="{STATE_NOT_SAVED}"}}'] == 1
    assert [line["event"] for line in daemon.said()].count("pod_refused") == 1, "told once, not each time it is tried"

    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert [e.phase for e in daemon.agent.state.entries] == [Phase.RUNNING, Phase.RUNNING, Phase.PENDING]
    assert is_as_saved(daemon.agent.state, saved(daemon))
    assert report_readiness(daemon.agent.view)[0]
    assert STATE_NOT_SAVED not in shown(daemon)
    assert "trouble_over" in [line["event"] for line in daemon.said()]
    found = metrics(daemon)
    admissions = found["kubelet_topology_manager_admission_requests_total"]
    assert admissions == 3, "what was not saved has not happened"
    assert found["kubelet_topology_manager_admission_duration_ms_count"] == admissions


def test_a_resize_that_cannot_be_saved_waits_for_the_disk(daemon: Daemon) -> None:
    daemon.steps.fails = lambda _number, _call: errno.ENOSPC
    daemon.files.pods = (pod("a", app("app", "3")), RUNNING[1])
    daemon.turn(*WakeUpReason)
    entry = daemon.agent.view.state.entries[0]
    ((kind, waiting),) = entry.waiting
    assert (kind, waiting.reason) == (RequestKind.CHANGE, STATE_NOT_SAVED)
    assert entry.pod == RUNNING[0], "it keeps running unchanged"
    assert entry.list_retries(kind, for_room=False) == (Retry.DISK,)
    assert len(daemon.agent.view.state.entries) == 2
    assert STATE_NOT_SAVED in shown(daemon)
    assert metrics(daemon)['nodeagent_waiting_requests{asked="change"}'] == 1

    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    entry = daemon.agent.view.state.entries[0]
    assert (entry.pod, entry.waiting) == (daemon.files.pods[0], ())


FROM: dict[str, Callable[[int], Callable[[int, str], bool]]] = {
    "once": lambda at: lambda number, _call: number == at,
    "from then on": lambda at: lambda number, _call: number >= at,
}


@pytest.mark.parametrize("how", FROM)
def test_whichever_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Recorder, how: str
) -> None:
    """Every call that changes a file, of the turns that admit one pod and end another, fails in turn, with each error."""
    number, kinds, outcomes = 0, set[str](), {"saved": 0, "refused": 0}
    while True:
        machine = Machine(node(SMALL))
        directory = tmp_path / str(number)
        directory.mkdir()
        daemon = Daemon(machine, directory, steps=Steps())
        hit: list[str] = []
        with watched(monkeypatch, machine, daemon.steps):
            daemon.files.pods = RUNNING
            daemon.start()
            daemon.rest()
            running = machine.running()
            at, first = FROM[how](number), daemon.steps.files
            error = list(ERRORS.values())[number % len(ERRORS)][0]

            def fails(count: int, call: str, at=at, first=first, error=error, hit=hit) -> int | None:
                if at(count - first, call):
                    hit.append(call)
                    return error
                return None

            daemon.steps.fails = fails
            daemon.files.pods = (RUNNING[0], NEW)
            daemon.rest()
            assert running[0] in machine.running(), "who runs runs on"
            decode_state((directory / STATE_FILE).read_bytes())
            refusals = [entry.refusal for entry in daemon.agent.view.state.entries]
            outcomes["refused" if any(r and r.reason == STATE_NOT_SAVED for r in refusals) else "saved"] += 1
            daemon.steps.fails = lambda _number, _call: None
            daemon.rest()
            state = daemon.agent.state
            assert [(e.pod.name, e.phase) for e in state.entries] == [("a", Phase.RUNNING), ("new", Phase.PENDING)]
            assert is_as_saved(state, saved(daemon))
            assert machine.running_containers() == ("poduid-a/app", "poduid-new/first")
            daemon.start()
            assert daemon.agent.recovery is None, "the next start finds everything as it should be"
            assert is_as_saved(state, daemon.agent.state)
        if not hit:
            break
        kinds.add(hit[0])
        number += 1
    report(record_property, f"failing calls, {how}: {number} ({', '.join(sorted(kinds))}); {outcomes}")
    keep("failed saves", how, failing_calls=number)
    assert kinds >= {"open", "fchmod", "write", "fsync", "replace"}
    assert number >= 20
    if how == "from then on":
        assert outcomes["refused"] >= 5


def test_the_pod_that_fills_the_disk_can_be_ended(daemon: Daemon) -> None:
    daemon.steps.fails = lambda _number, _call: errno.ENOSPC
    daemon.files.pods = RUNNING[:1]
    daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app",)
    ending = daemon.agent.state.entries[1]
    assert ending.phase is Phase.TERMINATING
    held = own_set_of(daemon.agent.state.promises, "uid-b", "app")
    assert held is not None, "nothing is given back before that is saved"
    daemon.files.pods = (RUNNING[0], pod("large", app("app", "5")))
    daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app",)
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app", "poduid-large/app")


def test_a_projection_that_cannot_be_written_refuses_nobody(daemon: Daemon) -> None:
    blocked = daemon.directory / CPU_CHECKPOINT
    blocked.unlink()
    blocked.mkdir()
    daemon.files.pods = (*RUNNING, NEW)
    daemon.rest()
    assert daemon.agent.state.entries[-1].is_active
    assert any(CPU_CHECKPOINT in problem for problem in daemon.agent.view.problems)
    assert is_as_saved(daemon.agent.state, saved(daemon))


@pytest.mark.parametrize("name", ERRORS)
def test_a_start_that_can_save_nothing_runs_and_overwrites_nothing(daemon: Daemon, name: str) -> None:
    number, words = ERRORS[name]
    damaged = (daemon.directory / STATE_FILE).read_bytes()[:-20]
    (daemon.directory / STATE_FILE).write_bytes(damaged)
    projections = [(daemon.directory / n).read_bytes() for n in (CPU_CHECKPOINT, MEMORY_CHECKPOINT)]
    before, there = daemon.agent.state, touched(daemon)
    daemon.steps.fails = lambda _number, _call: number
    agent = daemon.start()
    daemon.rest()
    assert touched(daemon) == there
    assert agent.memory.has_reconciled, "it tells systemd that it runs: it must not be started again and again"
    assert (report_readiness(daemon.agent.view)[0], words in report_readiness(daemon.agent.view)[1]) == (False, True)
    assert agent.state.promises == before.promises
    found = sorted(p.name for p in daemon.directory.iterdir() if p.is_file())
    assert found == sorted([STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT])
    assert (daemon.directory / STATE_FILE).read_bytes() == damaged
    assert [(daemon.directory / n).read_bytes() for n in (CPU_CHECKPOINT, MEMORY_CHECKPOINT)] == projections
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert (daemon.directory / f"{STATE_FILE}.aside-1").read_bytes() == damaged
    assert saved(daemon) == agent.state
    assert report_readiness(daemon.agent.view)[0]
    assert view_document(agent.view)["recovery"]["setAside"] == [f"{daemon.directory / STATE_FILE}.aside-1"]


def test_a_release_that_can_not_be_saved_is_done_later_and_its_caller_told(daemon: Daemon) -> None:
    """A unit's pod holds nothing up while it ends, so its end is not kept by itself."""
    daemon.machine.units["db.service"] = Unit(UnitSettings())
    pinning = pod("db", unit("db.service", "1"))
    daemon.files.pods = (*RUNNING, pinning)
    daemon.rest()
    daemon.steps.fails = lambda _number, _call: errno.ENOSPC
    request = TurnRequest(released=frozenset({pinning.uid}))
    daemon.agent.requests.put(request)
    daemon.turn(WakeUpReason.REQUEST)
    assert "No space left on device" in str(request.answer.exception())
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    entry = daemon.agent.state.entry(pinning.uid)
    assert entry is not None
    assert entry.refusal is not None
    assert entry.refusal.reason == RELEASED


def test_a_directory_is_locked_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, steps = Machine(node(SMALL)), Steps(fails=lambda _number, _call: errno.EROFS)
    with watched(monkeypatch, machine, steps), lock_directory(str(tmp_path)):
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(Exception, match="another nodeagent"):
            lock_directory(str(tmp_path))
