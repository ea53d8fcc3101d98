"""NUMA hints of the CPU manager. A hint is a set of NUMA nodes that could provide the CPUs of a container or a pod."""

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuMask, NumaMask
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa.hint_family import HintFamily, Hints
from nodeagent.core.numa.node_search import Cover
from nodeagent.core.resources.cpu.holdings import free_cpus, own_set_of
from nodeagent.core.resources.cpu.manager import CpuManager, over, reusable_cpus
from nodeagent.core.resources.cpu.pods import check_pod
from nodeagent.core.resources.cpu.points import Question


def container_hints(
    manager: CpuManager, promises: Promises, pod: PodDemand, container: ContainerDemand
) -> Hints | None:
    """Return the hints for one container's CPUs. None means that the CPUs may be on any nodes. An empty list means that no nodes can
    provide them.
    """
    if not manager.static or container.cpus == 0 or pod.is_skipped:
        return None
    own = own_set_of(promises, pod.uid, container.name)
    if own is not None:
        if len(own) != container.cpus:
            return ()
        return _list_own_hints(manager, manager.asking(promises, pod, container.name, own.bits, container.cpus))
    free, reusable = free_cpus(promises, manager.grantable).bits, reusable_cpus(promises, pod.uid)
    return _list_hints_beside_own(
        manager, manager.asking(promises, pod, container.name, free, container.cpus), reusable
    )


def pod_hints(manager: CpuManager, promises: Promises, pod: PodDemand) -> Hints | None:
    """Return the hints for the CPUs of a pod as a whole. None means that the CPUs may be on any nodes. An empty list means that no nodes
    can provide them.
    """
    if not manager.static or pod.cpus == 0 or pod.is_skipped:
        return None
    if pod.is_managed and check_pod(manager, pod) is not None:
        return ()
    assigned = 0
    for container in pod.containers:
        own = own_set_of(promises, pod.uid, container.name)
        if own is not None:
            if len(own) != container.cpus:
                return ()
            assigned |= own.bits
    if assigned.bit_count() == pod.cpus:
        return _list_own_hints(manager, manager.asking(promises, pod, None, assigned, pod.cpus))
    reusable = CpuMask(reusable_cpus(promises, pod.uid) | assigned)
    return _list_hints_beside_own(
        manager, manager.asking(promises, pod, None, free_cpus(promises, manager.grantable).bits, pod.cpus), reusable
    )


def _list_own_hints(manager: CpuManager, question: Question) -> Hints:
    """Return the hints for CPUs that are already allocated. Plugins aren't called, because there is nothing left to choose."""
    return _list_hints(manager, question, CpuMask(0))


def _list_hints_beside_own(manager: CpuManager, question: Question, reusable: CpuMask) -> Hints:
    if manager.chooser is not None:
        offered = manager.for_hints(over(question, CpuMask(question.free.bits | reusable), question.count)).free.bits
        reusable = CpuMask(reusable & offered)
        question = over(question, CpuMask(offered & ~reusable), question.count)
    return _list_hints(manager, question, reusable)


def _list_hints(manager: CpuManager, question: Question, reusable: CpuMask) -> Hints:
    """List each set of NUMA nodes that contains all reusable CPUs and, in addition, enough other free CPUs.

    A set is preferred if it has no more nodes than the request needs on an empty machine. With align-by-socket, a set is also preferred if
    it covers no more sockets than needed.
    """
    layout, count = manager.layout, question.count
    available: int = question.free.bits
    if manager.filters:
        available = manager.usable(question, CpuMask(available | reusable)) & ~reusable
    smallest = layout.fewest_nodes(count)
    wanted_sockets = None
    if manager.options.align_by_socket and (nodes_per_socket := len(layout.nodes) // layout.socket_count):
        wanted_sockets = -(-smallest // nodes_per_socket)
    missing = count - reusable.bit_count()
    if not manager.node_sets:
        return _describe_hints(manager, available, reusable, missing, smallest, wanted_sockets)
    hints = []
    for nodes in manager.node_sets:
        if reusable & ~nodes.cpus or (available & nodes.cpus).bit_count() < missing:
            continue
        preferred = nodes.nodes == smallest or (wanted_sockets is not None and nodes.sockets == wanted_sockets)
        hints.append((nodes.mask, preferred))
    return tuple(hints)


def _describe_hints(
    manager: CpuManager, available: int, reusable: int, missing: int, smallest: int, wanted_sockets: int | None
) -> Hints:
    """Return the same hints as `_list_hints`, but described by conditions (`HintFamily`) instead of listed, because there are too many sets
    of nodes.
    """
    nodes = manager.layout.nodes
    cover = Cover(
        universe=NumaMask(sum(1 << node.id for node in nodes)),
        needs=(missing,),
        amounts=tuple((node.id, ((available & node.cpus).bit_count(),)) for node in nodes),
        forced=NumaMask(sum(1 << node.id for node in nodes if node.cpus & reusable)),
    )
    if cover.is_empty:
        return ()
    sockets: tuple[NumaMask, ...] = ()
    if wanted_sockets is not None:
        sockets = tuple(
            NumaMask(sum(1 << n.id for n in nodes if n.cpus & socket.cpus)) for socket in manager.layout.sockets
        )
    return HintFamily((), cover, smallest, sockets, wanted_sockets)
