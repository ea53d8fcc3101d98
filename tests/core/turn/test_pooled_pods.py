"""Pods below the shared pool's cgroup, and pods that share but were started in a place of their own by an earlier version."""

import pytest

from nodeagent.core.cgroups.write_order import SetAttribute
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from tests.support.node_model import Agent, Machine, started
from tests.support.pods import app, burstable, mixed, pod
from tests.support.world import SMALL, empty_state, node

POOLED = "shared/pool/payload/burstable/poduid-s/app"
FORMER = "burstable/poduid-s/app"
SHARES = pod("s", app(resources=burstable()))


def begun(monkeypatch: pytest.MonkeyPatch, path: str) -> tuple[Machine, Agent]:
    """Return a node on which the pod runs in one of the two places."""
    with monkeypatch.context() as earlier:
        if path == FORMER:
            earlier.setattr("nodeagent.core.turn.pod_sources.never_holds_cpuset", lambda _pod, _qos: False)
        machine, agent = started(node(SMALL), SHARES)
    assert machine.populated() == (path,)
    return machine, agent


@pytest.mark.parametrize("path", [POOLED, FORMER])
@pytest.mark.parametrize("loses", [False, True], ids=["restart", "lost state"])
def test_a_pod_stays_where_it_runs(monkeypatch: pytest.MonkeyPatch, path: str, *, loses: bool) -> None:
    machine, agent = begun(monkeypatch, path)
    starts, writes = list(machine.starts), len(machine.writes)
    agent.restart()
    if loses:
        agent.state = empty_state(machine.node)
    agent.rest()
    assert (machine.starts, machine.populated(), len(machine.writes)) == (starts, (path,), writes)
    agent.want(SHARES, pod("x", app(cpu="2")))
    agent.rest()
    assert machine.effective(path) == CpuSet.parse("0,2-4,6-7")
    agent.want()
    agent.settle()
    assert [group for group in machine.groups if "poduid" in group] == []


@pytest.mark.parametrize(
    ("one", "is_pooled"),
    [
        (pod("p"), True),
        (SHARES, True),
        (pod("p", app(cpu="500m")), False),
        (pod("p", mixed(resources=burstable("2500m"))), False),
        (pod("p", app(), app("x", resources=burstable("1", "2"))), True),
    ],
    ids=["BestEffort", "Burstable", "Guaranteed, which may get memory nodes", "mixed", "limits that exceed requests"],
)
def test_who_can_never_hold_cpus_or_memory_nodes_is_below_the_pool(one: Pod, *, is_pooled: bool) -> None:
    _, agent = started(node(SMALL), one)
    [entry] = agent.state.entries
    assert (entry.is_pooled, entry.pod_path.startswith("shared/pool/payload/")) == (is_pooled, is_pooled)


def test_the_pools_cgroup_is_frozen_while_no_cpu_is_left_and_so_are_all_below_it() -> None:
    path = "shared/pool/payload/besteffort/poduid-s/app"
    of = node(SMALL, cpu_manager_policy_options=(("strict-cpu-reservation", "true"),))
    machine, agent = started(of, pod("s"))
    agent.want(pod("s"), pod("x", app(cpu="7")))
    agent.rest()
    frozen = {c.path for c in machine.writes if isinstance(c, SetAttribute) and c.attribute is Attribute.FREEZE}
    assert frozen == {"shared/pool", path}
    assert machine.is_frozen(path)
    agent.want(pod("s"))
    agent.rest()
    assert not machine.is_frozen(path)
    assert machine.effective(path) == CpuSet.parse("1-7")
