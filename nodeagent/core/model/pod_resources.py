"""Effective amounts of a pod: requests set from defaults, requests and limits of the pod as a whole, and the values of the pod's cgroup.

The rules are those of component-helpers/resource (PodRequests, PodLimits), of the defaults of core/v1, and of kubelet's
cm.ResourceConfigForPod.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    ResourceRequirements,
    Resources,
)
from nodeagent.core.model.quantity import Quantity

_ByResource = dict[str, Quantity]


def with_container_defaults(pod: Pod) -> Pod:
    """Return a copy of the pod in which each missing request of a container is set to the container's limit (SetDefaults_Pod)."""
    return replace(
        pod, containers=tuple(replace(c, resources=_with_container_defaults(c.resources)) for c in pod.containers)
    )


def with_pod_level_defaults(pod: Pod) -> Pod:
    """Return a copy of the pod in which missing pod-level requests and limits are set from the containers' amounts and the pod-level limits
    (SetDefaults_Pod, KEP-2837).

    Args:
        pod: the pod with its containers' defaults applied.
    """
    if pod.resources is None or not pod.resources.limits:
        return pod
    limits = dict(pod.resources.limits)
    for name, amount in _aggregate(pod.containers, lambda c: c.resources.limits).items():
        if name.startswith(HUGEPAGES_PREFIX):
            limits.setdefault(name, amount)
    requests = dict(pod.resources.requests)
    for name, amount in _aggregate(pod.containers, lambda c: c.resources.requests).items():
        # Huge pages can't be overcommitted, so their request is set from the pod's limit below.
        if name in (CPU, MEMORY):
            requests.setdefault(name, amount)
    for name, amount in limits.items():
        if is_pod_level(name):
            requests.setdefault(name, amount)
    return replace(pod, resources=ResourceRequirements(Resources.of(requests), Resources.of(limits)))


def _with_container_defaults(resources: ResourceRequirements) -> ResourceRequirements:
    missing = [(name, amount) for name, amount in resources.limits if resources.requests.get(name) is None]
    return replace(resources, requests=Resources.of(dict([*resources.requests, *missing]))) if missing else resources


def is_pod_level(name: str) -> bool:
    """Return whether a resource is permitted in the pod-level `spec.resources` (KEP-2837)."""
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES_PREFIX)


def is_device(name: str) -> bool:
    """Return whether a resource is an extended resource of Kubernetes, which pods request by number. It is recognized by the domain in its
    name.
    """
    return "/" in name and not name.startswith(HUGEPAGES_PREFIX)


def _aggregate(containers: Iterable[Container], part: Callable[[Container], Resources]) -> _ByResource:
    """Return, for each resource, the largest sum that containers need at the same time (KEP-753).

    App containers run together with all sidecars. An init container runs with the sidecars that precede it.
    """
    total: _ByResource = {}
    sidecars: _ByResource = {}
    peak: _ByResource = {}
    for container in containers:
        amounts = part(container)
        match container.kind:
            case ContainerKind.APP:
                _add(total, amounts)
            case ContainerKind.SIDECAR:
                _add(total, amounts)
                _add(sidecars, amounts)
                _raise_to(peak, sidecars)
            case ContainerKind.INIT:
                beside = dict(sidecars)
                _add(beside, amounts)
                _raise_to(peak, beside)
    _raise_to(total, peak)
    return total


def _add(total: _ByResource, amounts: Iterable[tuple[str, Quantity]]) -> None:
    for name, amount in amounts:
        so_far = total.get(name)
        total[name] = amount if so_far is None else so_far + amount


def _raise_to(total: _ByResource, amounts: _ByResource) -> None:
    for name, amount in amounts.items():
        so_far = total.get(name)
        if so_far is None or so_far.nano < amount.nano:
            total[name] = amount


def aggregate_container_requests(pod: Pod) -> Mapping[str, Quantity]:
    """Return the requests that the containers need at the same time, without the pod's overhead and pod-level resources
    (AggregateContainerRequests).
    """
    return _aggregate(pod.containers, lambda c: c.resources.requests)


def effective_requests(pod: Pod, *, pod_level_resources: bool = True) -> Mapping[str, Quantity]:
    """Return the requests of the pod as a whole, with its overhead, sorted by resource (PodRequests).

    Args:
        pod: the pod with defaults applied.
        pod_level_resources: whether the gate PodLevelResources is on, so that pod-level amounts replace the containers' sums.
    """
    total = _aggregate(pod.containers, lambda c: c.resources.requests)
    if pod_level_resources and pod.resources is not None:
        total |= {name: amount for name, amount in pod.resources.requests if is_pod_level(name)}
    _add(total, pod.overhead)
    return dict(sorted(total.items()))


