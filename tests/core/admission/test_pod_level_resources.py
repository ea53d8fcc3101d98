"""Pod-level resource managers by every example and table row of KEP-5526 and of the Kubernetes page on resource managers.

The machine has the numbers of their tables: CPU 0 is reserved, CPUs 1 to 7 are the rest of NUMA node 0, 8 to 15 are node 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.admission.records import Records, start, start_cpus, start_memory
from nodeagent.core.cgroups.desired_cgroups import Kernel, desired_cgroups
from nodeagent.core.metrics.deltas import Series, apply_deltas
from nodeagent.core.model.cgroup import Attribute, CpuMax
from nodeagent.core.model.config import Config, Errata, Placement
from nodeagent.core.model.demand import WhyShared
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod, ResourceRequirements, Resources
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import Reason, StartRefused
from nodeagent.core.model.state import NodeState, Origin
from nodeagent.core.numa.hints import DONT_CARE
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, own_set_of
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_accounts, memory_nodes_of
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state
from nodeagent.formats.manifest.pod_manifest import pod_from_document
from nodeagent.views.simulate.scenario_replay import encode_cpu_file, encode_memory_file
from tests.support.builders import ALPHA, GIB, MACHINE_A, PLRM, machine, managers, pod
from tests.support.invariants import memory_errors, pool_errors, shared_cpus, size_errors
from tests.support.pods import app, exclusive, init, shared, sidecar

MACHINE = machine(nodes=2, cores=8, threads=1)
SHARED_SIDECAR = ContainerKind.SIDECAR
ALIGNING = pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])

CPU_POOL = (
    "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
)
MEMORY_POOL = "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared containers"
NOT_ALIGNED = "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"


def node(scope: str, policy: str = "restricted", **more: Any) -> Managers:
    given: dict[str, Any] = {"reserved": "0", "gates": PLRM, "reserved_memory": {0: "1Gi"}} | more
    topology = given.pop("topology", MACHINE)
    return managers(topology, topology_manager_policy=policy, topology_manager_scope=scope, **given)


def admitted(on: Managers, *pods: Pod) -> Admitted:
    """Admit all of them; whatever is then promised is sound."""
    promises = core.initial(on)
    decisions = []
    for one in pods:
        decision = core.admit(on, promises, one)
        assert isinstance(decision, Admitted), decision.message
        promises = decision.promises
        decisions.append(decision)
    found = [*shared_cpus(on, promises, pods), *pool_errors(on, promises), *size_errors(on, promises, pods)]
    assert [*found, *memory_errors(on, promises), *core.violations(on, promises, pods)] == []
    return decisions[-1]


def refused(on: Managers, one: Pod) -> tuple[str, str]:
    decision = core.admit(on, core.initial(on), one)
    assert isinstance(decision, Rejected)
    assert decision.promises == core.initial(on)
    return decision.reason.value, decision.message


def cpus_of(promises: Promises, one: Pod) -> dict[str, str]:
    """Containers without CPUs of their own are in the node's shared pool."""
    sets = {c.name: own_set_of(promises, one.uid, c.name) for c in one.containers}
    return {name: "node's pool" if cpus is None else str(cpus) for name, cpus in sets.items()}


