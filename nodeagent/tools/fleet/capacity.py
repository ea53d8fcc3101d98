"""Document with the number of pods that fit on each node of a fleet. It contains the agent's decision on the first copy of the pods, and
the number of admitted copies.
"""

from collections.abc import Sequence
from typing import Any

from nodeagent.core.explain.capacity_search import Capacity
from nodeagent.core.model.pod import Pod
from nodeagent.tools.fleet.nodes import FleetNode, UnreadNode, describe_origin, describe_unread
from nodeagent.views.explain.document import describe_placed_containers

Document = dict[str, Any]
VERSION = 1


def describe_capacity(
    found: Sequence[tuple[FleetNode, Capacity]], pods: Sequence[Pod], unread: Sequence[UnreadNode] = ()
) -> Document:
    """Describe how many copies of a set of pods fit on each node.

    Args:
        found: nodes in the order to show them, each with its capacity.
        pods: pods that make up one copy.
        unread: nodes that could not be read, or have no known configuration.
    """
    nodes = [_describe_node(node, capacity, pods) for node, capacity in found]
    return {
        "kind": "FleetCapacity",
        "nodes": nodes,
        "of": [pod.full_name for pod in pods],
        "summary": {
            "complete": all(node["complete"] for node in nodes),
            "copies": sum(node["copies"] for node in nodes),
            "fitting": sum(node["copies"] > 0 for node in nodes),
            "nodes": len(nodes),
        },
        "unread": describe_unread(unread),
        "version": VERSION,
    }


def _describe_node(node: FleetNode, capacity: Capacity, pods: Sequence[Pod]) -> Document:
    decision = capacity.decision
    return {
        **describe_origin(node),
        "complete": decision is not None,
        "copies": capacity.copies,
        "first": [
            {
                "containers": describe_placed_containers(
                    capacity.after.managers, copy, decided.report.containers, decided.promises
                ),
                "pod": pod.full_name,
            }
            # the list is empty if not even one copy fits
            for pod, (copy, decided) in zip(pods, capacity.first, strict=False)
        ],
        "message": None if decision is None else decision.message,
        "reason": None if decision is None else str(decision.reason),
    }
