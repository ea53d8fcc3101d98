"""Formatter of a node's resources per NUMA node, for Kubernetes' schedulers: `nodeagent topology -o nrt`.

The NodeResourceTopology (topology.node.k8s.io/v1alpha2) is like the objects that exporters create from kubelet's PodResources. Containers
without exclusive CPUs aren't counted in any zone. A resource that no manager allocates by NUMA node is listed with the allocatable amount
0. If a zone lacked the resource, the scheduler's plugin (NodeResourceTopologyMatch) wouldn't place any pod there, even without alignment.
"""

from typing import Any

from nodeagent.core.admission.node_rules import NodeRules
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.pod import CPU, MEMORY
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.resources.cpu.holdings import free_cpus
from nodeagent.core.resources.memory.holdings import memory_accounts

Document = dict[str, Any]
API_VERSION, KIND = "topology.node.k8s.io/v1alpha2", "NodeResourceTopology"
_MAX_NODES = "max-allowable-numa-nodes"
_POLICY_WORDS = {"best-effort": "BestEffort", "restricted": "Restricted", "single-numa-node": "SingleNUMANode"}
_SCOPE_WORDS = {"container": "ContainerLevel", "pod": "PodLevel"}


def node_resource_topology(name: str, topology: Topology, rules: NodeRules, promises: Promises) -> Document:
    """Describe a node as a NodeResourceTopology.

    Args:
        name: the node's name in Kubernetes.
        topology: the current machine.
        rules: the node's rules.
        promises: current allocations.
    """
    placement = rules.placement
    max_nodes = dict(placement.topology_manager_policy_options).get(_MAX_NODES)
    attributes = [
        ("topologyManagerPolicy", placement.topology_manager_policy),
        ("topologyManagerScope", placement.topology_manager_scope),
        *([] if max_nodes is None else [("topologyManagerMaxNUMANodes", max_nodes)]),
    ]
    policy = _POLICY_WORDS.get(placement.topology_manager_policy)
    # older schedulers expect policy and scope in one word
    both = "None" if policy is None else policy + _SCOPE_WORDS[placement.topology_manager_scope]
    return {
        "apiVersion": API_VERSION,
        "attributes": [{"name": key, "value": value} for key, value in attributes],
        "kind": KIND,
        "metadata": {"name": name},
        "topologyPolicies": [both],
        "zones": [_describe_zone(topology, node, rules, promises) for node in topology.numa],
    }


def _describe_zone(topology: Topology, node: NumaNode, rules: NodeRules, promises: Promises) -> Document:
    costs = zip(topology.node_ids, node.distances or (), strict=False)
    distances = {"costs": [{"name": _format_zone_name(other), "value": distance} for other, distance in costs]}
    cpus = topology.nodes.get(node.id, CpuSet())
    allocatable = CpuSet(CpuMask(cpus.bits & rules.grantable))
    free = free_cpus(promises, rules.grantable) & cpus
    resources = [_describe_resource(CPU, Quantity.of(len(cpus)), Quantity.of(len(allocatable)), Quantity.of(len(free)))]
    # the memory manager takes the memory of a group of nodes from its lowest node first
    accounts = next((each for each in memory_accounts(promises) if each.id == node.id), None)
    for name, capacity in sorted(((MEMORY, node.memory_bytes), *node.hugepages), key=lambda each: each[0] != MEMORY):
        table = None if accounts is None else accounts.table(name)
        usable, left = (0, 0) if table is None else (table.allocatable, max(0, table.free))
        # if the machine has less memory after a reboot, memory that was allocated before still counts as capacity
        shown_capacity = Quantity.of_bytes(max(capacity, usable))
        resources.append(_describe_resource(name, shown_capacity, Quantity.of_bytes(usable), Quantity.of_bytes(left)))
    return {
        "name": _format_zone_name(node.id),
        **(distances if node.distances is not None else {}),
        "resources": resources,
        "type": "Node",
    }


def _format_zone_name(node: int) -> str:
    return f"node-{node}"


def _describe_resource(name: str, capacity: Quantity, allocatable: Quantity, available: Quantity) -> Document:
    return {"allocatable": str(allocatable), "available": str(available), "capacity": str(capacity), "name": name}
