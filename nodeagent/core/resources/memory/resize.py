"""Resize of a running container's memory. The memory is allocated on the same NUMA nodes as before."""

from msgspec.structs import replace

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import put_item, remove_item
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Hint, Promises, with_pod
from nodeagent.core.model.refusals import NotResized, defer_resize, refuse_resize_for_good
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.memory.accounting import NodeAccounts
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings, memory_accounts, memory_nodes_of
from nodeagent.core.resources.memory.manager import MemoryManager, allocate_container, release_container


def resize_memory(
    manager: MemoryManager,
    topology: TopologyManager,
    promises: Promises,
    pod: PodDemand,
    was: ContainerDemand,
    now: ContainerDemand,
) -> Promises | NotResized:
    """Change the allocated amount of a running container's memory on its present NUMA nodes. If this isn't possible, return whether the
    resize is refused or waits.
    """
    held = promises.of_pod(pod.uid)
    blocks = held.of(MemoryHoldings).blocks(now.name)
    if blocks is None or was.memory == now.memory:
        return promises
    name = f"container {now.name}"
    if any(held.of(MemoryHoldings).blocks(one.name) for one in pod.containers if one.kind is ContainerKind.INIT):
        return defer_resize(f"init containers of the pod hold memory that {name} takes over when they have ended")
    nodes = memory_nodes_of(promises, pod.uid, now.name) or NumaSet()
    hint = held.hint(now.name)
    if topology.is_strict and (excess := _find_excess_resource(manager.machine, nodes, now)):
        return refuse_resize_for_good(f"{name} would have more {excess} than there is on NUMA {nodes}{topology.stays}")
    without = release_container(manager, promises, pod.uid, now.name)
    remaining = without.of_pod(pod.uid)
    asked_promises = with_pod(
        without, pod.uid, replace(remaining, hints=put_item(remaining.hints, now.name, Hint(nodes, preferred=False)))
    )
    allocation = allocate_container(manager, asked_promises, pod, now)
    if allocation.refusal is not None:
        return defer_resize(f"{name} on NUMA {nodes}: {allocation.refusal.message}")
    after = allocation.promises
    new_nodes = memory_nodes_of(after, pod.uid, now.name) or nodes
    if not new_nodes >= nodes or (new_nodes != nodes and topology.is_strict):
        return defer_resize(f"the memory of {name} would move from NUMA {nodes} to {new_nodes}")
    given = after.of_pod(pod.uid)
    known = [one for one, _ in held.hints]
    hints = put_item(given.hints, now.name, hint) if now.name in known else remove_item(given.hints, now.name)
    books = MemoryBooks(memory_accounts(after), promises.of(MemoryBooks).reuse)
    return with_pod(after, pod.uid, replace(given, hints=hints)).having(books)


def _find_excess_resource(machine: NodeAccounts, nodes: NumaSet, now: ContainerDemand) -> str | None:
    """Return a resource of which these NUMA nodes have too little even if nothing is allocated. None means that there is no such
    resource.
    """
    for resource, size in now.memory or ():
        tables = (node.table(resource) for node in machine if node.id in nodes)
        if size > sum(table.allocatable for table in tables if table is not None):
            return resource
    return None
