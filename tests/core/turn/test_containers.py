"""A container runtime's calls through managers, registry and answers, against a runtime that has cpusets: promises hold, exclusive CPUs
have one user, and whoever is gone has left nothing.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.core.admission.managers import Rejected, Report, remove_pod
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.domains.runtime import decisions
from nodeagent.core.domains.runtime.answers import Response, build_response
from nodeagent.core.domains.runtime.call_answer import answer_call
from nodeagent.core.domains.runtime.decisions import EventDecided, decide_event
from nodeagent.core.domains.runtime.instructions import (
    Adopt,
    Correct,
    CountFailOpen,
    Happening,
    Looked,
    Place,
    Populated,
    Retried,
)
from nodeagent.core.domains.runtime.known_again import restore_known
from nodeagent.core.domains.runtime.occupants import Node as TurnNode, find_shared_pool, list_occupants, wanted_by_key
from nodeagent.core.domains.runtime.pod_model import ToldBy
from nodeagent.core.domains.runtime.registry import awaits_end
from nodeagent.core.domains.runtime.reported import RuntimeReport
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.nri import Answer, Call, ContainerState, Denial, Event, Synchronized
from nodeagent.core.model.pod import Pod, QosClass
from nodeagent.core.model.promises import NOTHING, UnrecoveredPod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import (
    INVALID_ANNOTATIONS,
    INVALID_NAME,
    POD_NOT_KNOWN,
    RESIZE_DEFERRED,
    RESIZE_INFEASIBLE,
    UID_TAKEN,
    Reason,
)
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.cpu.points import PluginFailedError, Point
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import EventKind, World
from nodeagent.daemon.domains.runtime.adapters import CONTAINERD
from nodeagent.daemon.domains.runtime.containers import find_name_problems, read_pod_annotations
from nodeagent.daemon.reports.problems import describe_misnamed_pods, describe_refused_containers
from tests.support.pods import app, burstable, exclusive, init, manifests, pod, sidecar
from tests.support.runtime_pods import kubelets, sandbox_of, told, told_resources
from tests.support.world import SMALL, START_MS, Node, empty_state, node

NODE = node(SMALL, config={"check_allocatable": True})
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""


class Runtime:
    """containerd: it has what it was answered, and only notes what fails."""

    def __init__(self, of: Node = NODE) -> None:
        self.of = of
        self.state = empty_state(of)
        self.cpusets: dict[str, CpuSet] = {}
        self.running: set[str] = set()
        self.boxes: dict[str, Any] = {}
        self.containers: dict[str, Any] = {}
        self.events: list[Any] = []
        self.todo: tuple[Any, ...] = ()
        self.says: dict[str, KubeletPod] = {}
        """What kubelet answers when it is asked, by UID."""

    def node(self) -> TurnNode:
        world = World(
            self.of.config, self.of.managers, self.of.allocatable, (PodSource(),), {}, {}, START_MS,
        )  # fmt: skip
        return TurnNode(
            world,
            self.of.kernel,
            RuntimeReport.of(self.boxes, self.containers),
            read_pod_annotations,
            CONTAINERD.origin,
            "/sys/fs/cgroup",
            find_name_problems,
        )

    def seen(self) -> dict[str, ObservedCgroup]:
        def group(one: str) -> ObservedCgroup:
            cpus = self.cpusets[one]
            attributes = ((Attribute.CPUSET_CPUS, cpus),)
            return ObservedCgroup(
                one, frozenset(), frozenset(), attributes, cpus, None, is_populated=one in self.running, is_frozen=False
            )

        return {one: group(one) for one in self.cpusets}

    def happens(self, what: Happening) -> EventDecided:
        found = what.found if isinstance(what, Looked) else what
        if isinstance(found, Synchronized):
            self.containers |= {one.id: one for one in found.containers}
        taken = decide_event(Draft(self.state), what, self.node())
        self.state = taken.draft.state
        self.events += taken.draft.events
        self.todo = taken.todo
        assert violations(self.of.managers, self.state) == ()
        return taken

    def call(self, event: Event, one: str, **more: Any) -> Response | Denial:
        container = self.containers[one]
        box = self.boxes[container.sandbox_id]
        is_asked = event in {Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX}
        if event is Event.UPDATE_POD_SANDBOX:
            container = None
        call = Call(event, box, container, **more, pod=self.says.get(box.uid) if is_asked else None)
        taken = self.happens(call)
        there = list_occupants(self.state, self.node(), self.seen(), {})
        node = self.node()
        return answer_call(
            call,
            taken.todo,
            wanted_by_key(self.state, node),
            there,
            self.seen(),
            find_shared_pool(self.state, node),
            node.world.managers.reserved,
        )

    def create(self, of: Pod, name: str, one: str, box: str = "", **annotations: str) -> Response | Denial:
        box = box or f"box-{of.uid}"
        self.boxes[box] = sandbox_of(of, box, **annotations)
        path = f"{self.boxes[box].cgroup_parent}:cri-containerd:{one}"
        self.containers[one] = told(of, of.container(name), id=one, sandbox_id=box, cgroups_path=path)
        answer = self.call(Event.CREATE_CONTAINER, one)
        if isinstance(answer, Response):
            assert answer.answer.adjustment is not None
            assert answer.answer.adjustment.cpus is not None
            self.cpusets[one] = answer.answer.adjustment.cpus
            self.carry_out(answer)
        return answer

    def start(self, one: str) -> Response | Denial:
        self.running.add(one)  # its first process is in its cgroup, and has been on its CPUs
        for entry in self.state.entries:
            for container in entry.pod.containers:
                own = own_set_of(self.state.promises, entry.pod.uid, container.name) or CpuSet()
                key = self.state.runtime.key_of(one)
                # Those of one pod have the same CPUs one after the other, as kubelet's do.
                is_its = key is not None and key.pod_uid == entry.pod.uid
                assert is_its or self.cpusets[one].isdisjoint(own)
        answer = self.call(Event.START_CONTAINER, one)
        if isinstance(answer, Denial):
            self.running.discard(one)
        return answer

    def run(self, of: Pod, name: str, one: str, **annotations: str) -> None:
        assert isinstance(self.create(of, name, one, **annotations), Response)
        assert self.start(one) == Response(Answer())
        self.push()

    def end(self, one: str) -> None:
        self.running.discard(one)
        self.call(Event.STOP_CONTAINER, one)
        self.call(Event.REMOVE_CONTAINER, one)
        self.cpusets.pop(one)

    def look(self) -> None:
        self.happens(Populated(frozenset(self.running)))

    def push(self) -> Response:
        node = self.node()
        found = build_response(
            list_occupants(self.state, node, self.seen(), {}), pool=find_shared_pool(self.state, node)
        )
        self.carry_out(found)
        return found

    def carry_out(self, found: Response) -> None:
        for update in found.answer.updates:
            if update.resources.cpus is not None:
                self.cpusets[update.container_id] = update.resources.cpus

    def own(self, of: Pod, name: str) -> CpuSet | None:
        return own_set_of(self.state.promises, of.uid, name)

    def listed(self) -> Synchronized:
        found = []
        for one, cpus in self.cpusets.items():
            state = ContainerState.RUNNING if one in self.running else ContainerState.CREATED
            container = self.containers[one]
            resources = replace(container.resources, cpus=cpus, mems=NumaSet.of(0))
            found.append(replace(container, state=state, resources=resources))
        boxes = {container.sandbox_id for container in found}
        there = tuple(box for id_, box in sorted(self.boxes.items()) if id_ in boxes)
        return Synchronized(there, tuple(found), tuple(self.says[box.uid] for box in there if box.uid in self.says))


WEB = pod("web", app("main", "2"), app("side", "1"))
SHARING = pod("sharing", app("main", resources=burstable("500m")))


def test_a_pod_grows_by_its_containers_and_keeps_what_they_have() -> None:
    runtime = Runtime()
    runtime.run(SHARING, "main", "s")
    assert runtime.cpusets["s"] == CpuSet.parse("0-7")
    runtime.run(WEB, "main", "m")
    main = runtime.own(WEB, "main")
    assert main is not None
    assert len(main) == 2
    assert runtime.cpusets["m"] == main
    assert runtime.cpusets["s"] == CpuSet.parse("0-7") - main, "it leaves in the same answer"
    runtime.run(WEB, "side", "d")
    assert runtime.own(WEB, "main") == main
    assert runtime.cpusets["s"] == CpuSet.parse("0-7") - main - runtime.cpusets["d"]
    entry = runtime.state.entry(WEB.uid)
    assert entry is not None
    assert (entry.qos, [one.name for one in entry.pod.containers]) == (QosClass.GUARANTEED, ["main", "side"])
    assert (
        entry.container_path("main") == "/sys/fs/cgroup/kubepods.slice/kubepods-poduid_web.slice/cri-containerd-m.scope"
    )
    assert [event.kind for event in runtime.events] == [EventKind.POD_ADMITTED] * 3

    runtime.end("m")
    assert runtime.own(WEB, "main") == main, "its cgroup was not seen without processes yet"
    assert awaits_end(runtime.state.runtime)
    runtime.look()
    assert runtime.own(WEB, "main") is None
    runtime.push()
    assert runtime.cpusets["s"] >= main
    for one in ("d", "s"):
        runtime.end(one)
    runtime.look()
    assert not runtime.state.entries
    assert runtime.state.promises == empty_state(NODE).promises


def test_a_manifests_pod_and_a_runtimes_one_know_of_each_other() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    local = pod("local", app("app", "6"))
    world = replace(runtime.node().world, sources=(PodSource(manifests(local)),))
    refused = step(runtime.state, world).state.entry(local.uid)
    assert refused is not None
    assert refused.refusal is not None, "7 CPUs are left of 8, and 2 have gone"
    local = pod("local", app("app", "4"))
    world = replace(world, sources=(PodSource(manifests(local)),))
    runtime.state = step(runtime.state, world).state
    assert isinstance(runtime.create(WEB, "side", "d"), Response)
    again = runtime.create(pod("other", app("main", "1")), "main", "o")
    assert isinstance(again, Denial)
    assert "OutOfcpu" in again.reason
    assert runtime.state.own_entries()[0].pod == local


def test_a_manifest_with_the_name_of_a_runtimes_pod_is_another_pod() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    same = pod("web", app("main", "1"), uid="another")
    world = replace(runtime.node().world, sources=(PodSource(manifests(same)),))
    after = step(runtime.state, world).state
    assert violations(NODE.managers, after) == ()
    assert {entry.pod.uid for entry in after.entries if entry.is_active} == {WEB.uid, "another"}
    gone = step(after, replace(world, sources=(PodSource(),), released=frozenset({WEB.uid}))).state
    assert gone.entry(WEB.uid) == runtime.state.entry(WEB.uid), "no file and no `release` ends it"


def test_a_refusal_is_remembered_until_somebody_asks_again_or_the_pod_goes() -> None:
    runtime = Runtime()
    large = pod("large", app("main", "9"))
    first = runtime.create(large, "main", "l1")
    assert isinstance(first, Denial)
    assert len(runtime.events) == 1
    assert runtime.create(large, "main", "l2") == first
    assert len(runtime.events) == 1, "told once"
    entry = runtime.state.entry(large.uid)
    assert entry is not None
    assert entry.refusal is not None
    runtime.happens(Retried(large.uid))
    assert runtime.state.entries == ()
    assert runtime.create(large, "main", "l3") == first
    runtime.happens(Call(Event.REMOVE_POD_SANDBOX, runtime.boxes[f"box-{large.uid}"]))
    assert (runtime.state.entries, runtime.state.runtime) == ((), Registry())


def test_a_creation_that_waits_for_a_slow_plugin_is_denied_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    promises = runtime.state.promises
    slow = Rejected(
        promises, promises, Reason.DEVICE_PLUGINS_SLOW, "example.com/nic has not answered", (), Report((), ())
    )
    with monkeypatch.context() as patched:
        patched.setattr(decisions, "decide_pod", lambda *_: slow)
        denied = runtime.create(WEB, "main", "m")
    assert isinstance(denied, Denial)
    assert "example.com/nic has not answered" in denied.reason
    assert runtime.state.entries == ()
    assert runtime.state.runtime.refused == ()
    assert isinstance(runtime.create(WEB, "main", "again"), Response)


def test_a_refused_container_of_an_admitted_pod_is_a_problem_that_a_retry_ends() -> None:
    runtime = Runtime()
    mixed = pod("mixed", app("main", "2"), app("large", "6"))
    runtime.run(mixed, "main", "m")
    assert isinstance(runtime.create(mixed, "large", "l"), Denial)
    (problem,) = describe_refused_containers(runtime.state, for_room=False)
    assert problem.startswith("pod default/mixed, container large is refused: OutOfcpu: ")
    runtime.happens(Retried(mixed.uid))
    assert [*describe_refused_containers(runtime.state, for_room=False)] == []
    assert runtime.own(mixed, "main") == runtime.cpusets["m"]


def test_a_pod_with_the_uid_of_one_from_a_manifest_is_refused_until_the_manifest_has_another() -> None:
    runtime = Runtime()
    world = replace(runtime.node().world, sources=(PodSource(manifests(WEB)),))
    runtime.state = step(runtime.state, world).state
    denied = runtime.create(WEB, "main", "m")
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(UID_TAKEN)
    other = replace(WEB, uid="another")
    for _ in range(2):  # the former pod ends, and is gone
        runtime.state = step(runtime.state, replace(world, sources=(PodSource(manifests(other)),), runs={})).state
    assert isinstance(runtime.create(WEB, "main", "again"), Response), "nobody has to ask for a retry"


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"requests.nodeagent.io/main": "cpu=3"}, INVALID_ANNOTATIONS),
        ({"requests.nodeagent.io/main": "cpu=lots"}, INVALID_ANNOTATIONS),
    ],
)
def test_what_a_pod_states_wrongly_refuses_it(annotations: dict[str, str], reason: str) -> None:
    denied = Runtime().create(WEB, "main", "m", **annotations)
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(reason)


def test_a_pod_with_a_name_that_no_state_can_have_is_refused_and_part_of_none() -> None:
    runtime = Runtime()
    odd = pod("Odd\nname", app("main", "1"), uid="uid-odd")
    denied = runtime.create(odd, "main", "m")
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(INVALID_NAME)
    assert "\n" not in denied.reason
    assert runtime.state.entries == ()
    (problem,) = describe_misnamed_pods(runtime.state)
    assert "container main is refused: InvalidName" in problem
    assert isinstance(runtime.create(odd, "main", "n"), Denial), "as before"
    assert [event.kind for event in runtime.events] == [EventKind.POD_REFUSED]
    runtime.happens(Synchronized())
    runtime.look()
    assert list(describe_misnamed_pods(runtime.state)) == []


def test_pods_are_aligned_as_a_whole_only_if_all_is_known_of_them() -> None:
    of = node(SMALL, topology_manager_policy="restricted", topology_manager_scope="pod")
    denied = Runtime(of).create(WEB, "main", "m")
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(POD_NOT_KNOWN)
    runtime = Runtime(of)
    amounts = "cpu=1, memory=64Mi"
    stated = {"requests.nodeagent.io/side": amounts, "limits.nodeagent.io/side": amounts}
    runtime.run(WEB, "main", "m", **{"nodeagent.io/containers": "main=app, side=app"}, **stated)
    assert runtime.own(WEB, "side") is not None, "it is promised with its pod"


def test_what_kubelet_says_makes_a_pod_whole_and_a_refusal_is_decided_on_again_once_it_says_it() -> None:
    of = node(SMALL, topology_manager_policy="restricted", topology_manager_scope="pod")
    runtime = Runtime(of)
    denied = runtime.create(WEB, "main", "m")
    assert isinstance(denied, Denial)
    assert "kubelet's pods API (kubeletPodsSocket) has not returned them" in denied.reason
    assert runtime.create(WEB, "main", "n") == denied, "nothing has changed"
    assert [event.kind for event in runtime.events] == [EventKind.POD_REFUSED]
    runtime.says[WEB.uid] = kubelets(WEB)
    runtime.run(WEB, "main", "o")
    main, side = runtime.own(WEB, "main"), runtime.own(WEB, "side")
    assert main is not None
    assert side is not None
    assert runtime.state.runtime.pods == (kubelets(WEB),)
    runtime.says.clear()
    runtime.run(WEB, "side", "s")
    assert (runtime.own(WEB, "main"), runtime.own(WEB, "side")) == (main, side), (
        "it is kept, and was promised with its pod"
    )
    (entry,) = runtime.state.entries
    known = restore_known(entry, runtime.state.runtime, lambda box: read_pod_annotations(box).pod, 0)
    assert {one.by for one in known} == {ToldBy.CGROUP_PARENT, ToldBy.PODS_API}
    assert all(one.is_exact for one in known)


def test_what_was_refused_and_runs_is_decided_on_once_kubelet_has_been_asked_about_it() -> None:
    """In the agent's absence it began; at the next look kubelet answers."""
    of = node(SMALL, topology_manager_policy="restricted", topology_manager_scope="pod")
    runtime = Runtime(of)
    runtime.boxes["box"] = sandbox_of(WEB, "box")
    path = f"{runtime.boxes['box'].cgroup_parent}:cri-containerd:m"
    runtime.containers["m"] = told(WEB, WEB.container("main"), id="m", sandbox_id="box", cgroups_path=path)
    runtime.cpusets["m"] = CpuSet.parse("0-7")
    runtime.running.add("m")
    runtime.happens(runtime.listed())
    assert runtime.own(WEB, "main") is None
    runtime.happens(Retried(WEB.uid))
    assert runtime.own(WEB, "main") is None, "it is refused again: nobody has been asked since"
    runtime.says[WEB.uid] = kubelets(WEB)
    runtime.happens(Looked(runtime.listed()))
    runtime.push()
    assert runtime.cpusets["m"] == runtime.own(WEB, "main")
    assert not runtime.state.runtime.refused