def gib_of(promises: Promises, one: Pod) -> dict[str, int]:
    """Whole GiB of memory that a container has; absent: it has none of its own."""
    blocks = dict(promises.of_pod(one.uid).of(MemoryHoldings).memory)
    return {name: sum(block.size_bytes for block in each) // GIB for name, each in blocks.items()}


def totals(decision: Admitted | Rejected) -> Mapping[str, int]:
    counted: dict[Series, int] = {}
    apply_deltas(counted, decision.deltas)
    return {str(series): value for series, value in counted.items()}


# KEP-5526: tables


@dataclass(frozen=True)
class Row:
    """One row of a table of allocations."""

    name: str
    scope: str
    one: Pod
    cpus: Mapping[str, str]
    preferring: tuple[str, ...] = ()
    """Container scope: the containers that prefer a NUMA node; the others have no preference."""
    gib: Mapping[str, int] = field(default_factory=dict)


FIVE = exclusive("5", "5Gi")
THREE_ONE_ONE = (app("c1", "3", "3Gi"), app("c2", "1", "1Gi"), app("c3", "1", "1Gi"))
THREE_AND_SHARED = (app("c1", "3", "3Gi"), shared("c2"), shared("c3"))
ALL_SHARED = (shared("c1"), shared("c2"), shared("c3"))
EACH_ITS_OWN = {"c1": "1-3", "c2": "4", "c3": "5"}
NOBODY = dict.fromkeys(("c1", "c2", "c3"), "node's pool")

ROWS = [
    Row("kep: pod scope: current behavior", "pod", pod("p", *THREE_ONE_ONE), EACH_ITS_OWN, gib={"c1": 3, "c2": 1, "c3": 1}),
    Row(
        "kep: pod scope: all containers guaranteed", "pod", pod("p", *THREE_ONE_ONE, resources=FIVE), EACH_ITS_OWN,
        gib={"c1": 3, "c2": 1, "c3": 1},
    ),
    Row(
        "kep: pod scope: some containers guaranteed", "pod", pod("p", *THREE_AND_SHARED, resources=FIVE),
        {"c1": "1-3", "c2": "4-5", "c3": "4-5"}, gib={"c1": 3, "c2": 2, "c3": 2},
    ),
    Row(
        "kep: pod scope: no containers guaranteed", "pod", pod("p", *ALL_SHARED, resources=FIVE),
        dict.fromkeys(("c1", "c2", "c3"), "1-5"), gib={"c1": 5, "c2": 5, "c3": 5},
    ),
    Row(
        "kep: container scope: current behavior", "container", pod("p", *THREE_ONE_ONE), EACH_ITS_OWN, ("c1", "c2", "c3"),
        {"c1": 3, "c2": 1, "c3": 1},
    ),
    Row(
        "kep: container scope: all containers guaranteed", "container", pod("p", *THREE_ONE_ONE, resources=FIVE), EACH_ITS_OWN,
        ("c1", "c2", "c3"), {"c1": 3, "c2": 1, "c3": 1},
    ),
    Row(
        "kep: container scope: some containers guaranteed", "container", pod("p", *THREE_AND_SHARED, resources=FIVE),
        NOBODY | {"c1": "1-3"}, ("c1",), {"c1": 3},
    ),
    Row("kep: container scope: no containers guaranteed", "container", pod("p", *ALL_SHARED, resources=FIVE), NOBODY),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
@ALIGNING
def test_table_of_allocations(row: Row, policy: str) -> None:
    """All three aligning policies give what the tables say, on NUMA node 0."""
    decision = admitted(node(row.scope, policy), row.one)
    assert cpus_of(decision.promises, row.one) == row.cpus
    assert gib_of(decision.promises, row.one) == row.gib
    merges = decision.report.merges
    if row.scope == "pod":
        (merge,) = merges
        assert (merge.container, merge.merged.mask, merge.merged.preferred) == (None, 0b01, True)
        return
    assert [merge.container for merge in merges] == ["c1", "c2", "c3"]
    for merge in merges:
        if merge.container in row.preferring:
            assert (merge.merged.mask, merge.merged.preferred) == (0b01, True)
        else:
            assert merge.hints == (("cpu", DONT_CARE), ("memory", DONT_CARE)), "no NUMA preference"


EMPTY_POOL = pod("p", app("c1", "3", "3Gi"), app("c2", "2", "1Gi"), shared("c3"), resources=FIVE)


@ALIGNING
def test_table_of_allocations_kep_pod_scope_admission_failure(policy: str) -> None:
    answer = (
        ("EmptyPodSharedPoolError", CPU_POOL) if policy == "best-effort" else ("TopologyAffinityError", NOT_ALIGNED)
    )
    assert refused(node("pod", policy), EMPTY_POOL) == answer


def test_kep_pod_scope_pod_level_unset_containers_set() -> None:
    """Alignment by the sum of the containers, exclusive allocation by each one's own resources."""
    one = pod("p", app("a", "5", "1Gi"), app("b", "2", "1Gi"))
    decision = admitted(node("pod", "single-numa-node"), one)
    assert decision.promises.of_pod("p").of(CpuHoldings).pod_cpus is None
    assert cpus_of(decision.promises, one) == {"a": "1-5", "b": "6-7"}
    # Together they fit no node: refused as one, though either would fit alone.
    wide = pod("p", app("a", "5", "1Gi"), app("b", "4", "1Gi"))
    assert refused(node("pod", "single-numa-node"), wide)[0] == "TopologyAffinityError"


def test_kep_pod_scope_pod_level_set_containers_unset() -> None:
    """Alignment and exclusive allocation for the pod; all containers share it."""
    one = pod("p", *ALL_SHARED, resources=exclusive("8", "4Gi"))
    decision = admitted(node("pod", "single-numa-node"), one)
    assert str(decision.promises.of_pod("p").of(CpuHoldings).pod_cpus) == "8-15"
    assert set(cpus_of(decision.promises, one).values()) == {"8-15"}
    assert memory_nodes_of(decision.promises, "p", "c3") == NumaSet.of(1)


def test_kep_pod_scope_pod_level_set_containers_set() -> None:
    """Alignment for the pod; exclusive slices for guaranteed containers, and a pool for the rest."""
    one = pod("p", *THREE_AND_SHARED, resources=exclusive("8", "5Gi"))
    decision = admitted(node("pod", "single-numa-node"), one)
    assert str(decision.promises.of_pod("p").of(CpuHoldings).pod_cpus) == "8-15"
    assert cpus_of(decision.promises, one) == {"c1": "8-10", "c2": "11-15", "c3": "11-15"}


def test_kep_container_scope_pod_level_unset_containers_set() -> None:
    one = pod("p", app("a", "5", "1Gi"), app("b", "4", "1Gi"))
    assert cpus_of(admitted(node("container", "single-numa-node"), one).promises, one) == {"a": "1-5", "b": "8-11"}


def test_kep_container_scope_pod_level_set_containers_unset() -> None:
    one = pod("p", *ALL_SHARED, resources=FIVE)
    on = node("container", "single-numa-node")
    decision = admitted(on, one)
    assert cpus_of(decision.promises, one) == NOBODY
    assert default_set(decision.promises) == default_set(core.initial(on))
    assert memory_accounts(decision.promises) == memory_accounts(core.initial(on))


def test_kep_container_scope_pod_level_set_containers_set() -> None:
    """The pod's own amount doesn't matter: it could not be had from one node."""
    one = pod("p", app("a", "5", "1Gi"), app("b", "4", "1Gi"), shared("c"), resources=exclusive("12", "7Gi"))
    decision = admitted(node("container", "single-numa-node"), one)
    assert cpus_of(decision.promises, one) == {"a": "1-5", "b": "8-11", "c": "node's pool"}
    assert decision.promises.of_pod("p").of(CpuHoldings).pod_cpus is None


# KEP-5526: examples

FOUR = exclusive("4", "4Gi")
POD_SCOPE_SHARED = pod(
    "pod-scope-shared", shared("container-1"), shared("container-2"), shared("container-3"), resources=FOUR
)
POD_SCOPE_MIXED = pod(
    "pod-scope-mixed", app("container-1", "2", "2Gi"), shared("container-2"), shared("container-3"), resources=FOUR
)
POD_SCOPE_ADMISSION_FAILURE = pod(
    "pod-scope-admission-failure",
    app("container-1", "3", "3Gi"),
    app("container-2", "2", "2Gi"),
    shared("container-3"),
    resources=FIVE,
)


@ALIGNING
def test_kep_example_pod_scope_1_shared_pool_only(policy: str) -> None:
    decision = admitted(node("pod", policy), POD_SCOPE_SHARED)
    assert set(cpus_of(decision.promises, POD_SCOPE_SHARED).values()) == {"1-4"}
    assert set(gib_of(decision.promises, POD_SCOPE_SHARED).values()) == {4}
    assert str(default_set(decision.promises)) == "0,5-15"


@ALIGNING
def test_kep_example_pod_scope_2_mixed_allocation(policy: str) -> None:
    decision = admitted(node("pod", policy), POD_SCOPE_MIXED)
    assert cpus_of(decision.promises, POD_SCOPE_MIXED) == {
        "container-1": "1-2",
        "container-2": "3-4",
        "container-3": "3-4",
    }
    assert set(gib_of(decision.promises, POD_SCOPE_MIXED).values()) == {2}


@ALIGNING
def test_kep_example_pod_scope_3_admission_failure(policy: str) -> None:
    answer = (
        ("EmptyPodSharedPoolError", CPU_POOL) if policy == "best-effort" else ("TopologyAffinityError", NOT_ALIGNED)
    )
    assert refused(node("pod", policy), POD_SCOPE_ADMISSION_FAILURE) == answer


@ALIGNING
def test_kep_example_container_scope_1_mixed_allocation(policy: str) -> None:
    one = pod("container-scope-mixed", *POD_SCOPE_MIXED.containers, resources=FOUR)
    decision = admitted(node("container", policy), one)
    pool = "node's pool"
    assert cpus_of(decision.promises, one) == {"container-1": "1-2", "container-2": pool, "container-3": pool}
    assert gib_of(decision.promises, one) == {"container-1": 2}
    levels = [isolation(node("container", policy), decision.promises, one, c.name) for c in one.containers]
    assert levels == [Isolation.CONTAINER, Isolation.HOST, Isolation.HOST]


@ALIGNING
def test_kep_example_container_scope_2_pod_level_resources_only(policy: str) -> None:
    one = pod("container-scope-pod-only", *POD_SCOPE_SHARED.containers, resources=FOUR)
    decision = admitted(node("container", policy), one)
    assert set(cpus_of(decision.promises, one).values()) == {"node's pool"}
    assert str(default_set(decision.promises)) == "0-15"


# KEP-5526: test scenarios


def test_kep_scenario_pod_scope_shared_only() -> None:
    one = pod("p", shared("a"), shared("b"), resources=exclusive("6", "1Gi"))
    assert cpus_of(admitted(node("pod"), one).promises, one) == {"a": "1-6", "b": "1-6"}


def test_kep_scenario_pod_scope_exclusive_only() -> None:
    one = pod("p", app("a", "2", "1Gi"), app("b", "4", "1Gi"), resources=exclusive("6", "2Gi"))
    assert cpus_of(admitted(node("pod"), one).promises, one) == {"a": "1-2", "b": "3-6"}


def test_kep_scenario_pod_scope_mixed() -> None:
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("6", "2Gi"))
    assert cpus_of(admitted(node("pod"), one).promises, one) == {"a": "1-2", "b": "3-6"}


def test_kep_scenario_pod_scope_init_containers() -> None:
    """A standard init container's CPUs are reused: for the pod's shared pool, and for exclusive slices."""
    one = pod("p", init("i", "4", "1Gi"), shared("a"), shared("b"), resources=exclusive("4", "1Gi"))
    assert cpus_of(admitted(node("pod"), one).promises, one) == {"i": "1-4", "a": "1-4", "b": "1-4"}
    one = pod("p", init("i", "4", "1Gi"), app("a", "3", "1Gi"), shared("b"), resources=exclusive("4", "2Gi"))
    assert cpus_of(admitted(node("pod"), one).promises, one) == {"i": "1-4", "a": "1-3", "b": "4"}


def test_kep_scenario_pod_scope_sidecar() -> None:
    """A sidecar's CPUs are not reused: neither by apps nor by what starts after it."""
    one = pod(
        "p",
        sidecar("s", "2", "1Gi"),
        init("i", "3", "1Gi"),
        app("a", "1", "1Gi"),
        shared("b"),
        resources=exclusive("5", "4Gi"),
    )
    assert cpus_of(admitted(node("pod"), one).promises, one) == {"s": "1-2", "i": "3-5", "a": "3", "b": "4-5"}


def test_kep_scenario_container_scope_mixed() -> None:
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("6", "2Gi"))
    assert cpus_of(admitted(node("container"), one).promises, one) == {"a": "1-2", "b": "node's pool"}


