"""Pods as kubelet hands them to a container runtime, and as that tells a plugin of them."""

from collections.abc import Iterator
from typing import Any

from nodeagent.core.domains.runtime.estimates import (
    BEST_EFFORT_OOM,
    GUARANTEED_OOM,
    MAX_BURSTABLE_OOM,
    MIN_BURSTABLE_OOM,
)
from nodeagent.core.model.cgroup import cpu_quota, cpu_shares
from nodeagent.core.model.kubelet_pod import KubeletContainer, KubeletPod
from nodeagent.core.model.nri import ContainerState, HugepageLimit, NriContainer, NriResources, Sandbox
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Container, Pod, QosClass, qos_class

GIB = 2**30
PERIOD_US = 100_000
_SLICES = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: "-burstable", QosClass.BEST_EFFORT: "-besteffort"}


def sandbox_of(pod: Pod, sandbox_id: str | None = None, **annotations: str) -> Sandbox:
    qos = qos_class(pod, pod_level_resources=False)
    return Sandbox(
        id=sandbox_id or f"sandbox-{pod.uid}",
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        labels=(),
        annotations=tuple(sorted(annotations.items())),
        cgroup_parent=f"kubepods{_SLICES[qos]}-pod{pod.uid.replace('-', '_')}.slice",
    )


def kubelets(of: Pod) -> KubeletPod:
    """What kubelet says of it."""
    containers = (KubeletContainer(one.name, one.kind, one.resources) for one in of.containers)
    return KubeletPod(of.uid, tuple(containers), of.resources, of.overhead)


def told(pod: Pod, container: Container, capacity_bytes: int = 64 * GIB, **more: Any) -> NriContainer:
    """What kubelet makes of a container (kuberuntime_container_linux.go), without CPUs and memory nodes."""
    fields: dict[str, Any] = {
        "id": f"id-{container.name}",
        "sandbox_id": f"sandbox-{pod.uid}",
        "name": container.name,
        "state": ContainerState.CREATED,
        "labels": (),
        "annotations": (),
        "pid": None,
        "cgroups_path": "",
        "oom_score_adj": _oom_score_adj(pod, container, capacity_bytes),
        "resources": told_resources(container),
    }
    return NriContainer(**(fields | more))


def told_resources(container: Container, period_us: int = PERIOD_US, *, has_quota: bool = True) -> NriResources:
    requests, limits = container.resources.requests, container.resources.limits
    request, limit = (0 if amount is None else amount.milli() for amount in (requests.get(CPU), limits.get(CPU)))
    memory = limits.get(MEMORY)
    quota = cpu_quota(limit, period_us).quota_us if has_quota else None
    return NriResources(
        cpu_shares=cpu_shares(limit if request == 0 else request),
        cpu_quota_us=quota or 0,
        cpu_period_us=period_us,
        memory_limit_bytes=0 if memory is None else memory.value(),
        hugepage_limits=tuple(_pages(container)),
    )


def _pages(container: Container) -> Iterator[HugepageLimit]:
    """Every size that the machine has; 0 where none is asked for."""
    for size in ("2M", "1G"):
        amount = container.resources.limits.get(f"{HUGEPAGES_PREFIX}{size}i")
        yield HugepageLimit(f"{size}B", 0 if amount is None else amount.value())


def _oom_score_adj(pod: Pod, container: Container, capacity_bytes: int) -> int:
    match qos_class(pod, pod_level_resources=False):
        case QosClass.GUARANTEED:
            return GUARANTEED_OOM
        case QosClass.BEST_EFFORT:
            return BEST_EFFORT_OOM
        case QosClass.BURSTABLE:
            memory = container.resources.requests.get(MEMORY)
            asked = 0 if memory is None else memory.value()
            return max(MIN_BURSTABLE_OOM, min(MAX_BURSTABLE_OOM, 1000 - 1000 * asked // capacity_bytes))