def effective_limits(pod: Pod, *, pod_level_resources: bool = True) -> Mapping[str, Quantity]:
    """Return the limits of the pod as a whole, sorted by resource (PodLimits). The pod's overhead is added to each limit that isn't
    zero.
    """
    total = _aggregate(pod.containers, lambda c: c.resources.limits)
    if pod_level_resources and pod.resources is not None:
        total |= {name: amount for name, amount in pod.resources.limits if is_pod_level(name)}
    _add(total, [(name, amount) for name, amount in pod.overhead if name in total and total[name].nano])
    return dict(sorted(total.items()))


class CgroupAmounts(Struct, frozen=True):
    """Requests and limits from which the values of a pod's or container's cgroup are computed."""

    cpu_request_milli: int
    """CPU request in thousandths, which determines `cpu.weight`. 0 gives the smallest weight."""
    cpu_limit_milli: int | None
    """CPU limit in thousandths, which determines `cpu.max`. None means no limit."""
    memory_limit_bytes: int | None
    """Memory limit for `memory.max`. None means no limit."""
    hugepage_limits: tuple[tuple[str, int], ...]
    """Pairs of huge page resource and bytes, sorted by resource. Page sizes without a pair are limited to 0 bytes."""


def pod_cgroup_amounts(pod: Pod, *, pod_level_resources: bool = True) -> CgroupAmounts:
    """Return the amounts for the pod's own cgroup (cm.ResourceConfigForPod). The amounts are cached in the pod.

    A CPU or memory limit applies only if the pod or each of its containers, init containers included, declares one. The caller decides
    whether the CPU limit is enforced (cpuCFSQuota, exclusive CPUs).
    """
    key = ("pod_cgroup_amounts", pod_level_resources)
    known = cast("CgroupAmounts | None", pod.derived.get(key))
    if known is None:
        known = pod.derived[key] = _compute_pod_amounts(pod, pod_level_resources)
    return known


def _compute_pod_amounts(pod: Pod, pod_level_resources: bool) -> CgroupAmounts:
    requests = effective_requests(pod, pod_level_resources=pod_level_resources)
    limits = effective_limits(pod, pod_level_resources=pod_level_resources)
    own = pod.resources.limits if pod_level_resources and pod.resources is not None else Resources()

    def declared(name: str) -> bool:
        return _is_set(own, name) or all(_is_set(c.resources.limits, name) for c in pod.containers)

    # Guaranteed pods declare all amounts, so the rule for Burstable pods is right for them, too. BestEffort pods declare nothing.
    return CgroupAmounts(
        cpu_request_milli=_to_milli(requests.get(CPU)),
        cpu_limit_milli=_to_milli(limits.get(CPU)) if declared(CPU) else None,
        memory_limit_bytes=_to_bytes(limits.get(MEMORY)) if declared(MEMORY) else None,
        hugepage_limits=_list_hugepage_bytes(requests.items()),
    )


def container_cgroup_amounts(pod: Pod, container: Container, *, pod_level_resources: bool = True) -> CgroupAmounts:
    """Return the amounts for a container's cgroup. If the container has no limit of its own, the pod-level limit applies (kuberuntime,
    KEP-2837). The amounts are cached in the pod.
    """
    key = (f"container_cgroup_amounts of {container.name}", pod_level_resources)
    known = cast("CgroupAmounts | None", pod.derived.get(key))
    if known is None:
        known = pod.derived[key] = _compute_container_amounts(pod, container, pod_level_resources)
    return known


def _compute_container_amounts(pod: Pod, container: Container, pod_level_resources: bool) -> CgroupAmounts:
    limits = dict(container.resources.limits)
    if pod_level_resources and pod.resources is not None:
        unset = {n: amount for n, amount in pod.resources.limits if not _is_set(container.resources.limits, n)}
        limits |= unset
    cpu, memory = limits.get(CPU), limits.get(MEMORY)
    return CgroupAmounts(
        cpu_request_milli=_to_milli(container.resources.requests.get(CPU)),
        cpu_limit_milli=_to_milli(cpu) if cpu is not None and cpu.nano else None,
        memory_limit_bytes=_to_bytes(memory) if memory is not None and memory.nano else None,
        hugepage_limits=_list_hugepage_bytes(limits.items()),
    )


def _is_set(resources: Resources, name: str) -> bool:
    amount = resources.get(name)
    return amount is not None and amount.nano != 0


def _to_milli(amount: Quantity | None) -> int:
    return 0 if amount is None else amount.milli()


def _to_bytes(amount: Quantity | None) -> int:
    return 0 if amount is None else amount.value()


def _list_hugepage_bytes(amounts: Iterable[tuple[str, Quantity]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted([(name, amount.value()) for name, amount in amounts if name.startswith(HUGEPAGES_PREFIX)]))
