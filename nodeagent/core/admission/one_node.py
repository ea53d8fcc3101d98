"""A pod that asks for a NUMA node: its managers have only that node to give, or it is refused. Decides nothing about other pods.

Kubelet has nothing like it, and none of its rules is changed for it: the managers decide by the configured policy, as on a machine on
which everything else is taken.
"""

from msgspec.structs import replace

from nodeagent.core.admission.one_pod import Providers
from nodeagent.core.memory.groups import NodeGroups
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.idset import CpuMask, NumaMask
from nodeagent.core.model.refusals import Reason, Refusal
from nodeagent.core.model.topology import Topology


def on_its_node(providers: Providers, pod: PodDemand) -> Providers:
    """Return the managers as this pod sees them."""
    if pod.numa_node is None:
        return providers
    only = NumaMask(1 << pod.numa_node)
    cpu, topology = providers.cpu, providers.topology
    return replace(
        providers,
        cpu=replace(cpu, grantable=CpuMask(cpu.grantable & cpu.layout.cpus_of_nodes(only))),
        memory=replace(providers.memory, groups=NodeGroups((only,))),
        topology=replace(topology, rules=replace(topology.rules, default_mask=only)),
    )


def unfit(providers: Providers, machine: Topology, pod: PodDemand) -> Refusal | None:
    """Refuse a pod that asks for a node on which nothing can be promised to it; None: it is to be tried."""
    node = pod.numa_node
    if node is None:
        return None
    there = machine.node_ids
    if node not in there:
        return _refusal(f"there is no NUMA node {node}, for which it asks: this machine has {there}")
    if node not in (machine.memory_nodes or there):
        return _refusal(f"NUMA node {node}, for which it asks, has no memory")
    is_asked = pod.cpus or any(container.cpus for container in pod.containers)
    if not providers.cpu.static or pod.is_skipped or not is_asked:
        return _refusal(f"it asks for NUMA node {node}, and for no CPUs of its own: the shared pool is on every node")
    return None


def _refusal(message: str) -> Refusal:
    return Refusal(Reason.TOPOLOGY_AFFINITY, message)
