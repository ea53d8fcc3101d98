"""The runtime's calls and a turn meet: each in its own thread. A full disk loses nothing, and what is under way counts as occupied."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.domains.domain import TurnDone
from nodeagent.core.metrics.agent_metrics import RUNTIME_LATE, RUNTIME_UNASKED
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.cgroup_layout import UNITS_UNCLEAR
from nodeagent.core.model.config import RETRY_FOR_ROOM, RETRY_NOTHING
from nodeagent.core.model.device_access import DeviceFile
from nodeagent.core.model.device_pools import DevicePluginPostponedError, DevicePool, PoolDevice
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import Answer, Call, ContainerState, Denial, Event, Runtime, Synchronized
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.waiting import RequestKind, Retry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.runtime import containers, device_access, exchange
from nodeagent.daemon.domains.runtime.containers import RuntimeDomain
from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.runs import Unprepared
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.runtime.nri import NriError
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from tests.support.daemon_model import Daemon, watched
from tests.support.node_model import Machine
from tests.support.nri_runtime import PATIENCE_SECONDS, Runtime as Socket
from tests.support.pods import app, burstable, pod
from tests.support.runtime_pods import sandbox_of, told
from tests.support.world import SMALL, START_MS, empty_state, node

NODE = node(SMALL)
ALL = CpuSet.parse("0-7")
WEB = pod("web", app("main", "2"))
SHARING = pod("sharing", app("main", resources=burstable("500m")))


class Tree:
    """The cgroups of a runtime, by path below the root of all."""

    mount = Path("/sys/fs/cgroup")

    def __init__(self) -> None:
        self.cpusets: dict[str, CpuSet] = {}
        self.strange: dict[str, CpuSet] = {}
        """Cgroups among kubelet's, by path."""
        self.is_broken = False
        self.reads: list[str] = []
        self.own_reads = 0

    def read(self, _own: frozenset[str]) -> dict[str, ObservedCgroup]:
        self.own_reads += 1
        return {}

    def read_foreign(self, path: str) -> ObservedCgroup | None:
        self.reads.append(path)
        if self.is_broken:
            raise CgroupError("cannot read it", path=path, error=5, hint="dmesg")
        cpus = self.strange.get(path) or self.cpusets.get(path.rpartition("-")[2].removesuffix(".scope"))
        if cpus is None:
            return None
        attributes = ((Attribute.CPUSET_CPUS, cpus), (Attribute.CPUSET_MEMS, NumaSet.of(0)))
        return ObservedCgroup(
            path, frozenset(), frozenset(), attributes, cpus, None, is_populated=True, is_frozen=False
        )

    def read_occupied_below(self, top: str, is_known: Callable[[str], bool]) -> dict[str, CpuSet]:
        return {path: cpus for path, cpus in self.strange.items() if path.startswith(f"{top}/") and not is_known(path)}


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, /, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = error = info


