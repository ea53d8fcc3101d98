"""sameNumaNodes: CPUs and memory on the same NUMA nodes, whenever such an allocation exists."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, admit, build, initial, remove_pod, violations
from nodeagent.core.model.config import Errata
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.numa.hint_family import HintFamily
from nodeagent.core.numa.hints import Merged
from nodeagent.core.resources.cpu.holdings import CpuHoldings, free_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.cpu.shares import divide_evenly
from nodeagent.core.resources.memory.resource import MemoryResource
from tests.support.builders import GIB, admitted, machine, managers, pod
from tests.support.invariants import memory_errors, pool_errors, settled, shared_cpus
from tests.support.pods import app
from tests.support.shares import share_of


def node(*, on: bool = True, nodes: int = 2, memory: int = 16 * GIB, **more: Any) -> Managers:
    given: dict[str, Any] = {
        "topology_manager_policy": "best-effort",
        "reserved_memory": dict.fromkeys(range(nodes), "1Gi"),
        "same_numa_nodes": on,
    }
    return managers(machine(nodes=nodes, memory=memory), **(given | more))


def nodes_of(of: Managers, promises: Promises, uid: str, name: str = "app") -> tuple[str, str]:
    """NUMA nodes of the container's CPUs, and of its memory."""
    held = promises.of_pod(uid)
    cpus, memory = of.providers.of(CpuResource), of.providers.of(MemoryResource)
    return str(cpus.numa_nodes_of(held, name)), str(memory.numa_nodes_of(held, name))


def test_4_cpus_and_20_gi_of_nodes_with_15() -> None:
    wanted = pod("a", app(cpu="4", memory="20Gi"))
    for on, cpus, numa in ((False, "1-2,9-10", ("0", "0-1")), (True, "1,4,9,12", ("0-1", "0-1"))):
        of = node(on=on)
        promises = admitted(of, wanted)
        assert str(promises.of_pod("a").of(CpuHoldings).own_set("app")) == cpus
        assert nodes_of(of, promises, "a") == numa


@pytest.mark.parametrize(
    ("free", "count", "size", "shares"),
    [
        ((8, 8), 4, 1, (2, 2)),
        ((8, 8), 5, 1, (3, 2)),
        ((1, 8), 5, 1, (1, 4)),
        ((8, 2, 8), 10, 2, (4, 2, 4)),
        ((8, 8, 8), 4, 2, None),  # fewer groups than nodes
        ((8, 1), 4, 2, None),  # half a group
        ((8, 8), 3, 2, None),
        ((2, 2), 5, 1, None),
    ],
)
def test_shares_are_as_even_as_there_is_room(
    free: tuple[int, ...], count: int, size: int, shares: tuple[int, ...] | None
) -> None:
    assert divide_evenly(free, count, size) == shares


def test_a_set_for_both_replaces_a_result_for_cpus_alone() -> None:
    """The third pod's memory fits only into the group of nodes 0 and 1, and the merge would leave its CPUs on node 0."""
    of = node(nodes=3, memory=8 * GIB, reserved="0")
    rest = admitted(of, pod("a", app(cpu="5", memory="9Gi")), pod("b", app(cpu="8", memory="1Gi")))
    wanted = pod("c", app(cpu="3", memory="3Gi"))
    decision = admit(of, rest, wanted)
    assert isinstance(decision, Admitted)
    (report,) = decision.report.merges
    assert (report.instead_of, report.merged) == (Merged(NumaMask(0b01), False), Merged(NumaMask(0b11), False))
    assert nodes_of(of, decision.promises, "c") == ("0-1", "0-1")
    without = admit(node(on=False, nodes=3, memory=8 * GIB, reserved="0"), rest, wanted)
    assert nodes_of(of, without.promises, "c") == ("0", "0-1")


