"""A pod of which only amounts change gets these while it runs (KEP-1287, KEP-5554). The model judges each write of each turn."""

import math
from copy import deepcopy
from random import Random

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import violations
from nodeagent.core.admission.resize import AmountChange, changed_amounts, is_resize
from nodeagent.core.model.cgroup import Attribute, ByteLimit, CpuMax
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.config import Errata, ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Pod, ResourceRequirements, RestartPolicy
from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, own_set_of
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_nodes_of
from nodeagent.core.turn.world import EventKind
from nodeagent.daemon.turn.execution import ExecutionResult
from tests.support.node_model import Agent, CrashError, Machine, Unit, started
from tests.support.pairs import covering_pairs
from tests.support.pods import amounts, app, burstable, exclusive, init, mixed, pod, sidecar, unit
from tests.support.shares import share
from tests.support.world import MACHINE, SMALL, Node, node

NODE = node(SMALL)
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive. c and c + 4 are siblings."""
SHARED = pod("shared", app(resources=burstable()))


def entry(agent: Agent, name: str = "a") -> PodEntry:
    return next(e for e in agent.state.entries if e.pod.name == name)


def own(agent: Agent, name: str = "a", container: str = "app") -> CpuSet:
    return own_set_of(agent.state.promises, f"uid-{name}", container) or CpuSet()


def refusals(agent: Agent) -> list[tuple[str, str]]:
    return [(event.pod.name, str(dict(event.fields)["reason"])) for event in agent.reported(EventKind.CHANGE_REFUSED)]


def held(machine: Machine, path: str, attribute: Attribute) -> object:
    return machine.groups[path].values[attribute]


def assert_nothing_was_restarted(machine: Machine, *containers: str) -> None:
    assert machine.signals == []
    assert len(machine.starts) == len(containers)
    assert machine.running_containers() == tuple(sorted(containers))


def test_more_cpus_come_to_those_that_it_has() -> None:
    machine, agent = started(NODE, pod("a", app(cpu="2")), SHARED)
    first = own(agent)
    agent.want(pod("a", app(cpu="4")), SHARED)
    agent.settle()
    assert first <= own(agent)
    assert len(own(agent)) == 4
    assert machine.effective("poduid-a/app") == own(agent)
    assert machine.effective("shared/pool/payload/burstable/poduid-shared/app") == default_set(agent.state.promises)
    assert_nothing_was_restarted(machine, "poduid-a/app", "poduid-shared/app")
    assert entry(agent).pod == pod("a", app(cpu="4"))
    (event,) = agent.reported(EventKind.POD_RESIZED)
    assert event.fields == (("changes", f"app: CPUs {first} → {own(agent)}"),)


def test_the_amounts_that_a_resize_asks_for_are_told_as_they_are_written() -> None:
    def of(cpu: str, memory: str, whole: str, command: str = "sleep") -> Pod:
        resources = ResourceRequirements(limits=amounts(cpu=whole), requests=amounts(cpu=whole))
        return pod("a", app(cpu=cpu, memory=memory, command=(command,)), app("same", "1"), resources=resources)

    found = list(changed_amounts(of("2", "1Gi", "4"), of("3", "1073741824", "5")))
    assert found == [AmountChange(None, "cpu", "4", "5"), AmountChange("app", "cpu", "2", "3")]
    assert list(changed_amounts(of("2", "1Gi", "4"), of("3", "1Gi", "4", command="true"))) == []


def test_whole_cores_are_completed_first() -> None:
    _, agent = started(node(SMALL, reserved="0,4"), pod("a", app(cpu="1")))
    (first,) = own(agent)
    agent.want(pod("a", app(cpu="2")))
    agent.settle()
    assert own(agent) == CpuSet.of(first, first + 4)


def test_what_came_later_goes_first_and_what_it_was_admitted_with_stays() -> None:
    machine, agent = started(NODE, pod("a", app(cpu="2")), SHARED)
    first = own(agent)
    for count in ("6", "3"):
        agent.want(pod("a", app(cpu=count)), SHARED)
        agent.settle()
        agent.restart()
        assert first <= own(agent)
        assert len(own(agent)) == int(count)
    agent.want(pod("a", app(cpu="1")), SHARED)
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_INFEASIBLE)]
    assert len(own(agent)) == 3, "it stays as it was"
    agent.want(pod("a", app(cpu="2")), SHARED)
    agent.settle()
    assert own(agent) == first
    assert machine.effective("poduid-a/app") == first
    assert_nothing_was_restarted(machine, "poduid-a/app", "poduid-shared/app")


def test_where_that_is_configured_any_cpus_may_go() -> None:
    _, agent = started(node(SMALL, reserved="0,4", resize_below_admitted_cpus=True), pod("a", app(cpu="4")))
    first = own(agent)
    for count in (3, 1, 2):
        agent.want(pod("a", app(cpu=str(count))))
        agent.settle()
        assert len(own(agent)) == count
        assert own(agent) <= first or count == 2
    assert refusals(agent) == []


def test_one_that_does_not_fit_yet_is_resized_when_others_have_gone_and_before_new_ones() -> None:
    big = pod("b", app(cpu="4"))
    machine, agent = started(NODE, pod("a", app(cpu="2")), big)
    agent.want(pod("a", app(cpu="5")), big)
    agent.settle()
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_DEFERRED)], "told once"
    change = entry(agent).refused_change
    assert change is not None
    assert "used: 4000, capacity: 7000" in change.refusal.message
    agent.restart()
    agent.want(pod("new", app(cpu="4")), pod("a", app(cpu="5")))
    agent.settle()
    assert len(own(agent)) == 5
    assert entry(agent).refused_change is None
    assert entry(agent, "new").refusal is not None
    assert "poduid-a/app" in machine.running_containers()


def test_what_one_gives_back_another_that_waits_for_it_gets_before_new_ones() -> None:
    """All of it comes in one turn, and the one that waits is the first of them."""
    small = pod("a", app(cpu="2"))
    _, agent = started(NODE, small, pod("b", app(cpu="1")))
    agent.want(small, pod("b", app(cpu="5")))
    agent.settle()
    wanted = pod("a", app(cpu="5"))
    agent.want(wanted, pod("b", app(cpu="2")), pod("new", app(cpu="3")))
    agent.settle()
    assert refusals(agent) == []
    assert len(own(agent)) == 5
    assert entry(agent, "new").refusal is not None


def test_a_container_grows_on_what_init_containers_have_left_to_its_pod() -> None:
    """Their CPUs stay with the pod, and nobody else can have them."""

    def of(cpu: str) -> Pod:
        return pod("a", init(cpu="5"), sidecar(cpu="1"), app(cpu=cpu))

    beside = pod("b", app(cpu="2"))
    machine, agent = started(NODE, of("2"), beside)
    machine.exit(machine.run_of("init"), 0)
    agent.settle()
    first, before = own(agent), agent.state.promises
    agent.want(of("4"), beside)
    agent.settle()
    assert (len(own(agent)), own(agent) >= first) == (4, True)
    assert own(agent) | own(agent, container="side") == own(agent, container="init")
    agent.want(of("5"), beside)
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_DEFERRED)]
    agent.want(of("2"), beside)
    agent.settle()
    assert own(agent) == first
    assert default_set(agent.state.promises) == default_set(before)


def test_one_that_is_given_up_leaves_nothing() -> None:
    big = pod("b", app(cpu="4"))
    _, agent = started(NODE, pod("a", app(cpu="2")), big)
    before = agent.state.promises
    agent.want(pod("a", app(cpu="5")), big)
    agent.settle()
    agent.want(pod("a", app(cpu="2")), big)
    agent.settle()
    assert entry(agent).refused_change is None
    assert agent.state.promises == before


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (app(cpu="2"), app(resources=burstable("2")), "its QoS class would change from Guaranteed to Burstable"),
        (app(resources=burstable("2")), app(cpu="2"), "its QoS class would change from Burstable to Guaranteed"),
        (app(cpu="2"), app(cpu="1500m"), "container app has 2 exclusive CPUs, and would get none"),
        (app(cpu="1500m"), app(cpu="2"), "container app has no exclusive CPUs, and would get 2"),
        (app(cpu="2"), app(cpu="9"), "requested: 9000"),
    ],
)
def test_what_can_never_be_is_said_once_and_the_pod_runs_on(before: Container, after: Container, why: str) -> None:
    machine, agent = started(NODE, pod("a", before))
    promises = agent.state.promises
    agent.want(pod("a", after))
    agent.settle()
    agent.restart()
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_INFEASIBLE)]
    change = entry(agent).refused_change
    assert change is not None
    assert why in change.refusal.message
    assert agent.state.promises == promises
    assert_nothing_was_restarted(machine, "poduid-a/app")
    agent.want(pod("a", before))
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_INFEASIBLE)], "told once"
    assert entry(agent).refused_change is None, "the resize is undone"


def test_a_pod_that_can_not_be_resized_is_admitted_with_its_new_amounts_after_its_end() -> None:
    machine, agent = started(NODE, pod("a", app(cpu="2")))
    after = pod("a", app(cpu="1500m"))
    agent.want(after)
    agent.settle()
    assert entry(agent).refused_change is not None
    agent.want()
    agent.settle()
    machine.now_ms += 1000
    agent.want(after)
    agent.settle()
    assert (entry(agent).refused_change, entry(agent).pod.containers) == (None, after.containers)


def test_who_shares_has_another_weight_limit_and_memory_at_once() -> None:
    machine, agent = started(NODE, pod("a", app(resources=burstable("100m", "500m"))), pod("b", app(cpu="2")))
    path = "shared/pool/payload/burstable/poduid-a/app"
    assert held(machine, path, Attribute.CPU_MAX) == CpuMax(50_000, 100_000)
    agent.want(pod("a", app(resources=burstable("1", "2"))), pod("b", app(cpu="2")))
    agent.settle()
    assert held(machine, path, Attribute.CPU_MAX) == CpuMax(200_000, 100_000)
    assert held(machine, "shared/pool/payload/burstable/poduid-a", Attribute.CPU_MAX) == CpuMax(200_000, 100_000)
    assert_nothing_was_restarted(machine, "poduid-a/app", "poduid-b/app")
    assert held(machine, path, Attribute.MEMORY_MAX) == ByteLimit(64 << 20)


def test_containers_of_one_pod_can_exchange_cpus() -> None:
    before = pod("a", app("x", cpu="1"), app("y", cpu="1"), app("z", cpu="4"))
    machine, agent = started(NODE, before)
    agent.want(pod("a", app("x", cpu="2"), app("y", cpu="1"), app("z", cpu="4")))
    agent.settle()
    agent.want(pod("a", app("x", cpu="1"), app("y", cpu="2"), app("z", cpu="4")))
    agent.settle()
    assert [len(own(agent, container=name)) for name in "xyz"] == [1, 2, 4]
    assert_nothing_was_restarted(machine, *(f"poduid-a/{name}" for name in "xyz"))


def test_the_exclusive_part_of_a_mixed_container_stays_and_the_rest_may_change() -> None:
    machine, agent = started(NODE, pod("a", mixed(cpu="2500m")), SHARED)
    first = own(agent)
    agent.want(pod("a", mixed(cpu="3500m")), SHARED)
    agent.settle()
    assert own(agent) == first
    assert_nothing_was_restarted(machine, "poduid-a/app", "poduid-shared/app")


def test_only_where_the_topology_manager_has_promised_it() -> None:
    strict = node(MACHINE, topology_manager_policy="single-numa-node")
    _, agent = started(strict, pod("a", app(cpu="4"), numa_node=1), pod("b", app(cpu="3"), numa_node=1))
    agent.want(pod("a", app(cpu="6"), numa_node=1), pod("b", app(cpu="3"), numa_node=1))
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_DEFERRED)]
    agent.want(pod("a", app(cpu="9"), numa_node=1), pod("b", app(cpu="3"), numa_node=1))
    agent.settle()
    assert refusals(agent)[1:] == [("a", RESIZE_INFEASIBLE)]
    agent.want(pod("a", app(cpu="5"), numa_node=1), pod("b", app(cpu="3"), numa_node=1))
    agent.settle()
    assert len(own(agent)) == 5
    assert own(agent) <= CpuSet.parse("4-7,20-23")


@pytest.mark.parametrize(
    ("cpus", "reason", "why"),
    [
        ("9", RESIZE_INFEASIBLE, "container app would have 9 exclusive CPUs, but there are only 7 on NUMA node 0: "),
        ("6", RESIZE_DEFERRED, "container app needs 2 more CPUs, but 0 are free on NUMA node 0: "),
    ],
)
def test_a_pod_stays_on_its_numa_nodes_and_one_that_is_made_anew_may_get_others(
    cpus: str, reason: str, why: str
) -> None:
    beside, wanted = pod("b", app(cpu="3"), numa_node=0), pod("a", app(cpu=cpus))
    machine, agent = started(node(MACHINE, topology_manager_policy="restricted"), pod("a", app(cpu="4")), beside)
    agent.want(wanted, beside)
    agent.settle()
    change = entry(agent).refused_change
    assert change is not None
    assert change.refusal.reason == reason
    assert change.refusal.message == (
        f"{why}a running pod can't leave its NUMA nodes (topologyManagerPolicy restricted); "
        "to let the topology manager choose again, end the pod and start it again"
    )
    agent.want(beside)
    agent.settle()
    machine.now_ms += 1000
    agent.want(wanted, beside)
    agent.settle()
    assert len(own(agent)) == int(cpus)


def test_near_the_cpus_that_it_has_where_nobody_demands_it() -> None:
    _, agent = started(node(MACHINE), pod("a", app(cpu="2"), numa_node=2))
    agent.want(pod("a", app(cpu="6"), numa_node=2))
    agent.settle()
    assert own(agent) <= CpuSet.parse("8-11,24-27")


def test_memory_grows_and_shrinks_on_its_node() -> None:
    reserved = (ReservedMemory(0, amounts(memory="64Mi")),)
    of = node(
        MACHINE, memory_manager_policy="Static", reserved_memory=reserved, memory_reservation=amounts(memory="64Mi")
    )
    _, agent = started(of, pod("a", app(cpu="2", memory="1Gi")))
    nodes = memory_nodes_of(agent.state.promises, "uid-a", "app")
    for memory in ("2Gi", "512Mi"):
        agent.want(pod("a", app(cpu="2", memory=memory)))
        agent.settle()
        (block,) = agent.state.promises.of_pod("uid-a").of(MemoryHoldings).blocks("app") or ()
        assert block.size_bytes == {"2Gi": 2 << 30, "512Mi": 512 << 20}[memory]
        assert block.nodes == nodes
    assert violations(of.managers, agent.state.promises, (entry(agent).pod,)) == ()


def test_more_memory_than_its_numa_node_has_is_never_there() -> None:
    """Others may give back what they have, and not what there isn't."""
    reserved = (ReservedMemory(0, amounts(memory="1Gi")),)
    of = node(
        MACHINE,
        topology_manager_policy="single-numa-node",
        memory_manager_policy="Static",
        reserved_memory=reserved,
        memory_reservation=amounts(memory="1Gi"),
    )
    each = of.managers.topology.memory_bytes // 4 >> 30
    beside = pod("b", app(cpu="1", memory="2Gi"), numa_node=0)
    _, agent = started(of, pod("a", app(cpu="2", memory="1Gi"), numa_node=0), beside)
    for gib, reason in ((each - 1, RESIZE_DEFERRED), (each, RESIZE_INFEASIBLE)):
        agent.want(pod("a", app(cpu="2", memory=f"{gib}Gi"), numa_node=0), beside)
        agent.settle()
        change = entry(agent).refused_change
        assert change is not None
        assert change.refusal.reason == reason
    assert change.refusal.message.startswith("container app would have more memory than there is on NUMA 0: ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((("1", 1), ("1", 6)), (("1", 2), ("1", 5))),
        ((("1", 6), ("3", 1)), (("3", 5), ("1", 2))),
    ],
)
def test_containers_of_one_pod_can_exchange_memory(
    before: tuple[tuple[str, int], ...], after: tuple[tuple[str, int], ...]
) -> None:
    """Who gives memory back comes first, whatever becomes of its CPUs."""
    reserved = (ReservedMemory(0, amounts(memory="1Gi")),)
    of = node(
        SMALL,
        memory_manager_policy="Static",
        reserved_memory=reserved,
        memory_reservation=amounts(memory="1Gi"),
        resize_below_admitted_cpus=True,
    )

    def made_of(sizes: tuple[tuple[str, int], ...]) -> Pod:
        return pod("a", *(app(name, cpu=cpu, memory=f"{gib}Gi") for name, (cpu, gib) in zip("xy", sizes, strict=True)))

    _, agent = started(of, made_of(before))
    agent.want(made_of(after))
    agent.settle()
    assert refusals(agent) == []
    held = agent.state.promises.of_pod("uid-a")
    assert [sum(block.size_bytes for block in held.of(MemoryHoldings).blocks(name) or ()) >> 30 for name in "xy"] == [
        gib for _, gib in after
    ]