class Desk:
    """The deciding thread, turn by turn."""

    def __init__(self, socket: Path, pods: PodsApi | None = None) -> None:
        self.tree, self.log, self.wakeups = Tree(), Log(), Wakeups()
        tree: Any = self.tree
        log: Any = self.log
        self.containers = RuntimeDomain(socket, tree, self.wakeups, log, self.look_at_devices, pods)
        self.containers.exchange.configure(Runtime("containerd", "1.7.24", (0, 6, 0), 5000, 2000))
        self.node = NODE
        self.state = empty_state(NODE)
        self.occupied = CpuSet()
        self.observed: dict[str, ObservedCgroup] = {}
        """Cgroups of ours, and units."""
        self.runtime: Any = None
        self.devices: Callable[[Topology], PlacedDevices] = lambda _topology: PlacedDevices()

    def look_at_devices(self, topology: Topology) -> PlacedDevices:
        return self.devices(topology)

    def turn(
        self, *, unsaved: str = "", not_left: str = "", retried: str = "", of_unit: str = ""
    ) -> tuple[Problem, ...]:
        uids = frozenset({retried} - {""})
        node = self.node
        world = World(
            node.config,
            node.managers,
            node.allocatable,
            (),
            {},
            self.observed,
            START_MS,
            retried=uids,
            kernel=node.kernel,
        )
        decided = self.containers.decide(Turn(self.state), world)
        if unsaved:
            self.containers.withdraw(unsaved)
        else:
            self.state = decided.state
        self.occupied = self.containers.occupied(self.state)
        in_use = {of_unit: "unit old.service"} if of_unit else {}
        return self.containers.finish(TurnDone(self.state, (), frozenset(), CpuSet.parse(not_left), {}, in_use))

    def ask(self, call: Call | Synchronized, seconds: float = PATIENCE_SECONDS) -> "Future[Any]":
        """Call in a thread, as the link does."""
        until = time.monotonic() + seconds
        return self.beside(
            lambda: (
                self.containers.exchange.synchronize(call, until)
                if isinstance(call, Synchronized)
                else self.containers.exchange.handle(call, until)
            )
        )

    def beside(self, do: Callable[[], Any]) -> "Future[Any]":
        """Do it in a thread; its end wakes the deciding one."""
        found: Future[Any] = Future()
        found.add_done_callback(lambda _: self.wakeups.wake(WakeUpReason.RUNTIME))
        threading.Thread(target=lambda: found.set_result(do()), daemon=True).start()
        return found

    def turns_until(self, waiting: "Future[Any]", **turn: Any) -> Any:
        while not waiting.done():
            self.wakeups.wait(1.0)
            self.turn(**turn)
        return waiting.result()

    def push(self) -> Any:
        """Do turns until a second connection has come."""
        return self.turns_until(self.beside(self.runtime.accept_plugin))

    def answered(self, call: Call | Synchronized, **turn: Any) -> Any:
        """Do turns until there is an answer, and one more: what nobody waits for is taken up by it."""
        found = self.turns_until(self.ask(call), **turn)
        self.turn(**turn)
        return found

    def run(self, of: Pod, one: str) -> Answer:
        answer = self.answered(event(Event.CREATE_CONTAINER, of, one))
        assert isinstance(answer, Answer), answer
        assert answer.adjustment is not None
        assert answer.adjustment.cpus is not None
        self.tree.cpusets[one] = answer.adjustment.cpus
        assert self.answered(event(Event.START_CONTAINER, of, one)) == Answer()
        return answer

    def share(self) -> None:
        """One that shares the pool has begun, and got it."""
        self.run(SHARING, "s")
        assert self.tree.cpusets["s"] == NODE.managers.reserved
        self.tree.cpusets["s"] = ALL


