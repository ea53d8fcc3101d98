"""A fifth domain is one folder, and one line in the tuple of domains: its processes and all pods share one node without any overlap."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.formats.checkpoint.node_state import decode_state
from tests.extension.supervisor.domain import NAME, SupervisorDomain, Told
from tests.extension.supervisor.program import Supervisor
from tests.support.daemon_model import Daemon, watched
from tests.support.node_model import Machine
from tests.support.pods import app, burstable, pod
from tests.support.shares import share_of
from tests.support.world import SMALL, node

ONLINE = CpuSet.parse("0-7")
PODS = {
    "own": pod("own", app("app", "2")),
    "large": pod("large", app("app", "3")),
    "shared": pod("shared", app("main", resources=burstable("500m"))),
}


class Life:
    """A node with pods, and a supervisor that came before the agent."""

    def __init__(self, directory: Path) -> None:
        self.supervisor = Supervisor(directory / "supervisor.sock", ONLINE)
        self.supervisor.on_move = self.check
        self.machine = Machine(node(SMALL))
        state = directory / "state"
        state.mkdir()
        domains = (SupervisorDomain(directory / "supervisor.sock", ONLINE),)
        self.daemon = Daemon(self.machine, state, judge=lambda _: self.check(), more_domains=domains)
        self.excused: frozenset[tuple[str, str]] = frozenset()
        """Overlaps that others had brought about when the turn began."""
        self.admitted: frozenset[str] = frozenset()
        """Paths of the supervisor's processes that have been admitted: before that, they may be anywhere."""
        self.found: list[tuple[str, str]] = []
        self.state_file = state / "nodeagent_state"

    def saved(self) -> NodeState | None:
        try:
            return decode_state(self.state_file.read_bytes()).state
        except FileNotFoundError:
            return None

    def supervised(self) -> dict[str, CpuSet]:
        """Return where the admitted processes of the supervisor may run."""
        state, found = self.saved(), {}
        for name, process in self.supervisor.processes.items():
            told = Told(name, process.wanted, process.cpus)
            entry = None if state is None else state.entry(told.uid)
            if entry is not None and entry.is_active:
                found[told.observed().path] = process.cpus
        return found

    def overlaps(self) -> frozenset[tuple[str, str]]:
        """Return which processes may run on CPUs that others have for themselves."""
        state, machine = self.saved(), self.machine
        if state is None:
            return frozenset()
        running = {path: machine.effective(path) for path in machine.populated() if not machine.is_frozen(path)}
        running |= self.supervised()
        found = set()
        for entry in state.entries:
            for container in entry.pod.containers if entry.is_active else ():
                owner, own = (
                    entry.container_path(container.name),
                    own_set_of(state.promises, entry.pod.uid, container.name),
                )
                there = running.get(owner)
                if own is not None and there is not None and there <= own:
                    # A resize adds CPUs that are its own once it runs there: until then others are still to leave them.
                    found |= {(path, owner) for path, cpus in running.items() if path != owner and cpus & there}
        return frozenset(found)

    def check(self) -> None:
        overlaps, admitted = self.overlaps(), frozenset(self.supervised())
        self.excused |= {pair for pair in overlaps if pair[0] in admitted - self.admitted}
        self.admitted = admitted
        self.found += sorted(overlaps - self.excused)

    def turn(self) -> None:
        self.machine.now_ms += 1  # a pod that comes back is decided later than before: its runs have ids of their own
        self.excused, self.admitted = self.overlaps(), frozenset(self.supervised())
        self.daemon.turn()
        assert self.found == []

    def rest(self) -> None:
        for _ in range(20):
            self.turn()
        assert self.overlaps() == frozenset()


@contextmanager
def living() -> Iterator[Life]:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as monkeypatch:
        life = Life(Path(directory))
        with watched(monkeypatch, life.machine, life.daemon.steps):
            life.daemon.start()
            try:
                yield life
            finally:
                life.supervisor.close()


def test_a_process_gets_cpus_of_its_own_and_gives_them_back() -> None:
    with living() as life:
        life.supervisor.run("worker", 2)
        life.daemon.files.pods = (PODS["own"], PODS["shared"])
        life.rest()
        state = life.daemon.agent.state
        entry = state.entry(f"{NAME}-worker")
        assert entry is not None
        assert (entry.domain, entry.origin.source) == (NAME, NAME)
        own = own_set_of(state.promises, entry.pod.uid, "main")
        assert life.supervisor.processes["worker"].cpus == own
        assert own is not None
        assert not own & (own_set_of(state.promises, "uid-own", "app") or CpuSet())
        del life.supervisor.processes["worker"]
        life.rest()
        assert life.daemon.agent.state.entry(f"{NAME}-worker") is None


def test_a_process_that_can_not_be_moved_keeps_others_off_its_cpus() -> None:
    with living() as life:
        life.supervisor.run("worker", 2)
        life.rest()
        life.supervisor.is_stubborn = True
        life.supervisor.processes["worker"].cpus = ONLINE  # somebody moved it
        life.daemon.files.pods = (PODS["own"],)
        for _ in range(5):
            life.turn()
        assert life.machine.running() == (), "it would share its CPUs"
        assert any("not now" in problem for problem in life.daemon.agent.view.problems)
        life.supervisor.is_stubborn = False
        life.rest()
        assert len(life.machine.running()) == 1


def test_what_is_not_known_now_stays_as_it_is() -> None:
    with living() as life:
        life.supervisor.run("worker", 2)
        life.rest()
        before = life.daemon.agent.state
        life.supervisor.close()
        (life.state_file.parent.parent / "supervisor.sock").unlink()
        life.turn()
        assert life.daemon.agent.state == before
        assert any("the supervisor does not answer" in problem for problem in life.daemon.agent.view.problems)


OPERATIONS = (
    st.tuples(st.just("pod"), st.sampled_from(sorted(PODS)))
    | st.tuples(st.just("run"), st.sampled_from(["a", "b"]), st.integers(1, 3))
    | st.tuples(st.just("end"), st.sampled_from(["a", "b"]))
    | st.tuples(st.just("meddle"), st.sampled_from(["a", "b"]), st.sampled_from(["0-7", "2-5", "1"]))
    | st.tuples(st.just("stubborn"), st.booleans())
    | st.tuples(st.just("restart"))
)


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 3)), max_size=12))
@settings(max_examples=share_of(25), suppress_health_check=[HealthCheck.too_slow])
def test_nobody_shares_exclusive_cpus_whatever_happens(operations: list[tuple[tuple, int]]) -> None:
    with living() as life:
        for operation, turns in operations:
            processes = life.supervisor.processes
            match operation:
                case "pod", name:
                    files = life.daemon.files
                    there = tuple(one for one in files.pods if one != PODS[name])
                    files.pods = there if len(there) < len(files.pods) else (*there, PODS[name])
                case "run", name, wanted:
                    if name in processes:
                        processes[name].wanted = wanted
                    else:
                        life.supervisor.run(name, wanted)
                case "end", name:
                    processes.pop(name, None)
                case "meddle", name, cpus:
                    if name in processes:
                        processes[name].cpus = CpuSet.parse(cpus)
                case "stubborn", is_stubborn:
                    life.supervisor.is_stubborn = is_stubborn
                case _:
                    life.daemon.start()
            for _ in range(turns):
                life.turn()
        life.supervisor.is_stubborn = False
        life.machine.now_ms += 60_000
        life.rest()
