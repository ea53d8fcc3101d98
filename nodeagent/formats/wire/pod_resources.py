"""Messages of kubelet's PodResources API v1, as tables, and formatters of the node's allocations as these messages.

Field names and numbers are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. The selection of pods,
containers and CPUs follows kubelet's server (pkg/kubelet/apis/podresources/server_v1.go), with the pod-level fields of
1.37 (KEP-5526).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nodeagent.core.admission.node_rules import NodeRules
from nodeagent.core.model.demand import qualifies_alone
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.formats.wire.protobuf import Field, Kind, MessageType, fields

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool

SERVICE = "v1.PodResourcesLister"

_NODE = MessageType("NUMANode", [Field(1, "ID", Kind.INT64)])
_TOPOLOGY = MessageType("TopologyInfo", [Field(1, "nodes", _NODE, repeated=True)])
_MEMORY = MessageType(
    "ContainerMemory",
    [Field(1, "memory_type", Kind.STRING), Field(2, "size", Kind.UINT64), Field(3, "topology", _TOPOLOGY)],
)
_DEVICES = MessageType(
    "ContainerDevices",
    [
        Field(1, "resource_name", Kind.STRING),
        Field(2, "device_ids", Kind.STRING, repeated=True),
        Field(3, "topology", _TOPOLOGY),
    ],
)
_CLAIMED = MessageType("ClaimResource", fields(Kind.STRING, driver_name=2, pool_name=3, device_name=4))
_DYNAMIC = MessageType(
    "DynamicResource",
    [*fields(Kind.STRING, claim_name=2, claim_namespace=3), Field(4, "claim_resources", _CLAIMED, repeated=True)],
)
_CONTAINER = MessageType(
    "ContainerResources",
    [
        Field(1, "name", Kind.STRING),
        Field(2, "devices", _DEVICES, repeated=True),
        Field(3, "cpu_ids", Kind.INT64, repeated=True),
        Field(4, "memory", _MEMORY, repeated=True),
        Field(5, "dynamic_resources", _DYNAMIC, repeated=True),
    ],
)
_POD = MessageType(
    "PodResources",
    [
        *fields(Kind.STRING, name=1, namespace=2),
        Field(3, "containers", _CONTAINER, repeated=True),
        Field(4, "cpu_ids", Kind.INT64, repeated=True),
        Field(5, "memory", _MEMORY, repeated=True),
    ],
)
LIST_REQUEST = MessageType("ListPodResourcesRequest", [])
LIST_RESPONSE = MessageType("ListPodResourcesResponse", [Field(1, "pod_resources", _POD, repeated=True)])
GET_REQUEST = MessageType("GetPodResourcesRequest", fields(Kind.STRING, pod_name=1, pod_namespace=2))
GET_RESPONSE = MessageType("GetPodResourcesResponse", [Field(1, "pod_resources", _POD)])
ALLOCATABLE_REQUEST = MessageType("AllocatableResourcesRequest", [])
ALLOCATABLE_RESPONSE = MessageType(
    "AllocatableResourcesResponse",
    [
        Field(1, "devices", _DEVICES, repeated=True),
        Field(2, "cpu_ids", Kind.INT64, repeated=True),
        Field(3, "memory", _MEMORY, repeated=True),
    ],
)

Value = dict[str, Any]
"""A message in the form that `protobuf.encode` accepts."""


def list_pods(state: NodeState, node: str) -> Value:
    """Return the answer to List, with the pods that have allocations, in the order of admission. `node` is the node's name, which is also
    the pool name of claimed devices.
    """
    return {"pod_resources": [_format_pod(entry, state.promises, node) for entry in state.entries if entry.is_active]}


def find_pod_message(state: NodeState, namespace: str, name: str, node: str) -> Value | None:
    """Return the answer to Get. None means that there is no such pod. Unlike List, Get also finds ended and refused pods,
    which have no allocations.
    """
    for entry in reversed(state.entries):
        if entry.pod.name == name and entry.pod.namespace == namespace:
            return {"pod_resources": _format_pod(entry, state.promises, node)}
    return None


def list_allocatable(node: NodeRules, promises: Promises, pools: "tuple[DevicePool, ...]" = ()) -> Value:
    """Return the answer to GetAllocatableResources, with all resources that could be allocated exclusively on an empty node."""
    cpus = node.topology.online - node.reserved if node.placement.has_static_cpus else CpuSet()
    memory = [
        _format_memory(resource, table.allocatable, [node.id])
        for node in memory_accounts(promises)
        for resource, table in node.tables
        if table.allocatable
    ]
    devices = [_format_device(pool.resource, device.id, device.nodes) for pool in pools for device in pool.healthy]
    return {"devices": devices, "cpu_ids": list(cpus), "memory": memory}


def _format_pod(entry: PodEntry, promises: Promises, node: str) -> Value:
    """Return the message of a pod. Init containers other than sidecars aren't listed, because they end before the app containers start. A
    container that shares pod-level resources has no resources itself.
    """
    held = promises.of_pod(entry.pod.uid)
    is_divided = held.of(CpuHoldings).pod_cpus is not None or held.of(MemoryHoldings).pod_memory is not None
    cpus, memory = dict(held.of(CpuHoldings).cpus), dict(held.of(MemoryHoldings).memory)
    containers = []
    for container in entry.pod.containers:
        if container.kind is ContainerKind.INIT:
            continue
        message: Value = {"name": container.name}
        if held.of(DeviceHoldings).devices:
            own = [device for device in held.of(DeviceHoldings).devices_of(container.name) if not device.claim]
            message["devices"] = [_format_device(each.resource, each.id, each.nodes.bits or None) for each in own]
        if held.of(ClaimHoldings).claims:
            # The names of CDI devices stay empty, because the agent doesn't use CDI.
            message["dynamic_resources"] = []
            for claim in held.of(ClaimHoldings).claims:
                used = [
                    {"driver_name": device.driver, "pool_name": node, "device_name": device.device}
                    for device in claim.devices
                    if any(use.uses(claim.name, device.request.partition("/")[0]) for use in container.claims)
                ]
                namespace, _, name = claim.claim.partition("/")
                if used:
                    message["dynamic_resources"].append(
                        {"claim_name": name, "claim_namespace": namespace, "claim_resources": used}
                    )
        if not is_divided or qualifies_alone(container):
            message["cpu_ids"] = list(cpus.get(container.name, ()))
            message["memory"] = _format_blocks(memory.get(container.name, ()))
        containers.append(message)
    return {
        "name": entry.pod.name,
        "namespace": entry.pod.namespace,
        "containers": containers,
        "cpu_ids": list(held.of(CpuHoldings).pod_cpus or ()),
        "memory": _format_blocks(held.of(MemoryHoldings).pod_memory or ()),
    }


def _format_device(resource: str, id_: str, nodes: int | None) -> Value:
    """Return an entry for a single device. kubelet also lists each device separately."""
    message: Value = {"resource_name": resource, "device_ids": [id_]}
    if nodes is not None:
        message["topology"] = {"nodes": [{"ID": node} for node in range(nodes.bit_length()) if nodes >> node & 1]}
    return message


def _format_blocks(blocks: Blocks) -> list[Value]:
    return [_format_memory(block.resource, block.size_bytes, block.nodes) for block in blocks]


def _format_memory(resource: str, size_bytes: int, nodes: Iterable[int]) -> Value:
    return {"memory_type": resource, "size": size_bytes, "topology": {"nodes": [{"ID": node} for node in nodes]}}