def test_kep_scenario_containers_exceed_the_budget() -> None:
    """Sums are judged before the managers see a pod (see the manifest rules' tests); what gets here is refused all the same."""
    for greedy in (
        pod("p", app("a", "3", "1Gi"), app("b", "2", "1Gi"), resources=exclusive("4", "4Gi")),
        pod("p", app("a", "1", "3Gi"), app("b", "1", "2Gi"), resources=exclusive("4", "4Gi")),
        pod("p", init("i", "5", "1Gi"), app("a", "1", "1Gi"), resources=exclusive("4", "4Gi")),
        pod("p", sidecar("s", "4", "1Gi"), app("a", "1", "1Gi"), resources=exclusive("4", "4Gi")),
    ):
        refused(node("pod", "best-effort"), greedy)


SMT: dict[str, Any] = {"topology": MACHINE_A, "reserved": "0,8", "options": ("full-pcpus-only",)}


def test_kep_scenario_full_pcpus_only_whole_cores() -> None:
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("4", "2Gi"))
    decision = admitted(node("pod", **SMT), one)
    assert str(decision.promises.of_pod("p").of(CpuHoldings).pod_cpus) == "1-2,9-10"
    assert cpus_of(decision.promises, one) == {"a": "1,9", "b": "2,10"}


def test_kep_scenario_full_pcpus_only_no_whole_cores() -> None:
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("5", "2Gi"))
    assert refused(node("pod", **SMT), one) == (
        "SMTAlignmentError",
        "SMT Alignment Error: requested 5 cpus not multiple cpus per core = 2",
    )