def test_a_pod_keeps_its_limit_while_a_container_of_its_uses_more_than_its_new_one() -> None:
    def of(x: str, y: str) -> Pod:
        return pod("a", app("x", cpu="1", memory=x), app("y", cpu="1", memory=y))

    machine, agent = started(NODE, of("400Mi", "100Mi"))
    machine.in_use["poduid-a/x"] = 250 << 20
    agent.want(of("200Mi", "150Mi"))
    agent.settle()

    def limits() -> list[object]:
        return [held(machine, path, Attribute.MEMORY_MAX) for path in ("poduid-a", "poduid-a/x", "poduid-a/y")]

    assert limits() == [ByteLimit(mib << 20) for mib in (500, 400, 100)], "the kernel would kill for 350 MiB, later on"
    assert_nothing_was_restarted(machine, "poduid-a/x", "poduid-a/y")
    machine.in_use["poduid-a/x"] = 200 << 20
    agent.settle()
    assert limits() == [ByteLimit(mib << 20) for mib in (350, 200, 150)]


@pytest.mark.parametrize("errata", Errata)
def test_all_whole_cores_of_the_node_can_be_had_and_given_back(errata: Errata) -> None:
    """There are three, with the one that it has."""
    of = node(SMALL, reserved="0,4", cpu_manager_policy_options=(("full-pcpus-only", "true"),), errata=errata)
    _, agent = started(of, pod("a", app(cpu="2")))
    for count in ("6", "4"):
        agent.want(pod("a", app(cpu=count)))
        agent.settle()
        assert len(own(agent)) == int(count)


