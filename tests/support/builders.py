"""Machines, pods and managers in a line each, for tests of decisions."""

from typing import Any

from nodeagent.core.admission.managers import Admitted, Managers, admit, build, initial
from nodeagent.core.model.config import Errata, Placement, ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Pod, Resources
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from tests.support import pods

GIB = 2**30


def machine(
    *,
    nodes: int = 2,
    cores: int = 4,
    threads: int = 2,
    sockets: int | None = None,
    cores_per_uncore: int | None = None,
    memory: int = 8 * GIB,
    hugepages: dict[str, int] | None = None,
    distances: list[tuple[int, ...]] | None = None,
) -> Topology:
    """`cores` per node, siblings c and c + number of cores. Without `sockets` each node is one."""
    total = nodes * cores
    sockets = nodes if sockets is None else sockets
    cpus = [
        Cpu(
            id=core + thread * total,
            core=core,
            socket=core // cores * sockets // nodes,
            numa=core // cores,
            uncore=None if cores_per_uncore is None else core // cores_per_uncore,
        )
        for thread in range(threads)
        for core in range(total)
    ]
    pages = tuple(sorted((hugepages or {}).items()))
    rows = distances or [tuple(10 if a == b else 20 for b in range(nodes)) for a in range(nodes)]
    return Topology.of(cpus, [NumaNode(n, memory, pages, tuple(rows[n])) for n in range(nodes)])


def hybrid(*, nodes: int = 1, performance: int = 4, efficiency: int = 4, memory: int = 8 * GIB) -> Topology:
    """On each node so many cores of each class; those for performance have two threads, c and c+1."""
    cpus: list[Cpu] = []
    for node in range(nodes):
        for core in range(performance + efficiency):
            first, is_fast = len(cpus), core < performance
            name = "performance" if is_fast else "efficiency"
            cpus += (
                Cpu(first + thread, core=first, socket=node, numa=node, core_class=name)
                for thread in range(2 if is_fast else 1)
            )
    rows = [tuple(10 if a == b else 20 for b in range(nodes)) for a in range(nodes)]
    return Topology.of(cpus, [NumaNode(node, memory, (), rows[node]) for node in range(nodes)])


MACHINE_A = machine()
"""16 CPUs, 2 sockets = 2 nodes of 4 cores, CPU c and c+8 are siblings."""
MACHINE_B = machine(sockets=1, cores_per_uncore=2)
"""The same in one socket, with uncore caches of two cores."""


def pod(uid: str, *containers: Container, **more: Any) -> Pod:
    """A pod that is called by its UID: decisions know no names."""
    return pods.pod(uid, *containers, uid=uid, **more)


PLRM = (("PodLevelResourceManagers", True),)
ALPHA = (("CPUManagerPolicyAlphaOptions", True),)


def managers(
    topology: Topology = MACHINE_A,
    *,
    errata: Errata = Errata.FIXED,
    reserved: str = "0,8",
    options: tuple[str, ...] = (),
    gates: tuple[tuple[str, bool], ...] = (),
    reserved_memory: dict[int, str] | None = None,
    **placement: Any,
) -> Managers:
    """Static CPU policy; with `reserved_memory` (node → amount) static memory too."""
    memory: dict[str, Any] = {}
    if reserved_memory is not None:
        total = Quantity.of(0)
        for text in reserved_memory.values():
            total = Quantity.parse(text) if total.nano == 0 else total + Quantity.parse(text)
        memory = {
            "memory_manager_policy": "Static",
            "reserved_memory": tuple(
                ReservedMemory(node, Resources.of({"memory": Quantity.parse(text)}))
                for node, text in sorted(reserved_memory.items())
            ),
            "memory_reservation": Resources.of({"memory": total}),
        }
    built = build(
        topology,
        Placement(
            cpu_manager_policy="static",
            cpu_manager_policy_options=tuple((option, "true") for option in options),
            reserved_system_cpus=CpuSet.parse(reserved),
            feature_gates=gates,
            errata=errata,
            **memory,
            **placement,
        ),
    )
    assert isinstance(built, Managers), built
    return built


def admitted(node: Managers, *these: Pod) -> Promises:
    """What the node has promised once it has admitted these pods, one after the other."""
    promises = initial(node)
    for one in these:
        decision = admit(node, promises, one)
        assert isinstance(decision, Admitted), decision.message
        promises = decision.promises
    return promises