def as_a_whole(cpu: str) -> Pod:
    """A pod with resources of its own, and two containers that have less."""
    return pod("whole", app("main", "1"), app("side", "1"), resources=exclusive(cpu, "1Gi"))


MANAGED = (("PodLevelResourceManagers", True),)


@pytest.mark.parametrize("gates", [(), MANAGED])
def test_a_pod_as_a_whole_is_told_to_have_other_amounts(gates: tuple[tuple[str, bool], ...]) -> None:
    """What only counts follows; what the pod has for itself stays while it runs, and that is said whenever kubelet tries."""
    scope = {"topology_manager_policy": "restricted", "topology_manager_scope": "pod"} if gates else {}
    runtime = Runtime(node(SMALL, gates=gates, config={"check_allocatable": True}, **scope))
    runtime.says["uid-whole"] = kubelets(as_a_whole("3"))
    runtime.run(as_a_whole("3"), "main", "m")
    before = runtime.state
    assert runtime.call(Event.UPDATE_POD_SANDBOX, "m") == Response(Answer())
    assert runtime.state == before, "nothing has changed"
    runtime.says["uid-whole"] = kubelets(as_a_whole("4"))
    answers = [runtime.call(Event.UPDATE_POD_SANDBOX, "m") for _ in range(2)]
    (entry,) = runtime.state.entries
    assert entry.pod.resources is not None
    if gates:
        assert isinstance(answers[0], Denial)
        reason = (
            f"{RESIZE_INFEASIBLE}: the pod as a whole: CPUs 3 → 4: CPUs and memory allocated to the pod as a whole, "
        )
        assert answers[0].reason.startswith(reason)
        assert answers[1] == answers[0]
        assert runtime.state.promises == before.promises
    else:
        assert answers == [Response(Answer())] * 2
        assert str(entry.pod.resources.requests.get("cpu")) == "4"
        runtime.says["uid-whole"] = kubelets(as_a_whole("9"))
        denied = runtime.call(Event.UPDATE_POD_SANDBOX, "m")
        assert isinstance(denied, Denial)
        assert denied.reason.startswith(f"{RESIZE_INFEASIBLE}: Node didn't have enough resource: cpu")
    assert runtime.own(as_a_whole("3"), "main") == own_set_of(before.promises, "uid-whole", "main")
    runtime.end("m")
    runtime.says["uid-whole"] = kubelets(as_a_whole("3"))
    runtime.run(as_a_whole("3"), "main", "n")


