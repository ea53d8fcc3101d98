"""Memory of pods with pod-level resources (KEP-5526). Such a pod gets blocks of memory, which are divided among its containers.

Only the pod's blocks count in the accounting. The containers' blocks may overlap, because init containers run before the others, and
containers without an exclusive amount share the rest.
"""

from msgspec.structs import replace

from nodeagent.core.metrics.manager_metrics import (
    MEMORY_ERRORS,
    MEMORY_REQUESTS,
    MetricDeltas,
    allocation_errors,
    allocations,
    assignments,
    plus,
)
from nodeagent.core.model.demand import Amounts, PodDemand
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason, Refusal, wrap_unexpected
from nodeagent.core.resources.memory.accounting import UINT64, take
from nodeagent.core.resources.memory.holdings import (
    Block,
    Blocks,
    MemoryHoldings,
    memory_accounts,
    with_memory_accounts,
)
from nodeagent.core.resources.memory.manager import NOT_REPRESENTABLE, MemoryManager, choose_nodes
from nodeagent.core.resources.resource import Allocation

_REPRESENTABLE = "amounts that aren't whole bytes were refused before"


def check_pod(manager: MemoryManager, pod: PodDemand) -> Refusal | None:
    """Refuse a pod if its containers with exclusive memory leave none for its other containers, or if an amount can't be provided. None
    means that the pod isn't refused.
    """
    assert pod.memory is not None, _REPRESENTABLE
    total = pod.memory
    taken = {resource: 0 for resource, _ in total}
    has_sharing = False
    for container in pod.containers:
        if container.memory is None:
            return _refuse_empty_pool(NOT_REPRESENTABLE)
        amounts = dict(container.memory)
        if container.kind is not ContainerKind.INIT:
            has_sharing = has_sharing or not amounts
            for resource, size in amounts.items():
                taken[resource] = taken.get(resource, 0) + size
            continue
        for resource, size in total:
            left = size - taken[resource] & UINT64
            if amounts.get(resource, 0) > left:
                return _refuse_empty_pool(
                    f"pod rejected, largest exclusive init container requests {amounts[resource]} of {resource}, "
                    f"but only {left} available"
                )
            if not amounts and taken[resource] >= size:
                return _refuse_empty_pool(
                    f"pod rejected, pod has shared init containers but no {resource} available for them"
                )
    for resource, size in total:
        if has_sharing and taken[resource] >= size:
            return _refuse_empty_pool(
                f"pod rejected, sum of exclusive container {resource} requests equals pod budget, "
                "leaving no memory for shared containers"
            )
    return None if Erratum.ABSURD_AMOUNTS in manager.quirks else _refuse_over_budget(total, taken)


def _refuse_over_budget(total: Amounts, taken: dict[str, int]) -> Refusal | None:
    budget = dict(total)
    for resource, size in sorted(taken.items()):
        if size > budget.get(resource, 0):
            available = budget.get(resource, 0)
            return wrap_unexpected(
                f"[memorymanager] exclusive containers request {size} of {resource}, but only {available} available in the pod"
            )
    return None


def _refuse_empty_pool(message: str) -> Refusal:
    return Refusal(Reason.EMPTY_POD_SHARED_POOL, message)


def allocate_pod(manager: MemoryManager, promises: Promises, pod: PodDemand) -> Allocation:
    """Allocate memory to the pod on the NUMA nodes of its first container's hint, and divide the memory among the containers."""
    if not manager.static or not pod.is_guaranteed or pod.is_skipped or pod.memory is None:
        return Allocation(promises)
    requests = plus(MEMORY_REQUESTS)
    refusal = check_pod(manager, pod)
    if refusal is not None:
        return _refuse(promises, (requests,), refusal)
    nodes = choose_nodes(manager, promises, pod.uid, pod.memory, promises.hint(pod.uid, pod.containers[0].name))
    if isinstance(nodes, str):
        return _refuse(promises, (requests,), wrap_unexpected(nodes))
    machine = memory_accounts(promises)
    for resource, size in pod.memory:
        machine = take(machine, nodes, resource, size)
    held = promises.of_pod(pod.uid).having(
        MemoryHoldings(
            pod_memory=tuple(Block(nodes, resource, size) for resource, size in pod.memory),
            memory=tuple(sorted(_divide_pod_memory(pod, nodes))),
        )
    )
    deltas: MetricDeltas = (requests,)
    for container in pod.containers:
        exclusive = bool(container.memory)
        if exclusive or container.kind is not ContainerKind.APP:
            deltas += (requests,)
        deltas += (allocations("memory", "pod"), assignments("memory", "pod_exclusive" if exclusive else "pod_shared"))
    return Allocation(with_memory_accounts(replace(promises, pods=promises.pods.put(pod.uid, held)), machine), deltas)


def _refuse(promises: Promises, deltas: MetricDeltas, refusal: Refusal) -> Allocation:
    return Allocation(promises, (*deltas, plus(MEMORY_ERRORS), allocation_errors("memory", "pod")), refusal)


def _divide_pod_memory(pod: PodDemand, nodes: NumaSet) -> list[tuple[str, Blocks]]:
    """Divide the pod's memory among its containers. A container gets no block for a resource of which it has 0 bytes."""
    assert pod.memory is not None, _REPRESENTABLE
    left = dict(pod.memory)
    parts: list[tuple[str, dict[str, int]]] = []
    sharing: list[str] = []
    for container in pod.containers:
        assert container.memory is not None, _REPRESENTABLE
        amounts = dict(container.memory)
        if container.kind is ContainerKind.INIT:
            parts.append((container.name, amounts or dict(left)))
        elif not amounts:
            sharing.append(container.name)
        else:
            parts.append((container.name, amounts))
            for resource, size in amounts.items():
                # If the pod has no amount of the resource, an app container's amount makes the remaining amount negative. As in kubelet,
                # this wraps around (uint64). A sidecar's amount is then ignored.
                if resource in left or container.kind is ContainerKind.APP:
                    left[resource] = left.get(resource, 0) - size & UINT64
    parts += [(name, left) for name in sharing]
    return [
        (name, tuple(Block(nodes, resource, size) for resource, size in sorted(part.items()) if size))
        for name, part in parts
    ]
