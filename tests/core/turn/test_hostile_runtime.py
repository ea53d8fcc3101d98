"""A container runtime that lies: one id for two containers, pods that there aren't, amounts beyond all bounds, names that no line can hold.
Whatever it says, the agent goes on, no exclusive CPU is promised twice, and once nothing is listed nothing is left.
"""

from typing import Any

from hypothesis import given, settings, strategies as st

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.cgroups.desired_cgroups import runtime_cgroups
from nodeagent.core.domains.runtime.answers import Response, build_response
from nodeagent.core.domains.runtime.call_answer import answer_call
from nodeagent.core.domains.runtime.decisions import decide_event
from nodeagent.core.domains.runtime.instructions import Happening, Looked, Populated, Retried, Unserved
from nodeagent.core.domains.runtime.occupants import Node as TurnNode, find_shared_pool, list_occupants, wanted_by_key
from nodeagent.core.domains.runtime.reported import RuntimeReport
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import (
    Answer,
    Call,
    ContainerState,
    Denial,
    Event,
    HugepageLimit,
    NriContainer,
    NriResources,
    Sandbox,
    Synchronized,
)
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.world import World
from nodeagent.daemon.domains.runtime.adapters import CONTAINERD
from nodeagent.daemon.domains.runtime.containers import find_name_problems, read_pod_annotations
from nodeagent.daemon.reports.problems import (
    describe_misnamed_pods,
    describe_refused_containers,
    describe_unserved_containers,
)
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.runtime.calls import MAX_BYTES, MAX_MICROSECONDS, encode_answer
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render, render_in_full
from tests.support.shares import share_of
from tests.support.world import SMALL, START_MS, empty_state, node

NODE = node(SMALL, config={"check_allocatable": True})
SETUP = NodeSetup(NODE.config, NODE.managers.topology, NODE.managers, NODE.allocatable, NODE.managers.reserved)
BOUND = 2**63
IDS = st.sampled_from(["a", "b", "c", "-", "x\ny"])
NAMES = st.sampled_from(["main", "side", "-", "new\nline\x1b[31m", "n" * 300, "Ünïcode\u2028", "../..", "a/b"])
OFTEN = st.sampled_from([0, 1, 2, 100_000, 200_000, 2048, 262_144])
MICROSECONDS = st.none() | OFTEN | st.integers(0, MAX_MICROSECONDS)
BYTES = OFTEN | st.integers(0, MAX_BYTES)
CPUS = st.none() | st.sampled_from(["0", "2-3", "0-7", "1,3,5", "5000"]).map(CpuSet.parse)
RESOURCES = st.builds(
    NriResources,
    CPUS,
    st.none() | st.sampled_from(["0", "7"]).map(NumaSet.parse),
    MICROSECONDS,
    MICROSECONDS | st.just(-1),
    MICROSECONDS,
    st.none() | BYTES | st.just(-1),
    st.lists(st.builds(HugepageLimit, st.sampled_from(["2MB", "1GB", "x", "", "9" * 50]), BYTES), max_size=2).map(
        tuple
    ),
)
SENSIBLE = st.builds(
    lambda cpus: NriResources(
        cpu_shares=1024 * cpus, cpu_quota_us=100_000 * cpus, cpu_period_us=100_000, memory_limit_bytes=2**20
    ),
    st.integers(1, 4),
)
ANNOTATIONS = st.sampled_from(
    [
        (),
        (("nodeagent.io/containers", "main, side"),),
        (("nodeagent.io/containers", "main\n, side=x"),),
        (("requests.nodeagent.io/main", "cpu=9999999999999999999, memory=1e300"),),
        (("exclusive-cpus.nodeagent.io/main", "1"), ("nodeagent.io/numa-node", "0")),
        (("exclusive-cpus.nodeagent.io/main", "-1"),),
        (("nodeagent.io/numa-node", "99999999999999999999"),),
    ]
)
PARENTS = st.sampled_from(
    ["", "kubepods-podu.slice", "kubepods-burstable-podu.slice", "/kubepods/besteffort/podu", "../../x", "\n.slice"]
)
SANDBOXES = st.builds(
    Sandbox, IDS, st.sampled_from(["u", "v", "", "u\nv"]), NAMES, NAMES, st.just(()), ANNOTATIONS, PARENTS
)
CONTAINERS = st.builds(
    NriContainer,
    IDS,
    IDS,
    NAMES,
    st.sampled_from(ContainerState),
    st.just(()),
    st.just(()),
    st.none() | st.integers(1, 2**32 - 1),
    st.sampled_from(["", "kubepods-podu.slice:cri-containerd:a", ":::", "/x/../y", "a.slice:b:c/d", "\0"]),
    st.none() | st.integers(-BOUND, BOUND - 1),
    SENSIBLE | RESOURCES,
)
SYNCHRONIZED = st.builds(
    Synchronized, st.lists(SANDBOXES, max_size=4).map(tuple), st.lists(CONTAINERS, max_size=5).map(tuple)
)
HAPPENINGS = (
    st.builds(Call, st.sampled_from(Event), SANDBOXES, st.none() | CONTAINERS, st.none() | RESOURCES)
    | SYNCHRONIZED
    | SYNCHRONIZED.map(Looked)
    | st.frozensets(IDS).map(Populated)
    | st.frozensets(IDS).map(Unserved)
    | st.sampled_from(["u", "v", "a"]).map(Retried)
)