def test_whole_cores_stay_whole() -> None:
    of = node(SMALL, reserved="0,4", cpu_manager_policy_options=(("full-pcpus-only", "true"),))
    _, agent = started(of, pod("a", app(cpu="2")))
    agent.want(pod("a", app(cpu="3")))
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_INFEASIBLE)]
    agent.want(pod("a", app(cpu="4")))
    agent.settle()
    assert len({cpu % 4 for cpu in own(agent)}) == 2


def test_a_resize_is_one_whenever_the_agent_dies() -> None:
    """Up, and down again: whatever the effect before which it dies, its successor comes to the same."""
    for counts in (("2", "4"), ("2", "4", "3")):
        effects, expected = _after_all(counts, dies_at=None)
        assert effects > 3, "save, leave, grant"
        for moment in range(effects):
            assert _after_all(counts, dies_at=moment)[1] == expected


def _after_all(counts: tuple[str, ...], *, dies_at: int | None) -> tuple[int, CpuSet]:
    machine, agent = started(NODE, pod("a", app(cpu=counts[0])), SHARED)
    for count in counts[1:-1]:
        agent.want(pod("a", app(cpu=count)), SHARED)
        agent.settle()
    begun = agent.effects
    agent.want(pod("a", app(cpu=counts[-1])), SHARED)
    agent.dies_at = None if dies_at is None else begun + dies_at
    try:
        agent.settle()
    except CrashError:
        agent.restart()
        agent.settle()
    assert_nothing_was_restarted(machine, "poduid-a/app", "poduid-shared/app")
    assert machine.effective("poduid-a/app") == own(agent)
    return agent.effects - begun, own(agent)


