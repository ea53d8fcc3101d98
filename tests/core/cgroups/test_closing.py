"""What keeps the host off a pod's CPUs, and why so: the same as the cgroups have."""

from typing import Any

import pytest

from nodeagent.core.admission.managers import Admitted, admit
from nodeagent.core.cgroups.closing import Why, find_closings
from nodeagent.core.model.cgroup import PartitionKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod, QosClass
from nodeagent.core.model.state import Origin, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import own_set_of
from tests.support.pods import app, burstable, init, mixed, pod
from tests.support.world import SMALL, empty_state, node

ROOT, ISOLATED = PartitionKind.ROOT, PartitionKind.ISOLATED
Found = dict[str, tuple[PartitionKind | None, bool, Why]]


def found(
    of: Pod, qos: QosClass = QosClass.GUARANTEED, *, isolated: str = "", isolation: str = "partition", **more: Any
) -> Found:
    topology = Topology.of(SMALL.cpus, SMALL.numa, l3=SMALL.l3, isolated=CpuSet.parse(isolated))
    world = node(topology, config={"host_isolation": isolation}, **more)
    decision = admit(world.managers, empty_state(world).promises, of)
    assert isinstance(decision, Admitted)
    entry = PodEntry(of, qos, Origin("a"), 0)
    closed = find_closings(world.config, world.managers, decision.promises, entry)
    owned = {name: own_set_of(decision.promises, of.uid, name) for name in closed}
    assert {name: one.cpus for name, one in closed.items()} == owned
    return {name: (one.kind, one.is_of_pod, one.why) for name, one in closed.items()}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (pod("a", app(cpu="2")), {"app": (ROOT, True, Why.BALANCED)}),
        (pod("a", app(cpu="2"), is_isolated=True), {"app": (ISOLATED, True, Why.ASKED_FOR)}),
        (pod("a", app("own", cpu="2"), app("beside", cpu="100m")), {"own": (ROOT, False, Why.BALANCED)}),
        (pod("a", mixed()), {"app": (None, False, Why.MIXED)}),
        (
            pod("a", init("first", cpu="1"), app("own", cpu="1"), app("beside", cpu="100m")),
            {"first": (None, False, Why.REUSED), "own": (None, False, Why.REUSED)},
        ),
        (pod("a", app(cpu="100m")), {}),
    ],
)
def test_by_what_and_why(of: Pod, expected: Found) -> None:
    assert found(of) == expected
    assert found(of, isolation="none") == {}


def test_a_burstable_pods_cpus_are_no_partition() -> None:
    of = pod("a", mixed(cpu="2", resources=burstable("2")))
    assert found(of, QosClass.BURSTABLE) == {"app": (None, False, Why.QOS)}


@pytest.mark.parametrize(
    ("cpu", "expected"), [("2", (ISOLATED, True, Why.ISOLATED_AT_BOOT)), ("4", (None, False, Why.PARTLY_ISOLATED))]
)
def test_cpus_that_are_isolated_at_boot_decide(cpu: str, expected: tuple[PartitionKind | None, bool, Why]) -> None:
    assert found(pod("a", app(cpu=cpu)), isolated="2-3", isolated_cpus="prefer") == {"app": expected}