def test_a_pod_whose_other_amounts_are_refused_as_a_whole_gets_its_containers_made_again() -> None:
    """kubelet already says what somebody wants of a container, and hasn't asked the runtime for it yet."""
    runtime = Runtime(node(SMALL, topology_manager_policy="restricted", topology_manager_scope="pod"))

    def of(cpu: str, whole: str) -> Pod:
        return pod("whole", app("main", resources=burstable(cpu)), resources=burstable(whole))

    runtime.says["uid-whole"] = kubelets(of("100m", "1"))
    runtime.run(of("100m", "1"), "main", "m")
    runtime.says["uid-whole"] = kubelets(of("500m", "2"))
    denied = runtime.call(Event.UPDATE_POD_SANDBOX, "m")
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(f"{RESIZE_INFEASIBLE}: {POD_NOT_KNOWN}: ")
    runtime.running.discard("m")
    runtime.call(Event.STOP_CONTAINER, "m")
    runtime.run(of("100m", "1"), "main", "n")


def test_who_shares_gets_more_once_others_have_gone() -> None:
    runtime = Runtime()
    runtime.run(pod("big", app(cpu="5")), "app", "b")
    small = pod("small", app(resources=burstable("1")))
    runtime.run(small, "app", "s")
    more = told_resources(app(resources=burstable("4")))
    denied = [runtime.call(Event.UPDATE_CONTAINER, "s", resources=more) for _ in range(2)]
    assert all(isinstance(one, Denial) and one.reason.startswith(f"{RESIZE_DEFERRED}: ") for one in denied)
    runtime.end("b")
    runtime.look()
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "s", resources=more), Response)
    assert str(runtime.state.entries[0].pod.container("app").resources.requests.get("cpu")) == "4"


