"""Exclusive CPUs of containers, pods and the node, as documents and text."""

from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, exclusive_cpus, free_cpus
from nodeagent.formats.node_view import NodeView
from nodeagent.views.holdings.holding_view import Document, HoldingView


def format_place(held: PodPromises, container: Container) -> str:
    """Format the name of a container and the CPUs allocated to it."""
    own = held.of(CpuHoldings).own_set(container.name)
    if own is None:
        return f"{container.name} shared"
    return f"{container.name} {own}{' + shared pool' if container.is_mixed else ''}"


def _describe_container(held: PodPromises, container: str) -> Document:
    own = held.of(CpuHoldings).own_set(container)
    return {"cpus": None if own is None else str(own)}


def _describe_resized(held: PodPromises, container: Container) -> Document:
    return _describe_container(held, container.name)


def _describe_pod(_pod: Pod, held: PodPromises) -> Document:
    own = held.of(CpuHoldings).pod_cpus
    return {"podCpus": None if own is None else str(own)}


def _describe_freed(held: PodPromises) -> Document:
    return {"cpus": str(held.of(CpuHoldings).every_cpu)}


def _describe_node(view: NodeView) -> Document:
    topology, rules, promises = view.node.topology, view.node.rules, view.state.promises
    shared, exclusive = shared_pool(rules, promises, topology.online), exclusive_cpus(promises)
    available = free_cpus(promises, rules.grantable) & topology.online
    return {
        "cpus": {
            "available": str(available),
            "availableCount": len(available),
            "exclusive": str(exclusive),
            "exclusiveCount": len(exclusive),
            "isolated": str(topology.isolated),
            "offline": str(topology.offline),
            "online": str(topology.online),
            "onlineCount": len(topology.online),
            "reserved": str(rules.reserved),
            "reservedCount": len(rules.reserved),
            "shared": str(shared),
            "sharedMillicores": 1000 * len(shared),
        }
    }


VIEW = HoldingView(
    promised=_describe_container,
    pod=_describe_pod,
    node=_describe_node,
    resized=_describe_resized,
    freed=_describe_freed,
)
