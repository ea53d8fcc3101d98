"""Each erratum in both modes: what kubelet 1.36 does, and what nodeagent does instead."""

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.node_capacity import Insufficient, allocatable_of
from nodeagent.core.admission.node_setup import NodeSetup as StartNode
from nodeagent.core.admission.records import Records, start
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.cgroups.desired_cgroups import Kernel, desired_cgroups
from nodeagent.core.cgroups.write_order import SetAttribute, diff
from nodeagent.core.metrics.deltas import Series, apply_deltas
from nodeagent.core.metrics.manager_metrics import CPU_EXCLUSIVE, CPU_SHARED_POOL
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup
from nodeagent.core.model.config import Config, Errata
from nodeagent.core.model.demand import ContainerDemand, PodDemand, demand_of
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.errata import ERRATA, Erratum, list_reproduced
from nodeagent.core.model.idset import CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import NOTHING, Promises, with_pod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import Reason, StartRefused
from nodeagent.core.model.state import NodeState, Origin
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.model.violations import CpusOffline
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set, own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices
from nodeagent.core.resources.devices.resource import DeviceResource
from nodeagent.core.resources.devices.turnover import begin_start
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings, memory_accounts, memory_nodes_of
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.daemon.plugins import device_plugins
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.records import Recorder
from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import StateFileError
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state
from nodeagent.formats.checkpoint.node_state import decode_state
from nodeagent.formats.scenario.scenario import scenario_from_text
from nodeagent.views.simulate.scenario_replay import encode_cpu_file, encode_memory_file, replay
from tests.daemon.test_device_plugins import GPU, Kubelet
from tests.formats.checkpoint.test_checkpoint_versions import CPU_4
from tests.support.builders import ALPHA, GIB, MACHINE_A, PLRM, machine, managers, pod
from tests.support.decision_vectors import vectors
from tests.support.device_plugin import DevicePlugin
from tests.support.pods import app, exclusive, init, shared, sidecar

KUBELET, FIXED = Errata.KUBELET_1_36, Errata.FIXED
BOTH = pytest.mark.parametrize("errata", [KUBELET, FIXED])


def admitted(node: Managers, promises: Promises, *pods: Pod) -> Promises:
    """Admit all of them."""
    for one in pods:
        decision = core.admit(node, promises, one)
        assert isinstance(decision, Admitted), (one.uid, decision.message)
        promises = decision.promises
    return promises


def refused(node: Managers, promises: Promises, one: Pod) -> str:
    decision = core.admit(node, promises, one)
    assert isinstance(decision, Rejected)
    return decision.message


def restarted(node: Managers, promises: Promises, pods: Sequence[Pod]) -> core.Readmitted:
    """Lose what is in no file, start again, and admit the running pods again."""
    stored = Promises(pods=promises.pods).having(
        CpuBooks(default=default_set(promises)), MemoryBooks(nodes=memory_accounts(promises))
    )
    for uid, held in promises.pods:
        stored = with_pod(stored, uid, replace(held, hints=()))
    resumed = core.resume(node, stored)
    assert isinstance(resumed, Promises), resumed
    return core.readmit(node, resumed, tuple(pods))


def own(promises: Promises, uid: str, name: str) -> str:
    return str(own_set_of(promises, uid, name) or "")


def test_every_erratum_is_listed_once_and_in_order() -> None:
    assert [entry.erratum for entry in ERRATA] == list(Erratum)
    assert [int(erratum) for erratum in Erratum] == list(range(1, 35))
    assert list_reproduced(FIXED) == frozenset()
    assert list_reproduced(Errata.KUBELET_1_37) == list_reproduced(KUBELET), "no erratum is known to be mended in 1.37"
    assert list_reproduced(KUBELET) == {entry.erratum for entry in ERRATA if not entry.always_fixed}
    assert all(entry.kubelet and entry.nodeagent for entry in ERRATA)


SMALL = machine(nodes=1, cores=6, threads=1, memory=16 * GIB)


def small(errata: Errata, **more: Any) -> Managers:
    return managers(
        SMALL, errata=errata, reserved="0", gates=PLRM, topology_manager_scope="pod",
        topology_manager_policy="best-effort", **more,
    )  # fmt: skip


TWO_OF_POD = pod("p", app("a", "1"), shared("b"), resources=exclusive("2", "4Gi"))


@BOTH
def test_1_a_pod_is_allocated_once(errata: Errata) -> None:
    node = small(errata)
    before = admitted(node, core.initial(node), TWO_OF_POD)
    assert str(before.of_pod("p").of(CpuHoldings).pod_cpus) == "1-2"
    after = restarted(node, before, [TWO_OF_POD]).promises
    if errata is FIXED:
        assert str(after.of_pod("p").of(CpuHoldings).pod_cpus) == "1-2"
        assert default_set(after) == default_set(before)
        assert restarted(node, after, [TWO_OF_POD]).promises == after
    else:
        assert str(after.of_pod("p").of(CpuHoldings).pod_cpus) == "3-4"
        assert str(default_set(after)) == "0,5"
        resumed = core.resume(node, after)
        assert resumed == StartRefused(
            'current set of available CPUs "0-5" doesn\'t match with CPUs in state "0,3-5"', "cpu_manager_state"
        )