def event(kind: Event, of: Pod, one: str) -> Call:
    sandbox = sandbox_of(of)
    path = f"{sandbox.cgroup_parent}:cri-containerd:{one}"
    return Call(kind, sandbox, told(of, of.container("main"), id=one, cgroups_path=path))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Its runtime has synchronized, and was looked at once more."""
    made = Desk(tmp_path / "nri.sock")
    made.runtime = Socket(tmp_path / "nri.sock")
    made.answered(Synchronized())
    look = made.push()
    assert look.synchronize([], []) == []
    made.turn()
    look.wait_for_end()
    yield made
    made.containers.link.close()
    made.runtime.close()


def test_a_call_waits_for_the_turn_that_decides_on_it(desk: Desk) -> None:
    answer = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    own = own_set_of(desk.state.promises, WEB.uid, "main")
    assert own is not None
    assert answer.adjustment.cpus == own


def test_devices_are_looked_at_for_a_pod_that_asks_to_be_near_some(desk: Desk) -> None:
    looks = []

    def look(topology: Topology) -> PlacedDevices:
        looks.append(topology)
        return PlacedDevices()

    desk.devices = look
    desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    assert looks == []
    near = pod("near", app("main", "1"))
    asking = event(Event.CREATE_CONTAINER, near, "n")
    asking = replace(asking, sandbox=sandbox_of(near, **{"near.nodeagent.io/main": "eth0"}))
    answer = desk.answered(asking)
    assert isinstance(answer, Denial)
    assert "DeviceUnavailable: it asks to be near eth0, but this machine has no devices" in answer.reason
    assert len(looks) == 1
    assert desk.answered(event(Event.CREATE_CONTAINER, pod("last", app("main", "1")), "o")).adjustment.cpus
    assert len(looks) == 1


NIC = "example.com/nic"
CARD = "0000:3b:00.0"
GIVING = node(SMALL, devices=(DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),))
OF_CARD = DeviceFile("/dev/uio0", is_block=False, major=244, minor=0)


def with_card(one: str, name: str = "carded") -> Call:
    """A pod that asks for a card, as its annotation says."""
    of = pod(name, app("main", "1"))
    asking = event(Event.CREATE_CONTAINER, of, one)
    return replace(asking, sandbox=sandbox_of(of, **{"devices.nodeagent.io/main": f"{NIC}=1"}))


@pytest.fixture
def carded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """On a node that gives its one card, which is used by one file."""
    monkeypatch.setattr(device_access, "find_device_files", lambda address: {CARD: (OF_CARD,)}[address])
    card = Device(CARD, DeviceKind.NETWORK, 0x020000, names=("eth1",))
    desk.node = GIVING
    desk.devices = lambda topology: PlacedDevices.of((card,), topology)
    return desk


def test_a_container_is_created_with_its_device_and_what_it_needs_for_it(carded: Desk) -> None:
    answer = carded.answered(with_card("c"))
    assert answer.adjustment.cpus == own_set_of(carded.state.promises, "uid-carded", "main")
    assert answer.access.files == (OF_CARD,)
    assert dict(answer.access.variables)["NODEAGENT_DEVICES_EXAMPLE_COM_NIC"] == CARD
    again = carded.answered(with_card("d"))
    assert again.access == answer.access, "made again it has the same one"
    other = carded.answered(with_card("e", "other"))
    assert other == Denial(f"OutOf{NIC}: Node didn't have enough resource: {NIC}, requested: 1, used: 1, capacity: 1")
    assert carded.answered(event(Event.CREATE_CONTAINER, WEB, "m")).access is None


def test_without_what_a_device_needs_a_container_is_not_created(carded: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(address: str) -> tuple[DeviceFile, ...]:
        raise SysfsError(f"/sys/bus/pci/devices/{address}", "there is no such device")

    carded.containers.prepare = lambda held: Unprepared(f"PreStartContainer: {held[0].id} is busy")
    denied = carded.answered(with_card("c"))
    assert denied == Denial(f"container main: PreStartContainer: {CARD} is busy; the kubelet tries again")
    monkeypatch.setattr(device_access, "find_device_files", gone)
    denied = carded.answered(with_card("d"))
    assert denied.reason.startswith(f"container main: device {CARD} ({NIC}): cannot use /sys/bus/pci/devices/{CARD}")
    assert carded.log.lines[-1] == ("container_denied", {"problem": denied.reason})


class LatePlugin:
    """A device plugin that has no answer to the first questions, and wakes the agent for the next."""

    def __init__(self, postponements: int, wakeups: Wakeups) -> None:
        self.left = postponements
        self._wakeups = wakeups

    def _has_answer(self) -> bool:
        self.left -= 1
        self._wakeups.wake(WakeUpReason.DEVICES)
        return self.left < 0

    def describe_wait(self, _pod_uid: str) -> str:
        return ""

    def preferred(self, *_: object) -> tuple[str, ...]:
        return ()

    def allocate(self, *_: object) -> bytes:
        if not self._has_answer():
            raise DevicePluginPostponedError("it has not answered yet")
        return b""

    def prepare(self, _held: tuple[HeldDevice, ...]) -> Unprepared | None:
        return None if self._has_answer() else Unprepared("it has not answered yet", is_postponed=True)


@pytest.fixture(params=["decided", "prepared"])
def late(request: pytest.FixtureRequest, carded: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let a plugin have no answer to that many questions, of the decision or of the start."""

    def make(postponements: int) -> None:
        plugin = LatePlugin(postponements, carded.wakeups)
        if request.param == "prepared":
            carded.containers.prepare = plugin.prepare
            return
        pool = DevicePool(NIC, (PoolDevice(CARD),), plugin)
        carded.node = replace(NODE, managers=NODE.managers.knowing(None, (pool,)))

    return make


def test_a_creation_waits_a_moment_for_a_device_plugin(carded: Desk, late: Callable[[int], None]) -> None:
    late(3)
    answer = carded.answered(with_card("c"))
    assert answer.adjustment.cpus == own_set_of(carded.state.promises, "uid-carded", "main")
    assert carded.log.lines == []