def test_nobody_is_asked_about_a_pod_that_kubelet_says_nothing_of() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    before = runtime.state
    assert runtime.call(Event.UPDATE_POD_SANDBOX, "m") == Response(Answer())
    assert runtime.state == before


def test_a_resize_that_is_not_done_counts_as_what_kubelet_has_made() -> None:
    of = node(SMALL, topology_manager_policy="restricted", topology_manager_scope="pod")
    runtime = Runtime(of)
    larger = pod("web", app("main", "3"), app("side", "1"))
    runtime.says[WEB.uid] = kubelets(larger)
    runtime.run(WEB, "main", "m")
    own = runtime.own(WEB, "main")
    assert own is not None
    assert len(own) == 2, "what kubelet has asked the runtime for is exact, too"


@pytest.mark.parametrize("cpu", ["1", "3", "1500m"])
@pytest.mark.parametrize("first", ["side", "third"])
def test_a_resize_of_what_is_not_made_yet_counts(cpu: str, first: str) -> None:
    """Its image is being pulled. Whoever is made next, all that hasn't been made of is decided on again."""
    before = pod("three", app("main", "2"), app("side", "2"), app("third", "1"))
    after = pod("three", app("main", "2"), app("side", cpu), app("third", "1"))
    runtime = Runtime()
    runtime.says[before.uid] = kubelets(before)
    runtime.run(before, "main", "m")
    main = runtime.own(before, "main")
    runtime.says[before.uid] = kubelets(after)
    runtime.run(after, first, "n")
    own = runtime.own(after, "side") or CpuSet()
    assert len(own) == (0 if cpu == "1500m" else int(cpu))
    assert (runtime.own(after, "main"), len(runtime.own(after, "third") or ())) == (main, 1)