@BOTH
def test_1_its_memory_too(errata: Errata) -> None:
    node = small(errata, reserved_memory={0: "1Gi"})
    before = admitted(node, core.initial(node), TWO_OF_POD)
    after = restarted(node, before, [TWO_OF_POD]).promises
    table = memory_accounts(after)[0].table("memory")
    assert table is not None
    assert table.reserved == (4 * GIB if errata is FIXED else 8 * GIB)


@BOTH
@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_2_hints_come_from_all_that_a_pod_holds(errata: Errata, policy: str) -> None:
    node = managers(MACHINE_A, errata=errata, gates=PLRM, topology_manager_scope="pod", topology_manager_policy=policy)
    one = pod("p", app("a", "2"), shared("b"), resources=exclusive("4", "2Gi"))
    before = admitted(node, core.initial(node), one)
    readmitted = restarted(node, before, [one])
    if errata is FIXED:
        assert isinstance(readmitted.results[0][1], Admitted)
        assert readmitted.promises == before
    else:
        decision = readmitted.results[0][1]
        assert isinstance(decision, Rejected)
        assert decision.reason == "TopologyAffinityError"


@BOTH
@pytest.mark.parametrize(
    ("policy", "scope"), [("none", "container"), ("single-numa-node", "container"), ("restricted", "container")]
)
def test_3_shared_containers_need_no_memory_of_their_own(errata: Errata, policy: str, scope: str) -> None:
    node = managers(
        MACHINE_A, errata=errata, gates=PLRM, topology_manager_scope=scope, topology_manager_policy=policy,
        reserved_memory={0: "1Gi"},
    )  # fmt: skip
    one = pod("p", app("a", "2"), shared("b"), resources=exclusive("4", "4Gi"))
    if errata is FIXED:
        promises = admitted(node, core.initial(node), one)
        assert promises.of_pod("p").of(MemoryHoldings).blocks("a") is not None
        assert promises.of_pod("p").of(MemoryHoldings).blocks("b") is None
    else:
        assert "[memorymanager]" in refused(node, core.initial(node), one)


@BOTH
def test_4_a_restart_refuses_no_running_container(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata, options=("full-pcpus-only",))
    one = pod("p", app("a", "12"))
    before = admitted(node, core.initial(node), one)
    decision = restarted(node, before, [one]).results[0][1]
    if errata is FIXED:
        assert isinstance(decision, Admitted)
        assert own(decision.promises, "p", "a") == "1-2,4-7,9-10,12-15"
    else:
        assert isinstance(decision, Rejected)
        assert decision.message == (
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 12, "
            "CPUs per core = 2"
        )


@BOTH
def test_5_reusable_cores_count(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata, options=("full-pcpus-only",))
    one = pod("p", init("i", "14"), app("a", "14"))
    if errata is FIXED:
        promises = admitted(node, core.initial(node), one)
        assert own(promises, "p", "a") == own(promises, "p", "i") == "1-7,9-15"
    else:
        assert "available physical CPUs = 0, requested CPUs = 14" in refused(node, core.initial(node), one)


@BOTH
def test_6_everything_may_be_allocated(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata, options=("strict-cpu-reservation",))
    before = admitted(node, core.initial(node), pod("p", app("a", "14")))
    assert not default_set(before)
    resumed = core.resume(node, before)
    assert resumed == (
        before if errata is FIXED else StartRefused("default cpuset cannot be empty", "cpu_manager_state")
    )


@BOTH
def test_7_chosen_nodes_are_used(errata: Errata) -> None:
    topology = machine(nodes=8, cores=2, sockets=2)
    node = managers(topology, errata=errata, reserved="0", options=("distribute-cpus-across-numa",))
    promises = admitted(node, core.initial(node), pod("p", app("a", "15")))
    assert own(promises, "p", "a") == ("2-9,18-24" if errata is FIXED else "2-7,14-15,18-23,30")


@BOTH
def test_8_distribution_ends(errata: Errata) -> None:
    """In both modes: a hang is never reproduced."""
    node = managers(
        machine(nodes=4, cores=4), errata=errata, reserved="0,4,8,12",
        options=("full-pcpus-only", "distribute-cpus-across-numa"),
    )  # fmt: skip
    promises = admitted(node, core.initial(node), pod("p", app("a", "22")))
    assert len(own_set_of(promises, "p", "a") or ()) == 22