def test_a_creation_waits_only_a_moment_for_a_device_plugin_and_the_next_one_goes_on(
    carded: Desk, late: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    late(1_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(exchange, "PLUGIN_SECONDS", 0.0)
        denied = carded.answered(with_card("c"))
    assert isinstance(denied, Denial)
    assert "it has not answered yet" in denied.reason
    late(0)
    assert isinstance(carded.answered(with_card("d")), Answer)


def test_a_container_waits_for_a_device_that_a_unit_could_not_be_made_to_give_back(carded: Desk) -> None:
    denied = carded.answered(with_card("c"), of_unit=OF_CARD.path)
    why = "unit old.service may still use /dev/uio0: see `nodeagent inspect`"
    assert denied == Denial(f"container main: {why}; the kubelet tries again")
    assert carded.answered(with_card("d"), of_unit="/dev/uio1").access.files == (OF_CARD,)


def test_what_was_sent_counts_as_taken_until_it_is_seen(desk: Desk) -> None:
    desk.share()
    created = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    (update,) = created.updates
    assert update.container_id == "s"
    desk.turn()
    assert desk.occupied == own_set_of(desk.state.promises, WEB.uid, "main"), "it has not left yet"
    assert desk.containers.is_unsettled
    desk.tree.cpusets |= {"m": created.adjustment.cpus, "s": update.resources.cpus}
    desk.turn()
    assert desk.occupied == CpuSet()


def test_each_cgroup_is_read_once_a_turn_and_ours_only_where_it_matters(desk: Desk) -> None:
    for number in range(3):
        desk.run(pod(f"shared-{number}", app("main", resources=burstable("10m"))), f"s{number}")
    desk.tree.cpusets = dict.fromkeys(desk.tree.cpusets, ALL)
    desk.turn()
    desk.tree.reads, desk.tree.own_reads = [], 0
    desk.turn()
    assert len(desk.tree.reads) == len(set(desk.tree.reads)) == 3
    assert desk.tree.own_reads == 0, "nothing was asked, and nothing differs"
    created = desk.ask(event(Event.CREATE_CONTAINER, WEB, "m"))
    while not created.done():
        desk.wakeups.wait(1.0)
        desk.tree.reads, desk.tree.own_reads = [], 0
        desk.turn()
    assert len(desk.tree.reads) == len(set(desk.tree.reads)) == 4
    assert desk.tree.own_reads == 1


def test_a_start_beside_somebody_who_has_not_left_is_denied(desk: Desk) -> None:
    desk.share()
    created = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    desk.tree.cpusets["m"] = created.adjustment.cpus
    denied = desk.answered(event(Event.START_CONTAINER, WEB, "m"))
    assert isinstance(denied, Denial)
    assert "with pod default/sharing, container main" in denied.reason


def test_a_start_beside_a_unit_that_could_not_be_made_to_leave_is_denied(desk: Desk) -> None:
    created = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    desk.tree.cpusets["m"] = created.adjustment.cpus
    denied = desk.answered(event(Event.START_CONTAINER, WEB, "m"), not_left="0-7")
    assert isinstance(denied, Denial)
    assert "with a unit or pod that could not be made to leave" in denied.reason


def test_a_start_on_cpus_of_a_unit_whose_pod_is_not_known_is_denied(desk: Desk) -> None:
    """Be it active or not: it may start at any moment."""
    created = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    desk.tree.cpusets["m"] = created.adjustment.cpus
    path, cpus = f"{UNITS_UNCLEAR}/db.service", ((Attribute.CPUSET_CPUS, created.adjustment.cpus),)
    there = ObservedCgroup(path, frozenset(), frozenset(), cpus, None, None, is_populated=False, is_frozen=False)
    desk.observed = {path: there}
    denied = desk.answered(event(Event.START_CONTAINER, WEB, "m"))
    assert isinstance(denied, Denial)
    assert "with unit db.service, pinned by a pod that is unknown at the moment" in denied.reason
    desk.observed = {}
    assert desk.answered(event(Event.START_CONTAINER, WEB, "m")) == Answer()


def test_what_can_not_be_saved_is_denied_and_what_has_happened_is_taken_up_again(desk: Desk) -> None:
    denied = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"), unsaved="the disk is full")
    assert isinstance(denied, Denial)
    assert "the disk is full" in denied.reason
    assert desk.state == empty_state(NODE)
    desk.run(WEB, "m")
    del desk.tree.cpusets["m"]
    for kind in (Event.STOP_CONTAINER, Event.REMOVE_CONTAINER):
        assert desk.answered(event(kind, WEB, "m"), unsaved="the disk is full") == Answer(), "nobody waits for that"
    assert own_set_of(desk.state.promises, WEB.uid, "main") is not None
    desk.turn()
    desk.turn()
    assert desk.state.promises == empty_state(NODE).promises


def test_what_there_is_counts_as_told_once_it_is_saved(tmp_path: Path) -> None:
    """Until then records alone tell what its pods have."""
    desk = Desk(tmp_path / "nri.sock")
    assert not desk.containers.has_listed
    desk.answered(Synchronized(), unsaved="the disk is full")
    assert not desk.containers.has_listed
    desk.turn()
    assert desk.containers.has_listed
    desk.containers.link.close()


def test_what_is_not_decided_in_time_is_denied_and_never_decided(desk: Desk) -> None:
    denied = desk.ask(event(Event.CREATE_CONTAINER, WEB, "m"), seconds=0.0).result(PATIENCE_SECONDS)
    assert isinstance(denied, Denial)
    assert "has not decided in time" in denied.reason
    before = desk.state
    desk.turn()
    assert desk.state == before
    counted = {delta.series.name: delta.amount for delta in desk.containers.count().deltas}
    assert counted == {RUNTIME_UNASKED: 0, RUNTIME_LATE: 1}


def test_a_late_synchronization_is_the_truth_all_the_same(desk: Desk) -> None:
    call = event(Event.CREATE_CONTAINER, SHARING, "s")
    assert call.container is not None
    resources = replace(call.container.resources, cpus=ALL)
    listed = replace(call.container, state=ContainerState.RUNNING, resources=resources)
    desk.tree.cpusets["s"] = ALL
    assert desk.ask(Synchronized((call.sandbox,), (listed,)), seconds=0.0).result(PATIENCE_SECONDS) == ()
    desk.turn()
    assert desk.state.entry(SHARING.uid) is not None


def test_while_cgroups_can_not_be_read_nothing_is_granted(desk: Desk) -> None:
    desk.share()
    desk.tree.is_broken = True
    denied = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    assert isinstance(denied, Denial)
    assert "cannot read it" in denied.reason
    (problem,) = desk.turn()
    assert "cannot read it" in problem
    assert desk.occupied == ALL
    desk.tree.is_broken = False
    assert desk.turn() == ()
    assert desk.occupied == own_set_of(desk.state.promises, WEB.uid, "main"), (
        "it has not left, and the others can be granted"
    )


def test_changes_that_no_call_asks_for_are_pushed(desk: Desk) -> None:
    desk.run(SHARING, "s")
    desk.tree.cpusets["s"] = CpuSet.of(1)  # somebody has changed it
    desk.turn()
    plugin = desk.push()
    (update,) = plugin.synchronize([], [])
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("s", "0-7")
    desk.tree.cpusets["s"] = ALL
    desk.turn()
    plugin.wait_for_end()


def test_what_was_sent_to_a_container_that_goes_holds_up_no_other_push(desk: Desk) -> None:
    desk.run(SHARING, "s")
    desk.turn()
    plugin = desk.push()
    (update,) = plugin.synchronize([], [])
    assert update.container_id == "s"
    del desk.tree.cpusets["s"]
    assert desk.answered(event(Event.REMOVE_CONTAINER, SHARING, "s")) == Answer()
    plugin.wait_for_end()


def test_changes_that_do_not_reach_the_runtime_are_a_problem_until_they_do(desk: Desk) -> None:
    desk.share()
    desk.tree.cpusets["s"] = CpuSet.of(1)
    desk.turn()
    desk.push().close()
    while not (problem := desk.containers.standing_problem()):
        desk.wakeups.wait(1.0)
        desk.turn()
    state = desk.containers.exchange.state
    assert state.push_problem in problem
    assert state.push_at > 0.0, "the problem and the time of the next attempt are one value"
    assert problem.startswith("changes don't reach the runtime: ")
    plugin = desk.push()
    assert len(plugin.synchronize([], [])) == 1
    desk.tree.cpusets["s"] = ALL
    while desk.containers.standing_problem():
        desk.wakeups.wait(1.0)
        desk.turn()
    desk.turn()
    plugin.wait_for_end()
    assert [name for name, _ in desk.log.lines if name == "runtime_not_reached"] == ["runtime_not_reached"]


def test_pods_that_were_refused_are_looked_for_now_and_then(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(desk.answered(event(Event.CREATE_CONTAINER, pod("large", app("main", "9")), "l")), Denial)
    assert desk.state.runtime.refused
    monkeypatch.setattr(containers, "LOOK_SECONDS", 0.0)
    desk.turn()
    look = desk.push()
    look.synchronize([], [])
    while desk.state.runtime.refused:
        desk.wakeups.wait(1.0)
        desk.turn()
    look.wait_for_end()
    assert desk.state == empty_state(NODE)


def test_what_nobody_tells_of_any_more_is_given_back_when_its_processes_have_ended(desk: Desk) -> None:
    desk.run(WEB, "m")
    other = pod("other", app("main", "1"))
    desk.run(other, "o")
    assert isinstance(desk.answered(event(Event.CREATE_CONTAINER, pod("large", app("main", "9")), "l")), Denial)
    desk.containers.is_served = False  # nriSocket isn't set any more
    desk.turn()
    assert {entry.pod.name for entry in desk.state.entries} == {"web", "other"}, "nobody asks for the refused one"
    problem = str(desk.containers.standing_problem())
    assert "default/web" in problem
    assert "set nriSocket again" in problem
    desk.tree.cpusets["o"] = ALL
    desk.turn()
    own = own_set_of(desk.state.promises, WEB.uid, "main")
    assert own is not None
    assert own <= desk.occupied, "one of them is on CPUs that aren't its own"
    del desk.tree.cpusets["o"]
    desk.turn()
    assert [entry.pod.name for entry in desk.state.entries] == ["web"]
    assert own_set_of(desk.state.promises, WEB.uid, "main") == own
    del desk.tree.cpusets["m"]
    desk.turn()
    assert desk.state == empty_state(NODE)
    assert desk.containers.standing_problem() is None
    assert not desk.containers.is_unsettled


def test_one_that_was_created_may_begin_as_long_as_its_pod_has_processes(desk: Desk) -> None:
    desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    (made,) = desk.state.runtime.entries[0].made
    pod_cgroup = made.cgroup.rpartition("/")[0]
    desk.tree.strange[pod_cgroup] = ALL
    desk.containers.is_served = False
    desk.turn()
    assert own_set_of(desk.state.promises, WEB.uid, "main")
    del desk.tree.strange[pod_cgroup]
    desk.turn()
    assert desk.state == empty_state(NODE)


def test_a_container_whose_cgroup_is_not_known_may_run_for_ever(desk: Desk) -> None:
    created = event(Event.CREATE_CONTAINER, WEB, "m")
    assert created.container is not None
    unknown = replace(created, container=replace(created.container, cgroups_path=""))
    assert isinstance(desk.answered(unknown), Answer)
    desk.containers.is_served = False
    for _ in range(3):
        desk.turn()
    assert own_set_of(desk.state.promises, WEB.uid, "main")


STRANGE = "kubepods.slice/kubepods-podx.slice/cri-containerd-0a.scope"


def test_before_the_runtime_has_told_what_there_is_unknown_processes_occupy_their_cpus(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "nri.sock")
    desk.tree.strange = {STRANGE: CpuSet.parse("2-3"), "kubepods/podx/0b": CpuSet.parse("5")}
    desk.turn()
    assert desk.occupied == CpuSet.parse("2-3,5")
    assert desk.containers.standing_problem() is None, "the runtime may tell of them any moment"
    desk.containers.exchange.record_lost(NriError(Path("/run/nri.sock"), "it is gone", "look there"), 1.0)
    assert f"/sys/fs/cgroup/{STRANGE} (2-3)" in str(desk.containers.standing_problem())
    assert desk.log.lines[-1][0] == "runtime_lost"


def test_one_that_was_there_before_the_runtime_has_told_what_there_is_is_logged_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LOOK_SECONDS", 0.0)
    desk = Desk(tmp_path / "nri.sock")
    desk.tree.strange = {STRANGE: ALL}
    desk.turn()
    desk.answered(Synchronized())
    desk.turn()
    assert [name for name, _ in desk.log.lines if name == "cgroup_of_no_container"] == ["cgroup_of_no_container"]


def test_one_that_stays_unknown_is_told_of_and_nobody_starts_on_its_cpus(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.tree.strange = {STRANGE: ALL}
    desk.turn()
    assert desk.occupied == CpuSet(), "not time to look yet"
    monkeypatch.setattr(containers, "LOOK_SECONDS", 0.0)
    desk.turn()
    assert desk.occupied == CpuSet(), "its pod may just be about to be told of"
    assert desk.containers.standing_problem() is None
    desk.turn()
    monkeypatch.setattr(containers, "LOOK_SECONDS", 3600.0)
    desk.turn()
    assert desk.occupied == ALL
    assert f"/sys/fs/cgroup/{STRANGE} (0-7); their CPUs count as occupied" in str(desk.containers.standing_problem())
    assert [fields for name, fields in desk.log.lines if name == "cgroup_of_no_container"] == [
        {"cgroup": STRANGE, "cpus": "0-7"}
    ]
    created = desk.answered(event(Event.CREATE_CONTAINER, WEB, "m"))
    assert isinstance(created, Answer)
    assert created.adjustment is not None
    assert created.adjustment.cpus is not None
    desk.tree.cpusets["m"] = created.adjustment.cpus
    denied = desk.answered(event(Event.START_CONTAINER, WEB, "m"))
    assert isinstance(denied, Denial)
    assert STRANGE in denied.reason
    del desk.tree.strange[STRANGE]
    assert desk.answered(event(Event.START_CONTAINER, WEB, "m")) == Answer()
    assert desk.containers.standing_problem() is None


def test_a_pods_first_process_is_tracked_by_its_sandbox(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the sandbox's id, and is no container of NRI's."""
    monkeypatch.setattr(containers, "LOOK_SECONDS", 0.0)
    sandbox = replace(sandbox_of(WEB), id="0a")
    desk.tree.strange = {STRANGE: ALL}
    desk.turn()
    assert desk.answered(Call(Event.RUN_POD_SANDBOX, sandbox)) == Answer()
    desk.turn()
    assert desk.occupied == CpuSet()


def test_a_runtime_that_goes_and_comes_is_told_of_once(desk: Desk) -> None:
    assert desk.containers.standing_problem() is None
    err = NriError(Path("/run/nri.sock"), "it closed the connection", "look there")
    for _ in range(2):
        desk.containers.exchange.record_lost(err, 1.0)
        assert "it closed the connection (look there)" in str(desk.containers.standing_problem())
    desk.answered(Synchronized())
    assert desk.containers.standing_problem() is None
    told = [name for name, _ in desk.log.lines if name in {"runtime_linked", "runtime_lost"}]
    assert told == ["runtime_linked", "runtime_lost", "runtime_linked"]


def test_a_container_that_is_resized_while_it_runs_keeps_the_device_that_it_was_created_with(
    carded: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has that device's files: another one that is free by now, and comes first, is of no use to it."""
    cards = tuple(Device(f"0000:3{n}:00.0", DeviceKind.NETWORK, 0x020000) for n in "ab")
    carded.devices = lambda topology: PlacedDevices.of(cards, topology)

    def sharing(name: str, one: str, cpu: str, kind: Event = Event.CREATE_CONTAINER) -> Call:
        of = pod(name, app("main", resources=burstable(cpu)))
        call = event(kind, of, one)
        call = replace(call, sandbox=sandbox_of(of, **{"devices.nodeagent.io/main": f"{NIC}=1"}))
        assert call.container is not None
        return replace(call, resources=call.container.resources)

    def has(name: str) -> list[str]:
        return [one.id for one in carded.state.promises.of_pod(f"uid-{name}").of(DeviceHoldings).devices_of("main")]

    monkeypatch.setattr(device_access, "find_device_files", lambda _: (OF_CARD,))
    carded.answered(sharing("first", "f", "500m"))
    assert isinstance(carded.answered(sharing("second", "s", "500m")), Answer)
    carded.tree.cpusets["s"] = NODE.managers.reserved
    assert carded.answered(sharing("second", "s", "500m", Event.START_CONTAINER)) == Answer()
    assert (has("first"), has("second")) == (["0000:3a:00.0"], ["0000:3b:00.0"])
    gone = sharing("first", "f", "500m", Event.STOP_CONTAINER)
    carded.answered(gone)
    carded.answered(replace(gone, event=Event.REMOVE_CONTAINER))
    carded.turn()
    assert has("first") == []
    carded.answered(sharing("second", "s", "700m", Event.UPDATE_CONTAINER))
    assert has("second") == ["0000:3b:00.0"]


def test_a_refused_pod_gets_the_cpus_that_a_runtimes_container_has_released(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(NODE)
    config = {"retry_refused": RETRY_FOR_ROOM}
    daemon = Daemon(machine, tmp_path, config=config, more_domains=(desk.containers,))
    remote, big = pod("remote", app("main", "5")), pod("big", app("main", "5"))

    def answered(call: Call) -> Any:
        found = desk.ask(call)
        while not found.done():
            desk.wakeups.wait(1.0)
            daemon.turn()
        return found.result()

    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        answer = answered(event(Event.CREATE_CONTAINER, remote, "r"))
        desk.tree.cpusets["r"] = answer.adjustment.cpus
        daemon.files.pods = (big,)
        daemon.rest()
        refused = daemon.agent.state.entry(big.uid)
        assert refused is not None
        assert refused.refusal is not None
        assert refused.refusal.is_for_room
        del desk.tree.cpusets["r"]
        answered(event(Event.REMOVE_CONTAINER, remote, "r"))
        daemon.rest()
        admitted = daemon.agent.state.entry(big.uid)
        assert admitted is not None
        assert admitted.is_active


@pytest.mark.parametrize("retry", [RETRY_FOR_ROOM, RETRY_NOTHING])
def test_a_refused_container_gets_the_cpus_that_a_pod_has_released(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: str
) -> None:
    machine = Machine(NODE)
    daemon = Daemon(machine, tmp_path, config={"retry_refused": retry}, more_domains=(desk.containers,))
    big, remote, late = pod("big", app("main", "5")), pod("remote", app("main", "5")), pod("late", app("main", "5"))

    def answered(call: Call) -> Any:
        found = desk.ask(call)
        while not found.done():
            desk.wakeups.wait(1.0)
            daemon.turn()
        return found.result()

    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (big,)
        daemon.start()
        first = answered(event(Event.CREATE_CONTAINER, remote, "r"))
        assert isinstance(first, Denial)
        assert answered(event(Event.CREATE_CONTAINER, remote, "r2")) == first, "there is no more room"
        entry = daemon.agent.state.entry(remote.uid)
        assert entry is not None
        assert (Retry.ROOM in entry.list_retries(RequestKind.POD, for_room=retry == RETRY_FOR_ROOM)) is (
            retry == RETRY_FOR_ROOM
        )
        daemon.files.pods = ()
        daemon.rest()
        assert daemon.agent.state.entry(remote.uid) == entry, "it waits for the runtime to ask again"
        answer = answered(event(Event.CREATE_CONTAINER, remote, "r3"))
        assert (answer == first) is (retry == RETRY_NOTHING)
        if retry == RETRY_FOR_ROOM:
            desk.tree.cpusets["r3"] = answer.adjustment.cpus
            refused = answered(event(Event.CREATE_CONTAINER, late, "l"))
            assert isinstance(refused, Denial)
            assert answered(event(Event.CREATE_CONTAINER, late, "l2")) == refused
            told = [one for one in daemon.said() if one["event"] == "pod_refused"]
            assert [one["pod"] for one in told] == ["default/remote", "default/late"]


def test_a_late_update_brings_no_ended_container_back(desk: Desk) -> None:
    desk.run(WEB, "m")
    for call in (
        event(Event.STOP_CONTAINER, WEB, "m"),
        event(Event.REMOVE_CONTAINER, WEB, "m"),
        Call(Event.STOP_POD_SANDBOX, sandbox_of(WEB)),
        Call(Event.REMOVE_POD_SANDBOX, sandbox_of(WEB)),
    ):
        desk.containers.exchange.handle(call, time.monotonic() + PATIENCE_SECONDS)
        desk.turn()
    desk.tree.cpusets.pop("m")
    desk.turn()
    assert not desk.state.runtime.entries
    desk.answered(event(Event.UPDATE_CONTAINER, WEB, "m"))
    assert own_set_of(desk.state.promises, WEB.uid, "main") is None
    assert not desk.state.runtime.entries
    assert desk.containers.exchange.state.is_look_due, "a look tells whether it runs"