def test_a_container_that_has_ended_is_promised_something_again_only_when_it_is_made_again() -> None:
    of = pod("three", app("first", "2"), app("second", "1"), app("third", "1"))
    runtime = Runtime()
    runtime.says[of.uid] = kubelets(of)
    runtime.run(of, "first", "a")
    runtime.run(of, "second", "b")
    third = runtime.own(of, "third")
    assert third is not None
    runtime.end("a")
    runtime.look()
    assert runtime.own(of, "first") is None
    runtime.run(of, "third", "c")
    assert (runtime.own(of, "first"), runtime.own(of, "third")) == (None, third)
    runtime.run(of, "first", "again")
    assert runtime.cpusets["again"] == runtime.own(of, "first")


def test_an_app_container_follows_on_the_cpus_of_its_pods_init_container() -> None:
    """As kubelet has it, which knows what is one: otherwise they would have CPUs beside each other."""
    of = pod("chain", sidecar("proxy", "1"), init("setup", "4"), app("main", "2"))
    runtime = Runtime()
    runtime.says[of.uid] = kubelets(of)
    runtime.run(of, "proxy", "p")
    runtime.run(of, "setup", "s")
    main, setup = runtime.own(of, "main"), runtime.own(of, "setup")
    assert main is not None
    assert setup is not None
    assert main <= setup
    runtime.end("s")
    runtime.look()
    runtime.run(of, "main", "m")
    assert (runtime.own(of, "main"), runtime.own(of, "setup")) == (main, None)


def test_what_kubelet_has_said_goes_with_the_pod() -> None:
    runtime = Runtime()
    runtime.says[WEB.uid] = kubelets(WEB)
    runtime.run(WEB, "main", "m")
    assert runtime.state.runtime.pods
    runtime.end("m")
    runtime.happens(Synchronized())
    runtime.look()
    assert runtime.state.runtime == Registry()


def test_what_runs_without_having_asked_is_put_into_the_pool_or_where_it_belongs() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    own = runtime.own(WEB, "main")
    everything = CpuSet.parse("0-7")
    # the agent was away: the runtime gave one back everything, and started another
    path = "kubepods-burstable-podx.slice:cri-containerd:s"
    runtime.containers["s"] = told(SHARING, SHARING.container("main"), id="s", cgroups_path=path)
    runtime.boxes[f"sandbox-{SHARING.uid}"] = sandbox_of(SHARING)
    runtime.cpusets |= {"m": everything, "s": everything}
    runtime.running.add("s")
    taken = runtime.happens(runtime.listed())
    assert {type(one) for one in taken.todo} == {CountFailOpen, Correct, Place}
    runtime.push()
    assert runtime.cpusets["m"] == own
    assert own is not None
    assert runtime.cpusets["s"].isdisjoint(own)


def test_after_a_lost_state_whoever_runs_keeps_its_cpus() -> None:
    runtime = Runtime()
    pods = {name: pod(name, app("main", "1")) for name in ("first", "second", "third")}
    runtime.run(SHARING, "main", "s")
    for name, one in pods.items():
        runtime.run(one, "main", name)
    runtime.end("first")
    runtime.look()
    runtime.run(WEB, "main", "m")
    runtime.push()
    before = dict(runtime.cpusets)
    promises = runtime.state.promises
    # All is lost, and one has begun meanwhile that sorts before the others and may be anywhere.
    runtime.state = empty_state(NODE)
    late = pod("a-late", app("main", "1"))
    runtime.boxes["a-late"] = sandbox_of(late, "a-late")
    runtime.containers = {"a": told(late, late.container("main"), id="a", sandbox_id="a-late")} | runtime.containers
    runtime.cpusets = {"a": CpuSet.parse("0-7")} | runtime.cpusets
    runtime.running.add("a")
    taken = runtime.happens(runtime.listed())
    assert {(type(one), one.id) for one in taken.todo if isinstance(one, Adopt | CountFailOpen)} >= {
        (CountFailOpen, "a"),
        (Adopt, "m"),
        (Adopt, "second"),
        (Adopt, "third"),
    }
    for one in ("second", "third"):
        assert runtime.own(pods[one], "main") == own_set_of(promises, pods[one].uid, "main")
    assert runtime.own(WEB, "main") == before["m"]
    runtime.push()
    own = runtime.own(late, "main")
    assert own is not None
    assert runtime.cpusets == before | {"a": own, "s": before["s"] - own}


def test_after_a_lost_state_whoever_runs_keeps_the_device_that_is_in_its_dev() -> None:
    nic = "example.com/nic"
    cards = [Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0, names=(f"eth{number}",)) for number in range(3)]
    gives = node(SMALL, devices=(DeviceSelection(nic, (DeviceSelector(kind=DeviceKind.NETWORK),)),))
    knowing = gives.managers.knowing(PlacedDevices.of(cards, gives.managers.topology))
    runtime = Runtime(replace(gives, managers=knowing))
    pods = {name: pod(name, app("main", "1")) for name in ("first", "second", "third", "new")}
    asks = {"devices.nodeagent.io/main": f"{nic}=1"}
    for name in ("first", "second", "third"):
        runtime.run(pods[name], "main", name, **asks)
    runtime.end("first")
    runtime.look()
    before = {
        name: runtime.state.promises.of_pod(pods[name].uid).of(DeviceHoldings).devices for name in ("second", "third")
    }
    assert [own[0][1][0].id for own in before.values()] == [cards[1].address, cards[2].address]
    lost = tuple(
        UnrecoveredPod(pods[name].uid, NOTHING.having(DeviceHoldings(devices=own))) for name, own in before.items()
    )
    empty = empty_state(runtime.of)
    runtime.state = replace(empty, promises=replace(empty.promises, unrecovered=lost))
    other = pod("other", app("main", "1", devices={nic: 2}))
    world = replace(runtime.node().world, has_reported_all=False, sources=(PodSource(manifests(other)),))
    runtime.state = step(runtime.state, world).state
    (entry,) = runtime.state.entries
    assert entry.refusal is not None, "while it isn't known what runs, what it has is taken"
    runtime.state = replace(runtime.state, entries=())
    runtime.containers = dict(reversed(runtime.containers.items()))
    runtime.happens(runtime.listed())
    assert {name: runtime.state.promises.of_pod(pods[name].uid).of(DeviceHoldings).devices for name in before} == before
    assert runtime.state.promises.unrecovered == ()
    runtime.run(pods["new"], "main", "n", **asks)
    ((_, (own,)),) = runtime.state.promises.of_pod(pods["new"].uid).of(DeviceHoldings).devices
    assert own.id == cards[0].address


