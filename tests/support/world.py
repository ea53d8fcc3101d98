"""A node in a few lines: machines and what an agent is built for. The model that runs them is node_model.py."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.admission.managers import Managers, build, initial
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from tests.support.builders import machine

PAGE = 4096
START_MS = 1_700_000_000_000

MACHINE = machine(
    nodes=4, cores=4, sockets=2, distances=[tuple(10 if a == n else 21 for a in range(4)) for n in range(4)]
)
"""2 sockets of 2 NUMA nodes of 4 cores of 2 threads: 32 CPUs; c and c + 16 are siblings."""

SMALL = machine(nodes=1, cores=4)
"""4 cores of 2 threads, so that a few pods fill it; c and c + 4 are siblings."""


class Node(Struct, frozen=True):
    """What the agent is built for."""

    config: Config
    managers: Managers
    allocatable: Allocatable
    kernel: Kernel


def node(
    topology: Topology = MACHINE,
    *,
    reserved: str = "0",
    max_pods: int = 1000,
    gates: tuple[tuple[str, bool], ...] = (),
    config: Mapping[str, Any] | None = None,
    **placement: Any,
) -> Node:
    fields: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": CpuSet.parse(reserved)}
    placed = Placement(**(fields | placement), feature_gates=gates)
    managers = build(topology, placed)
    assert isinstance(managers, Managers), managers
    milli = 1000 * (len(topology.online) - len(placed.reserved_system_cpus))
    room = Allocatable(max_pods, (("cpu", milli), ("memory", topology.memory_bytes)))
    kernel = Kernel(PAGE, topology.node_ids, topology.online, limits_swap=True)
    return Node(Config(placement=placed, **(config or {})), managers, room, kernel)


def empty_state(of: Node) -> NodeState:
    return NodeState(initial(of.managers))
