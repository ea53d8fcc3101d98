"""CPUs of pods with pod-level resources (KEP-5526). Such a pod gets one CPU set, which is divided among its containers.

Each sidecar and app container with exclusive CPUs gets a part of its own, called slice. All other CPUs of the set form the pod's shared
pool. Init containers run one after the other, so their slices may overlap with those of later containers.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.metrics.manager_metrics import (
    CPU_ERRORS,
    CPU_REQUESTS,
    MetricDeltas,
    allocation_errors,
    allocations,
    assignments,
    plus,
)
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import Reason, Refusal, wrap_unexpected
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, free_cpus, with_default_set
from nodeagent.core.resources.cpu.manager import CpuManager, allocation_deltas, check_full_cores, choose_near, over
from nodeagent.core.resources.cpu.observing import Choosing, Source
from nodeagent.core.resources.cpu.points import CpuShortage, Question
from nodeagent.core.resources.resource import Allocation


def check_pod(manager: CpuManager, pod: PodDemand) -> Refusal | None:
    """Refuse a pod if its containers with exclusive CPUs leave no CPUs for its containers without. None means that the pod isn't
    refused.
    """
    all_exclusive = sum(c.cpus for c in pod.containers if c.kind is not ContainerKind.INIT)
    exclusive = 0
    shared = False
    for container in pod.containers:
        amount, left = container.cpus, pod.cpus - exclusive
        if container.kind is not ContainerKind.INIT:
            shared = shared or amount == 0
            exclusive += amount
        elif amount > left:
            return _refuse_empty_pool(
                f"pod rejected, largest exclusive init container requests {amount} cpus, but only {left} available"
            )
        elif amount == 0 and left <= 0:
            return _refuse_empty_pool("pod rejected, pod has shared init containers but no cpus available for them")
        elif shared and amount > all_exclusive - exclusive and _keeps_init_slice_out_of_pool(manager):
            return _refuse_empty_pool(
                f"pod rejected, exclusive init container requests {amount} cpus beside a shared sidecar, but only "
                f"{all_exclusive - exclusive} available outside the pod's shared pool"
            )
    if shared and exclusive >= pod.cpus:
        return _refuse_empty_pool(
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
        )
    return None


def _keeps_init_slice_out_of_pool(manager: CpuManager) -> bool:
    return Erratum.INIT_SLICE_IN_SHARED_POOL not in manager.quirks


def _refuse_empty_pool(message: str) -> Refusal:
    return Refusal(Reason.EMPTY_POD_SHARED_POOL, message)


def allocate_pod(manager: CpuManager, promises: Promises, pod: PodDemand) -> Allocation:
    """Allocate a CPU set to the pod, on the NUMA nodes of its first container's hint, and divide the set among the containers."""
    if not manager.static or pod.cpus == 0 or pod.is_skipped:
        return Allocation(promises)
    refusal = check_pod(manager, pod)
    if refusal is not None:
        return _refuse(promises, (), refusal)
    question = manager.asking(promises, pod, None, free_cpus(promises, manager.grantable).bits, pod.cpus)
    if manager.chooser is not None:
        question = manager.offered(question)
    if manager.options.full_pcpus_only:
        refusal = check_full_cores(manager, question) or _check_slices(manager, question)
        if refusal is not None:
            return _refuse(promises, (), refusal)
    mask = promises.hint(pod.uid, pod.containers[0].name).mask
    chosen = choose_near(manager, question, None if mask is None else mask.bits)
    if isinstance(chosen, CpuShortage):
        return _refuse(promises, (), wrap_unexpected(chosen.message))
    veto = manager.vetoed(question, chosen) if manager.chooser is not None else None
    if veto is not None:
        return _refuse(promises, (), veto)
    of_pod = promises.of_pod(pod.uid)
    held = replace(of_pod.of(CpuHoldings), pod_cpus=chosen)
    after = with_default_set(with_pod(promises, pod.uid, of_pod.having(held)), default_set(promises) - chosen)
    # `promises` doesn't contain this pod yet, so the gauge by NUMA node doesn't count the pod's CPUs.
    deltas = allocation_deltas(manager, promises, chosen.bits)
    parts = _divide_pod_set(manager, question, chosen.bits)
    deltas += parts.deltas
    if parts.shortage is not None:
        return _refuse(after, deltas, wrap_unexpected(parts.shortage.message))
    deltas += (allocations("cpu", "pod"),) * len(pod.containers)
    sets = tuple(sorted((name, CpuSet(cpus)) for name, cpus in parts.slices))
    return Allocation(with_pod(after, pod.uid, of_pod.having(replace(held, cpus=sets))), deltas)