def test_after_a_lost_state_who_is_refused_and_runs_keeps_the_device_that_is_in_its_dev() -> None:
    nic = "example.com/nic"
    cards = [Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0, names=(f"eth{number}",)) for number in range(2)]
    gives = (DeviceSelection(nic, (DeviceSelector(kind=DeviceKind.NETWORK),)),)
    scope = {"topology_manager_policy": "restricted", "topology_manager_scope": "pod"}
    of = node(SMALL, devices=gives, **scope)
    runtime = Runtime(replace(of, managers=of.managers.knowing(PlacedDevices.of(cards, of.managers.topology))))
    runs, asks = pod("runs", app("main", "1"), app("side", "1")), {"devices.nodeagent.io/main": f"{nic}=1"}
    runtime.says[runs.uid] = kubelets(runs)
    for name in ("main", "side"):
        runtime.run(runs, name, name, **asks)
    own = runtime.state.promises.of_pod(runs.uid).of(DeviceHoldings).devices
    others = (("gone", (HeldDevice(nic, cards[1].address),)),)
    lost = UnrecoveredPod(runs.uid, NOTHING.having(DeviceHoldings(devices=(*others, *own))))
    empty = empty_state(runtime.of)
    runtime.state = replace(empty, promises=replace(empty.promises, unrecovered=(lost,)))
    runtime.says.clear()
    runtime.happens(runtime.listed())
    assert [entry.refusal is not None for entry in runtime.state.entries] == [True], "kubelet doesn't answer now"

    def turn() -> tuple[UnrecoveredPod, ...]:
        runtime.state = step(runtime.state, runtime.node().world).state
        return runtime.state.promises.unrecovered

    assert turn() == (replace(lost, held=NOTHING.having(DeviceHoldings(devices=own))),), (
        "what no container is there for is free"
    )
    runtime.says[runs.uid] = kubelets(runs)
    runtime.happens(Retried(runs.uid))
    runtime.happens(Looked(runtime.listed()))
    assert (runtime.state.promises.of_pod(runs.uid).of(DeviceHoldings).devices, turn()) == (own, ())


def test_records_that_give_one_device_to_several_containers_count_for_the_first() -> None:
    nic = "example.com/nic"
    cards = [Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0) for number in range(4)]
    gives = node(SMALL, devices=(DeviceSelection(nic, (DeviceSelector(kind=DeviceKind.NETWORK),)),))
    knowing = gives.managers.knowing(PlacedDevices.of(cards, gives.managers.topology))
    runtime = Runtime(replace(gives, managers=knowing))
    pods = [pod("web", app("main", "1"), app("side", "1")), pod("other", app("main", "1"))]
    names = [(of, container.name) for of in pods for container in of.containers]
    asks = {f"devices.nodeagent.io/{name}": f"{nic}=1" for name in ("main", "side")}
    for of, name in names:
        runtime.run(of, name, f"{of.name}-{name}", **asks)
    card = HeldDevice(nic, cards[3].address)
    both = NOTHING.having(DeviceHoldings(devices=(("main", (card,)), ("side", (card,)))))
    lost = tuple(UnrecoveredPod(of.uid, both) for of in pods)
    empty = empty_state(runtime.of)
    runtime.state = replace(empty, promises=replace(empty.promises, unrecovered=lost))
    runtime.happens(runtime.listed())
    held = [runtime.state.promises.of_pod(of.uid).of(DeviceHoldings).devices_of(name) for of, name in names]
    assert held[0] == (card,)
    assert len({one.id for own in held for one in own}) == 3, "the others get others"


def test_what_can_not_stay_where_it_was_found_is_moved_and_never_beside_another() -> None:
    """Two containers of other pods are on the same CPUs, as they may be when nobody has placed them."""
    runtime = Runtime()
    for name in ("one", "two"):
        of = pod(name, app("main", "2"))
        runtime.boxes[name] = sandbox_of(of, name)
        path = f"{runtime.boxes[name].cgroup_parent}:cri-containerd:{name}"
        runtime.containers[name] = told(of, of.container("main"), id=name, sandbox_id=name, cgroups_path=path)
        runtime.cpusets[name] = CpuSet.parse("2-3")
        runtime.running.add(name)
    runtime.happens(runtime.listed())
    runtime.push()
    assert runtime.cpusets["one"] == CpuSet.parse("2-3")
    assert runtime.cpusets["two"] == runtime.own(pod("two"), "main")
    assert runtime.cpusets["two"].isdisjoint(runtime.cpusets["one"])


class FailsOnce:
    """A CPU plugin's code that fails when it is asked for the first time."""

    points = frozenset({"Filter"})
    held_off = ""

    def __init__(self) -> None:
        self.asked = 0

    def begin_turn(self, alive: Callable[[], None]) -> None:
        pass

    def ask(self, point: str, *question: Any) -> CpuSet:
        self.asked += 1
        if self.asked == 1:
            raise PluginFailedError("once", Point(point), "it raises")
        free: CpuSet = question[0].free
        return free


def test_a_plugin_that_fails_is_not_forgiven_because_a_container_runs_somewhere() -> None:
    """It is decided on twice: with the CPUs that it is on, and with all."""
    code = FailsOnce()
    runtime = Runtime(node(SMALL, cpu_plugins=(CpuPlugin("once", code=code),)))
    of = pod("one", app("main", "2"))
    runtime.boxes["one"] = sandbox_of(of, "one")
    path = f"{runtime.boxes['one'].cgroup_parent}:cri-containerd:one"
    runtime.containers["one"] = told(of, of.container("main"), id="one", sandbox_id="one", cgroups_path=path)
    runtime.cpusets["one"] = CpuSet.parse("2-3")
    runtime.running.add("one")
    runtime.happens(runtime.listed())
    assert (runtime.own(of, "main"), code.asked) == (None, 1)
    (event,) = [one for one in runtime.events if one.kind is EventKind.POD_REFUSED]
    assert ("reason", "CPUPluginFailed") in event.fields


