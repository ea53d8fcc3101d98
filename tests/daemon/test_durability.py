"""What is synced, counted, and what is left after a loss of power at any step."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.state_files import temporary_path
from nodeagent.formats.checkpoint.node_state import decode_state
from nodeagent.formats.wire.launcher_protocol import StartRequest
from tests.daemon.test_recovery import MEMORY, two_nodes
from tests.support.daemon_model import Client, Daemon, Files, Steps, at_rest, watched
from tests.support.figures import Recorder, report
from tests.support.node_model import Machine
from tests.support.pods import app, burstable, job, pod
from tests.support.world import Node, node

OF = node(two_nodes(), **MEMORY)
QUIET = node(two_nodes(), config={"interrupt_isolation": "affinity", "host_isolation": "partition"}, **MEMORY)
A, B = pod("a", app("app", "2")), pod("b", app("app", resources=burstable()))
C = pod("c", app("app", "2"))
ONCE = job("once", app("app", "2"))


@contextmanager
def counting(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count each call that syncs, by the name of what it syncs below the directory."""
    synced: Counter[str] = Counter()

    def count(descriptor: int) -> None:
        synced[str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(directory))] += 1

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", count)
        patched.setattr(os, "fdatasync", count)
        patched.setattr(os, "sync", lambda: synced.update(["everything"]))
        yield synced


def new_file(name: str) -> str:
    return Path(temporary_path(name)).name


COMES = {new_file(STATE_FILE): 1, ".": 1}
"""The decision before the start, durable."""
GOES = {new_file(STATE_FILE): 2}
"""That it is to end, and that it has ended, both whole."""


@pytest.mark.parametrize("of", [OF, QUIET], ids=["no isolation", "interrupts and the host leave"])
def test_a_pod_that_comes_and_one_that_goes_sync_what_their_promises_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Node
) -> None:
    daemon = Daemon(Machine(of), tmp_path, Files((A, B)))
    daemon.start()
    daemon.rest()
    with counting(tmp_path, monkeypatch) as synced:
        daemon.files.pods = (A, B, C)
        daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app", "poduid-b/app", "poduid-c/app")
    assert synced == COMES
    with counting(tmp_path, monkeypatch) as synced:
        daemon.files.pods = (A, B)
        daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app", "poduid-b/app")
    assert synced == GOES
    assert (tmp_path / CPU_CHECKPOINT).exists()


def test_a_burst_of_pods_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(Machine(OF), tmp_path)
    daemon.start()
    daemon.rest()
    pods = tuple(pod(f"p{number}", app("app", resources=burstable())) for number in range(20))
    with counting(tmp_path, monkeypatch) as synced:
        daemon.files.pods = pods
        daemon.rest()
    assert len(daemon.machine.running_containers()) == len(pods)
    assert synced == COMES


def test_a_start_that_was_not_saved_is_found_again(tmp_path: Path) -> None:
    daemon = Daemon(Machine(OF), tmp_path, Files((A, B)))
    daemon.start()
    daemon.rest()
    saved = decode_state((tmp_path / STATE_FILE).read_bytes()).state
    assert [status.started_at_ms for entry in saved.entries for status in entry.containers] == [None, None]
    running = daemon.machine.running_containers()
    later = Daemon(daemon.machine, tmp_path, Files((A, B)))
    later.start()
    later.rest()
    assert later.agent.state == daemon.agent.state != saved
    assert later.machine.running_containers() == running


@pytest.mark.parametrize(
    "pods", [(C,), (C, pod("d", app("one", "1"), app("two", resources=burstable())))], ids=["one", "two"]
)
def test_one_turn_starts_pods_and_confirms_the_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: tuple[Pod, ...]
) -> None:
    """A further turn, with all steps, finds the same and has nothing to do."""
    with at_rest(monkeypatch, tmp_path, OF, (A, B)) as daemon:
        daemon.files.pods = (A, B, *pods)
        assert daemon.turn() == daemon.agent.node.config.rescan_period_ms / 1000
        memory, view, done = daemon.agent.memory, daemon.agent.view, len(daemon.steps.done)
        assert memory.settled is not None
        assert all(status.is_running for entry in memory.state.entries for status in entry.containers)
        assert view.pids is not None
        assert len(view.pids) == len(daemon.machine.running_containers())
        daemon.turn(WakeUpReason.HOTPLUG)
        after = daemon.agent.memory
        assert (after.state, after.observed, after.in_place) == (memory.state, memory.observed, memory.in_place)
        assert after.settled is not None
        assert after.settled.inputs == memory.settled.inputs
        assert replace(daemon.agent.view, wrong=view.wrong) == view
        assert daemon.steps.done[done:] == []


def test_a_start_that_must_be_saved_is_confirmed_by_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_rest(monkeypatch, tmp_path, OF, (A,)) as daemon:
        daemon.files.pods = (A, ONCE)
        assert daemon.turn() < 1
        assert daemon.agent.memory.settled is None
        assert [status.started_at_ms for status in daemon.agent.state.entries[-1].containers] == [None]
        daemon.turn(WakeUpReason.CGROUPS)
        saved = decode_state((tmp_path / STATE_FILE).read_bytes()).state
        assert [status.is_running for status in saved.entries[-1].containers] == [True]