def test_kep_scenario_pod_level_accounting_for_shared_containers() -> None:
    """Two pods of half the node each, whose containers ask for nothing, run side by side."""
    first = pod("first", shared("a"), shared("b"), resources=exclusive("7", "6Gi"))
    second = pod("second", shared("a"), shared("b"), resources=exclusive("8", "7Gi"))
    promises = admitted(node("pod", "single-numa-node"), first, second).promises
    assert [str(promises.of_pod(uid).of(CpuHoldings).pod_cpus) for uid in ("first", "second")] == ["1-7", "8-15"]
    third = core.admit(
        node("pod", "single-numa-node"), promises, pod("third", shared("a"), resources=exclusive("1", "1Gi"))
    )
    assert isinstance(third, Rejected)


def test_kep_scenario_pod_shared_pool_cleanup() -> None:
    """With the last container everything comes back, whether or not one is in the pod's pool at that time."""
    on = node("pod")
    promises = admitted(on, POD_SCOPE_MIXED).promises
    for name in ("container-2", "container-3"):
        promises, _ = core.remove_container(on, promises, POD_SCOPE_MIXED.uid, name)
        assert str(promises.of_pod(POD_SCOPE_MIXED.uid).of(CpuHoldings).pod_cpus) == "1-4"
    promises, _ = core.remove_container(on, promises, POD_SCOPE_MIXED.uid, "container-1")
    assert promises == core.initial(on)


def test_kep_scenario_sequential_resource_recycle() -> None:
    on = node("pod", "single-numa-node")
    large = [
        pod(uid, app("a", "5", "1Gi"), shared("b"), resources=exclusive("7", "6Gi")) for uid in ("first", "second")
    ]
    promises, sets = core.initial(on), []
    for one in large:
        decision = core.admit(on, promises, one)
        assert isinstance(decision, Admitted)
        sets.append(
            (
                str(decision.promises.of_pod(one.uid).of(CpuHoldings).pod_cpus),
                memory_nodes_of(decision.promises, one.uid, "a"),
            )
        )
        promises, _ = core.remove_pod(on, decision.promises, one.uid)
    assert sets == [("1-7", NumaSet.of(0))] * 2


# KEP-5526: rules in the text


def test_kep_story_1_training_container_and_light_sidecars() -> None:
    lights = (shared(name, SHARED_SIDECAR) for name in ("ingestion", "logging", "monitoring"))
    one = pod("p", *lights, app("training", "5", "4Gi"), resources=exclusive("7", "6Gi"))
    decision = admitted(node("pod", "single-numa-node"), one)
    light = dict.fromkeys(("ingestion", "logging", "monitoring"), "6-7")
    assert cpus_of(decision.promises, one) == light | {"training": "1-5"}