def test_an_id_that_is_listed_twice_is_one_container_of_the_pod_that_there_is() -> None:
    runtime = Runtime()
    of = pod("web", app("main", "1"))
    box = sandbox_of(of, "box")
    there = told(of, of.container("main"), id="m", sandbox_id="box", state=ContainerState.RUNNING)
    again = replace(there, name="other", sandbox_id="nowhere")
    runtime.boxes["box"] = box
    runtime.happens(Synchronized((box,), (there, again)))
    (entry,) = runtime.state.entries
    assert [one.name for one in entry.pod.containers] == ["main"]
    assert runtime.own(of, "main")
    runtime.happens(Synchronized())
    runtime.look()
    assert runtime.state == empty_state(NODE)


def test_a_look_finds_what_synchronize_has_missed_and_which_pods_are_gone() -> None:
    runtime = Runtime()
    assert isinstance(runtime.create(pod("large", app("main", "9")), "main", "l"), Denial)
    runtime.run(WEB, "main", "m")
    path = "kubepods-burstable-podx.slice:cri-containerd:s"
    container = told(SHARING, SHARING.container("main"), id="s", cgroups_path=path, state=ContainerState.RUNNING)
    runtime.containers["s"] = container
    runtime.boxes[container.sandbox_id] = sandbox_of(SHARING)
    runtime.cpusets["s"] = CpuSet.parse("0-7")
    runtime.running.add("s")
    sandboxes = (runtime.boxes[f"box-{WEB.uid}"], sandbox_of(SHARING))
    taken = runtime.happens(Looked(Synchronized(sandboxes, (container,))))
    assert {type(one) for one in taken.todo} == {CountFailOpen, Place}
    assert runtime.state.runtime.refused == (), "its pod is gone"
    assert runtime.own(WEB, "main") == runtime.cpusets["m"], "what isn't listed may be under way"
    runtime.push()
    assert runtime.cpusets["s"].isdisjoint(runtime.cpusets["m"])


def test_an_update_leaves_exclusive_cpus_as_they_are() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    asked = runtime.containers["m"].resources
    answer = runtime.call(Event.UPDATE_CONTAINER, "m", resources=asked)
    assert isinstance(answer, Response)
    (update,) = answer.answer.updates
    assert (update.container_id, update.resources.cpus) == ("m", runtime.own(WEB, "main"))


def test_a_container_that_grows_keeps_its_cpus_and_gets_more_which_others_leave_first() -> None:
    runtime = Runtime()
    runtime.run(SHARING, "main", "s")
    runtime.run(WEB, "main", "m")
    first = runtime.own(WEB, "main")
    assert first is not None
    larger = pod("web", app("main", "3"), app("side", "1"))
    runtime.call(Event.UPDATE_CONTAINER, "m", resources=told(larger, larger.container("main")).resources)
    own = runtime.own(WEB, "main")
    assert own is not None
    assert (len(own), first <= own) == (3, True)
    runtime.push()
    runtime.push()
    assert runtime.cpusets["m"] == own
    assert runtime.cpusets["s"].isdisjoint(own)
    assert [event.kind for event in runtime.events if event.kind is EventKind.POD_RESIZED] == [EventKind.POD_RESIZED]
    runtime.call(Event.UPDATE_CONTAINER, "m", resources=told(WEB, WEB.container("main")).resources)
    assert runtime.own(WEB, "main") == first


def test_a_resize_below_what_it_was_admitted_with_is_refused_until_the_container_is_made_anew() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    own, before = runtime.own(WEB, "main"), runtime.state
    smaller = pod("web", app("main", "1"), app("side", "1"))
    asked = told(smaller, smaller.container("main")).resources
    denied = runtime.call(Event.UPDATE_CONTAINER, "m", resources=asked)
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(f"{RESIZE_INFEASIBLE}: exclusive CPUs 2 → 1: container main keeps the CPUs")
    assert runtime.own(WEB, "main") == own
    assert (runtime.state.promises, runtime.state.entries) == (before.promises, before.entries)
    events = len(runtime.events)
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "m", resources=asked), Denial)
    assert len(runtime.events) == events, "it is told once"
    (problem,) = describe_refused_containers(runtime.state, for_room=False)
    assert RESIZE_INFEASIBLE in problem
    runtime.end("m")
    runtime.look()
    runtime.run(smaller, "main", "n")
    assert len(runtime.own(WEB, "main") or ()) == 1
    assert list(describe_refused_containers(runtime.state, for_room=False)) == []


def test_a_resize_that_has_to_wait_is_tried_again_when_it_is_asked_for_again() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    other = pod("other", app("main", "4"), uid="uid-other")
    runtime.run(other, "main", "o")
    larger = pod("web", app("main", "5"), app("side", "1"))
    asked = told(larger, larger.container("main")).resources
    denied = runtime.call(Event.UPDATE_CONTAINER, "m", resources=asked)
    assert isinstance(denied, Denial)
    assert denied.reason.startswith(f"{RESIZE_DEFERRED}: exclusive CPUs 2 → 5: ")
    events = len(runtime.events)
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "m", resources=asked), Denial)
    assert len(runtime.events) == events, "it is told once"
    runtime.end("o")
    runtime.look()
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "m", resources=asked), Response)
    assert len(runtime.own(WEB, "main") or ()) == 5


def test_a_resize_that_changes_nothing_exclusive_is_carried_out_where_the_container_is() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    runtime.run(SHARING, "main", "s")
    own = runtime.own(WEB, "main")
    more = replace(runtime.containers["m"].resources, memory_limit_bytes=2**30)
    answer = runtime.call(Event.UPDATE_CONTAINER, "m", resources=more)
    assert isinstance(answer, Response)
    (cpus,) = (one.resources.cpus for one in answer.answer.updates if one.container_id == "m")
    assert cpus == own == runtime.own(WEB, "main")
    entry = runtime.state.entry(WEB.uid)
    assert entry is not None
    assert str(entry.pod.container("main").resources.limits.get("memory")) == "1Gi"
    larger = replace(runtime.containers["s"].resources, cpu_shares=2048)
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "s", resources=larger), Response)
    shared = runtime.state.entry(SHARING.uid)
    assert shared is not None
    assert str(shared.pod.container("main").resources.requests.get("cpu")) == "2"