class Agent:
    """All that the daemon does with what it is told, but for threads and files."""

    def __init__(self) -> None:
        self.state = empty_state(NODE)
        self.boxes: dict[str, Sandbox] = {}
        self.containers: dict[str, NriContainer] = {}

    def node(self) -> TurnNode:
        world = World(NODE.config, NODE.managers, NODE.allocatable, (), {}, {}, START_MS)
        return TurnNode(
            world,
            NODE.kernel,
            RuntimeReport.of(self.boxes, self.containers),
            read_pod_annotations,
            CONTAINERD.origin,
            "/sys/fs/cgroup",
            find_name_problems,
        )

    def take(self, what: Happening) -> None:
        found = what.found if isinstance(what, Looked) else what
        if isinstance(found, Synchronized):
            self.boxes |= {one.id: one for one in found.sandboxes}
            self.containers |= {one.id: one for one in found.containers}
        elif isinstance(found, Call):
            self.boxes[found.sandbox.id] = found.sandbox
            if found.container is not None:
                self.containers[found.container.id] = found.container
        taken = decide_event(Draft(self.state), what, self.node())
        self.state = taken.draft.state
        for event in taken.draft.events:
            assert event.kind
        if isinstance(found, Call):
            self.answer(found, taken.todo)

    def answer(self, call: Call, todo: Any) -> None:
        node = self.node()
        seen = {
            made.id: ObservedCgroup(
                made.id, frozenset(), frozenset(), ((Attribute.CPUSET_CPUS, CpuSet.of(0, 2, 3)),), CpuSet.of(0, 2, 3), None,
                is_populated=True, is_frozen=False,
            )
            for entry in self.state.runtime.entries
            for made in entry.made
        }  # fmt: skip
        there, pool = list_occupants(self.state, node, seen, {}), find_shared_pool(self.state, node)
        found = answer_call(
            call, todo, wanted_by_key(self.state, node), there, seen, pool, node.world.managers.reserved
        )
        if isinstance(found, Denial):
            assert found.reason
        elif call.event in {Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.STOP_CONTAINER}:
            encode_answer(call.event, found.answer)
        else:
            assert found == Response(Answer())
        encode_answer(Event.UPDATE_CONTAINER, build_response(there, pool=pool).answer)

    def check(self) -> None:
        assert violations(NODE.managers, self.state) == ()
        assert decode_state(encode_state(self.state, {})).state == self.state

    def show(self) -> None:
        runtime_cgroups(NODE.config, NODE.managers, NODE.kernel, self.state)
        document = inspect_node(NodeView(node=SETUP, state=self.state))
        for text in (
            render(document),
            render_in_full(document),
            *describe_refused_containers(self.state, for_room=False),
            *describe_misnamed_pods(self.state),
            describe_unserved_containers(self.state),
        ):
            assert "\x1b" not in text
            assert "\x00" not in text


@settings(max_examples=share_of(60), deadline=None)
@given(st.lists(HAPPENINGS, max_size=12))
def test_whatever_it_says_promises_hold_and_nothing_is_left(happenings: list[Happening]) -> None:
    agent = Agent()
    for what in happenings:
        agent.take(what)
        agent.check()
    agent.show()
    agent.take(Synchronized())
    agent.take(Populated(frozenset()))
    assert agent.state == empty_state(NODE)
    assert agent.state.runtime == Registry()