def test_kep_story_2_infrastructure_sidecar() -> None:
    one = pod("p", sidecar("nic", "2", "1Gi"), shared("main"), shared("tools"), resources=exclusive("12", "6Gi"))
    decision = admitted(node("container", "single-numa-node"), one)
    assert cpus_of(decision.promises, one) == {"nic": "1-2", "main": "node's pool", "tools": "node's pool"}


def test_kep_underutilized_pods_keep_what_they_do_not_use() -> None:
    one = pod("p", app("a", "2", "1Gi"), resources=exclusive("6", "4Gi"))
    promises = admitted(node("pod"), one).promises
    assert (str(promises.of_pod("p").of(CpuHoldings).pod_cpus), cpus_of(promises, one)) == ("1-6", {"a": "1-2"})
    assert str(default_set(promises)) == "0,7-15"
    table = memory_accounts(promises)[0].table("memory")
    assert table is not None
    assert table.reserved == 4 * GIB


def test_kep_shared_init_containers_burst_over_all_but_earlier_sidecars() -> None:
    """A progressively smaller set; sidecars in the pool get what is left in the end."""
    one = pod(
        "p",
        shared("i1", ContainerKind.INIT),
        sidecar("s1", "1", "1Gi"),
        shared("i2", ContainerKind.INIT),
        shared("s2", SHARED_SIDECAR),
        sidecar("s3", "1", "1Gi"),
        shared("i3", ContainerKind.INIT),
        app("a", "2", "1Gi"),
        shared("b"),
        resources=exclusive("7", "6Gi"),
    )
    decision = admitted(node("pod"), one)
    assert cpus_of(decision.promises, one) == {
        "i1": "1-7", "s1": "1", "i2": "2-7", "s2": "5-7", "s3": "2", "i3": "3-7", "a": "3-4", "b": "5-7",
    }  # fmt: skip
    assert gib_of(decision.promises, one) == {"i1": 6, "s1": 1, "i2": 5, "s2": 3, "s3": 1, "i3": 4, "a": 1, "b": 3}


def test_kep_a_container_qualifies_by_whole_cpus_and_equal_requests_and_limits() -> None:
    def resources(cpu: str, limit: str) -> ResourceRequirements:
        requests, limits = (
            Resources.of({"cpu": Quantity.parse(each), "memory": Quantity.parse("1Gi")}) for each in (cpu, limit)
        )
        return ResourceRequirements(requests, limits)

    one = pod(
        "p",
        app("whole", "2", "1Gi"),
        app("fraction", "1500m", "1Gi"),
        Container("burstable", ContainerKind.APP, resources("1", "2")),
        app("no-memory", "1", None),
        resources=exclusive("7", "6Gi"),
    )
    on = node("pod")
    decision = admitted(on, one)
    pool = dict.fromkeys(("fraction", "burstable", "no-memory"), "3-7")
    assert cpus_of(decision.promises, one) == pool | {"whole": "1-2"}
    levels = {c.name: isolation(on, decision.promises, one, c.name) for c in one.containers}
    assert levels == dict.fromkeys(pool, Isolation.POD) | {"whole": Isolation.CONTAINER}
    # "The results of this check will be surfaced": why each of them shares.
    reasons = {each.name: each.why_shared for each in decision.report.containers}
    assert reasons == {
        "whole": None,
        "fraction": WhyShared.FRACTIONAL,
        "burstable": WhyShared.LIMIT_DIFFERS,
        "no-memory": WhyShared.NO_MEMORY_LIMIT,
    }


def test_kep_a_pod_of_part_of_a_cpu_gets_none_of_its_own() -> None:
    """Not even for containers that would qualify: all of them run in the node's shared pool."""
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("2500m", "2Gi"))
    decision = admitted(node("pod"), one)
    assert set(cpus_of(decision.promises, one).values()) == {"node's pool"}
    assert [c.why_shared for c in decision.report.containers] == [WhyShared.FRACTIONAL_POD, WhyShared.NO_CPU_REQUEST]


def test_kep_policy_none_aligns_nothing() -> None:
    """Neither for the topology manager nor for the CPU manager does the pod get anything of its own."""
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=FOUR)
    assert cpus_of(admitted(node("pod", "none"), one).promises, one) == {"a": "1-2", "b": "node's pool"}
    idle = core.build(
        MACHINE, Placement(feature_gates=PLRM, topology_manager_policy="restricted", topology_manager_scope="pod")
    )
    assert isinstance(idle, Managers)
    decision = core.admit(idle, core.initial(idle), one)
    assert isinstance(decision, Admitted)
    assert cpus_of(decision.promises, one) == {"a": "node's pool", "b": "node's pool"}


def test_the_managers_refuse_a_gate_without_the_one_that_it_needs() -> None:
    """kubelet doesn't start either."""
    refused = core.build(MACHINE_A, Placement(feature_gates=(("PodLevelResources", False), *PLRM)))
    assert isinstance(refused, StartRefused)
    assert refused.message == (
        "PodLevelResourceManagers is enabled, but depends on features that are disabled: [PodLevelResources]"
    )
    assert core.find_misconfigurations(Placement(feature_gates=(("PodLevelResources", False), *PLRM))) == (refused,)


