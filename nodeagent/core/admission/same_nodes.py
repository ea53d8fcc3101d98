"""NUMA nodes for a container's CPUs and its memory: sets with room for both (sameNumaNodes), nodes for huge pages (spreadHugePages).

The merge of hints intersects the sets of all resources. If no set is preferred by all, the result may have too little of one resource,
which then spreads to other nodes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuMask, NumaMask, NumaSet
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa.hint_family import HintFamily, Hints, is_fine_with
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES
from nodeagent.core.numa.hints import DONT_CARE, Merged, fitness
from nodeagent.core.resources.cpu.holdings import free_cpus, own_set_of
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

    The result of the merge stays if it is such a set, or if there is none. The merge is then as acceptable as before.

    Args:
        providers: the managers.
        promises: the current promises.
        pod: the pod's requests.
        container: the container. None means the pod as a whole.
        hints: the hints of all resources.
        merged: the result of the merge.
    """
    cpus = [each for name, each in hints if name == CPU and each != DONT_CARE]
    memory = [each for name, each in hints if name.startswith((MEMORY, HUGEPAGES_PREFIX)) and each != DONT_CARE]
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


def find_spread(
    providers: "Providers", promises: Promises, pod: PodDemand, container: ContainerDemand
) -> tuple[tuple[int, int], ...]:
    """Return the NUMA nodes of a container's CPUs with the number of its CPUs there, if its huge pages should be on these nodes.

    Empty means no preference: the container has no huge pages or CPUs of one node only, or a strict policy keeps it on other nodes.
    """
    own = own_set_of(promises, pod.uid, container.name)
    if own is None or not any(size for name, size in container.memory or () if name.startswith(HUGEPAGES_PREFIX)):
        return ()
    nodes = providers.of(CpuResource).manager.nodes
    shares = tuple((node.id, count) for node in nodes if (count := (node.cpus & own.bits).bit_count()))
    hint = promises.hint(pod.uid, container.name).mask
    is_away = hint is not None and providers.topology.is_strict and any(node not in hint for node, _ in shares)
    return () if len(shares) < 2 or is_away else shares


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