@pytest.mark.parametrize(
    "after",
    [
        pod("a", app(cpu="2"), app("more", cpu="1")),
        pod("a", app(cpu="3", args=("other",))),
        pod("a", app(cpu="3"), restart_policy=RestartPolicy.NEVER),
        pod("a", app(cpu="3"), uid="another"),
        pod("a", app("renamed", cpu="3")),
        pod("a", app(cpu="3", hugepages_2Mi="2Mi")),
    ],
)
def test_anything_else_is_another_pod(after: Pod) -> None:
    assert not is_resize(pod("a", app(cpu="2")), after)


def test_which_containers_can_be_resized() -> None:
    old = pod("a", init(cpu="1"), sidecar(cpu="1"), app(cpu="2"))
    assert is_resize(old, pod("a", init(cpu="1"), sidecar(cpu="2"), app(cpu="3")))
    assert not is_resize(old, pod("a", init(cpu="2"), sidecar(cpu="1"), app(cpu="2")))
    assert is_resize(pod("a", unit(cpu="1")), pod("a", unit(cpu="2")))


def pinned(cpu: str) -> Pod:
    return pod("db", unit(cpu=cpu))


def test_a_unit_keeps_the_cpus_that_it_has_and_moves_only_if_it_must() -> None:
    machine, agent = started(NODE, pinned("2"), SHARED, units={"db.service": Unit()})

    def has(*pods: Pod) -> CpuSet:
        agent.want(SHARED, *pods)
        agent.settle()
        cpus = own(agent, "db", "db")
        told = machine.units["db.service"].settings.allowed_cpus
        assert told == (cpus or default_set(agent.state.promises))
        return cpus

    first = has(pinned("2"))
    more = has(pinned("4"))
    assert (len(more), more >= first) == (4, True)
    one = has(pinned("1"))
    assert (len(one), more >= one) == (1, True), "who pins it with fewer wants others to have them"
    other = pod("other", app(cpu="4"))
    assert has(pinned("1"), other) == has(pinned("7"), other) == one
    ((name, reason),) = refusals(agent)
    assert (name, reason) == ("db", "OutOfcpu"), "it was decided on anew, for which there is no room"
    assert has(pod("db", unit(resources=burstable("500m")))) == CpuSet(), "it shares now"
    assert len(has(pinned("3"))) == 3


