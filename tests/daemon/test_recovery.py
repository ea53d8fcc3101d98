"""Starts that find a state they cannot use as it is: whoever runs stays where it is, everything else is told, nothing is deleted."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.node_rules import count_lacking_cpus
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.config import ReservedMemory
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod, RestartPolicy
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, UnrecoveredPod
from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE
from nodeagent.core.model.state import Exit, NodeState
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, exclusive_sets, own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from nodeagent.core.turn.lifecycle import Run
from nodeagent.core.turn.world import EventKind
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.start.recovery import Evidence, Recovery, Start, log_recovery, start_state
from nodeagent.daemon.start.startup import (
    CPU_CHECKPOINT,
    MEMORY_CHECKPOINT,
    STATE_FILE,
    StartError,
)
from nodeagent.daemon.start.strict_recovery import load_state
from nodeagent.daemon.turn.records import encode_checkpoints
from nodeagent.formats.checkpoint.node_state import encode_state, policies_of
from tests.core.turn.test_turns import WatchedAgent
from tests.support.builders import GIB
from tests.support.claims import ETH0, claiming, request, template
from tests.support.daemon_model import daemon_node
from tests.support.node_model import Agent, Group, started
from tests.support.pairs import covering_pairs
from tests.support.pods import amounts, app, burstable, cgroup_only, exclusive, init, mixed, pod, sidecar
from tests.support.world import SMALL, Node, node

RESERVE = amounts(None, "64Mi")
MEMORY: dict[str, Any] = {
    "memory_manager_policy": "Static",
    "reserved_memory": (ReservedMemory(0, RESERVE),),
    "memory_reservation": RESERVE,
}


def two_nodes(online: int = 8, memory_bytes: int = 8 * GIB) -> Topology:
    """2 NUMA nodes of 2 cores of 2 threads; CPUs from `online` on are offline."""
    return Topology.of(
        [Cpu(id=c, core=c % 4, socket=c % 4 // 2, numa=c % 4 // 2) for c in range(online)],
        [NumaNode(n, memory_bytes, (), (10, 20) if n == 0 else (20, 10)) for n in range(2)],
        offline=CpuSet.from_ids(range(online, 8)),
    )


class Life:
    """A node on which pods run, and what a restart makes of it."""

    def __init__(self, directory: Path, of: Node, *pods: Pod) -> None:
        self.directory, self.of, self.pods = directory, of, pods
        self.machine, self.agent = started(of, *pods)
        for run_id in self.machine.running():
            if "/first/" in run_id:
                self.machine.exit(run_id)
        self.agent.rest()
        self.before = self.agent.state
        self.moved_from = len(self.machine.writes)
        (directory / STATE_FILE).write_bytes(self.agent.saved)
        for name, content in encode_checkpoints(daemon_node(of, directory), self.before.promises).items():
            (directory / name).write_bytes(content)

    def start(self, of: Node | None = None, *pods: Pod) -> Start:
        """A new process starts, on a node that may be another."""
        of = of or self.of
        self.machine.node = of
        manifests = self.agent.wanted
        if pods:
            self.agent.want(*pods)
            manifests = self.agent.wanted
        found = start_state(
            daemon_node(of, self.directory),
            manifests,
            self.machine.now_ms,
            lambda: Evidence(self.machine.observed(), dict(self.machine.runs)),
            devices=lambda topology: PlacedDevices.of((ETH0,), topology),
        )
        assert found is not None
        assert violations(of.managers, found.state) == ()
        return found

    def go_on(self, found: Start) -> Agent:
        """The agent runs on with what it found; every write is checked against what is promised."""
        agent = WatchedAgent(self.machine)
        agent.wanted = self.agent.wanted
        agent.state = found.state
        agent.saved = encode_state(found.state, policies_of(self.machine.node.config.placement))
        agent.rest()
        return agent

    def reboot(self) -> None:
        """Every cgroup and every process is gone."""
        machine = self.machine
        machine.groups = {"": Group()}
        machine.runs = {r.id: replace(r, pid=None, exit=r.exit or Exit(machine.now_ms)) for r in machine.runs.values()}

    def processes(self) -> tuple[str, ...]:
        return self.machine.running()


def recovery(found: Start) -> Recovery:
    assert found.recovery is not None
    return found.recovery


def sets(state: NodeState) -> dict[tuple[str, str], CpuSet]:
    return {(uid, name): cpus for uid, name, cpus in exclusive_sets(state.promises)}


PODS = (
    pod("a", app("app", "2")),
    pod("b", init("first", "1"), sidecar("side", "1"), app("app", "1")),
    pod("c", app("app", resources=burstable())),
    pod("d", cgroup_only("slot", "1")),
    pod("e", init("still", "1"), app("app", "1")),
)
STATIC = node(SMALL)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def newer(path: Path) -> None:
    path.write_bytes(re.sub(rb'"version":\d+', b'"version":99', path.read_bytes(), count=1))


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


BREAK: dict[str, Callable[[Path], object]] = {
    "truncated": truncated,
    "flipped": flipped,
    "newer": newer,
    "empty": lambda path: path.write_bytes(b""),
    "not ours": lambda path: path.write_bytes(b"{}\n{}\n"),
    "a directory": a_directory,
    "a symbolic link": a_loop,
    "gone": lambda path: path.unlink(),
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "whole": lambda _: None,
    "gone": lambda path: path.unlink(),
    "truncated": truncated,
    "empty": lambda path: path.write_bytes(b""),
}


KINDS = {"cpu": STATIC, "cpu and memory": node(two_nodes(), **MEMORY)}


@pytest.mark.parametrize(("kind", "damage", "other"), covering_pairs(KINDS, BREAK, OTHERS))
def test_without_its_file_every_pod_is_known_again_by_what_runs(
    tmp_path: Path, kind: str, damage: str, other: str
) -> None:
    life = Life(tmp_path, KINDS[kind], *PODS)
    BREAK[damage](tmp_path / STATE_FILE)
    OTHERS[other](tmp_path / CPU_CHECKPOINT)
    OTHERS[other](tmp_path / MEMORY_CHECKPOINT)
    running, starts = life.processes(), list(life.machine.starts)

    found = life.start()

    assert sets(found.state) == sets(life.before)
    for entry in life.before.entries:
        for name in (s.name for s in entry.containers if s.is_running):
            before, after = (memory_nodes_of(s.promises, entry.pod.uid, name) for s in (life.before, found.state))
            assert before == after
    reported = recovery(found)
    assert reported.differences == ()
    assert reported.refused == ()
    assert set(reported.adopted) == {p.full_name for p in PODS}
    assert (STATE_FILE in reported.unusable) == (damage != "gone")
    agent = life.go_on(found)
    assert life.processes() == running, "no process was ended or started"
    assert life.machine.starts == starts
    moved = [
        w for w in life.machine.writes[life.moved_from :] if getattr(w, "attribute", None) is Attribute.CPUSET_CPUS
    ]
    assert moved == [], "nobody moved"
    assert [e.phase for e in agent.state.entries] == [e.phase for e in life.before.entries]


@pytest.mark.parametrize("checkpoint", OTHERS)
def test_mixed_containers_keep_their_own_cpus_by_kubelets_file_or_by_what_they_do_not_share(
    tmp_path: Path, checkpoint: str
) -> None:
    mixed_pods = (pod("m", mixed()), pod("b", mixed(own=1, resources=burstable("1200m"))), pod("s"))
    life = Life(tmp_path, STATIC, *mixed_pods)
    (tmp_path / STATE_FILE).unlink()
    OTHERS[checkpoint](tmp_path / CPU_CHECKPOINT)
    found = life.start()
    assert sets(found.state) == sets(life.before)
    assert recovery(found).differences == ()
    life.go_on(found)
    moved = life.machine.writes[life.moved_from :]
    assert [w for w in moved if getattr(w, "attribute", None) is Attribute.CPUSET_CPUS] == [], "nobody moved"


# A whole file, and another node

NONE = node(SMALL, cpu_manager_policy="none", reserved_system_cpus=CpuSet())
NUMA = node(two_nodes(), **MEMORY)
STRICTLY = {"cpu_manager_policy_options": (("strict-cpu-reservation", "true"),)}
WHOLE = {"cpu_manager_policy_options": (("full-pcpus-only", "true"),)}
OWN = {"a/app": "1,5", "b/first": "4", "b/side": "4", "b/app": "2", "d/slot": "6", "e/still": "3", "e/app": "3"}
LASTING = {name: cpus for name, cpus in OWN.items() if name != "b/first"}
DEGRADED = "degraded: has 0 of 1 exclusive CPUs, no more are available; remove its manifest and add it again when there is room"


def said(what: str, changes: dict[str, tuple[str, str]], why: str) -> list[str]:
    names = {name: name.split("/") for name in changes}
    return [
        f"pod default/{names[n][0]}, container {names[n][1]}: {what} {old} → {new}: {why}"
        for n, (old, new) in changes.items()
    ]


CHANGES: dict[str, tuple[Node, Node, list[str]]] = {
    "policy none": (
        STATIC,
        NONE,
        said("CPUs", {n: (c, "shared") for n, c in OWN.items()}, "cpuManagerPolicy is none now"),
    ),
    "policy static": (
        NONE,
        STATIC,
        said("CPUs", {n: ("shared", c) for n, c in OWN.items()}, "exclusive CPUs are available for it now"),
    ),
    "memory policy None": (
        NUMA,
        node(two_nodes()),
        said("memory nodes", dict.fromkeys(LASTING, ("0", "any")), "memoryManagerPolicy is None now"),
    ),
    "memory policy Static": (
        node(two_nodes()),
        NUMA,
        said("memory nodes", dict.fromkeys(OWN, ("any", "0")), "memory is available for it now"),
    ),
    "a pod's CPU reserved": (
        STATIC,
        node(SMALL, reserved="0-1"),
        said("CPUs", {"a/app": ("1,5", "5,7")}, "CPUs 1 are reserved"),
    ),
    "CPUs of many reserved": (
        STATIC,
        node(SMALL, reserved="0-3"),
        [
            *said("CPUs", {"a/app": ("1,5", "5,7")}, "CPUs 1 are reserved"),
            *said("CPUs", {"b/app": ("2", "shared")}, f"CPUs 2 are reserved; {DEGRADED}"),
            *said("CPUs", {"e/still": ("3", "shared"), "e/app": ("3", "shared")}, f"CPUs 3 are reserved; {DEGRADED}"),
        ],
    ),
    "another CPU reserved": (STATIC, node(SMALL, reserved="7"), []),
    "reserved strictly": (STATIC, node(SMALL, **STRICTLY), []),
    "not reserved strictly any more": (node(SMALL, **STRICTLY), STATIC, []),
    "whole cores only": (STATIC, node(SMALL, **WHOLE), []),
    "another topology policy": (NUMA, node(two_nodes(), topology_manager_policy="single-numa-node", **MEMORY), []),
    "fewer CPUs": (NUMA, node(two_nodes(6), **MEMORY), []),
    "more CPUs": (node(two_nodes(7), **MEMORY), NUMA, []),
    "a page less memory": (NUMA, node(two_nodes(memory_bytes=8 * GIB - 4096), **MEMORY), []),
    "less memory than promised": (NUMA, node(two_nodes(memory_bytes=128 * 2**20), **MEMORY), []),
    "more memory": (NUMA, node(two_nodes(memory_bytes=9 * GIB), **MEMORY), []),
}


@pytest.mark.parametrize("case", CHANGES)
def test_on_another_node_whoever_runs_stays_where_he_may(tmp_path: Path, case: str) -> None:
    was, now, expected = CHANGES[case]
    life = Life(tmp_path, was, *PODS)
    running, starts = life.processes(), list(life.machine.starts)

    found = life.start(now)

    reported = found.recovery
    assert [str(d) for d in (reported.differences if reported else ())] == expected
    assert [e.refusal for e in found.state.entries] == [e.refusal for e in life.before.entries]
    assert [e.pod for e in found.state.entries] == [e.pod for e in life.before.entries]
    changed = {(d.pod.uid, d.container) for d in (reported.differences if reported else ())}
    kept = {key: cpus for key, cpus in sets(life.before).items() if key not in changed}
    assert {key: cpus for key, cpus in sets(found.state).items() if key not in changed} == kept
    life.go_on(found)
    assert life.processes() == running, "no process was ended or started"
    assert life.machine.starts == starts


def test_whoever_was_left_without_cpus_gets_some_by_asking_for_others(tmp_path: Path) -> None:
    life = Life(tmp_path, STATIC, *PODS)
    agent = Agent(life.machine)  # the judge of the others knows no resizes
    agent.state = life.go_on(life.start(node(SMALL, reserved="0-3"))).state
    assert ("uid-b", "app") not in sets(agent.state)
    _, b, _, _, e = PODS
    asks_for_two = replace(b, containers=(*b.containers[:2], app("app", "2")))
    agent.want(asks_for_two, e, pod("other", app("app", "1")))
    agent.rest()
    (deferred,) = agent.reported(EventKind.CHANGE_REFUSED)
    assert dict(deferred.fields)["reason"] == RESIZE_DEFERRED
    agent.want(asks_for_two, e)
    agent.rest()
    own = sets(agent.state)["uid-b", "app"]
    assert len(own) == 2
    on_them = {path for path in life.machine.populated() if life.machine.effective(path) & own}
    assert on_them == {"poduid-b/app"}
    assert life.machine.effective("poduid-b/app") == own
    (event,) = agent.reported(EventKind.POD_RESIZED)
    assert event.fields == (("changes", f"app: CPUs shared → {own}"),)
    agent.want(b, e)
    agent.rest()
    assert sets(agent.state)["uid-b", "app"] == own, "these are those that it keeps"
    _, never = agent.reported(EventKind.CHANGE_REFUSED)
    assert dict(never.fields)["reason"] == RESIZE_INFEASIBLE


REFUSED = {"another CPU reserved", "whole cores only", "another topology policy"}


@pytest.mark.parametrize("case", CHANGES)
def test_strict_refuses_what_kubelet_refuses_and_touches_nothing(tmp_path: Path, case: str) -> None:
    was, now, _ = CHANGES[case]
    life = Life(tmp_path, was, *PODS)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if case in REFUSED:
        assert load_state(daemon_node(now, tmp_path), life.agent.wanted, 0) == life.before
    else:
        with pytest.raises(StartError) as caught:
            load_state(daemon_node(now, tmp_path), life.agent.wanted, 0)
        assert str(tmp_path / STATE_FILE) in caught.value.message
        assert caught.value.hint
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("case", [case for case in CHANGES if case not in REFUSED])
def test_what_a_strict_start_advises_cures(tmp_path: Path, case: str) -> None:
    """The former value is set back, or the node is drained and the named files are moved away, one by one."""
    was, now, _ = CHANGES[case]
    life = Life(tmp_path, was, *PODS)
    with pytest.raises(StartError) as caught:
        load_state(daemon_node(now, tmp_path), life.agent.wanted, 0)
    assert "set stateRecovery to recover" in (caught.value.hint or "")
    assert life.start(now).recovery is not None, "it is set to recover"
    if (caught.value.hint or "").startswith("set "):
        assert load_state(daemon_node(was, tmp_path), life.agent.wanted, 0) == life.before
    (tmp_path / "away").mkdir()
    said: StartError | None = caught.value
    while said is not None:
        told = f"{said.message} {said.hint}"
        named = [path for path in tmp_path.iterdir() if path.is_file() and str(path) in told]
        assert (" away" in told, named != []) == (True, True), "each names a file that is still there"
        for path in named:
            path.rename(tmp_path / "away" / path.name)
        said = None
        try:
            found = load_state(daemon_node(now, tmp_path), (), 0)
        except StartError as err:
            said = err
    assert found.promises.pods == PodMap()


PLRM = (("PodLevelResourceManagers", True),)
OFF = (("PodLevelResourceManagers", False),)
BY_POD: dict[str, Any] = {"topology_manager_policy": "best-effort", "topology_manager_scope": "pod", **MEMORY}
PER_CONTAINER = BY_POD | {"topology_manager_scope": "container"}
GROUPED = (
    pod("rest", app("app", "1"), app("other", "1"), resources=exclusive("4", "256Mi")),
    pod("pool", app("app", "1"), app("shared"), resources=exclusive("2", "256Mi")),
)


@pytest.mark.parametrize("placement", [BY_POD, PER_CONTAINER], ids=["pod", "container"])
@pytest.mark.parametrize("gates", [OFF, (*OFF, ("PodLevelResources", False))], ids=["managers", "both"])
def test_pods_keep_what_they_were_given_before_their_gate_was_turned_off(
    tmp_path: Path, placement: dict[str, Any], gates: tuple[tuple[str, bool], ...]
) -> None:
    """One pod of its four CPUs uses two: the others stay its own too (KEP-5526)."""
    life = Life(tmp_path, node(two_nodes(), gates=PLRM, **placement), *GROUPED)
    before = life.before.promises
    by_pod = placement is BY_POD
    assert str(before.of_pod("uid-rest").of(CpuHoldings).pod_cpus or "") == ("2-3,6-7" if by_pod else "")
    running, starts = life.processes(), list(life.machine.starts)

    now = node(two_nodes(), gates=gates, **placement)
    found = life.start(now)

    assert found.state.promises == before
    assert found.recovery is None
    agent = life.go_on(found)
    assert life.processes() == running, "no process was ended or started"
    assert life.machine.starts == starts
    moved = life.machine.writes[life.moved_from :]
    assert [w for w in moved if getattr(w, "attribute", None) is Attribute.CPUSET_CPUS] == []
    for one in GROUPED:
        assert [count_lacking_cpus(now.managers, found.state.promises, one, c.name) for c in one.containers] == [0, 0]

    agent.want(GROUPED[1], pod("new", app("app", "1"), resources=exclusive("2", "256Mi")))
    agent.rest()
    assert agent.state.promises.of_pod("uid-rest").of(CpuHoldings).pod_cpus is None
    assert (
        agent.state.promises.of_pod("uid-pool").of(CpuHoldings).pod_cpus
        == before.of_pod("uid-pool").of(CpuHoldings).pod_cpus
    )
    assert own_set_of(agent.state.promises, "uid-new", "app") is None, "nobody is aligned anew"
    given = before.of_pod("uid-pool").of(CpuHoldings).pod_cpus or own_set_of(before, "uid-pool", "app")
    assert given is not None
    assert default_set(agent.state.promises) == CpuSet.parse("0-7") - given


def test_with_the_gate_off_they_keep_it_where_the_rest_of_the_state_must_be_made_anew(tmp_path: Path) -> None:
    life = Life(tmp_path, node(two_nodes(), gates=PLRM, **BY_POD), *GROUPED)
    running = life.processes()
    now = node(two_nodes(), gates=OFF, reserved="0-1", **BY_POD)

    found = life.start(now)

    assert found.state.promises.of_pod("uid-rest") == life.before.promises.of_pod("uid-rest")
    assert found.state.promises.of_pod("uid-pool").of(CpuHoldings).pod_cpus is None, "a CPU of it is reserved now"
    reported = [d for d in recovery(found).differences if d.what.resource == "CPUs"]
    assert {(d.pod.name, d.what.after, d.what.why.partition(";")[0]) for d in reported} == {
        ("pool", "shared", "CPUs 1 are reserved"),
        ("pool", "shared", "it could not keep its CPUs"),
    }
    life.go_on(found)
    assert life.processes() == running


@pytest.mark.parametrize("gates", [OFF, PLRM], ids=["off", "on"])
def test_a_pod_that_was_to_have_no_cpus_of_its_own_lacks_none(gates: tuple[tuple[str, bool], ...]) -> None:
    """Its gate is off; or the CPUs that it asks for as a whole are no whole number."""
    of = node(two_nodes(), gates=gates, **BY_POD)
    one = pod("p", app("app", "1"), app("other"), resources=exclusive("4" if gates is OFF else "2500m", "256Mi"))
    _, agent = started(of, one)
    assert count_lacking_cpus(of.managers, agent.state.promises, one, "app") == 0


@pytest.mark.parametrize("placement", [BY_POD, PER_CONTAINER], ids=["pod", "container"])
def test_pods_with_resources_of_their_own_are_known_again_by_their_cgroups(
    tmp_path: Path, placement: dict[str, Any]
) -> None:
    life = Life(tmp_path, node(two_nodes(), gates=PLRM, **placement), pod("first", app("app", "1")), GROUPED[1])
    lost(life)
    assert sets(life.start(None, GROUPED[1]).state) == {
        key: cpus for key, cpus in sets(life.before).items() if key[0] == "uid-pool"
    }


LARGE = (
    pod("a", app("app", resources=exclusive("2", "5Gi"))),
    pod("b", app("app", resources=exclusive("2", "5Gi"))),
)
ONE_NODE = Topology.of(
    [Cpu(id=c, core=c % 4, socket=0, numa=0) for c in (0, 1, 4, 5)], [NumaNode(0, 8 * GIB, (), (10,))]
)
SINGLE = {"topology_manager_policy": "single-numa-node", **MEMORY}


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_numa_node_that_is_gone_degrades_who_runs_and_refuses_who_does_not(tmp_path: Path, *, rebooted: bool) -> None:
    life = Life(tmp_path, node(two_nodes(), **SINGLE), *LARGE)
    assert sets(life.before) == {("uid-a", "app"): CpuSet.of(1, 5), ("uid-b", "app"): CpuSet.of(2, 6)}
    if rebooted:
        life.reboot()
    found = life.start(node(ONE_NODE, **SINGLE))
    assert recovery(found).unusable == (STATE_FILE,)
    if rebooted:
        assert [entry.pod.full_name for entry in recovery(found).refused] == ["default/b"]
        log = io.StringIO()
        log_recovery(recovery(found), make_log(log))
        line = json.loads(log.getvalue().splitlines()[-1])
        assert (line["event"], line["pod"], line["pod_uid"]) == ("pod_refused", "default/b", "uid-b")
        assert (line["reason"], line["source"]) == ("TopologyAffinityError", "b.yaml")
        refusal = found.state.entries[1].refusal
        assert refusal is not None
        assert refusal.reason == "TopologyAffinityError"
    else:
        cpus, memory = recovery(found).differences
        assert (cpus.pod.name, cpus.what.resource, cpus.what.before, cpus.what.after) == ("b", "CPUs", "2,6", "shared")
        assert cpus.what.why.startswith("CPUs 2,6 are not online; degraded: has 0 of 2 exclusive CPUs")
        assert (memory.pod.name, memory.what.resource, memory.what.before, memory.what.after) == (
            "b",
            "memory nodes",
            "1",
            "any",
        )
        assert memory.what.why.startswith("NUMA nodes 1 are gone; degraded: ")
    assert sets(found.state)["uid-a", "app"] == CpuSet.of(1, 5)
    life.go_on(found)


@pytest.mark.parametrize("rebooted", [False, True])
def test_cpus_that_are_gone_are_replaced_for_pods_without_processes_only(tmp_path: Path, *, rebooted: bool) -> None:
    """A process is better off on the CPUs that are left to it, until they return (D14), than on others for good."""
    life = Life(tmp_path, node(two_nodes()), pod("a", app("app", "2")), pod("b", app("app", "2")))
    assert sets(life.before)["uid-b", "app"] == CpuSet.of(2, 6)
    if rebooted:
        life.reboot()
    found = life.start(node(two_nodes(6)))
    expected = CpuSet.of(2, 3) if rebooted else CpuSet.of(2, 6)
    assert sets(found.state) == {("uid-a", "app"): CpuSet.of(1, 5), ("uid-b", "app"): expected}
    if rebooted:
        assert [str(d) for d in recovery(found).differences] == [
            "pod default/b, container app: CPUs 2,6 → 2-3: CPUs 6 are not online"
        ]
    life.go_on(found)


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize(
    ("reserved", "running", "anew"),
    [("0,2", "3,6", "3,7"), ("0,2,3,6,7", "1,5", "")],
    ids=["one CPU reserved", "all that it allows"],
)
def test_what_claims_allow_is_kept_to_by_pods_without_processes(
    tmp_path: Path, reserved: str, running: str, anew: str, *, rebooted: bool
) -> None:
    """Who runs gets the nearest instead, and keeps its card; another is decided on anew, with the cards that there are."""
    on_node_1 = 'device.attributes["dra.cpu"].numaNodeID == 1'
    claim = template(request("cpus", "dra.cpu", on_node_1, count=2), request("nic", "nodeagent.io"))
    before = node(two_nodes())
    before = replace(before, managers=before.managers.knowing(PlacedDevices.of((ETH0,), two_nodes())))
    life = Life(tmp_path, before, claiming("a", "2", claim))
    assert sets(life.before) == {("a", "app"): CpuSet.of(2, 6)}
    if rebooted:
        life.reboot()
    found = life.start(node(two_nodes(), reserved=reserved))
    assert sets(found.state).get(("a", "app"), CpuSet()) == CpuSet.parse(anew if rebooted else running)
    (entry,) = found.state.entries
    held = found.state.promises.of_pod("a")
    if rebooted and not anew:
        assert entry.refusal is not None
        assert "2 wanted, 0 devices meet its selectors" in entry.refusal.message
    else:
        assert [one.id for one in held.of(DeviceHoldings).devices_of("app")] == [ETH0.address]
    if rebooted and anew:
        assert len(held.of(ClaimHoldings).claims[0].devices) == 3


@pytest.mark.parametrize(
    ("now", "kept"),
    [(node(two_nodes(6)), "2,6"), (node(two_nodes(), reserved="0,6"), "2"), (node(two_nodes(), reserved="0,2,6"), "")],
    ids=["offline", "reserved", "all reserved"],
)
def test_cpus_that_are_gone_are_not_replaced_for_a_pod_that_is_ending(tmp_path: Path, now: Node, kept: str) -> None:
    """Its processes have ended already: it is to give its CPUs back."""
    life = Life(tmp_path, node(two_nodes()), pod("a", app("app", "2")), pod("b", app("app", "2")))
    entry = life.before.entries[1]
    ending = life.before.with_entry(replace(entry, deleting_since_ms=life.machine.now_ms))
    (tmp_path / STATE_FILE).write_bytes(encode_state(ending, policies_of(life.of.config.placement)))
    life.reboot()
    found = life.start(now)
    others = {key: cpus for key, cpus in sets(life.before).items() if key[0] != entry.pod.uid}
    own = {(entry.pod.uid, "app"): CpuSet.parse(kept)} if kept else {}
    assert sets(found.state) == {**others, **own}
    assert recovery(found).refused == ()
    assert recovery(found).unusable == (() if kept == "2,6" else (STATE_FILE,))
    assert recovery(found).differences == ()
    life.go_on(found)


# Manifests that cannot be read when the state is lost


def lost(life: Life) -> None:
    for name in (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT):
        truncated(life.directory / name)


@pytest.mark.parametrize("how", ["blind", "unreadable"])
def test_who_runs_waits_for_a_manifest_and_keeps_everything(tmp_path: Path, how: str) -> None:
    life = Life(tmp_path, STATIC, *PODS)
    lost(life)
    running, starts = life.processes(), list(life.machine.starts)
    manifests = life.agent.wanted
    life.agent.wanted = () if how == "blind" else manifests[1:]
    found = life.start()
    assert [e.pod.name for e in found.state.entries] == ([] if how == "blind" else ["b", "c", "d", "e"])
    agent = WatchedAgent(life.machine)
    agent.state, agent.saved = found.state, encode_state(found.state, policies_of(STATIC.config.placement))
    agent.is_blind, agent.wanted = how == "blind", life.agent.wanted
    agent.rest()
    assert life.processes() == running, "nobody ends whom nobody knows"
    life.machine.launcher_answers = False
    agent.is_blind, agent.wanted = False, manifests
    agent.rest()
    known = {e.pod.name for e in agent.state.entries}
    assert "a" not in known, "nobody can say what its processes are"
    life.machine.launcher_answers = True
    agent.rest()
    assert life.processes() == running
    assert life.machine.starts == starts
    over = ("uid-b", "first")  # it has run, and its empty cgroup belonged to nobody
    assert {**sets(agent.state), over: None} == {**sets(life.before), over: None}
    adopted = [f.pod.name for f in agent.events if f.kind is EventKind.POD_ADOPTED]
    assert "a" in adopted
    changed = {(f.pod.name, f.container) for f in agent.events if f.kind is EventKind.PROMISE_CHANGED}
    assert changed <= {("e", "app")}, "its turn had not come, and its empty cgroup belonged to nobody"


@pytest.mark.parametrize("cpus", ["2", "8"])
def test_a_pod_waits_for_processes_of_a_container_that_it_has_no_more(tmp_path: Path, cpus: str) -> None:
    """While the state was lost its manifest became another one, of the same UID, which may not even fit."""
    life = Life(tmp_path, STATIC, pod("a", app("app", "2")))
    lost(life)
    life.agent.want()
    agent = life.go_on(life.start())
    card = HeldDevice("example.com/nic", ETH0.address)
    of_a = UnrecoveredPod("uid-a", NOTHING.having(DeviceHoldings(devices=(("app", (card,)),))))
    agent.state = replace(agent.state, promises=replace(agent.state.promises, unrecovered=(of_a,)))
    agent.want(pod("a", app("other", cpus)))
    agent.rest()
    assert agent.state.entries == ()
    assert agent.state.promises.unrecovered == (of_a,)
    life.machine.groups["poduid-a/app"].processes.clear()
    agent.rest()
    assert agent.state.promises.unrecovered == ()
    (entry,) = agent.state.entries
    assert (entry.refusal is None) == (cpus == "2")


def test_a_new_pod_is_placed_beside_those_whom_nobody_knows(tmp_path: Path) -> None:
    """Pod a's manifest was removed while the agent was down, and the state is lost: its processes run on."""
    life = Life(tmp_path, STATIC, pod("a", app("app", "2")))
    lost(life)
    life.agent.want(pod("new", app("app", "2")))
    agent = life.go_on(life.start())
    assert sets(agent.state) == {("uid-new", "app"): CpuSet.of(2, 6)}
    assert agent.machine.running_containers() == ("poduid-a/app", "poduid-new/app")
    assert agent.plan().orphans == ("poduid-a/app",)
    assert default_set(agent.state.promises) == CpuSet.parse("0-1,3-5,7")