HYBRID = Topology.of([Cpu(c, c // 2 * 2 if c < 8 else c, 0, 0) for c in range(16)], [NumaNode(0, 8 * GIB)])
"""Four cores of two CPUs (0-7), eight of one (8-15)."""


@BOTH
def test_9_nothing_in_use_is_taken(errata: Errata) -> None:
    node = managers(HYBRID, errata=errata, reserved="0")
    promises = admitted(node, core.initial(node), pod("p", app("a", "2")))
    assert own(promises, "p", "a") == ("8-9" if errata is FIXED else "0-1")


@BOTH
def test_10_reuse_ends_with_the_pod(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata)
    one = pod("p", init("i", "4"), app("a", "2"))
    before = core.initial(node)
    after, _ = core.remove_pod(node, admitted(node, before, one), "p")
    if errata is FIXED:
        assert after == before
    else:
        assert after.of(CpuBooks).reuse is not None
        assert after.of(CpuBooks).reuse.pod_uid == "p"


@BOTH
def test_11_gauges_say_what_is(errata: Errata) -> None:
    """Init containers' CPUs are counted twice by kubelet: 4 + 2 + 3 for 4 CPUs."""
    node = managers(MACHINE_A, errata=errata)
    decision = core.admit(node, core.initial(node), pod("p", init("i1", "4"), init("i2", "2"), app("a", "3")))
    assert isinstance(decision, Admitted)
    totals: dict[Series, int] = {}
    apply_deltas(totals, decision.deltas)
    assert dict(core.gauges(node, decision.promises))[Series(CPU_EXCLUSIVE)] == 4
    assert totals.get(Series(CPU_EXCLUSIVE)) == (None if errata is FIXED else 9)


@BOTH
def test_11_simulate_shows_them(errata: Errata) -> None:
    containers = {name: {"cpu": amount, "memory": "1Gi"} for name, amount in (("i1", "4"), ("i2", "2"), ("a", "3"))}
    listed = [{"name": name, "resources": {"limits": limits}} for name, limits in containers.items()]
    scenario = {
        "id": "gauges",
        "topology": {"cpus": [{"id": c, "core": c % 8, "socket": c % 8 // 4, "numa": c % 8 // 4} for c in range(16)]},
        "config": {"errata": errata.value, "cpuManagerPolicy": "static", "reservedSystemCPUs": "0,8"},
        "steps": [
            {
                "op": "add",
                "pod": {
                    "metadata": {"uid": "p", "name": "p"},
                    "spec": {"initContainers": listed[:2], "containers": listed[2:]},
                },
            },
            {"op": "removePod", "podUID": "p"},
        ],
    }
    result = replay(scenario_from_text(json.dumps(scenario), "gauges"))
    shown = [
        tuple(each["metrics"].get(name, 0) for name in (CPU_EXCLUSIVE, CPU_SHARED_POOL))
        for each in (result, *result["steps"])
    ]
    assert shown == ([(0, 14000), (4, 10000), (0, 14000)] if errata is FIXED else [(0, 14000), (9, 5000), (5, 9000)])


@BOTH
def test_12_the_group_rule_holds(errata: Errata) -> None:
    """CPUs are free on node 1 only, which shares 10 GiB with node 0: the merged hint is node 1 alone."""
    node = managers(
        machine(nodes=3, cores=4, threads=1),
        errata=errata,
        reserved="0-3,8-10",
        topology_manager_policy="best-effort",
        reserved_memory={0: "1Gi"},
    )
    wide, narrow = pod("wide", app("a", "500m", "10Gi")), pod("narrow", app("a", "2", "1Gi"))
    promises = admitted(node, core.initial(node), wide)
    assert memory_nodes_of(promises, "wide", "a") == NumaSet.of(0, 1)
    promises = admitted(node, promises, narrow)
    assert promises.hint("narrow", "a").mask == NumaSet.of(1)
    if errata is FIXED:
        assert memory_nodes_of(promises, "narrow", "a") == NumaSet.of(0, 1)
        assert core.violations(node, promises, (wide, narrow)) == ()
    else:
        assert memory_nodes_of(promises, "narrow", "a") == NumaSet.of(1)
        after, _ = core.remove_pod(node, promises, "narrow")
        assert core.violations(node, promises, (wide, narrow)) != () or core.violations(node, after, (wide,)) != ()


@BOTH
def test_14_capacity_may_change(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata, reserved_memory={0: "1Gi"})
    before = admitted(node, core.initial(node), pod("p", app("a", "2", "6Gi")))
    smaller = managers(machine(memory=8 * GIB - 4096), errata=errata, reserved_memory={0: "1Gi"})
    resumed = core.resume(smaller, before)
    if errata is KUBELET:
        assert resumed == StartRefused(
            "[memorymanager] the expected machine state is different from the real one", "memory_manager_state"
        )
        return
    assert isinstance(resumed, Promises)
    assert resumed.pods == before.pods
    assert core.shortfalls(smaller, resumed) == ()
    tiny = managers(machine(memory=6 * GIB), errata=errata, reserved_memory={0: "1Gi"})
    overdrawn = core.resume(tiny, before)
    assert isinstance(overdrawn, Promises)
    assert [short.text for short in core.shortfalls(tiny, overdrawn)] == [
        "NUMA node 0: 1073741824 more bytes of memory are allocated than it has",
    ]
    empty, _ = core.remove_pod(tiny, overdrawn, "p")
    assert empty == core.initial(tiny)


@BOTH
def test_15_whole_bytes_are_whole_bytes(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata, reserved_memory={0: "1Gi"})
    one = pod("p", app("a", "2", "1.5Gi"))
    if errata is FIXED:
        blocks = admitted(node, core.initial(node), one).of_pod("p").of(MemoryHoldings).blocks("a")
        assert blocks is not None
        assert blocks[0].size_bytes == 3 * GIB // 2
    else:
        assert "failed to represent quantity as int64" in refused(node, core.initial(node), one)


@BOTH
@pytest.mark.parametrize("amount", ["1.5Gi", "1.0Gi", "1073741824000m"])
@pytest.mark.parametrize("policy", ["restricted", "single-numa-node", "best-effort"])
@pytest.mark.parametrize("of", [app, init, sidecar])
def test_15_in_pods_with_resources_of_their_own_too(errata: Errata, policy: str, amount: str, of: Any) -> None:
    node = managers(
        MACHINE_A, errata=errata, gates=PLRM, topology_manager_scope="pod", topology_manager_policy=policy,
        reserved_memory={0: "1Gi"},
    )  # fmt: skip
    one = pod("p", of("a", "1", amount), app("b", "1"), shared("c"), resources=exclusive("4", "4Gi"))
    if errata is FIXED:
        own = admitted(node, core.initial(node), one).of_pod("p").of(MemoryHoldings).blocks("a") or ()
        assert [block.size_bytes for block in own] == [Quantity.parse(amount).value()]
        return
    decision = core.admit(node, core.initial(node), one)
    assert isinstance(decision, Rejected)
    if policy == "best-effort":
        assert decision.reason is Reason.EMPTY_POD_SHARED_POOL
        assert decision.message == "[memorymanager] failed to represent quantity as int64"
    else:
        assert decision.reason is Reason.TOPOLOGY_AFFINITY


@pytest.mark.parametrize("amount", ["0.5", "1500m"])
def test_15_parts_of_a_byte_are_refused_in_both_modes(amount: str) -> None:
    for errata in (KUBELET, FIXED):
        node = small(errata, reserved_memory={0: "1Gi"})
        one = pod("p", app("a", "1", amount), shared("b"), resources=exclusive("2", "4Gi"))
        assert refused(node, core.initial(node), one) == "[memorymanager] failed to represent quantity as int64"


@BOTH
def test_16_unknown_page_sizes_are_named(errata: Errata) -> None:
    """In both modes: a panic is never reproduced."""
    node = managers(MACHINE_A, errata=errata, reserved_memory={0: "1Gi"})
    one = pod("p", app("a", "2", "1Gi", hugepages_1Gi="1Gi"))
    assert "[memorymanager] no NUMA node has hugepages-1Gi" in refused(node, core.initial(node), one)


@BOTH
def test_16_amounts_do_not_wrap(errata: Errata) -> None:
    node = small(errata, reserved_memory={0: "1Gi"})
    greedy = pod("p", app("a", "1", "5Gi"), resources=exclusive("2", "4Gi"))
    if errata is FIXED:
        message = refused(node, core.initial(node), greedy)
        assert message == (
            "Allocate failed due to [memorymanager] exclusive containers request 5368709120 of memory, "
            "but only 4294967296 available in the pod, which is unexpected"
        )
    else:
        assert admitted(node, core.initial(node), greedy).of_pod("p").of(MemoryHoldings).blocks("a") is not None


@BOTH
def test_16_reservations_do_not_wrap(errata: Errata) -> None:
    topology = machine(memory=2 * GIB, hugepages={"hugepages-1Gi": 2 * GIB})
    placement = managers(MACHINE_A, errata=errata, reserved_memory={0: "1Gi"}).placement
    built = core.build(topology, placement)
    assert isinstance(built, StartRefused if errata is FIXED else Managers)


@BOTH
def test_17_and_23_sparse_and_large_node_ids(errata: Errata) -> None:
    """In both modes: panics are never reproduced."""
    topology = Topology.of(
        [Cpu(c, c, 0, 0 if c < 4 else 70) for c in range(8)],
        [NumaNode(0, 8 * GIB, (), (10, 20)), NumaNode(70, 8 * GIB, (), (20, 10))],
    )
    node = managers(
        topology, errata=errata, reserved="0", topology_manager_policy="best-effort",
        topology_manager_policy_options=(("prefer-closest-numa-nodes", "true"),), reserved_memory={0: "1Gi"},
    )  # fmt: skip
    promises = admitted(node, core.initial(node), pod("p", app("a", "4")), pod("wide", app("a", "3", "5Gi")))
    assert promises.hint("p", "a").mask == NumaSet.of(70)
    assert memory_nodes_of(promises, "p", "a") == NumaSet.of(70)


@BOTH
def test_19_whole_cores_only(errata: Errata) -> None:
    """Cores that are half reserved: CPUs 9 to 15 have lost their siblings."""
    node = managers(MACHINE_A, errata=errata, reserved="0", gates=PLRM, options=("full-pcpus-only",))
    wanted = pod("p", app("a", "14"))
    promises = admitted(node, core.initial(node), wanted)
    assert own(promises, "p", "a") == "1-7,9-15"
    half = managers(
        MACHINE_A, errata=errata, gates=PLRM, options=("full-pcpus-only",), topology_manager_scope="pod",
        topology_manager_policy="best-effort",
    )  # fmt: skip
    slices = pod("p", app("a", "3"), shared("b"), resources=exclusive("6", "4Gi"))
    if errata is FIXED:
        assert refused(half, core.initial(half), slices) == (
            "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
        )
    else:
        assert own(admitted(half, core.initial(half), slices), "p", "a") == "1-2,9"


def test_19_cores_of_different_sizes() -> None:
    """An amount is admitted if and only if whole free cores add up to it."""
    node = managers(HYBRID, reserved="8", options=("full-pcpus-only",))
    for amount, cpus in ((15, "0-7,9-15"), (2, "9-10"), (3, "9-11")):
        assert own(admitted(node, core.initial(node), pod("p", app("a", str(amount)))), "p", "a") == cpus
    busy = admitted(node, core.initial(node), pod("q", app("a", "6")))
    assert own(busy, "q", "a") == "9-14"
    assert own(admitted(node, busy, pod("p", app("a", "2"))), "p", "a") == "0-1"
    assert own(admitted(node, busy, pod("p", app("a", "3"))), "p", "a") == "0-1,15"
    assert "not enough free physical CPUs" in refused(
        node, admitted(node, busy, pod("p", app("a", "1"))), pod("r", app("a", "1"))
    )


@BOTH
def test_20_pod_entries_are_released(errata: Errata) -> None:
    node = small(errata)
    before = core.initial(node)
    promises = admitted(node, before, TWO_OF_POD)
    bare = with_pod(promises, "p", promises.of_pod("p").having(replace(promises.of_pod("p").of(CpuHoldings), cpus=())))
    after, _ = core.remove_pod(node, bare, "p")
    assert (after == before) is (errata is FIXED)


@BOTH
def test_21_online_cpus_may_change(errata: Errata) -> None:
    node = managers(MACHINE_A, errata=errata)
    before = admitted(node, core.initial(node), pod("p", app("a", "4")))
    assert own(before, "p", "a") == "1-2,9-10"
    without_2_and_3 = Topology.of([c for c in MACHINE_A.cpus if c.id not in (2, 3)], MACHINE_A.numa)
    fewer = managers(without_2_and_3, errata=errata)
    resumed = core.resume(fewer, before)
    if errata is KUBELET:
        assert isinstance(resumed, StartRefused)
        assert "doesn't match with CPUs in state" in resumed.message
        return
    assert isinstance(resumed, Promises)
    assert own(resumed, "p", "a") == "1-2,9-10"
    assert str(default_set(resumed)) == "0,4-8,11-15"
    assert core.shortfalls(fewer, resumed) == (CpusOffline("p", "a", CpuSet.parse("2"), CpuSet.parse("1-2,9-10")),)
    assert core.violations(fewer, resumed, (pod("p", app("a", "4")),)) == ()
    assert core.resume(node, resumed) == before
    # Given back while they are offline, they come back to the shared pool only with the machine.
    left, _ = core.remove_pod(fewer, resumed, "p")
    assert left == core.initial(fewer)
    assert core.resume(node, left) == core.initial(node)


@BOTH
def test_24_exclusive_init_containers_stay_out_of_the_shared_pool(errata: Errata) -> None:
    node = small(errata)
    sides = (shared("s", ContainerKind.SIDECAR), init("i", "2"))
    one = pod("p", *sides, app("a", "2"), resources=exclusive("4", "4Gi"))
    promises = admitted(node, core.initial(node), one)
    assert (own(promises, "p", "s"), own(promises, "p", "a")) == ("3-4", "1-2")
    assert own(promises, "p", "i") == "1-2"
    half = pod("p", *sides, sidecar("t", "1"), app("a", "1"), resources=exclusive("4", "4Gi"))
    promises = admitted(node, core.initial(node), half)
    assert own(promises, "p", "i") == "1-2"
    greedy = pod("p", *sides, app("a", "1"), resources=exclusive("4", "4Gi"))
    if errata is FIXED:
        assert refused(node, core.initial(node), greedy) == (
            "pod rejected, exclusive init container requests 2 cpus beside a shared sidecar, but only 1 available outside the pod's "
            "shared pool"
        )
    else:
        promises = admitted(node, core.initial(node), greedy)
        assert (own(promises, "p", "s"), own(promises, "p", "i")) == ("2-4", "1-2")


@BOTH
def test_25_many_nodes_are_not_compared_without_end(errata: Errata) -> None:
    """In both modes: of 24 nodes, 12 can be chosen in 2.7 million ways."""
    many = machine(nodes=24, cores=2, threads=1)
    node = managers(many, errata=errata, reserved="0", options=("distribute-cpus-across-numa",), gates=ALPHA)
    promises = admitted(node, core.initial(node), pod("first", app("a", "1")), pod("second", app("a", "24")))
    assert len(own_set_of(promises, "second", "a") or ()) == 24


def imported(errata: Errata, pods: dict[str, str]) -> Records:
    """A CPU file of kubelet's in which these pods have sets as a whole, and containers that have all of them."""
    promises = Promises().having(CpuBooks(default=CpuSet.parse("0,5")))
    for uid, cpus in pods.items():
        whole = CpuSet.parse(cpus)
        promises = with_pod(
            promises, uid, NOTHING.having(CpuHoldings(cpus=(("a", whole - default_set(promises)),), pod_cpus=whole))
        )
    text = encode_cpu_file(small(errata), promises)
    return Records(cpu=decode_cpu_state(text, pod_level=True, initial={}))


@BOTH
@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ({"p": "1-3", "q": "3-4"}, 'pod: q cpuset: "3-4" overlaps with "3" of other pods'),
        ({"p": "1-2", "q": "3-5"}, 'pod: q cpuset: "3-5" overlaps with default cpuset "0,5"'),
    ],
)
def test_26_no_cpu_is_two_pods(errata: Errata, pods: dict[str, str], message: str) -> None:
    started = start(small(errata), imported(errata, pods))
    if errata is FIXED:
        assert started == StartRefused(message, "cpu_manager_state")
    else:
        assert isinstance(started, Promises)
    assert isinstance(start(small(errata), imported(errata, {"p": "1-2", "q": "3-4"})), Promises)


def files_of(node: Managers) -> StartNode:
    placement = node.placement
    config = Config(placement=placement)
    room = allocatable_of(config, cpu_count=len(node.topology.online), memory_bytes=8 * GIB, hugepages=())
    return StartNode(config, node.topology, node, room, node.reserved)


def saved(directory: Path) -> Promises:
    return decode_state((directory / STATE_FILE).read_bytes()).state.promises


@BOTH
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_13_one_change_is_one_generation(
    errata: Errata, writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both modes: the agent dies between two writes of one change; the next start finds the state before it or after it."""
    node = managers(MACHINE_A, errata=errata, reserved_memory={0: "1Gi"})
    started, recorder = files_of(node), Recorder(str(tmp_path), structlog.get_logger())
    before = core.initial(node)
    after = admitted(node, before, pod("p", app("a", "2"), app("b", "3", "3Gi")))
    recorder.save(started, NodeState(before))
    recorder.update_checkpoints(started, before)
    left = [None] * writes
    write = state_files.write_atomically

    def until_it_dies(path: str, content: bytes, **more: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(path, content, **more)

    with monkeypatch.context() as patched:
        patched.setattr(state_files, "write_atomically", until_it_dies)
        try:
            recorder.save(started, NodeState(after, generation=1))
            recorder.update_checkpoints(started, after)
        except KeyboardInterrupt:
            assert writes < 3
    found = saved(tmp_path)
    assert found == (after if writes else before)
    assert core.resume(node, found) == found
    recorder.update_checkpoints(started, found)
    assert (tmp_path / CPU_CHECKPOINT).read_text() == encode_cpu_file(node, found)
    assert (tmp_path / MEMORY_CHECKPOINT).read_text() == encode_memory_file(node, found)


@BOTH
def test_18_shared_containers_leave_first(errata: Errata) -> None:
    """In both modes: the write that grants a CPU alone comes after the one that takes it from the others."""
    node = managers(MACHINE_A, errata=errata)
    easy, alone = pod("easy", shared("s")), pod("alone", app("a", "2"))
    before = admitted(node, core.initial(node), easy)
    after = admitted(node, before, alone)
    entries = [new_entry(Manifest(one, Origin("m.yaml")), 0, pod_level_resources=True) for one in (easy, alone)]
    config, kernel = Config(placement=node.placement), Kernel(4096, NumaSet.of(0, 1), node.topology.online)
    desired_by_path = [
        desired_cgroups(config, node, kernel, NodeState(promises, tuple(entries[:count])))
        for promises, count in ((before, 1), (after, 2))
    ]
    seen = {want.path: seen_as(want) for want in desired_by_path[0]}
    writes = [
        (change.path.rpartition("/")[2], str(change.value))
        for change in diff(desired_by_path[1], seen).changes
        if isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS
    ]
    assert ("pool", "0,2-8,10-15") in writes
    assert ("a", "1,9") in writes
    assert writes.index(("pool", "0,2-8,10-15")) < writes.index(("a", "1,9"))


def seen_as(want: DesiredCgroup) -> ObservedCgroup:
    """The cgroup as it is once it is as desired."""
    cpus = want.get(Attribute.CPUSET_CPUS)
    return ObservedCgroup(
        path=want.path,
        controllers=frozenset({"cpuset", "cpu", "memory"}),
        subtree_control=want.controllers,
        attributes=want.attributes,
        cpus_effective=cpus if isinstance(cpus, CpuSet) and cpus else MACHINE_A.online,
        mems_effective=None,
        is_populated=True,
        is_frozen=False,
        oom_kills=0,
    )


@BOTH
def test_22_a_state_that_cannot_be_written_does_not_come_to_be(errata: Errata, tmp_path: Path) -> None:
    """In both modes: writing fails aloud, and the file has the generation before."""
    node = managers(MACHINE_A, errata=errata)
    started, recorder = files_of(node), Recorder(str(tmp_path), structlog.get_logger())
    recorder.save(started, NodeState(core.initial(node)))
    after = admitted(node, core.initial(node), pod("p", app("a", "2")))
    blocked = tmp_path / "blocked"
    (blocked / STATE_FILE).mkdir(parents=True)
    with pytest.raises(StateFileError):
        Recorder(str(blocked), structlog.get_logger()).save(started, NodeState(after, generation=1))
    assert saved(tmp_path) == core.initial(node)


CARDS = tuple(Device(f"0000:0{n}:00.0", DeviceKind.NETWORK, 0, numa_node=n % 2) for n in (2, 0, 3, 1))
NIC = "example.com/nic"


def giving(errata: Errata, *cards: Device) -> Managers:
    kinds = (DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),)
    node = managers(MACHINE_A, errata=errata, devices=kinds)
    return node.knowing(PlacedDevices.of(tuple(sorted(cards, key=lambda card: card.address)), MACHINE_A))


def cards_of(promises: Promises, uid: str, name: str) -> list[str]:
    return [one.id for one in promises.of_pod(uid).of(DeviceHoldings).devices_of(name)]


@BOTH
def test_27_after_a_restart_a_pod_keeps_its_devices_be_they_there_or_not(errata: Errata) -> None:
    """With an init container that has ended, too. kubelet leaves them only to containers that run meanwhile."""
    node = giving(errata, *CARDS)
    one = pod("p", init("i", "1", devices={NIC: 1}), app("a", "1", devices={NIC: 1}))
    promises = admitted(node, core.initial(node), one)
    before = cards_of(promises, "p", "a")
    assert before
    (_, again), *_ = core.readmit(giving(errata), promises, (one,)).results
    if errata is KUBELET:
        assert isinstance(again, Rejected)
        assert f"no healthy devices present; cannot allocate unhealthy devices {NIC}" in again.message
        running = begin_start(promises, (("p", "i"), ("p", "a")))
        (_, again), *_ = core.readmit(giving(errata), running, (one,)).results
    assert isinstance(again, Admitted)
    assert cards_of(again.promises, "p", "a") == before


@BOTH
def test_28_a_refused_pod_holds_no_device(errata: Errata) -> None:
    """Its containers got some, and the second finds no CPUs. In kubelet they have them until the next pod is decided on."""
    node = giving(errata, *CARDS)
    empty = core.initial(node)
    one = pod("p", app("a", "2", devices={NIC: 2}), app("b", "20", devices={NIC: 1}))
    decision = core.admit(node, empty, one)
    assert isinstance(decision, Rejected)
    assert len(taken_devices(decision.promises)) == (3 if errata is KUBELET else 0)
    every = admitted(node, decision.promises, pod("q", app("a", "1", devices={NIC: 4})))
    assert len(cards_of(every, "q", "a")) == 4
    ended, _ = core.remove_pod(node, every, "q")
    assert len(taken_devices(ended)) == (4 if errata is KUBELET else 0)
    assert taken_devices(admitted(node, ended, pod("r", app("a", "1", devices={NIC: 1}))))


@BOTH
def test_29_a_pod_does_not_run_without_what_its_node_has_not(errata: Errata) -> None:
    for node in (managers(MACHINE_A, errata=errata), giving(errata)):
        other = pod("p", app("a", "1", devices={"example.com/other": 1}))
        if errata is KUBELET:
            assert cards_of(admitted(node, core.initial(node), other), "p", "a") == []
        else:
            assert "cannot allocate unregistered device example.com/other" in refused(node, core.initial(node), other)


@BOTH
def test_30_equal_devices_are_given_in_the_order_of_their_ids(errata: Errata) -> None:
    """In both modes."""
    node = giving(errata, *CARDS)
    given_out = admitted(node, core.initial(node), pod("p", app("a", "1", devices={NIC: 3})))
    assert cards_of(given_out, "p", "a") == [f"0000:0{n}:00.0" for n in (0, 1, 2)]


@BOTH
def test_31_a_device_plugin_that_does_not_answer_holds_nobody_up(
    errata: Errata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both modes."""
    assert device_plugins.CALL_SECONDS == 5
    with ExitStack() as undo:
        kubelet, plugin = Kubelet(tmp_path, undo), DevicePlugin(tmp_path, GPU)
        undo.callback(plugin.stop)
        plugin.register()
        plugin.tell(("a", True, 0))
        kubelet.until(lambda told: told.get(GPU) == [("a", True)])
        plugin.answers.clear()
        monkeypatch.setattr(device_plugins, "CALL_SECONDS", 1)  # only the call that isn't answered is cut short
        node = managers(MACHINE_A, errata=errata).knowing(None, kubelet.plugins.pools())
        decision = kubelet.decide(node, core.initial(node), pod("p", app("a", "1", devices={GPU: 1})))
        assert isinstance(decision, Rejected)
        assert decision.reason == "UnexpectedAdmissionError"
        assert plugin.asked == [("allocate", ["a"])]
        assert kubelet.told() == {GPU: [("a", False)]}, decision.message
        admitted(node, decision.promises, pod("q", app("a", "1")))


@BOTH
def test_32_a_request_of_no_devices_is_no_request(errata: Errata) -> None:
    of_two = replace(managers(MACHINE_A, errata=errata).placement, topology_manager_policy="restricted")
    node = core.build(MACHINE_A, of_two)
    assert isinstance(node, Managers)
    listed = tuple(PoolDevice(name, NumaMask(1 << at)) for at, name in enumerate("ab"))
    node = node.knowing(None, (DevicePool(NIC, listed), DevicePool(GPU, ())))
    size = len(MACHINE_A.nodes[0]) + 2
    one = pod("p", app("a", str(size), devices={NIC: 0}))
    none = pod("q", app("a", "1", devices={GPU: 0}))
    if errata is KUBELET:
        assert refused(node, core.initial(node), one) == "Resources cannot be allocated with Topology locality"
        assert f"no healthy devices present; cannot allocate unhealthy devices {GPU}" in refused(
            node, core.initial(node), none
        )
    else:
        assert len(own(admitted(node, core.initial(node), one, none), "p", "a")) > 0


@BOTH
def test_33_a_device_that_is_listed_no_more_is_where_it_was(errata: Errata) -> None:
    of_two = replace(managers(MACHINE_A, errata=errata).placement, topology_manager_policy="restricted")
    node = core.build(MACHINE_A, of_two)
    assert isinstance(node, Managers)
    gone, left = PoolDevice("a", NumaMask(1)), PoolDevice("b", NumaMask(2))
    before = node.knowing(None, (DevicePool(GPU, (gone, left)),))
    after = node.knowing(None, (DevicePool(GPU, (left,)),))
    one = pod("p", app("a", "1", devices={GPU: 1}))
    promises = begin_start(admitted(before, core.initial(before), one), (("p", "a"),))
    (_, again), *_ = core.readmit(after, promises, (one,)).results
    if errata is KUBELET:
        assert isinstance(again, Rejected)
        assert again.reason == Reason.TOPOLOGY_AFFINITY
    else:
        assert isinstance(again, Admitted)
        assert cards_of(again.promises, "p", "a") == ["a"]
        # Nor is the pod placed elsewhere where it has to be decided on again.
        (hint,) = after.providers.of(DeviceResource).container_hints(promises, *demand_for(after, one))
        assert hint == (GPU, ((NumaMask(1), True), (NumaMask(3), False)))


def demand_for(node: Managers, one: Pod) -> tuple[PodDemand, ContainerDemand]:
    demand = demand_of(node.rules, one)
    return demand, demand.containers[0]


@BOTH
def test_34_more_devices_than_there_are_are_missing_in_the_words_of_the_capacity(errata: Errata) -> None:
    node = giving(errata, *CARDS)
    there = allocatable_of(Config(placement=node.placement), cpu_count=8, memory_bytes=64 * GIB, hugepages=())
    what_if = WhatIf.of(node, core.initial(node), (), there)
    judged = what_if.judge(pod("p", app("a", "1", devices={NIC: 5})))
    if errata is KUBELET:
        assert isinstance(judged, Rejected)
        assert judged.reason == Reason.UNEXPECTED_ADMISSION
        assert f"requested number of devices unavailable for {NIC}. Requested: 5, Available: 4" in judged.message
    else:
        assert isinstance(judged, Insufficient)
        assert judged.reason == f"OutOf{NIC}"


def test_kubelet_1_37_starts_from_its_own_files_and_decides_as_1_36() -> None:
    """Its gate PodLevelResourceManagers is off by default, as in 1.36 (kubernetes 141209)."""
    older, newer = Errata.KUBELET_1_36, Errata.KUBELET_1_37
    vector = next(vectors("default"))["scenario"]
    results = [
        replay(scenario_from_text(json.dumps(vector | {"config": vector["config"] | {"errata": one.value}}), "v"))
        for one in (older, newer)
    ]
    assert results[0] == results[1]
    assert managers(MACHINE_A, errata=newer).rules.gates == managers(MACHINE_A, errata=older).rules.gates
    files = {"cpu_manager_state": CPU_4}
    started = [
        replay(
            scenario_from_text(
                json.dumps({**vector, "steps": [], "files": files, "config": {"errata": one.value}}), "v"
            )
        )
        for one in (older, newer)
    ]
    assert "checkpoint" in started[0]["startError"]
    assert "v4" not in started[1].get("startError", "")


def numbers_shown() -> dict[int, set[str]]:
    """The errata in tests' names, and the modes that those tests run in."""
    found: dict[int, set[str]] = {}
    for name, test in list(globals().items()):
        match = re.match(r"test_((?:\d+_and_)*\d+)_", name)
        if match is None:
            continue
        modes = [
            mode.name
            for mark in getattr(test, "pytestmark", [])
            if mark.name == "parametrize" and mark.args[0] == "errata"
            for mode in mark.args[1]
        ]
        for number in match[1].split("_and_"):
            found.setdefault(int(number), set()).update(modes)
    return found


def test_every_erratum_has_a_test_in_both_modes() -> None:
    both = {mode.name for mode in (KUBELET, FIXED)}
    assert numbers_shown() == {int(erratum): both for erratum in Erratum}