def test_what_a_resize_can_not_give_a_unit_a_move_can() -> None:
    """Its NUMA node has no room for more, and others have."""
    of = node(MACHINE, topology_manager_policy="single-numa-node")
    beside = pod("beside", app(cpu="5"), numa_node=0)
    machine, agent = started(of, pinned("2"), units={"db.service": Unit()})
    agent.settle()
    first = own(agent, "db", "db")
    agent.want(pinned("2"), beside)
    agent.settle()
    agent.want(pinned("4"), beside)
    agent.settle()
    now = own(agent, "db", "db")
    assert first <= of.managers.topology.nodes[0]
    assert (len(now), now.isdisjoint(of.managers.topology.nodes[0])) == (4, True)
    assert machine.units["db.service"].settings.allowed_cpus == now
    assert refusals(agent) == []


def whole(cpu: str, memory: str, part: str = "100m") -> Pod:
    return pod("a", app("x", resources=amounts_of(part, 16)), app("y"), resources=exclusive(cpu, memory))


def test_a_pod_as_a_whole_has_other_amounts_and_its_containers_too() -> None:
    machine, agent = started(NODE, whole("2", "64Mi"))
    agent.want(whole("3", "128Mi", "200m"))
    agent.settle()
    assert held(machine, "poduid-a", Attribute.CPU_MAX) == CpuMax(300_000, 100_000)
    assert held(machine, "poduid-a", Attribute.MEMORY_MAX) == ByteLimit(128 << 20)
    assert held(machine, "poduid-a/x", Attribute.CPU_WEIGHT) != held(machine, "poduid-a/y", Attribute.CPU_WEIGHT)
    (event,) = agent.reported(EventKind.POD_RESIZED)
    assert dict(event.fields)["changes"] == "the pod as a whole: amounts; x: amounts"
    agent.want(whole("9", "128Mi"))
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_INFEASIBLE)], "the node has 8 CPUs"
    assert_nothing_was_restarted(machine, "poduid-a/x", "poduid-a/y")