def test_who_needs_their_cpus_waits_for_them(tmp_path: Path) -> None:
    life = Life(tmp_path, STATIC, pod("a", app("app", "2")))
    lost(life)
    life.agent.want(pod("new", app("app", "6")))
    agent = life.go_on(life.start())
    assert agent.machine.running_containers() == ("poduid-a/app",)
    life.machine.groups["poduid-a/app"].processes.clear()
    agent.rest()
    assert agent.machine.running_containers() == ("poduid-new/app",)


def test_a_node_is_taken_over_from_kubelet(tmp_path: Path) -> None:
    """There are kubelet's two files and manifests, and nothing of ours: who is in both keeps CPUs and memory."""
    life = Life(tmp_path, NUMA, *PODS)
    (tmp_path / STATE_FILE).unlink()
    life.reboot()
    life.machine.runs.clear()
    life.agent.want(*(p for p in PODS if p.name != "d"))
    found = life.start()
    expected = {key: cpus for key, cpus in sets(life.before).items() if key[0] != "uid-d"}
    assert sets(found.state) == expected
    assert recovery(found).unusable == ()
    assert recovery(found).differences == ()
    assert recovery(found).adopted == ("default/a", "default/b", "default/e")
    life.machine.starts.clear()
    agent = life.go_on(found)
    assert agent.machine.running_containers() == (
        "poduid-a/app",
        "poduid-b/first",
        "poduid-c/app",
        "poduid-e/still",
    )
    assert {key: cpus for key, cpus in sets(agent.state).items() if key in expected} == expected