@pytest.mark.parametrize("gates", [(), (("PodLevelResources", False),)], ids=["managers' gate", "both gates"])
@pytest.mark.parametrize("scope", ["pod", "container"])
def test_kep_gates_off_pods_are_admitted_without_alignment(gates: tuple[tuple[str, bool], ...], scope: str) -> None:
    one = pod("p", app("a", "2", "1Gi"), app("b", "1", "1Gi"), resources=FOUR)
    on = node(scope, gates=gates)
    decision = core.admit(on, core.initial(on), one)
    assert isinstance(decision, Admitted)
    assert set(cpus_of(decision.promises, one).values()) == {"node's pool"}
    assert gib_of(decision.promises, one) == {}


def test_kep_topology_option_prefer_closest_numa_nodes() -> None:
    distances: list[tuple[int, ...]] = [(10, 31, 31, 12), (31, 10, 31, 31), (31, 31, 10, 31), (12, 31, 31, 10)]
    on = node(
        "pod",
        topology=machine(nodes=4, cores=4, threads=1, distances=distances),
        topology_manager_policy_options=(("prefer-closest-numa-nodes", "true"),),
        reserved_memory=None,
    )
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("6", "4Gi"))
    assert admitted(on, one).promises.hint("p", "a").mask == NumaSet.of(0, 3)


def test_kep_topology_option_max_allowable_numa_nodes() -> None:
    wide = machine(nodes=9, cores=2, threads=1)
    on = node("pod", topology=wide, topology_manager_policy_options=(("max-allowable-numa-nodes", "9"),))
    one = pod("p", app("a", "1", "1Gi"), shared("b"), resources=exclusive("2", "2Gi"))
    assert admitted(on, one).promises.hint("p", "b").mask == NumaSet.of(1)


OPTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("distribute-cpus-across-numa", {}, "12", "1-6,8-13"),
    ("distribute-cpus-across-cores", {"topology": MACHINE_A, "reserved": "0,8", "gates": (*PLRM, *ALPHA)}, "3", "1-3"),
    ("align-by-socket", {"topology": machine(nodes=4, cores=4, threads=1, sockets=2), "gates": (*PLRM, *ALPHA)}, "8", "8-15"),
    ("strict-cpu-reservation", {}, "7", "1-7"),
    ("prefer-align-cpus-by-uncorecache", {"topology": machine(nodes=2, cores=8, threads=1, cores_per_uncore=4)}, "4", "4-7"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "more", "amount", "expected"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_kep_cpu_option_applies_to_the_pods_total(
    option: str, more: dict[str, Any], amount: str, expected: str
) -> None:
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive(amount, "4Gi"))
    on = node("pod", "best-effort", options=(option,), reserved_memory=None, **more)
    promises = admitted(on, one).promises
    assert str(promises.of_pod("p").of(CpuHoldings).pod_cpus) == expected
    if option == "strict-cpu-reservation":
        assert str(default_set(promises)) == "8-15"


def test_kep_isolation_levels_and_their_quota() -> None:
    on = node("pod")
    promises = admitted(on, POD_SCOPE_MIXED).promises
    levels = [isolation(on, promises, POD_SCOPE_MIXED, c.name) for c in POD_SCOPE_MIXED.containers]
    assert levels == [Isolation.CONTAINER, Isolation.POD, Isolation.POD]
    assert quotas(on, promises, POD_SCOPE_MIXED) == {"": 4, "container-1": None, "container-2": 2, "container-3": 2}


def quotas(on: Managers, promises: Promises, one: Pod) -> dict[str, float | None]:
    """CPUs that a cgroup's quota allows, the pod's under the empty name; None: it has none."""
    entry = new_entry(Manifest(one, Origin("p.yaml")), 0, pod_level_resources=True)
    kernel = Kernel(4096, NumaSet.of(0, 1), on.topology.online)
    found: dict[str, float | None] = {}
    for want in desired_cgroups(Config(placement=on.placement), on, kernel, NodeState(promises, (entry,))):
        limit = dict(want.attributes).get(Attribute.CPU_MAX)
        _, inside, name = want.path.partition(f"pod{one.uid}")
        if inside and isinstance(limit, CpuMax):
            found[name.strip("/")] = None if limit.quota_us is None else limit.quota_us / limit.period_us
    return found


def counters(decision: Admitted | Rejected) -> dict[str, int]:
    return {name: value for name, value in totals(decision).items() if name.startswith("resource_manager_")}


def test_kep_metrics_pod_scope() -> None:
    assert counters(admitted(node("pod"), POD_SCOPE_MIXED)) == {
        'resource_manager_allocations_total{resource_name="cpu",source="pod"}': 3,
        'resource_manager_allocations_total{resource_name="memory",source="pod"}': 3,
        'resource_manager_container_assignments{assignment_type="pod_exclusive",resource_name="cpu"}': 1,
        'resource_manager_container_assignments{assignment_type="pod_exclusive",resource_name="memory"}': 1,
        'resource_manager_container_assignments{assignment_type="pod_shared",resource_name="cpu"}': 2,
        'resource_manager_container_assignments{assignment_type="pod_shared",resource_name="memory"}': 2,
    }