PODS = {
    "a": pod("a", app("main", "2"), app("more", "1")),
    "b": pod("b", app("main", "3")),
    "c": pod("c", app("main", resources=exclusive("1500m"))),
    "s": pod("s", app("main", resources=burstable("100m")), app("more", resources=burstable("100m"))),
}


RESIZED = {
    name: replace(of, containers=tuple(replace(one, resources=exclusive("2")) for one in of.containers))
    for name, of in PODS.items()
}
"""As kubelet would have them, and hasn't made them."""


class Churn(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runtime = Runtime()
        self.count = 0

    @rule(which=st.sampled_from(sorted(PODS)), data=st.data())
    def create(self, which: str, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([one.name for one in PODS[which].containers]))
        self.count += 1
        if data.draw(st.booleans()):
            self.runtime.says[PODS[which].uid] = kubelets(data.draw(st.sampled_from([PODS[which], RESIZED[which]])))
        else:
            self.runtime.says.pop(PODS[which].uid, None)
        self.runtime.create(PODS[which], name, f"{which}{self.count}")

    @precondition(lambda self: set(self.runtime.cpusets) - self.runtime.running)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        waiting = sorted(set(self.runtime.cpusets) - self.runtime.running)
        self.runtime.start(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: self.runtime.cpusets)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.runtime.end(data.draw(st.sampled_from(sorted(self.runtime.cpusets))))

    @rule()
    def look(self) -> None:
        self.runtime.look()

    @rule()
    def push(self) -> None:
        self.runtime.push()

    @rule()
    def synchronize(self) -> None:
        self.runtime.happens(self.runtime.listed())
        self.runtime.push()

    @rule()
    def lose_everything(self) -> None:
        """But for a manifest's pod, whose state is found again in its cgroups."""
        local = replace(self.runtime.state, entries=self.runtime.state.own_entries(), runtime=Registry())
        kept = {entry.pod.uid for entry in local.entries}
        for uid, _ in self.runtime.state.promises.pods:
            if uid not in kept:
                local = replace(local, promises=remove_pod(NODE.managers, local.promises, uid)[0])
        self.runtime.state = local
        self.runtime.happens(self.runtime.listed())
        self.runtime.push()

    @rule(data=st.data())
    def look_in_passing(self, data: st.DataObject) -> None:
        """What is being made isn't listed yet."""
        listed = self.runtime.listed()
        there = tuple(one for one in listed.containers if one.id in self.runtime.running or data.draw(st.booleans()))
        before = {entry.key for entry in self.runtime.state.runtime.entries}
        self.runtime.happens(Looked(Synchronized(listed.sandboxes, there)))
        assert {entry.key for entry in self.runtime.state.runtime.entries} >= before

    @rule(cpus=st.integers(1, 4))
    def manifest(self, cpus: int) -> None:
        """A manifest's pod comes in place of the one before: its CPUs are promised at once, and it waits for whoever has them."""
        local = pod("local", app("app", str(cpus)), uid=f"local-{cpus}")
        world = replace(self.runtime.node().world, sources=(PodSource(manifests(local)),))
        for _ in range(2):
            self.runtime.state = step(self.runtime.state, world).state

    @invariant()
    def exclusive_cpus_have_one_user(self) -> None:
        runtime = self.runtime
        for one in runtime.running:
            container = runtime.containers[one]
            own = own_set_of(runtime.state.promises, runtime.boxes[container.sandbox_id].uid, container.name)
            if own and runtime.cpusets[one] == own:
                for other in runtime.running - {one}:
                    assert runtime.cpusets[other].isdisjoint(own), (one, other, runtime.cpusets)

    def teardown(self) -> None:
        runtime = self.runtime
        for one in sorted(runtime.cpusets):
            runtime.end(one)
        runtime.happens(Synchronized())
        runtime.look()
        assert runtime.state.runtime == Registry()
        assert all(not entry.is_requested_per_container for entry in runtime.state.entries)


TestChurn = Churn.TestCase
TestChurn.settings = settings(stateful_step_count=30)


def test_a_container_that_waits_for_its_start_keeps_its_cpus_when_the_state_is_lost() -> None:
    """Its first process is on them, where the start would find it beside a pod that has got them meanwhile."""
    churn = Churn()
    runtime = churn.runtime
    churn.manifest(3)
    assert isinstance(runtime.create(PODS["b"], "main", "b1"), Response)
    own = runtime.cpusets["b1"]
    churn.manifest(1)
    churn.lose_everything()
    assert runtime.own(PODS["b"], "main") == own
    churn.manifest(2)
    assert runtime.start("b1") == Response(Answer())


def test_quantities_are_as_asked() -> None:
    """An estimate that is exact gives the pod's own amounts."""
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    entry = runtime.state.entry(WEB.uid)
    assert entry is not None
    assert entry.pod.container("main").resources.requests.get("cpu") == Quantity.parse("2")


def test_a_container_that_is_told_of_no_more_and_still_runs_stays_in_its_pod() -> None:
    """Nobody was told that it was removed: the list leaves it out, and its processes are ending."""
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    own = runtime.own(WEB, "main")
    runtime.containers.clear()
    runtime.happens(Synchronized((runtime.boxes[f"box-{WEB.uid}"],), ()))
    runtime.cpusets.pop("m")

    assert isinstance(runtime.create(WEB, "side", "s"), Response)

    entry = runtime.state.entry(WEB.uid)
    assert entry is not None
    assert [one.name for one in entry.pod.containers] == ["main", "side"]
    assert runtime.own(WEB, "main") == own


def test_a_refused_resize_that_is_undone_is_forgotten() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "m")
    container = runtime.containers["m"]
    more = replace(container.resources, cpu_quota_us=100_000, cpu_shares=1024)
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "m", resources=more), Denial)
    assert runtime.state.runtime.refused
    assert isinstance(runtime.call(Event.UPDATE_CONTAINER, "m", resources=container.resources), Response)
    assert runtime.state.runtime.refused == ()
