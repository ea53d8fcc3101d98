"""What others demand of a NodeResourceTopology: the CRD's schema, and what the scheduler's plugin would read. Independent of our writer.

Sources: noderesourcetopology-api (v1alpha2), scheduler-plugins' NodeResourceTopologyMatch, exporters' use of kubelet's PodResources.
"""

import re
from collections.abc import Mapping
from typing import Any

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from tests.support import json_schema

_QUANTITY = {
    "type": ["integer", "string"],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
}
_TEXT = {"type": "string"}
_ATTRIBUTES = {
    "type": "array",
    "items": {"type": "object", "required": ["name", "value"], "properties": {"name": _TEXT, "value": _TEXT}},
}
_ZONE = {
    "type": "object",
    "required": ["name", "type"],
    "properties": {
        "name": _TEXT,
        "type": _TEXT,
        "parent": _TEXT,
        "attributes": _ATTRIBUTES,
        "costs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "value"],
                "properties": {"name": _TEXT, "value": {"type": "integer"}},
            },
        },
        "resources": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["allocatable", "available", "capacity", "name"],
                "properties": {
                    "allocatable": _QUANTITY,
                    "available": _QUANTITY,
                    "capacity": _QUANTITY,
                    "name": _TEXT,
                },
            },
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "zones"],
    "properties": {
        "apiVersion": {"const": "topology.node.k8s.io/v1alpha2"},
        "kind": {"const": "NodeResourceTopology"},
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
        "attributes": _ATTRIBUTES,
        "topologyPolicies": {"type": "array", "items": _TEXT},
        "zones": {"type": "array", "items": _ZONE},
    },
}
POLICIES = {
    ("none", "container"): "None",
    ("none", "pod"): "None",
    ("best-effort", "container"): "BestEffortContainerLevel",
    ("best-effort", "pod"): "BestEffortPodLevel",
    ("restricted", "container"): "RestrictedContainerLevel",
    ("restricted", "pod"): "RestrictedPodLevel",
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
}
"""The API's constants."""
Amounts = dict[int, dict[str, dict[str, int]]]
"""NUMA node → resource → capacity, allocatable, available."""


def checked(document: Mapping[str, Any]) -> Amounts:
    """Hold a document to the CRD's schema and to what the plugin takes for granted; return its amounts."""
    found = list(json_schema.faults(dict(document), SCHEMA, SCHEMA))
    assert not found, "\n".join(found)
    attributes = {each["name"]: each["value"] for each in document["attributes"]}
    policy = attributes["topologyManagerPolicy"], attributes["topologyManagerScope"]
    assert document["topologyPolicies"] == [POLICIES[policy]]
    amounts: Amounts = {}
    for zone in document["zones"]:
        assert zone["type"] == "Node", "the plugin skips other types"
        amounts[_numa_id(zone["name"])] = {one["name"]: _amounts(one) for one in zone["resources"]}
        assert [one["name"] for one in zone["resources"]] == list(amounts[_numa_id(zone["name"])]), "each resource once"
    assert len(amounts) == len(document["zones"])
    for zone in document["zones"]:
        assert {_numa_id(cost["name"]) for cost in zone.get("costs", ())} in (set(), set(amounts))
    return amounts


def _numa_id(name: str) -> int:
    found = re.fullmatch(r"node-([0-9]+)", name)
    assert found, f"the plugin finds no NUMA node in {name}"
    return int(found[1])


def _amounts(resource: Mapping[str, Any]) -> dict[str, int]:
    found = {name: Quantity.parse(str(resource[name])).value() for name in ("capacity", "allocatable", "available")}
    assert 0 <= found["available"] <= found["allocatable"] <= found["capacity"]
    return found


def cpus_available(managers: Managers, promises: Promises, node: int) -> int:
    """Subtract from a node's allocatable CPUs those that PodResources lists for containers and pods."""
    listed = {cpu for _, pod in promises.pods for _, cpus in pod.of(CpuHoldings).cpus for cpu in cpus}
    listed |= {cpu for _, pod in promises.pods for cpu in pod.of(CpuHoldings).pod_cpus or ()}
    allocatable = {cpu.id for cpu in managers.topology.cpus if cpu.numa == node} - set(managers.reserved)
    return len(allocatable - listed)


def memory_taken(promises: Promises, nodes: frozenset[int], resource: str) -> int:
    """Add up the blocks that PodResources lists on exactly these NUMA nodes. A pod's own block holds those of its containers."""
    blocks = [
        block
        for _, pod in promises.pods
        for block in (
            [each for _, of_container in pod.of(MemoryHoldings).memory for each in of_container]
            if pod.of(MemoryHoldings).pod_memory is None
            else pod.of(MemoryHoldings).pod_memory
        )
    ]
    return sum(b.size_bytes for b in blocks if b.resource == resource and frozenset(b.nodes) == nodes)


def fits_one_node(amounts: Amounts, requests: Mapping[str, int]) -> bool:
    """Whether the plugin lets a container of a Guaranteed pod pass under single-numa-node: some zone has enough available of everything."""
    return any(
        all(name in zone and zone[name]["available"] >= amount for name, amount in requests.items())
        for zone in amounts.values()
    )
