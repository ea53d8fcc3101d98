"""Random small nodes, pods and lives of a node, for properties of the decision core."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    admit,
    build,
    initial,
    remove_pod,
    start_container,
)
from nodeagent.core.model.config import Errata, Placement, ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod, ResourceRequirements, Resources
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.cpu.options import OPTIONS
from tests.support.builders import GIB, machine, pod

# Machines

even_machines = st.builds(
    machine,
    nodes=st.sampled_from([2, 1, 3, 4]),
    cores=st.sampled_from([4, 6, 2, 1]),
    threads=st.sampled_from([2, 1]),
    sockets=st.sampled_from([None, 1]),
    cores_per_uncore=st.sampled_from([None, 1, 2]),
    memory=st.sampled_from([8 * GIB, 4 * GIB]),
    hugepages=st.sampled_from([{}, {"hugepages-2Mi": GIB}, {"hugepages-2Mi": GIB, "hugepages-1Gi": 2 * GIB}]),
)
"""Every node, cache and core of a kind has as many CPUs."""


def without(topology: Topology, gone: frozenset[int]) -> Topology:
    """Take CPUs offline: cores lose siblings, nodes become smaller (or lose all their CPUs)."""
    left = [cpu for cpu in topology.cpus if cpu.id not in gone]
    lowest: dict[tuple[int, int], int] = {}
    for cpu in left:
        key = (cpu.numa, cpu.core)
        lowest[key] = min(lowest.get(key, cpu.id), cpu.id)
    cpus = [Cpu(c.id, lowest[c.numa, c.core], c.socket, c.numa, c.uncore) for c in left]
    return Topology.of(cpus, topology.numa)


uneven_machines = st.builds(
    without, even_machines.filter(lambda t: len(t.cpus) > 2), st.frozensets(st.integers(0, 31), min_size=1, max_size=5)
).filter(lambda t: len(t.cpus) > 1)
"""Hybrid cores, siblings offline, nodes of several sizes."""

machines = even_machines | uneven_machines


def _sparse(topology: Topology, step: int) -> Topology:
    cpus = [Cpu(c.id, c.core, c.socket, c.numa * step, c.uncore) for c in topology.cpus]
    numa = [NumaNode(n.id * step, n.memory_bytes, n.hugepages, n.distances) for n in topology.numa]
    return Topology.of(cpus, numa)


machines_of_any_ids = st.builds(_sparse, machines, st.sampled_from([1, 1, 1, 3, 70]))
"""Some with gaps in the ids of their NUMA nodes, or with ids that fill no machine word."""

# Configurations

_ILLEGAL_PAIRS = (
    {"full-pcpus-only", "distribute-cpus-across-cores"},
    {"distribute-cpus-across-numa", "distribute-cpus-across-cores"},
    {"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"},
    {"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"},
)
cpu_options = st.sets(st.sampled_from(OPTIONS), max_size=3).filter(
    lambda chosen: not any(pair <= chosen for pair in _ILLEGAL_PAIRS)
)
_BY_ALLOCATION: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("prefer-most-allocated-numa-node", "true"),),
    (("numa-allocation-strategy", "most-allocated"),),
    (("numa-allocation-strategy", "least-allocated"), ("numa-score-weights", "cpu=3")),
)
_ALPHA = (("CPUManagerPolicyAlphaOptions", True), ("TopologyManagerPolicyAlphaOptions", True))


@st.composite
def nodes(
    draw: Any,
    errata: Errata = Errata.FIXED,
    topologies: st.SearchStrategy[Topology] = machines_of_any_ids,
) -> Managers:
    topology = draw(topologies)
    policy = draw(st.sampled_from(["best-effort", "none", "restricted", "single-numa-node"]))
    options = set(draw(cpu_options))
    if policy == "single-numa-node" or len(topology.sockets) > len(topology.nodes):
        options.discard("align-by-socket")
    topology_options = [("prefer-closest-numa-nodes", "true")] if draw(st.booleans()) else []
    topology_options += draw(st.sampled_from(_BY_ALLOCATION))
    ids = [cpu.id for cpu in topology.cpus]
    reserved = draw(st.sets(st.sampled_from(ids), min_size=1, max_size=max(1, min(3, len(ids) - 1))))
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        amount = Quantity.of_bytes(GIB // 2)
        fields = {
            "memory_manager_policy": "Static",
            "reserved_memory": (ReservedMemory(topology.numa[0].id, Resources.of({"memory": amount})),),
            "memory_reservation": Resources.of({"memory": amount}),
        }
    placement = Placement(
        cpu_manager_policy="static",
        cpu_manager_policy_options=tuple((option, "true") for option in sorted(options)),
        reserved_system_cpus=CpuSet.from_ids(reserved),
        topology_manager_policy=policy,
        topology_manager_scope=draw(st.sampled_from(["pod", "container"])),
        topology_manager_policy_options=tuple(topology_options),
        feature_gates=(*_ALPHA, ("PodLevelResourceManagers", draw(st.sampled_from([True, True, False])))),
        errata=errata,
        same_numa_nodes=errata is Errata.FIXED and draw(st.booleans()),
        spread_huge_pages=errata is Errata.FIXED and draw(st.booleans()),
        **fields,
    )
    built = build(topology, placement)
    assert isinstance(built, Managers), built
    return built


# Pods

_NAMES = ("i", "j", "k", "a", "b", "c")
_CPUS = ("2", "1", "3", "4", "6", "500m", None)
_MEMORY = ("1Gi", "256Mi", "3Gi", "6Gi")


def _amounts(cpu: str | None, memory: str | None, pages: str | None = None) -> Resources:
    named = {"cpu": cpu, "memory": memory, "hugepages-2Mi": pages}
    return Resources.of({name: Quantity.parse(text) for name, text in named.items() if text is not None})


@st.composite
def _resources(
    draw: Any, cpus: tuple[str | None, ...] = _CPUS, memory: tuple[str, ...] = _MEMORY
) -> ResourceRequirements:
    """Mostly guaranteed; now and then nothing, or a limit that differs."""
    kind = draw(st.sampled_from(["guaranteed"] * 7 + ["pages", "limit", "nothing"]))
    if kind == "nothing":
        return ResourceRequirements()
    cpu, size = draw(st.sampled_from(cpus)), draw(st.sampled_from(memory))
    pages = "256Mi" if kind == "pages" else None
    requests = _amounts(cpu, size, pages)
    return ResourceRequirements(requests, _amounts("7", size, pages) if kind == "limit" else requests)


_IN_A_POD = st.one_of(st.just(ResourceRequirements()), _resources(("1", "2", "3", None), ("256Mi", "1Gi")))


@st.composite
def pods(draw: Any, uid: str) -> Pod:
    early = draw(st.lists(st.sampled_from([ContainerKind.SIDECAR, ContainerKind.INIT]), max_size=3))
    apps = draw(st.sampled_from([2, 1, 3]))
    kinds = [*zip(_NAMES[:3], early, strict=False), *((name, ContainerKind.APP) for name in _NAMES[3 : 3 + apps])]
    whole = None
    if draw(st.booleans()):
        # A pod-level pod: containers without amounts are as common as those with.
        resources = [draw(_IN_A_POD) for _ in kinds]
        cpu = draw(st.sampled_from(("6", "4", "3", "8", "2", "2500m")))
        amounts = _amounts(
            cpu, draw(st.sampled_from(("4Gi", "6Gi", "1Gi"))), draw(st.sampled_from((None, None, "512Mi")))
        )
        whole = ResourceRequirements(amounts, amounts)
    else:
        resources = [draw(_resources()) for _ in kinds]
    containers = tuple(Container(name, kind, r) for (name, kind), r in zip(kinds, resources, strict=True))
    if whole is None and draw(st.integers(0, 3)) == 0:
        containers = tuple(_annotated(each) for each in containers)
    return pod(uid, *containers, resources=whole)


def _annotated(container: Container) -> Container:
    """One exclusive CPU, and the rest of the request is shared."""
    cpu = container.resources.requests.get("cpu")
    return container if cpu is None or cpu.nano < 10**9 else replace(container, exclusive_cpus=1)


# Lives


@dataclass(frozen=True, slots=True)
class Add:
    pod: Pod


@dataclass(frozen=True, slots=True)
class Start:
    """All containers of a pod start, one after the other."""

    which: int


@dataclass(frozen=True, slots=True)
class Remove:
    which: int


Event = Add | Start | Remove


@st.composite
def lives(draw: Any, *, uids_return: bool = True) -> list[Event]:
    """What happens to a node: events name pods by their place among those that are there."""
    events: list[Event] = []
    kinds = st.sampled_from(["add", "add", "add", "remove", "start"])
    for number, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=8))):
        if kind == "add":
            chosen = draw(st.sampled_from((number, number, number, 0))) if uids_return else number
            events.append(Add(draw(pods(f"p{chosen}"))))
        else:
            which = draw(st.integers(0, 7))
            events.append(Remove(which) if kind == "remove" else Start(which))
    return events


class Moment(Struct, frozen=True):
    """After one event."""

    event: Event
    before: Promises
    after: Promises
    pods: tuple[Pod, ...]
    """That are admitted now."""
    decision: Admitted | Rejected | None
    """On the pod that was to be added."""


def lived(node: Managers, events: list[Event]) -> Iterator[Moment]:
    """Let it happen, on a node that is empty at first."""
    promises = initial(node)
    active: tuple[Pod, ...] = ()
    for event in events:
        before = promises
        promises, active, decision = happen(node, promises, active, event)
        yield Moment(event, before, promises, active, decision)


def happen(
    node: Managers, promises: Promises, active: tuple[Pod, ...], event: Event
) -> tuple[Promises, tuple[Pod, ...], Admitted | Rejected | None]:
    match event:
        case Add(pod):
            if any(other.uid == pod.uid for other in active):
                return promises, active, None
            decision = admit(node, promises, pod)
            return decision.promises, (*active, pod) if isinstance(decision, Admitted) else active, decision
        case Remove(which) if active:
            gone = active[which % len(active)]
            promises, _ = remove_pod(node, promises, gone.uid)
            return promises, tuple(pod for pod in active if pod is not gone), None
        case Start(which) if active:
            pod = active[which % len(active)]
            for container in pod.containers:
                promises = start_container(node, promises, pod, container.name)
    return promises, active, None
