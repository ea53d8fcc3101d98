"""Choice of NUMA nodes that have room for a container's CPUs and for its memory (sameNumaNodes).

The merge of hints intersects the sets of all resources. If no set is preferred by all, the result may have too little of one resource,
which then spreads to other nodes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuMask, NumaMask, NumaSet
from nodeagent.core.model.pod import CPU, MEMORY
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa.hint_family import HintFamily, Hints, is_fine_with
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES
from nodeagent.core.numa.hints import DONT_CARE, Merged, fitness
from nodeagent.core.resources.cpu.holdings import free_cpus
from nodeagent.core.resources.cpu.manager import divide_among_nodes, reusable_cpus
from nodeagent.core.resources.cpu.resource import CpuResource

if TYPE_CHECKING:
    from nodeagent.core.admission.one_pod import Providers
    from nodeagent.core.resources.resource import ResourceHints


def find_same_nodes(
    providers: "Providers",
    promises: Promises,
    pod: PodDemand,
    container: ContainerDemand | None,
    hints: "ResourceHints",
    merged: Merged,
) -> Merged:
    """Return the best set that all resources offer and of which every node has CPUs for the container.

    The result of the merge stays if it is such a set, or if there is none. The result never changes whether the pod is admitted.

    Args:
        providers: the managers.
        promises: the current promises.
        pod: the pod's requests.
        container: the container. None means the pod as a whole.
        hints: the hints of all resources.
        merged: the result of the merge.
    """
    cpus = [each for name, each in hints if name == CPU and each != DONT_CARE]
    memory = [each for name, each in hints if name.startswith((MEMORY, "hugepages-")) and each != DONT_CARE]
    if not cpus or not memory:
        return merged
    manager = providers.of(CpuResource).manager
    free = CpuMask(free_cpus(promises, manager.grantable).bits | reusable_cpus(promises, pod.uid))
    name, count = (None, pod.cpus) if container is None else (container.name, container.cpus)
    question = manager.asking(promises, pod, name, free, count)
    nodes = tuple(node.id for node in manager.layout.nodes if node.cpus & free)
    lists = [each for _, each in hints]

    def is_possible(mask: NumaMask) -> bool:
        return all(_offers(each, mask) for each in lists) and divide_among_nodes(manager, question, mask) is not None

    if merged.mask is not None and is_possible(merged.mask):
        return merged
    fit = fitness(providers.topology.rules)
    found = min(
        (mask for mask in _list_masks(cpus[0], nodes) if is_possible(mask)),
        key=lambda mask: (not all(is_fine_with(each, mask) for each in lists), fit(mask)),
        default=None,
    )
    return merged if found is None else Merged(found, merged.preferred)


def _list_masks(hints: Hints, nodes: tuple[int, ...]) -> Iterator[NumaMask]:
    """Yield the sets of these nodes that the hints offer. On machines with more nodes than a table can have, there are none."""
    if isinstance(hints, HintFamily):
        hints = hints.list_hints(nodes) if len(nodes) <= MAX_TABLED_NODES else ()
    inside = NumaSet.from_ids(nodes).bits
    return (mask for mask, _ in hints if mask is not None and not mask & ~inside)


def _offers(hints: Hints, mask: NumaMask) -> bool:
    if isinstance(hints, HintFamily):
        return any(each == mask for each, _ in hints.listed) or (hints.cover is not None and hints.cover.contains(mask))
    return (None, True) in hints or any(each == mask for each, _ in hints)