def test_it_is_refused_where_kubelet_is_reproduced() -> None:
    for errata in (Errata.KUBELET_1_36, Errata.KUBELET_1_37):
        refused = build(machine(), replace(node().placement, errata=errata))
        assert isinstance(refused, StartRefused)
        assert refused.about == "sameNumaNodes"
        assert refused.text == (
            f"no kubelet has this setting, so errata: {errata.value} can't reproduce it, must be false, or removed, unless errata is fixed"
        )
        assert isinstance(build(machine(), replace(node(on=False).placement, errata=errata)), Managers)


@st.composite
def some_nodes(draw: st.DrawFn) -> Managers:
    count = draw(st.integers(1, 4))
    return node(
        nodes=count,
        memory=4 * GIB,
        reserved="0",
        reserved_memory={0: "1Gi"},
        options=draw(st.sampled_from([(), ("full-pcpus-only",), ("distribute-cpus-across-numa",)])),
        topology_manager_policy=draw(st.sampled_from(["best-effort", "best-effort", "restricted", "none"])),
        topology_manager_scope=draw(st.sampled_from(["container", "pod"])),
    )


some_pods = st.lists(
    st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(["512Mi", "2Gi", "4Gi", "6Gi", "9Gi"])), min_size=1, max_size=2
    ),
    min_size=1,
    max_size=6,
)


def has_both(of: Managers, before: Promises, wanted: Pod) -> bool:
    """Whether any set of nodes has the memory, and enough CPUs with some of each node: tried out one by one."""
    kinds, demand = of.providers, demand_of(of.rules, wanted)
    (container,) = demand.containers
    memory = dict(kinds.of(MemoryResource).container_hints(before, demand, container)).get("memory", ())
    assert not isinstance(memory, HintFamily)
    manager = kinds.of(CpuResource).manager
    free = free_cpus(before, manager.grantable).bits
    unit = 2 if manager.picking.whole_cores else 1
    for mask, _ in memory:
        cores = manager.layout.whole_cores(free) if unit == 2 else free
        parts = [
            (cores & node.cpus).bit_count() // unit
            for node in manager.nodes
            if mask is not None and mask >> node.id & 1
        ]
        if parts and all(parts) and sum(parts) * unit >= container.cpus >= unit * len(parts):
            return True
    return False


@settings(max_examples=share_of(400))
@given(some_nodes(), some_pods, st.data())
def test_whoever_can_be_on_the_same_nodes_is_and_nobody_is_refused_for_it(
    of: Managers, asked: list[list[tuple[int, str]]], data: st.DataObject
) -> None:
    plain = build(of.topology, replace(of.placement, same_numa_nodes=False))
    assert isinstance(plain, Managers)
    promises, there = initial(of), []
    for number, containers in enumerate(asked):
        names = ["app"] if len(containers) == 1 else ["app", "other"]
        new = pod(f"p{number}", *(app(n, cpu=str(c), memory=m) for n, (c, m) in zip(names, containers, strict=True)))
        decision, without = admit(of, promises, new), admit(plain, promises, new)
        assert isinstance(decision, Admitted) or not isinstance(without, Admitted)
        if isinstance(decision, Admitted):
            numa = nodes_of(of, decision.promises, new.uid)
            if len(containers) == 1 and of.placement.topology_manager_policy != "none" and has_both(of, promises, new):
                assert numa[0] == numa[1]
            if of.placement.topology_manager_policy == "none":
                assert decision.promises == without.promises
            promises, there = decision.promises, [*there, new]
            assert violations(of, promises, tuple(there)) == ()
            found = (*shared_cpus(of, promises, there), *pool_errors(of, promises), *memory_errors(of, promises))
            assert found == ()
        if there and data.draw(st.integers(0, 3)) == 0:
            promises, _ = remove_pod(of, promises, there.pop(data.draw(st.integers(0, len(there) - 1))).uid)
    for gone in there:
        promises, _ = remove_pod(of, promises, gone.uid)
    assert settled(promises) == settled(initial(of)), "everything is given back"