def test_who_has_the_limit_of_its_pod_restarts_for_another_if_it_wants_that() -> None:
    def of(cpu: str) -> Pod:
        parts = (app("x", restarts_for=("cpu",)), app("y", cpu="500m", restarts_for=("cpu",)))
        return pod("a", *parts, resources=exclusive(cpu, "128Mi"))

    machine, agent = started(NODE, of("2"))
    first = machine.run_of("x")
    agent.want(of("3"))
    agent.settle()
    assert machine.signals == [("TERM", first)], "y has a limit of its own"


def test_what_a_pod_has_for_itself_as_a_whole_stays_while_it_runs() -> None:
    of = node(
        SMALL,
        gates=(("PodLevelResourceManagers", True),),
        topology_manager_policy="restricted",
        topology_manager_scope="pod",
    )

    def made_of(cpu: str) -> Pod:
        return pod("a", app("x", cpu="1"), app("y", cpu="1"), resources=exclusive(cpu, "256Mi"))

    machine, agent = started(of, made_of("3"))
    before = agent.state.promises
    agent.want(made_of("4"))
    agent.settle()
    assert refusals(agent) == [("a", RESIZE_INFEASIBLE)]
    assert agent.state.promises == before
    assert_nothing_was_restarted(machine, "poduid-a/x", "poduid-a/y")


def test_who_wants_a_restart_for_it_gets_one_and_nobody_else() -> None:
    def of(cpu: str, memory: str = "64Mi") -> Pod:
        return pod("a", app("x", cpu=cpu, memory=memory, restarts_for=("cpu",)), app("y", cpu="1"))

    machine, agent = started(NODE, of("1"))
    first = machine.run_of("x")
    agent.want(of("1", memory="128Mi"))
    agent.settle()
    assert machine.signals == [], "it is for cpu alone"
    agent.want(of("2"))
    agent.settle()
    assert machine.signals == [("TERM", first)]
    assert machine.run_of("x") != first
    assert len(machine.starts) == 3, "y runs on"
    assert machine.effective("poduid-a/x") == own(agent, container="x")
    assert entry(agent).status("x").stop_by_ms is None
    agent.restart()
    agent.settle()
    assert len(machine.starts) == 3


def test_an_amount_that_is_only_written_otherwise_restarts_nobody() -> None:
    def of(memory: str) -> Pod:
        return pod("a", app(cpu="2", memory=memory, restarts_for=("memory",)))

    machine, agent = started(NODE, of("64Mi"))
    agent.want(of("67108864"))
    agent.settle()
    assert entry(agent).pod == of("67108864")
    assert_nothing_was_restarted(machine, "poduid-a/app")


