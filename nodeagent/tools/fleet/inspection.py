"""Document with the nodes and pods of a fleet. Health is determined as in `nodeagent inspect`."""

from collections.abc import Sequence
from typing import Any

from nodeagent.core.model.idset import CpuSet
from nodeagent.tools.fleet.nodes import FleetNode, UnreadNode, describe_origin, describe_unread
from nodeagent.views.inspect.document import NodeVerdict, has_difference, inspect_node
from nodeagent.views.inspect.text import format_health

Document = dict[str, Any]
VERSION = 1


def describe_inspection(nodes: Sequence[FleetNode], unread: Sequence[UnreadNode] = ()) -> Document:
    """Describe every node and pod of a fleet.

    Args:
        nodes: nodes in the order to show them.
        unread: nodes that could not be read.
    """
    inspected = [(node, None if node.view is None else inspect_node(node.view)) for node in nodes]
    described = [_describe_node(node, found) for node, found in inspected]
    pods = [_describe_pod(node, pod) for node, found in inspected if found is not None for pod in found["pods"]]
    return {
        "kind": "FleetInspection",
        "nodes": described,
        "pods": sorted(pods, key=lambda pod: (pod["namespace"], pod["name"])),
        "summary": {
            "cpus": sum(node["cpus"]["onlineCount"] for node in described),
            "differing": sum(node["differs"] for node in described),
            "exclusive": sum(node["cpus"]["exclusiveCount"] for node in described),
            "free": sum(node["cpus"]["availableCount"] for node in described),
            "nodes": len(described),
            "pods": len(pods),
            "unhealthy": sum(node["healthy"] is False for node in described),
        },
        "unread": describe_unread(unread),
        "version": VERSION,
    }


def _describe_node(node: FleetNode, found: Document | None) -> Document:
    if found is None:
        online = node.topology.online
        cpus = {"available": "", "availableCount": 0, "exclusive": "", "exclusiveCount": 0}
        return {
            **describe_origin(node),
            "compared": False,
            "cpus": {**cpus, "online": str(online), "onlineCount": len(online)},
            "differs": False,
            "health": "no agent",
            "healthy": None,
            "pods": 0,
            "summary": None,
            "verdict": NodeVerdict.AGENT_AWAY,
        }
    kept = ("available", "availableCount", "exclusive", "exclusiveCount", "online", "onlineCount")
    return {
        **describe_origin(node),
        "compared": found["differences"] is not None,
        "cpus": {name: found["node"]["cpus"][name] for name in kept},
        "differs": has_difference(found),
        "health": format_health(found),
        "healthy": found["verdict"] == NodeVerdict.HEALTHY,
        "pods": found["summary"]["pods"],
        "summary": found["summary"],
        "verdict": found["verdict"],
    }


def _describe_pod(node: FleetNode, pod: Document) -> Document:
    own = CpuSet()
    is_sharing = False
    for container in pod["containers"]:
        promised = container["promised"]["cpus"]
        own |= CpuSet.parse(promised or "")
        is_sharing |= container["isolation"] in {"host", "mixed"}
    own |= CpuSet.parse(pod["podCpus"] or "")
    return {
        "cpus": str(own),
        "name": pod["name"],
        "namespace": pod["namespace"],
        "node": node.name,
        "numaNodes": str(node.topology.numa_of(own)),
        "phase": pod["phase"],
        "qos": pod["qos"],
        "reason": None if pod["refusal"] is None else pod["refusal"]["reason"],
        "shares": is_sharing,
        "uid": pod["uid"],
    }
