"""Partitions: which cgroups are one, in which order they begin and end, and that nobody is lost when the kernel refuses."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import SetAttribute, diff
from nodeagent.core.model.cgroup import MEMBER, Attribute, Partition, PartitionKind
from nodeagent.core.model.cgroup_layout import ABOVE
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.quiet import QuietRequest, QuietSettings
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.daemon.turn.execution import execute
from tests.support.node_model import Agent, Machine, started
from tests.support.pods import app, burstable, init, mixed, pod, sidecar
from tests.support.world import SMALL, Node, node

ROOT, ISOLATED = Partition(PartitionKind.ROOT), Partition(PartitionKind.ISOLATED)
EXCLUSIVE, PARTITION = Attribute.CPUSET_CPUS_EXCLUSIVE, Attribute.CPUSET_CPUS_PARTITION


def isolating(isolated: CpuSet = CpuSet(), **more: Any) -> Node:
    topology = Topology.of(
        SMALL.cpus,
        SMALL.numa,
        offline=SMALL.offline,
        l3=SMALL.l3,
        isolated=isolated,
        nohz_full=SMALL.nohz_full,
        skipped=SMALL.skipped,
    )
    return node(topology, config={"host_isolation": "partition"}, **more)


def running(*pods: Pod, of: Node | None = None) -> tuple[Machine, Agent]:
    machine, agent = started(of or isolating(), *pods)
    assert machine.refused == [], "each write is one that the kernel takes at that moment"
    return machine, agent


def owned(agent: Agent, name: str, container: str = "app") -> CpuSet:
    cpus = own_set_of(agent.state.promises, f"uid-{name}", container)
    assert cpus
    return cpus


def test_a_pod_with_one_container_is_a_partition() -> None:
    machine, agent = running(pod("a", app("one", cpu="2")))
    own = owned(agent, "a", "one")
    assert machine.partitions() == ("poduid-a",)
    assert [machine.handed_down(path) for path in (ABOVE, "", "poduid-a", "poduid-a/one")] == [own] * 3 + [CpuSet()]
    assert machine.left_to_host() == SMALL.online - own


def test_siblings_that_are_to_be_idle_are_in_the_pods_partition_alone() -> None:
    alone = QuietRequest("", QuietSettings(idle_siblings=True))
    machine, agent = running(pod("a", app("one", cpu="2"), quiet=alone))
    own = owned(agent, "a", "one")
    assert (machine.partitions(), machine.left_to_host()) == (("poduid-a",), SMALL.online - own)
    assert len(machine.effective("poduid-a/one")) == 1
    machine, agent = running(pod("a", app("one", cpu="2"), app("two", cpu="2"), quiet=alone))
    assert machine.partitions() == ()
    assert [len(machine.effective(f"poduid-a/{name}")) for name in ("one", "two")] == [1, 1]


def test_containers_with_cpus_of_their_own_are_partitions_each_so_that_none_ever_falls_back_on_another_ones() -> None:
    machine, agent = running(pod("a", app("one", cpu="1"), app("two", cpu="1")))
    one, two = owned(agent, "a", "one"), owned(agent, "a", "two")
    assert machine.partitions() == ("poduid-a/one", "poduid-a/two")
    assert [machine.handed_down(path) for path in (ABOVE, "", "poduid-a", "poduid-a/one")] == [one | two] * 3 + [one]
    assert machine.left_to_host() == SMALL.online - one - two
    assert machine.granted("poduid-a").isdisjoint(one | two)


def test_beside_a_shared_container_each_is_its_own() -> None:
    """One partition for the pod would leave the shared one without a CPU."""
    machine, agent = running(pod("a", app("own", cpu="2"), app("beside", cpu="100m")))
    assert machine.partitions() == ("poduid-a/own",)
    assert machine.handed_down("poduid-a") == owned(agent, "a", "own")
    assert machine.effective("poduid-a/beside") == machine.left_to_host()


def test_an_init_container_and_those_after_it_have_one_partition() -> None:
    """Its CPUs become theirs: two partitions of siblings could not hold the same CPUs."""
    machine, agent = running(pod("a", init("first", cpu="2"), app("app", cpu="2")))
    assert machine.partitions() == ("poduid-a",)
    machine.exit(machine.run_of("first"))
    agent.rest()
    assert machine.partitions() == ("poduid-a",)
    assert machine.refused == []


def test_where_an_init_containers_cpus_are_another_ones_and_a_third_shares_there_is_no_partition() -> None:
    machine, agent = running(pod("a", init("first", cpu="2"), app("app", cpu="2"), app("beside", cpu="100m")))
    assert owned(agent, "a", "first") & owned(agent, "a", "app")
    assert machine.partitions() == ()
    assert machine.left_to_host() == SMALL.online


def test_cpus_that_are_isolated_since_boot_are_in_a_partition_of_that_kind() -> None:
    """kernel/cgroup/cpuset.c, prstate_housekeeping_conflict(): any other would be refused."""
    isolated = CpuSet.parse("2-3,6-7")
    machine, agent = running(
        pod("a", app(cpu="2")),
        pod("b", app(cpu="2")),
        pod("c", app(cpu="2")),
        of=isolating(isolated=isolated, isolated_cpus="prefer"),
    )
    kinds = {name: machine.groups[f"poduid-{name}"].values[PARTITION] for name in "abc"}
    assert owned(agent, "a") | owned(agent, "b") == isolated
    assert kinds == {"a": ISOLATED, "b": ISOLATED, "c": ROOT}


def test_cpus_of_which_some_are_isolated_since_boot_are_in_no_balanced_partition() -> None:
    """The kernel refuses that. If a pod's containers differ, each has its own; the others' CPUs are left to systemd."""
    isolated = CpuSet.parse("2-3")
    apart = isolating(isolated=isolated, isolated_cpus="prefer")
    machine, agent = running(pod("a", app("one", cpu="2"), app("two", cpu="2")), of=apart)
    kinds = {name: machine.groups[f"poduid-a/{name}"].values[PARTITION] for name in ("one", "two")}
    assert owned(agent, "a", "one") == isolated
    assert kinds == {"one": ISOLATED, "two": ROOT}
    assert machine.partitions() == ("poduid-a/one", "poduid-a/two")
    machine, agent = running(pod("a", app(cpu="4")), of=apart)
    assert not isolated.isdisjoint(owned(agent, "a"))
    assert machine.partitions() == ()


def test_a_pod_may_ask_for_a_partition_that_nothing_is_balanced_in() -> None:
    machine, _ = running(replace(pod("a", app(cpu="2")), is_isolated=True), pod("b", app(cpu="2")))
    kinds = {name: machine.groups[f"poduid-{name}"].values[PARTITION] for name in "ab"}
    assert kinds == {"a": ISOLATED, "b": ROOT}


def test_who_shares_has_none() -> None:
    machine, _ = running(pod("a", app(resources=burstable())), pod("b", app()), pod("c", app(cpu="500m")))
    assert machine.partitions() == ()
    assert all(machine.handed_down(path) == CpuSet() for path in machine.groups)


@pytest.mark.parametrize("beside", [(), (app("own", cpu="1"),)], ids=["alone", "beside one with its own"])
def test_a_mixed_container_is_no_partition_nor_is_its_pod(beside: tuple[Container, ...]) -> None:
    """It needs the shared pool, which a partition would keep from it."""
    machine, agent = running(pod("a", mixed(own=1, cpu="1500m"), *beside), pod("s"))
    assert machine.partitions() == tuple(f"poduid-a/{each.name}" for each in beside)
    assert machine.effective("poduid-a/app") == owned(agent, "a") | default_set(agent.state.promises)


def test_without_the_setting_nothing_is_written() -> None:
    machine, agent = running(pod("a", app(cpu="2")), of=node(SMALL))
    machine.has_partitions = True
    machine.groups[ABOVE] = type(machine.groups[""])()
    agent.turn()
    assert [c for c in machine.writes if isinstance(c, SetAttribute) and c.attribute in {EXCLUSIVE, PARTITION}] == []


def test_on_an_older_kernel_nothing_is_written() -> None:
    machine = Machine(isolating())
    machine.has_partitions = False
    del machine.groups[ABOVE]
    agent = Agent(machine)
    agent.want(pod("a", app(cpu="2")))
    agent.rest()
    assert machine.running_containers() == ("poduid-a/app",)
    assert machine.partitions() == ()


def test_it_begins_from_the_top_down_before_the_process_starts_and_ends_from_the_bottom_up() -> None:
    machine, agent = running(pod("a", app("own", cpu="2"), app("beside", cpu="100m")), pod("b", app(cpu="1")))
    cpus = owned(agent, "a", "own") | owned(agent, "b")
    begun = [c for c in machine.writes if isinstance(c, SetAttribute) and c.attribute in {EXCLUSIVE, PARTITION}]
    assert [(c.path, c.attribute) for c in begun] == [
        (ABOVE, EXCLUSIVE),
        ("", EXCLUSIVE),
        ("poduid-a", EXCLUSIVE),
        ("poduid-a/own", EXCLUSIVE),
        ("poduid-b", EXCLUSIVE),
        ("poduid-a/own", PARTITION),
        ("poduid-b", PARTITION),
    ]
    assert begun[0].value == begun[1].value == cpus

    machine.node = replace(machine.node, config=replace(machine.node.config, host_isolation="none"))
    machine.writes.clear()
    agent.turn()
    ended = [(c.path, c.attribute, c.value) for c in machine.writes if isinstance(c, SetAttribute)]
    assert ended == [
        ("poduid-b", PARTITION, MEMBER),
        ("poduid-a/own", PARTITION, MEMBER),
        ("poduid-b", EXCLUSIVE, CpuSet()),
        ("poduid-a/own", EXCLUSIVE, CpuSet()),
        ("poduid-a", EXCLUSIVE, CpuSet()),
        ("", EXCLUSIVE, CpuSet()),
        (ABOVE, EXCLUSIVE, CpuSet()),
    ]
    assert machine.left_to_host() == SMALL.online
    assert machine.refused == []


def test_all_comes_back_when_the_pods_go() -> None:
    machine, agent = running(pod("a", app(cpu="2")), pod("b", sidecar("beside", cpu="100m"), app("own", cpu="1")))
    agent.want()
    agent.settle()
    assert machine.left_to_host() == SMALL.online
    assert {path: machine.handed_down(path) for path in machine.groups if machine.handed_down(path)} == {}


def test_a_cpu_that_goes_and_comes_costs_no_write() -> None:
    machine, agent = running(pod("a", app(cpu="2")))
    whole = machine.node
    last = CpuSet.of(max(owned(agent, "a")))
    for online in (SMALL.online - last, SMALL.online):
        machine.node = replace(whole, kernel=replace(whole.kernel, online=online))
        machine.writes.clear()
        agent.rest()
        written = {c.path for c in machine.writes if isinstance(c, SetAttribute)}
        assert {path for path in written if path.startswith("poduid-a")} == set()
        assert machine.effective("poduid-a/app") == owned(agent, "a") & online


@pytest.mark.parametrize("attribute", [EXCLUSIVE, PARTITION])
@pytest.mark.parametrize("path", [ABOVE, "", "poduid-a"])
def test_no_pod_waits_for_a_partition(path: str, attribute: Attribute) -> None:
    machine = Machine(isolating())
    machine.broken[path, attribute] = "Invalid argument"
    agent = Agent(machine)
    agent.want(pod("a", app(cpu="2")))
    agent.rest()
    assert machine.running_containers() == ("poduid-a/app",)
    is_whole = attribute is PARTITION and path != "poduid-a"
    assert machine.partitions() == (("poduid-a",) if is_whole else ())
    machine.broken.clear()
    agent.rest()
    assert machine.partitions() == ("poduid-a",)


def test_one_that_is_refused_keeps_no_other_from_its_own() -> None:
    machine = Machine(isolating())
    machine.broken["poduid-a", EXCLUSIVE] = "Invalid argument"
    agent = Agent(machine)
    agent.want(pod("a", app(cpu="2")), pod("b", app(cpu="2")))
    agent.rest()
    assert machine.partitions() == ("poduid-b",)


@pytest.mark.parametrize("problem", ["", "Invalid cpu list in cpuset.cpus.exclusive"])
def test_one_that_the_kernel_or_somebody_has_ended_begins_again(problem: str) -> None:
    machine, agent = running(pod("a", app(cpu="2")))
    ended = Partition(PartitionKind.ROOT, problem) if problem else MEMBER
    machine.write("poduid-a", PARTITION, ended)
    plan = diff(agent.desired_cgroups(), machine.observed())
    (change,) = plan.changes
    assert change == SetAttribute("poduid-a", PARTITION, ROOT, ended, grants=owned(agent, "a"))
    agent.rest()
    assert machine.partitions() == ("poduid-a",)


def test_it_does_not_begin_where_another_ones_process_still_is() -> None:
    """The kernel would drive that onto whatever is left, which may be another pod's."""
    machine = Machine(isolating())
    agent = Agent(machine)
    agent.want(pod("a", app(cpu="2")))
    agent.rest()
    machine.write("poduid-a", PARTITION, MEMBER)
    machine.groups["poduid-stray"] = type(machine.groups[""])()
    machine.groups["poduid-stray"].values[Attribute.CPUSET_CPUS] = owned(agent, "a")
    machine.enter("poduid-stray")
    desired = agent.desired_cgroups()
    outcome = execute(diff(desired, machine.observed()), desired, machine)
    assert machine.partitions() == ()
    assert [change for change in outcome.held_back if isinstance(change, SetAttribute)] == [
        SetAttribute("poduid-a", PARTITION, ROOT, MEMBER, grants=owned(agent, "a"))
    ]
    machine.groups["poduid-stray"].processes.clear()
    agent.rest()
    assert machine.partitions() == ("poduid-a",)


def test_the_model_refuses_what_the_kernel_refuses() -> None:
    """cpus_excl_conflict() of kernel/cgroup/cpuset.c, tried on 6.12."""
    machine, agent = running(pod("a", app(cpu="2")), pod("b", app(cpu="2")))
    assert not machine.write("poduid-b", EXCLUSIVE, owned(agent, "a")), "siblings hand down different CPUs"
    assert not machine.write("poduid-b", Attribute.CPUSET_CPUS, owned(agent, "a")), (
        "or one that a sibling may be left with"
    )