def test_who_ignores_it_is_killed_and_starts_again_at_once_under_any_policy() -> None:
    def of(cpu: str) -> Pod:
        return pod("a", app("x", cpu=cpu, restarts_for=("cpu",)), restart_policy=RestartPolicy.ON_FAILURE)

    machine, agent = started(NODE, of("1"))
    machine.stubborn = {"x"}
    machine.exit(machine.run_of("x"), 1)
    agent.settle()
    began = machine.now_ms
    agent.want(of("3"))
    agent.settle()
    assert machine.signals[-1][0] == "KILL"
    assert machine.now_ms - began <= 31_000
    assert len(machine.effective("poduid-a/x")) == 3
    assert machine.running_containers() == ("poduid-a/x",)


class WatchedAgent(Agent):
    """The model's agent, with what every cgroup names judged after each change, and what it holds after each turn."""

    def check(self) -> None:
        super().check()
        for want in self.desired_cgroups():
            if want.path in self.machine.groups and self.machine.is_populated(want.path):
                if want.is_exclusive:
                    self._expect_nobody_names(want.exclusive_cpus & self.machine.effective(want.path), want.path)
                elif not want.is_leaf and want.path not in OWN_DIRECTORIES and want.path:
                    self._expect_room_for_containers(want.path)

    def _expect_nobody_names(self, cpus: CpuSet, owner: str) -> None:
        for path, group in self.machine.groups.items():
            if path in {owner, *OWN_DIRECTORIES} or owner.startswith(f"{path}/"):
                continue
            for attribute in (Attribute.CPUSET_CPUS, Attribute.FALLBACK_CPUS):
                named = group.values.get(attribute, CpuSet())
                assert isinstance(named, CpuSet)
                assert not named & cpus, f"{attribute.value} of {path} names {named & cpus} of {owner}"

    def _expect_room_for_containers(self, pod_path: str) -> None:
        limits = {
            path: group.values.get(Attribute.MEMORY_MAX, ByteLimit(None))
            for path, group in self.machine.groups.items()
            if path == pod_path or path.startswith(f"{pod_path}/")
        }
        amounts = {path: limit.limit_bytes for path, limit in limits.items() if isinstance(limit, ByteLimit)}
        whole = amounts.pop(pod_path)
        parts = [math.inf if part is None else part for part in amounts.values()]
        assert whole is None or whole >= sum(parts), f"{pod_path} has {whole} bytes, and its containers {parts}"

    def turn(self) -> ExecutionResult:
        self.machine.now_ms += 1000
        outcome = super().turn()
        observed = self.observed()
        for want in self.desired_cgroups():
            for attribute, value in want.attributes:
                found = observed[want.path].get(attribute)
                assert found == value, f"{attribute.value} of {want.path} is {found}, and should be {value}"
        return outcome


NODES = {
    "static": NODE,
    "aligned": node(SMALL, topology_manager_policy="restricted"),
    "below": node(SMALL, resize_below_admitted_cpus=True),
    "partitions": node(SMALL, config={"host_isolation": "partition"}),
}


def amounts_of(cpu: str, mib: int) -> ResourceRequirements:
    """A request of CPU without a limit, and so much memory."""
    return ResourceRequirements(amounts(cpu, f"{mib}Mi"), amounts(None, f"{mib}Mi"))


def made(name: str, count: int, mib: int) -> Pod:
    """A pod with so many CPUs and MiB, 1 to 4."""
    memory = f"{mib}Mi"
    match name:
        case "two":
            return pod(name, app("x", cpu=str(count), memory=memory), app("y", cpu=str(mib), memory=f"{count}Mi"))
        case "beside":
            return pod(name, app("x", cpu=str(count), memory=memory), app("s", cpu="500m", memory=memory))
        case "mixed":
            return pod(name, mixed(cpu=f"{count}500m", own=1, memory=memory))
        case "unit":
            # with 4 MiB it shares: then, and back, it is decided on anew while it runs
            return pod(name, unit(cpu=str(count), memory=memory) if mib < 4 else unit(resources=burstable("500m")))
        case "whole":
            # each with a limit of its own: one without has the pod's, and then all together may have more than that
            parts = (app("x", resources=amounts_of(f"{count}00m", mib)), app("y", resources=amounts_of("100m", 1)))
            return pod(name, *parts, resources=exclusive(str(count), f"{64 * mib}Mi"))
        case "shares":
            return pod(name, app(resources=burstable(f"{count}00m", str(count))))
        case _:
            return pod(name, app(cpu=str(count), memory=memory, restarts_for=("cpu",) if name == "again" else ()))


NAMES = ("a", "b", "two", "beside", "mixed", "shares", "again", "unit", "whole")


class Move(Struct):
    """What a pod asks for from then on."""

    name: str
    count: int
    """0: it goes."""
    mib: int
    dies_after: int | None
    """How many effects the agent has then. None: it lives until nothing changes any more."""
    is_left_to_next: bool = False
    """If it dies, nothing else happens until its successor has nothing left to do."""