def test_kep_metrics_container_scope() -> None:
    assert counters(admitted(node("container"), POD_SCOPE_MIXED)) == {
        'resource_manager_allocations_total{resource_name="cpu",source="node"}': 1,
        'resource_manager_allocations_total{resource_name="memory",source="node"}': 1,
        'resource_manager_container_assignments{assignment_type="node_exclusive",resource_name="cpu"}': 1,
        'resource_manager_container_assignments{assignment_type="node_exclusive",resource_name="memory"}': 1,
    }


def test_kep_metrics_errors() -> None:
    on = node("pod", "best-effort")
    decision = core.admit(on, core.initial(on), POD_SCOPE_ADMISSION_FAILURE)
    assert counters(decision) == {
        'resource_manager_allocation_errors_total{resource_name="cpu",source="pod"}': 1,
    }


# The Kubernetes page: static policy

NGINX: list[tuple[str, dict[str, str], dict[str, str], str]] = [
    ("best-effort", {}, {}, "node's pool"),
    ("burstable by memory", {"memory": "100Mi"}, {"memory": "200Mi"}, "node's pool"),
    ("burstable by cpu", {"memory": "100Mi", "cpu": "1"}, {"memory": "200Mi", "cpu": "2"}, "node's pool"),
    ("guaranteed", {"memory": "200Mi", "cpu": "2"}, {"memory": "200Mi", "cpu": "2"}, "1-2"),
    ("guaranteed, a fraction", {"memory": "200Mi", "cpu": "1.5"}, {"memory": "200Mi", "cpu": "1.5"}, "node's pool"),
    ("guaranteed by limits alone", {}, {"memory": "200Mi", "cpu": "2"}, "1-2"),
]


@pytest.mark.parametrize(("requests", "limits", "expected"), [c[1:] for c in NGINX], ids=[c[0] for c in NGINX])
def test_page_nginx(requests: dict[str, str], limits: dict[str, str], expected: str) -> None:
    """Read as manifests are: limits stand for requests that aren't there."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "p"},
        "spec": {
            "containers": [{"name": "nginx", "image": "nginx", "resources": {"requests": requests, "limits": limits}}]
        },
    }
    one = pod_from_document(document)
    assert cpus_of(admitted(node("container"), one).promises, one) == {"nginx": expected}


# The Kubernetes page: pod-level resource managers

PAGE_POD_SCOPE_MIXED = pod(
    "pod-scope-mixed",
    shared("metrics-sidecar", SHARED_SIDECAR),
    shared("logging-sidecar", SHARED_SIDECAR),
    app("main-app", "2", "2Gi"),
    resources=FOUR,
)
PAGE_EMPTY_SHARED_POOL = pod(
    "empty-shared-pool",
    sidecar("metrics-sidecar", "1", "1Gi"),
    shared("logging-sidecar", SHARED_SIDECAR),
    app("main-app", "3", "3Gi"),
    resources=FOUR,
)
PAGE_CONTAINER_SCOPE_MIXED = pod(
    "container-scope-mixed",
    sidecar("infrastructure-sidecar", "2", "2Gi"),
    shared("worker-1"),
    shared("worker-2"),
    resources=FOUR,
)


@ALIGNING
def test_page_pod_scope_mixed(policy: str) -> None:
    decision = admitted(node("pod", policy), PAGE_POD_SCOPE_MIXED)
    sides = {"metrics-sidecar": "3-4", "logging-sidecar": "3-4"}
    assert cpus_of(decision.promises, PAGE_POD_SCOPE_MIXED) == sides | {"main-app": "1-2"}
    assert set(gib_of(decision.promises, PAGE_POD_SCOPE_MIXED).values()) == {2}


@ALIGNING
def test_page_empty_shared_pool(policy: str) -> None:
    answer = (
        ("EmptyPodSharedPoolError", CPU_POOL) if policy == "best-effort" else ("TopologyAffinityError", NOT_ALIGNED)
    )
    assert refused(node("pod", policy), PAGE_EMPTY_SHARED_POOL) == answer


def test_page_empty_shared_pool_of_memory() -> None:
    """The same validation is applied for memory."""
    one = pod("p", sidecar("s", "1", "1Gi"), shared("l", SHARED_SIDECAR), app("a", "1", "3Gi"), resources=FOUR)
    assert refused(node("pod", "best-effort"), one) == ("EmptyPodSharedPoolError", MEMORY_POOL)
    assert refused(node("pod", "restricted"), one) == ("TopologyAffinityError", NOT_ALIGNED)


def test_page_wasted_resources() -> None:
    one = pod("p", app("a", "1", "1Gi"), app("b", "2", "1Gi"), resources=exclusive("6", "4Gi"))
    promises = admitted(node("pod"), one).promises
    assert (str(promises.of_pod("p").of(CpuHoldings).pod_cpus), cpus_of(promises, one)) == (
        "1-6",
        {"a": "1", "b": "2-3"},
    )


def test_page_persistent_pool() -> None:
    """A container in the pod's pool that crashes and starts again finds all where it was; so does the pod after a restart."""
    on = node("pod")
    promises = admitted(on, PAGE_POD_SCOPE_MIXED).promises
    again = core.start_container(on, promises, PAGE_POD_SCOPE_MIXED, "logging-sidecar")
    assert again == promises
    assert core.resume(on, promises) == promises
    assert core.readmit(on, promises, (PAGE_POD_SCOPE_MIXED,)).promises == promises
    ended, _ = core.remove_pod(on, promises, PAGE_POD_SCOPE_MIXED.uid)
    assert ended == core.initial(on)


