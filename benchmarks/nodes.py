"""Nodes of every shape, and pods for them."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers
from nodeagent.core.model.config import ReservedMemory
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import DeviceKind
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import Turn, World
from nodeagent.views.simulate.scenario_replay import encode_cpu_file, encode_memory_file
from tests.support import world
from tests.support.builders import GIB, managers, pod
from tests.support.pods import amounts, app, manifests

PAGES = (("hugepages-2Mi", 8 * GIB), ("hugepages-1Gi", 16 * GIB), ("hugepages-64Ki", 4 * GIB))
MANY_NODES = ("max-allowable-numa-nodes", "64")


def topology(cpus: int, nodes: int, *, pages: int = 0) -> Topology:
    """Cores of two threads, spread over the nodes (where there are more nodes than cores, the last ones have none)."""
    cores = cpus // 2
    per_node = max(1, cores // nodes)
    listed = [
        Cpu(id=core + thread * cores, core=core, socket=node * 2 // nodes, numa=node, uncore=core // 8)
        for thread in range(2)
        for core in range(cores)
        for node in [min(core // per_node, nodes - 1)]
    ]
    rows = [
        tuple(10 if a == b else 12 if a * 2 // nodes == b * 2 // nodes else 32 for b in range(nodes))
        for a in range(nodes)
    ]
    return Topology.of(listed, [NumaNode(n, 64 * GIB, tuple(sorted(PAGES[:pages])), rows[n]) for n in range(nodes)])


def node(
    of: Topology,
    *,
    policy: str = "none",
    memory: bool = False,
    options: Sequence[str] = (),
    scope: str = "container",
    gives: Sequence[str] = (),
) -> Managers:
    gates = (("CPUManagerPolicyAlphaOptions", True),)
    return managers(
        of,
        reserved="0",
        options=tuple(options),
        gates=gates,
        reserved_memory={0: "1Gi"} if memory else None,
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        topology_manager_policy_options=(MANY_NODES,),
        devices=tuple(DeviceSelection(f"x.com/{kind}", (DeviceSelector(kind=DeviceKind(kind)),)) for kind in gives),
    )


def asking(
    name: str,
    cpus: str,
    *,
    memory: str = "64Mi",
    pages: int = 0,
    near: Sequence[str] = (),
    devices: Sequence[str] = (),
    count: int = 1,
) -> Pod:
    wanted = {resource.replace("-", "_"): "1Gi" for resource, _ in PAGES[:pages]}
    return pod(
        name, app("c", cpus, memory, near=tuple(near), devices={f"x.com/{kind}": count for kind in devices}, **wanted)
    )


def crowd(of: Managers, present: int, *, alone: int | None = None) -> Promises:
    """A node on which so many pods came one by one: all with a CPU alone; or some with a core alone where that fits, the others shared."""
    promises = core.initial(of)
    for number in range(present):
        own = "1" if alone is None else "2" if number < alone else "500m"
        decision = core.admit(of, promises, asking(f"present-{number:04}", own))
        assert isinstance(decision, Admitted) or alone is not None, "the node is large enough for all"
        promises = decision.promises
        texts(of, promises)
    return promises


def texts(of: Managers, promises: Promises) -> tuple[str, str]:
    return encode_cpu_file(of, promises), encode_memory_file(of, promises)


def large_node(*, memory: bool) -> world.Node:
    """1,280 CPUs on 4 NUMA nodes: room for 1,200 pods with a CPU each."""
    fields: dict[str, Any] = {}
    if memory:
        gib = amounts(None, "1Gi")
        fields = {
            "memory_manager_policy": "Static",
            "reserved_memory": (ReservedMemory(0, gib),),
            "memory_reservation": gib,
            "topology_manager_policy": "best-effort",
        }
    return world.node(topology(1280, 4), max_pods=2000, **fields)


def scanned(of: world.Node, state: NodeState, pods: Sequence[Pod]) -> Turn:
    """One turn of the daemon in which the manifests of these pods are there."""
    world_now = World(
        config=of.config,
        managers=of.managers,
        allocatable=of.allocatable,
        sources=(PodSource(manifests(*pods)),),
        runs=None,
        observed={},
        now_ms=world.START_MS,
    )
    return step(state, world_now)


def fresh(state: NodeState) -> NodeState:
    """The same state without anything remembered about it."""
    pods = type(state.promises.pods)()
    for uid, held in state.promises.pods:
        pods = pods.put(uid, held)
    return replace(state, promises=replace(state.promises, pods=pods))
