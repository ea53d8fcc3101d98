"""Choice of NUMA nodes on which both CPUs and memory are available (`sameNumaNodes`), and of the nodes for huge pages (`spreadHugePages`).

kubelet's merge of hints intersects the preferred sets of all resources. Without a set that all resources prefer, the result may contain a
node that has too little of one resource.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa.hint_family import HintFamily, Hints, is_fine_with
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES
from nodeagent.core.numa.hints import DONT_CARE, Merged, fitness
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.resource import Resource

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
    """Return the best set of NUMA nodes in which each node can provide a part of every requested resource.

    If no such set exists, or if the result of the merge already is such a set, return the result of the merge. The returned set is marked
    as preferred exactly if the result of the merge is. Therefore the topology manager's policy admits or refuses both alike.

    Args:
        providers: the managers.
        promises: the allocations so far.
        pod: the pod's demand.
        container: the container for which nodes are chosen. None means the pod as a whole.
        hints: the hints of all resources.
        merged: the result of the merge.
    """
    cpus = [each for name, each in hints if name == CPU and each != DONT_CARE]
    memory = [each for name, each in hints if name.startswith((MEMORY, HUGEPAGES_PREFIX)) and each != DONT_CARE]
    if not cpus or not memory:
        return merged
    lists = [each for _, each in hints]

    def is_possible(mask: NumaMask) -> bool:
        return all(_offers(each, mask) for each in lists) and all(
            resource.fits_on_each(promises, pod, container, mask) for resource in providers.resources
        )

    if merged.mask is not None and is_possible(merged.mask):
        return merged
    fit = fitness(providers.topology.rules)
    found = min(
        (mask for mask in _list_masks(cpus[0]) if is_possible(mask)),
        key=lambda mask: (not all(is_fine_with(each, mask) for each in lists), fit(mask)),
        default=None,
    )
    return merged if found is None else Merged(found, merged.preferred)


def find_spread(
    topology: TopologyManager, resource: Resource, promises: Promises, uid: str, container: ContainerDemand
) -> tuple[tuple[int, int], ...]:
    """Return the NUMA nodes over which a container's huge pages should be spread, each with the amount of `resource` that the container
    holds there.

    The result is empty if there is nothing to spread, because the container has no huge pages, or holds the resource on a single node. It
    is also empty if a strict policy requires other nodes.
    """
    if not any(size for name, size in container.memory or () if name.startswith(HUGEPAGES_PREFIX)):
        return ()
    shares = resource.count_by_node(promises.of_pod(uid), container.name)
    hint = promises.hint(uid, container.name).mask
    is_away = hint is not None and topology.is_strict and any(node not in hint for node, _ in shares)
    return () if len(shares) < 2 or is_away else shares


def _list_masks(hints: Hints) -> Iterator[NumaMask]:
    """Return the sets of NUMA nodes in the hints. From a `HintFamily`, whose sets are computed on demand, return only sets of nodes that
    have some of the resource. If there are too many such nodes, return nothing.
    """
    if not isinstance(hints, HintFamily):
        return (mask for mask, _ in hints if mask is not None)
    cover = hints.cover
    nodes = () if cover is None else tuple(n for n, amounts in cover.amounts if any(amounts) or cover.forced >> n & 1)
    return (mask for mask, _ in (hints.list_hints(nodes) if len(nodes) <= MAX_TABLED_NODES else ()) if mask is not None)


def _offers(hints: Hints, mask: NumaMask) -> bool:
    if isinstance(hints, HintFamily):
        return any(each == mask for each, _ in hints.listed) or (hints.cover is not None and hints.cover.contains(mask))
    return (None, True) in hints or any(each == mask for each, _ in hints)