def test_cpus_withheld_during_a_start_are_noticed_by_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirmation has taken the event from the watch, so that no event would wake the agent."""
    start = Client.start
    with at_rest(monkeypatch, tmp_path, OF, (A,)) as daemon:

        def start_while_withheld(client: Client, request: StartRequest) -> object:
            daemon.machine.withheld = CpuSet.of(max(daemon.agent.node.topology.online))
            return start(client, request)

        monkeypatch.setattr(Client, "start", start_while_withheld)
        daemon.files.pods = (A, C)
        assert daemon.turn() < 1
        assert daemon.agent.memory.settled is None
        daemon.turn(WakeUpReason.TIMER)
        assert daemon.agent.memory.withheld_problem


@dataclass
class Disk(Steps):
    """Steps that remember what a loss of power before each of them would leave of the state directory."""

    directory: Path = Path()
    durable: dict[str, bytes] = field(default_factory=dict)
    """Files that are there for sure."""
    whole: set[bytes] = field(default_factory=set)
    """Contents that were synced before they got their name."""
    losses: list[dict[str, bytes]] = field(default_factory=list)
    """What may be left, by step: the durable files; or every name, while what unsynced files had is gone."""

    def take(self, name: str) -> bool:
        self.lose()
        half = super().take(name)
        call, _, what = name.partition(" ")
        if call == "fsync" and what == self.directory.name:
            self.durable = self.files_now()
        elif call == "fsync":
            self.whole.add((self.directory / what).read_bytes())
        return half

    def lose(self) -> None:
        self.losses += [self.durable, self.files_now()]

    def files_now(self) -> dict[str, bytes]:
        files = (path for path in self.directory.iterdir() if path.is_file() and not path.name.startswith("."))
        contents = ((path.name, path.read_bytes()) for path in files)
        return {name: content if content in self.whole else b"" for name, content in contents}


@dataclass(frozen=True)
class Case:
    after: tuple
    before: tuple = (A, B)
    of: Node = OF
    does: Callable[[Daemon], None] = lambda _daemon: None
    first_effect: str = ""
    """Beginning of the first step that shows the change to others. A loss of power before it may undo the change."""


def release(daemon: Daemon) -> None:
    daemon.agent.requests.put(TurnRequest(released=frozenset({A.uid})))


def let_once_exit(daemon: Daemon) -> None:
    (run_id,) = (run for run in daemon.machine.running() if daemon.machine.path_of(run) == "poduid-once/app")
    daemon.machine.exit(run_id, 0)


LOSSES = {
    "a pod comes": Case((A, B, C)),
    "a pod goes": Case((B,)),
    "all go": Case(()),
    "one goes and one comes": Case((B, C)),
    "a pod has more": Case((pod("a", app("app", "3"), uid="uid-more"), B)),
    "a pod is released": Case((A, B), does=release, first_effect="signal "),
    "a pod has done its work": Case((ONCE, B), before=(ONCE, B), does=let_once_exit, first_effect="ack "),
    "the host's settings are kept": Case((B, C), of=QUIET),
}


def essence(state: NodeState) -> Hashable:
    """What a loss of power must not change: who is there, who has ended for good and how, and the number of exclusive CPUs."""
    entries = ((e.pod.full_name, e.pod.uid, e.outcome, e.refusal and e.refusal.reason) for e in state.entries)
    return frozenset(entries), len(exclusive_cpus(state.promises))


@pytest.mark.parametrize("name", LOSSES)
def test_after_a_loss_of_power_at_any_step_it_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Recorder, name: str
) -> None:
    case, directory = LOSSES[name], tmp_path / "state"
    directory.mkdir()
    machine, disk = Machine(case.of), Disk(directory=directory)
    with watched(monkeypatch, machine, disk):
        daemon = Daemon(machine, directory, Files(case.before), disk)
        daemon.start()
        daemon.rest()
        first = len(disk.done)
        daemon.files.pods = case.after
        case.does(daemon)
        daemon.rest()
        disk.lose()
    effect = next(at for at in range(first, len(disk.done)) if disk.done[at].startswith(case.first_effect))
    ends, seen = set(), list[tuple[bool, dict[str, bytes]]]()
    for number, left in enumerate(disk.losses[2 * first :]):
        is_shown = first + number // 2 > effect or not case.first_effect
        if (is_shown, left) in seen:
            continue
        seen.append((is_shown, left))
        shutil.rmtree(directory)
        directory.mkdir()
        for file, content in left.items():
            (directory / file).write_bytes(content)
        machine = Machine(case.of)
        with watched(monkeypatch, machine, Steps()):
            later = Daemon(machine, directory, Files(case.after), boot="next boot")
            later.start()
            later.rest()
        assert [line for line in later.said() if line["event"] in {"state_set_aside", "state_recovered"}] == []
        assert later.agent.view.problems == daemon.agent.view.problems
        if is_shown:
            ends.add(essence(later.agent.state))
    report(record_property, f"loss of power, {name}: {len(disk.done) - first} steps, {len(seen)} different disks")
    assert ends == {essence(daemon.agent.state)}
    assert len(seen) > 2, "several disks are tried"