def _check_slices(manager: CpuManager, question: Question) -> Refusal | None:
    """Refuse a pod if a container's number of exclusive CPUs can't be made of whole cores. kubelet allocates parts of cores in this case
    (Erratum.HALF_CORES_HANDED_OUT).
    """
    if not manager.picking.whole_cores:
        return None
    slices = (over(question, question.free.bits, c.cpus) for c in question.pod.containers if c.cpus)
    checks = (check_full_cores(manager, one) for one in slices)
    return next((refusal for refusal in checks if refusal is not None), None)


def _refuse(promises: Promises, deltas: MetricDeltas, refusal: Refusal) -> Allocation:
    return Allocation(promises, (*deltas, plus(CPU_ERRORS), allocation_errors("cpu", "pod")), refusal)


class _Partition(Struct, frozen=True):
    """CPU set of a pod, divided among the pod's containers."""

    slices: tuple[tuple[str, CpuMask], ...]
    deltas: MetricDeltas
    """Metric changes. If a container couldn't get its CPUs, only the changes up to this container are included."""
    shortage: CpuShortage | None = None


def _divide_pod_set(manager: CpuManager, question: Question, whole: CpuMask) -> _Partition:
    """Divide the pod's CPU set among its containers, in order."""
    slices: list[tuple[str, CpuMask]] = []
    deltas: list[MetricDelta] = []
    sharing: list[str] = []
    waiting: list[tuple[str, int, CpuMask]] = []
    pool = whole

    def assign_slice(name: str, count: int, available: CpuMask) -> CpuMask | CpuShortage:
        deltas.append(plus(CPU_REQUESTS))
        if manager.observer is not None:
            manager.observer(Choosing(Source.POD, available, count, container=name))
        found = manager.assign(replace(over(question, available, count), container=name))
        if isinstance(found, CpuShortage):
            return found
        deltas.append(assignments("cpu", "pod_exclusive"))
        slices.append((name, found.bits))
        return found.bits

    for container in question.pod.containers:
        if container.cpus == 0 and container.kind is ContainerKind.INIT:
            deltas.append(assignments("cpu", "pod_shared"))
            slices.append((container.name, pool))
        elif container.cpus == 0:
            sharing.append(container.name)
        elif container.kind is ContainerKind.INIT and sharing and _keeps_init_slice_out_of_pool(manager):
            # A sidecar keeps running on these shared CPUs, so this init container gets its CPUs later, from outside of the shared pool.
            waiting.append((container.name, container.cpus, pool))
        else:
            chosen = assign_slice(container.name, container.cpus, pool)
            if isinstance(chosen, CpuShortage):
                return _Partition((), tuple(deltas), chosen)
            if container.kind is not ContainerKind.INIT:
                pool = CpuMask(pool & ~chosen)
    for name, count, at_hand in waiting:
        chosen = assign_slice(name, count, CpuMask(at_hand & ~pool))
        if isinstance(chosen, CpuShortage):
            return _Partition((), tuple(deltas), chosen)
    deltas += [assignments("cpu", "pod_shared")] * len(sharing)
    return _Partition((*slices, *((name, pool) for name in sharing)), tuple(deltas))
