"""Pods that ask for a NUMA node: all that is promised to them is there, or they are refused, under each policy; others see none of it."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.asked_for import limit_to_pod
from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, build, initial, readmit, violations
from nodeagent.core.cgroups.desired_cgroups import Kernel, desired_cgroups
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.cgroup_layout import POOL
from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import MEMORY, Pod, QosClass
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.state import NodeState, Origin, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings, free_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_accounts
from tests.support.builders import ALPHA, GIB, MACHINE_A, PLRM, admitted, machine, managers
from tests.support.pods import app, exclusive, init, mixed, pod, sidecar

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
BOOKS = {0: "1Gi"}


def placed(node: Managers, promises: Promises, new: Pod) -> tuple[NumaSet, NumaSet]:
    """The NUMA nodes of a pod's exclusive CPUs, and of its memory."""
    held = promises.of_pod(new.uid)
    cpus, memory = CpuSet(), NumaSet()
    for _, own in held.of(CpuHoldings).cpus:
        cpus |= own
    for _, blocks in held.of(MemoryHoldings).memory:
        for block in blocks:
            memory |= block.nodes
    return node.topology.numa_of(cpus), memory


def refused(node: Managers, new: Pod, promises: Promises | None = None) -> Rejected:
    decision = admit(node, promises or initial(node), new)
    assert isinstance(decision, Rejected)
    return decision


requests = st.tuples(st.integers(1, 9), st.integers(1, 9))
"""CPUs, GiB."""


@st.composite
def nodes_with_pods(draw: st.DrawFn) -> tuple[Managers, Promises, tuple[Pod, ...]]:
    count = draw(st.sampled_from([2, 4, 6]))
    sockets = draw(st.sampled_from([1, 2]))
    policy = draw(st.sampled_from(POLICIES))
    options = draw(st.sampled_from(["", "full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket"]))
    if options == "align-by-socket" and (policy == "single-numa-node" or sockets == 1):
        options = ""
    built = managers(
        machine(nodes=count, sockets=sockets),
        options=(options,) if options else (),
        gates=ALPHA,
        reserved="0",
        reserved_memory=draw(st.sampled_from([None, BOOKS])),
        topology_manager_policy=policy,
        topology_manager_scope=draw(st.sampled_from(["container", "pod"])),
    )
    promises, pods = initial(built), []
    for number, (cpus, gib) in enumerate(draw(st.lists(requests, max_size=5))):
        there = pod(f"p{number}", app(cpu=str(cpus), memory=f"{gib}Gi"))
        decision = admit(built, promises, there)
        if isinstance(decision, Admitted):
            promises, pods = decision.promises, [*pods, there]
    return built, promises, tuple(pods)


@given(nodes_with_pods(), requests, st.integers(0, 5))
def test_it_is_there_if_it_fits_there_and_else_it_is_refused(
    known: tuple[Managers, Promises, tuple[Pod, ...]], request: tuple[int, int], wanted: int
) -> None:
    built, promises, pods = known
    wanted %= len(built.topology.numa)
    cpus, gib = request
    new = pod("new", app(cpu=str(cpus), memory=f"{gib}Gi"), numa_node=wanted)
    decision = admit(built, promises, new)
    cpu = built.providers.of(CpuResource).manager
    free = free_cpus(promises, cpu.grantable).bits
    free &= (cpu.layout.whole_cores(free) if cpu.picking.whole_cores else free) & built.topology.nodes[wanted].bits
    whole = cpus % 2 == 0 or not built.providers.of(CpuResource).manager.options.full_pcpus_only
    books = next((one for one in memory_accounts(promises) if one.id == wanted), None)
    room = True
    if books is not None:
        table = books.table(MEMORY)
        assert table is not None
        room = table.free >= gib * GIB and len(books.cells) < 2
    assert isinstance(decision, Admitted) is (free.bit_count() >= cpus and whole and room)
    if isinstance(decision, Admitted):
        there = NumaSet.of(wanted)
        assert placed(built, decision.promises, new) == (there, there if memory_accounts(promises) else NumaSet())
        assert violations(built, decision.promises, (*pods, new)) == ()
        again = readmit(built, decision.promises, (*pods, new))
        assert (
            again.promises.of_pod("uid-new").of(CpuHoldings).cpus
            == decision.promises.of_pod("uid-new").of(CpuHoldings).cpus
        )
    else:
        assert decision.promises == promises