@st.composite
def histories(draw: st.DrawFn) -> list[Move]:
    """Of a few pods, which mostly come first and then change."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    moves = st.builds(
        Move, st.sampled_from(names), st.integers(0, 9).map(lambda n: n % 5), st.integers(1, 4), DEATHS, st.booleans()
    )
    return [*(Move(name, 1, 1, None) for name in names), *draw(st.lists(moves, min_size=2, max_size=10))]


DEATHS = st.none() | st.integers(0, 12) | st.integers(0, 40)


class Life:
    """A node, on which agent follows agent."""

    def __init__(self, of: Node) -> None:
        self.machine = Machine(of)
        self.machine.units["db.service"] = Unit()
        self.agent = WatchedAgent(self.machine)
        self.pods = {SHARED.name: SHARED}
        self.agent.want(SHARED)
        self.agent.rest()

    def goes_on(self, move: Move) -> bool:
        """Say whether the agent lives through it."""
        agent = self.agent
        if move.count:
            self.pods[move.name] = made(move.name, move.count, move.mib)
        else:
            self.pods.pop(move.name, None)
        agent.want(*self.pods.values())
        agent.dies_at = None if move.dies_after is None else agent.effects + move.dies_after
        try:
            agent.settle()
        except CrashError:
            agent.restart()
            agent.check()
            return False
        agent.dies_at = None
        for one in agent.state.entries:
            for container in one.pod.containers:
                first = agent.state.promises.of_pod(one.pod.uid).of(CpuHoldings).remaining_first_set(container.name)
                assert first is None or first <= own(agent, one.pod.name, container.name)
        return True


@given(st.sampled_from(sorted(NODES)), histories())
@settings(deadline=None)
def test_resizes_among_arrivals_departures_and_deaths_leave_nothing_behind(name: str, moves: list[Move]) -> None:
    life = Life(NODES[name])
    empty = life.agent.state.promises
    for move in moves:
        if not life.goes_on(move) and move.is_left_to_next:
            life.goes_on(replace(move, dies_after=None))
    life.agent.want(SHARED)
    life.agent.settle()
    assert life.agent.state.promises == empty
    assert life.machine.running_containers() == ("poduid-shared/app",)
    assert life.machine.units == {"db.service": Unit()}


COUNTS = ((2, 4, 4), (2, 4, 1), (4, 2, 2), (4, 2, 4), (4, 1, 3))
RESIZED = ("again", "two", "beside", "unit", "whole")


@pytest.mark.parametrize(("of", "name", "counts"), covering_pairs(sorted(NODES), RESIZED, COUNTS))
def test_whenever_it_dies_in_a_resize_its_successor_can_do_another(
    of: str, name: str, counts: tuple[int, int, int]
) -> None:
    begun = Life(NODES[of])
    begun.goes_on(Move(name, 1, 1, None))
    first, second, third = (Move(name, count, 5 - count, None) for count in counts)
    begun.goes_on(first)
    for moment in share(range(1000)):
        life = deepcopy(begun, {id(NODES[of]): NODES[of]})
        has_lived = life.goes_on(replace(second, dies_after=moment))
        life.goes_on(third)
        if has_lived:
            break
    assert moment >= 5, "it saves, and somebody leaves, and gets something"


@pytest.mark.parametrize("of", sorted(NODES))
def test_resizes_of_a_whole_life_leave_nothing_behind(of: str) -> None:
    """Of pods that come and go beside each other, with an agent that dies in every tenth: a hundred, and with
    --hypothesis-profile=search a thousand.
    """
    chance = Random(of)
    life = Life(NODES[of])
    empty, groups = life.agent.state.promises, set(life.machine.groups)
    resized = moves = 0
    while resized < min(1000, settings.default.max_examples):
        name, moves = chance.choice(NAMES), moves + 1
        count = chance.choice((0, 1, 2, 3, 4)) if moves % 7 == 0 else chance.choice((1, 2, 3, 4))
        before = len(list(life.agent.reported(EventKind.POD_RESIZED)))
        life.goes_on(Move(name, count, chance.randint(1, 4), chance.randint(0, 30) if moves % 10 == 0 else None))
        resized += len(list(life.agent.reported(EventKind.POD_RESIZED))) - before
        if moves % 100 == 0:
            life.agent.want(SHARED)
            life.agent.settle()
            life.pods = {SHARED.name: SHARED}
            assert life.agent.state.promises == empty
    life.agent.want(SHARED)
    life.agent.settle()
    assert life.agent.state.promises == empty
    assert set(life.machine.groups) == groups
    assert life.machine.units == {"db.service": Unit()}
    assert life.machine.running_containers() == ("poduid-shared/app",)