@ALIGNING
def test_page_container_scope_mixed(policy: str) -> None:
    on = node("container", policy)
    decision = admitted(on, PAGE_CONTAINER_SCOPE_MIXED)
    pool = {"worker-1": "node's pool", "worker-2": "node's pool"}
    assert cpus_of(decision.promises, PAGE_CONTAINER_SCOPE_MIXED) == pool | {"infrastructure-sidecar": "1-2"}
    # All of them stay within the pod's own limits.
    assert quotas(on, decision.promises, PAGE_CONTAINER_SCOPE_MIXED)[""] == 4


def test_page_cpu_quota() -> None:
    """None beside exclusive CPUs; in the pod's pool no more than what the exclusive containers leave."""
    on = node("pod")
    promises = admitted(on, PAGE_POD_SCOPE_MIXED).promises
    assert quotas(on, promises, PAGE_POD_SCOPE_MIXED) == {
        "": 4, "main-app": None, "metrics-sidecar": 2, "logging-sidecar": 2,
    }  # fmt: skip


@pytest.mark.parametrize("scope", ["pod", "container"])
def test_page_standard_init_containers_lend_on(scope: str) -> None:
    one = pod("p", init("i", "3", "3Gi"), app("a", "2", "2Gi"), shared("b"), resources=FOUR)
    on = node(scope)
    promises = admitted(on, one).promises
    own = cpus_of(promises, one)
    assert own["i"] == "1-3"
    assert own["a"] == "1-2"
    assert own["b"] == ("3-4" if scope == "pod" else "node's pool")
    taken = memory_accounts(promises)[0].table("memory")
    assert taken is not None
    assert taken.reserved == (4 if scope == "pod" else 3) * GIB


def test_page_downgrade_older_files_fit_newer_ones_do_not() -> None:
    on, off = node("pod"), node("pod", gates=())
    promises = admitted(on, PAGE_POD_SCOPE_MIXED).promises
    files = encode_cpu_file(on, promises), encode_memory_file(on, promises)
    older = Records(
        decode_cpu_state(files[0], pod_level=False, initial={}), decode_memory_state(files[1], pod_level=False)
    )
    cpus = start_cpus(off, older)
    assert isinstance(cpus, StartRefused)
    assert "drain this node and delete the CPU manager checkpoint file" in cpus.message
    memory = start_memory(off, core.initial(off), older)
    assert isinstance(memory, StartRefused)
    assert "checkpoint is corrupted" in memory.message
    # Upgrading is transparent.
    plain = admitted(off, pod("q", app("a", "2", "1Gi"))).promises
    newer = Records(
        decode_cpu_state(encode_cpu_file(off, plain), pod_level=True, initial={}),
        decode_memory_state(encode_memory_file(off, plain), pod_level=True),
    )
    upgraded = start(on, newer)
    assert isinstance(upgraded, Promises)
    assert own_set_of(upgraded, "q", "a") == CpuSet.of(1, 2)


def test_page_metrics_tell_pod_from_node() -> None:
    on = node("pod")
    assert any('source="pod"' in name for name in totals(admitted(on, PAGE_POD_SCOPE_MIXED)))
    ordinary = totals(admitted(on, pod("q", app("a", "2", "1Gi"))))
    assert not any('source="pod"' in name for name in ordinary)
    assert ordinary['resource_manager_allocations_total{resource_name="cpu",source="node"}'] == 1


@pytest.mark.parametrize("errata", Errata)
def test_containers_that_ask_for_more_cpus_than_their_pod_are_counted_as_far_as_they_came(errata: Errata) -> None:
    """The one for which too few are left counts as a request, and as an error."""
    on = node("pod", "best-effort", errata=errata)
    one = pod(
        "p",
        init("i", "1", "1Gi"),
        shared("j", ContainerKind.INIT),
        app("a", "2", "1Gi"),
        app("b", "1", "1Gi"),
        resources=exclusive("2", "4Gi"),
    )
    decision = core.admit(on, core.initial(on), one)
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.UNEXPECTED_ADMISSION
    assert decision.message == (
        "Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, which is unexpected"
    )
    counted = totals(decision)
    assert counted["kubelet_cpu_manager_pinning_requests_total"] == 3
    assert counted["kubelet_cpu_manager_pinning_errors_total"] == 1
    assert counters(decision) == {
        'resource_manager_allocation_errors_total{resource_name="cpu",source="pod"}': 1,
        'resource_manager_container_assignments{assignment_type="pod_exclusive",resource_name="cpu"}': 2,
        'resource_manager_container_assignments{assignment_type="pod_shared",resource_name="cpu"}': 1,
    }