@pytest.mark.parametrize("books", [None, BOOKS])
@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", POLICIES)
def test_containers_of_each_kind_are_there(policy: str, scope: str, books: dict[int, str] | None) -> None:
    node = managers(reserved_memory=books, topology_manager_policy=policy, topology_manager_scope=scope)
    containers = (init(cpu="2", memory="2Gi"), sidecar(cpu="1", memory="1Gi"), app(cpu="2", memory="2Gi"))
    for wanted in (0, 1):
        new = pod("new", *containers, app("helper", cpu="500m", memory="1Gi"), numa_node=wanted)
        promises = admitted(node, new)
        assert placed(node, promises, new) == (NumaSet.of(wanted), NumaSet.of(wanted) if books else NumaSet())
        hints = [hint.mask for _, hint in promises.of_pod(new.uid).hints]
        assert set(hints) <= {NumaSet.of(wanted), None if policy == "single-numa-node" else NumaSet.of(wanted)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_container_that_shares_has_its_memory_there_or_the_pod_is_refused(policy: str) -> None:
    """It has no opinion on nodes where no set of nodes has room: kubelet's memory manager then looks everywhere."""
    node = managers(reserved_memory={0: "1Gi"}, topology_manager_policy=policy)
    for gib, fits in ((7, True), (8, False), (14, False)):
        new = pod("new", app(cpu="1", memory="1Gi"), app("helper", cpu="500m", memory=f"{gib}Gi"), numa_node=1)
        decision = admit(node, initial(node), new)
        assert isinstance(decision, Admitted) is fits, (policy, gib)
        if fits:
            assert placed(node, decision.promises, new) == (NumaSet.of(1), NumaSet.of(1))


def test_a_pod_with_one_set_for_all_has_it_there() -> None:
    node = managers(gates=PLRM, topology_manager_policy="restricted", topology_manager_scope="pod")
    new = pod("new", app(cpu="1"), app("beside"), resources=exclusive("4", "1Gi"), numa_node=1)
    promises = admitted(node, new)
    pods_set = promises.of_pod(new.uid).of(CpuHoldings).pod_cpus
    assert pods_set is not None
    assert node.topology.numa_of(pods_set) == NumaSet.of(1)


def test_what_is_nowhere_is_refused_whatever_the_policy() -> None:
    for policy in POLICIES:
        node = managers(topology_manager_policy=policy)
        asking = pod("new", app(cpu="2"), numa_node=2)
        missing = refused(node, asking)
        assert missing.reason is Reason.TOPOLOGY_AFFINITY
        assert missing.message == "it requires NUMA node 2, but the NUMA nodes of this machine are 0-1"
        shares = "it requires NUMA node 1, but requests no exclusive CPUs: the shared pool is on every node"
        for sharing in (app(cpu="1500m"), app()):
            assert refused(node, pod("new", sharing, numa_node=1)).message == shares
    off = build(MACHINE_A, Placement())
    assert isinstance(off, Managers)
    assert refused(off, pod("new", app(cpu="2"), numa_node=1)).message == shares


def without_memory(topology: Topology, node: int) -> Topology:
    return replace(topology, numa=tuple(replace(n, memory_bytes=0) if n.id == node else n for n in topology.numa))


def test_a_node_without_memory_has_none_to_give() -> None:
    asking = pod("new", app(cpu="2"), numa_node=1)
    assert (
        refused(managers(without_memory(MACHINE_A, 1)), asking).message
        == "it requires NUMA node 1, which has no memory"
    )
    unknown = managers(without_memory(without_memory(MACHINE_A, 0), 1))
    assert placed(unknown, admitted(unknown, asking), asking)[0] == NumaSet.of(1), "of a machine that is described"


def test_a_pod_that_runs_keeps_what_it_has() -> None:
    node = managers()
    there = pod("there", app(cpu="2"), numa_node=1)
    promises = admitted(node, replace(there, numa_node=None))
    (again,) = (result for _, result in readmit(node, promises, (there,)).results)
    assert isinstance(again, Admitted)
    assert again.promises.of_pod(there.uid).of(CpuHoldings).cpus == promises.of_pod(there.uid).of(CpuHoldings).cpus


def test_others_are_decided_by_the_same_managers() -> None:
    node = managers(reserved_memory=BOOKS)
    assert limit_to_pod(node.providers, demand_of(node.rules, pod("other", app(cpu="2")))) is node.providers


@pytest.mark.parametrize("books", [None, BOOKS])
def test_the_kernel_gives_it_memory_of_no_other_node(books: dict[int, str] | None) -> None:
    node = managers(reserved_memory=books)
    new = pod("new", mixed(cpu="1500m", own=1), app("helper", memory="64Mi"), numa_node=1)
    entry = PodEntry(new, QosClass.BURSTABLE, Origin("new.yaml"), 0)
    state = NodeState(admitted(node, new), (entry,), 1)
    cgroups = desired_cgroups(Config(), node, Kernel.of(node.topology, 4096, {}), state)
    leaves = [one for one in cgroups if one.is_leaf and one.path != POOL]
    assert [one.get(Attribute.CPUSET_MEMS) for one in leaves] == [NumaSet.of(1)] * 2