def test_a_pod_that_came_back_under_its_uid_is_known_by_its_last_life(tmp_path: Path) -> None:
    life = Life(tmp_path, STATIC, pod("a", app("app", "1")))
    [run_id] = life.processes()
    [before] = life.before.entries
    earlier = Run("uid-a/app/1.7", 5, exit=Exit(9, code=0))
    foreign = Run("uid-a/app/nonsense", 5, exit=Exit(9, code=0))
    life.machine.runs |= {earlier.id: earlier, foreign.id: foreign}
    lost(life)
    [entry] = life.start().state.entries
    assert entry.decided_at_ms == before.decided_at_ms
    assert entry.containers[0].attempt == 1
    life.machine.exit(run_id, 3)
    [entry] = life.start().state.entries
    assert entry.containers[0].exit == Exit(life.machine.now_ms, code=3), "an end that nobody has read yet is not lost"


def test_of_an_end_that_was_forgotten_nobody_knows(tmp_path: Path) -> None:
    """Two jobs in a pod that never restarts: one has ended and been read, and then the state is lost. It does not run again."""
    two = replace(pod("a", app("one"), app("two")), restart_policy=RestartPolicy.NEVER)
    life = Life(tmp_path, STATIC, two)
    [over] = [run_id for run_id in life.processes() if "/one/" in run_id]
    life.machine.exit(over, 0)
    life.agent.rest()
    assert over not in life.machine.runs, "it was read, and the launcher has forgotten it"
    lost(life)
    starts = list(life.machine.starts)
    agent = life.go_on(life.start())
    assert life.machine.starts == starts
    ended = agent.state.entries[0].status("one").exit
    assert ended is not None
    assert ended.reason == "ContainerStatusUnknown"


@pytest.mark.parametrize(("less", "is_ordinary"), [(4096, True), (GIB, False)])
def test_memory_that_differs_after_a_boot_is_named_and_is_no_warning_if_it_is_little(
    less: int, is_ordinary: bool, tmp_path: Path
) -> None:
    before, after = (8 * GIB, 8 * GIB - less)
    life = Life(tmp_path, node(two_nodes(memory_bytes=before), **MEMORY), pod("a", app("app", "2")))
    found = life.start(node(two_nodes(memory_bytes=after), **MEMORY))
    problems = tuple(
        f"memory of NUMA node {number}: {before // 1024:,} KiB → {after // 1024:,} KiB: the machine differs from nodeagent_state: accepted"
        for number in (0, 1)
    )
    assert found.recovery == Recovery(problems, is_ordinary=is_ordinary)
    written = io.StringIO()
    log_recovery(recovery(found), make_log(written))
    line = json.loads(written.getvalue())
    assert (line["event"], line["level"]) == ("state_recovered", "info" if is_ordinary else "warning")
