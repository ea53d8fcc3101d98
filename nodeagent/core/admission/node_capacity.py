"""Check of a pod's requests against the allocatable amounts of the whole node, as in kubelet (D6). The check compares sums, and leaves the
choice of CPUs and NUMA nodes to the managers.
"""

import struct
from collections import Counter
from collections.abc import Iterable
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Pod, Resources
from nodeagent.core.model.pod_resources import effective_requests
from nodeagent.core.model.quantity import Quantity

NodeAmounts = tuple[tuple[str, int], ...]
"""Pairs of resource and amount, sorted by resource. CPU is in thousandths, memory in bytes, and extended resources are counted."""


class Allocatable(Struct, frozen=True):
    """Amounts of the node's resources that pods can request in total."""

    pods: int
    amounts: NodeAmounts
    bounds: tuple[tuple[str, int, int], ...] = ()
    """Configured limits on the number of pods, as (configuration field, value, factor). The limit is value × factor."""
    sums_extended: bool = True
    """Whether the capacity check includes extended resources. False reproduces kubelet, where only the managers check them
    (Erratum.EXTENDED_RESOURCES_SUMMED_LAST).
    """


class Usage(Struct, frozen=True):
    """Sum of the requests of all admitted pods."""

    pods: int = 0
    amounts: NodeAmounts = ()

    def plus(self, pod: Pod, *, pod_level_resources: bool = True) -> "Usage":
        return self._add(pod, 1, pod_level_resources)

    def minus(self, pod: Pod, *, pod_level_resources: bool = True) -> "Usage":
        return self._add(pod, -1, pod_level_resources)

    def is_less_than(self, before: "Usage") -> bool:
        """Return whether there are fewer pods than in `before`, or a smaller amount of any resource."""
        amounts = dict(self.amounts)
        return self.pods < before.pods or any(amounts.get(name, 0) < amount for name, amount in before.amounts)

    def _add(self, pod: Pod, sign: int, pod_level_resources: bool) -> "Usage":
        amounts = dict(self.amounts)
        for name, amount in _list_requests(pod, pod_level_resources):
            amounts[name] = amounts.get(name, 0) + sign * amount
        moved = Usage(self.pods + sign, tuple(sorted(item for item in amounts.items() if item[1])))
        assert moved.pods >= 0
        assert all(amount > 0 for _, amount in moved.amounts), "a pod was removed that was never counted"
        return moved


class Insufficient(Struct, frozen=True):
    """Refusal of a pod because the node has too little of a resource. Reason and message are kubelet's."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, used: {self.used}, "
            f"capacity: {self.capacity}"
        )


_REQUESTS = "list_requests"
"""Key under which `Pod.derived` caches a pod's requests. The cache saves time, because each decision adds up the requests of all pods."""


def usage_of(pods: Iterable[Pod], *, pod_level_resources: bool = True) -> Usage:
    """Return the sum of these pods' requests."""
    key = (_REQUESTS, pod_level_resources)
    requested = [pod.derived.get(key) or _list_requests(pod, pod_level_resources) for pod in pods]
    # many pods have equal requests, so each distinct request is processed only once
    numbers = Counter(cast("list[NodeAmounts]", requested))
    amounts: dict[str, int] = {}
    for requests, number in numbers.items():
        for name, amount in requests:
            amounts[name] = amounts.get(name, 0) + amount * number
    return Usage(numbers.total(), tuple(sorted(amounts.items())))


def insufficient(
    pod: Pod, usage: Usage, allocatable: Allocatable, *, pod_level_resources: bool = True
) -> Insufficient | None:
    """Check whether the node has room for one more pod. Return the first resource that is insufficient. None means that the pod fits.

    The rules are those of the scheduler's noderesources.Fits, which kubelet calls at admission. Pods, cpu and memory are checked first.
    kubelet checks the other resources in random order, this function by name.
    """
    if usage.pods + 1 > allocatable.pods:
        return Insufficient("pods", 1, usage.pods, allocatable.pods)
    used, capacity = dict(usage.amounts), dict(allocatable.amounts)
    requested = dict(_list_requests(pod, pod_level_resources))
    first = [name for name in (CPU, MEMORY) if name in requested]
    for name in (*first, *sorted(requested.keys() - set(first))):
        if "/" in name and not allocatable.sums_extended:
            continue
        amount, taken, most = requested[name], used.get(name, 0), capacity.get(name, 0)
        if amount > most - taken:
            return Insufficient(name, amount, taken, most)
    return None


def _list_requests(pod: Pod, pod_level_resources: bool) -> NodeAmounts:
    key = (_REQUESTS, pod_level_resources)
    if key not in pod.derived:
        pod.derived[key] = _compute_requests(pod, pod_level_resources)
    return cast("NodeAmounts", pod.derived[key])


def _compute_requests(pod: Pod, pod_level_resources: bool) -> NodeAmounts:
    amounts = []
    for name, quantity in effective_requests(pod, pod_level_resources=pod_level_resources).items():
        amount = quantity.milli() if name == CPU else quantity.value()
        if amount:
            amounts.append((name, amount))
    return tuple(amounts)


def reservation(config: Config, memory_bytes: int) -> Resources:
    """Return the amounts that are reserved and that pods can't use: systemReserved + kubeReserved + hard eviction threshold. Resources
    whose sum is zero are left out.

    Args:
        config: the configuration.
        memory_bytes: the node's memory, because the threshold may be a percentage of it.
    """
    total: dict[str, Quantity] = {}
    eviction = Quantity.of_bytes(eviction_bytes(config, memory_bytes))
    for name, amount in (*config.system_reserved, *config.kube_reserved, (MEMORY, eviction)):
        total[name] = total.get(name, Quantity.of(0)) + amount
    return Resources.of({name: amount for name, amount in total.items() if amount.nano})


def with_machine(config: Config, memory_bytes: int) -> Config:
    """Return the configuration with the reserved memory in bytes filled in.

    Args:
        config: the configuration.
        memory_bytes: the node's memory, because the hard eviction threshold may be a percentage of it.
    """
    amounts = tuple(
        item for item in reservation(config, memory_bytes) if item[0] not in {CPU, "ephemeral-storage", "pid"}
    )
    return replace(config, placement=replace(config.placement, memory_reservation=Resources(amounts)))


def eviction_bytes(config: Config, memory_bytes: int) -> int:
    """Return the hard eviction threshold `memory.available` in bytes. 0 means that there is no threshold."""
    if config.eviction_memory_percent is None:
        return config.eviction_memory_bytes or 0
    # The same floats as in kubelet are used, because the memory manager compares sums exactly. The percentage is a float32, and its product
    # with the capacity is a float64, which is truncated (eviction/helpers.go).
    share = _round_to_float32(_round_to_float32(float(config.eviction_memory_percent)) / 100)
    return int(float(memory_bytes) * share)


def _round_to_float32(value: float) -> float:
    narrow: float = struct.unpack("f", struct.pack("f", value))[0]
    return narrow


def allocatable_of(config: Config, *, cpu_count: int, memory_bytes: int, hugepages: NodeAmounts) -> Allocatable:
    """Return the node's allocatable amounts by kubelet's rules (`status.allocatable` of a Node).

    Args:
        config: the configuration.
        cpu_count: number of online logical CPUs.
        memory_bytes: the node's memory, including huge pages.
        hugepages: pairs of huge page resource and bytes on the whole node.
    """
    reserved = dict(reservation(config, memory_bytes))
    capacity = {CPU: cpu_count * 1000, MEMORY: memory_bytes, **dict(hugepages)}
    left = {}
    for name, amount in capacity.items():
        kept = reserved.get(name, Quantity.of(0))
        left[name] = max(0, amount - (kept.milli() if name == CPU else kept.value()))
    # Preallocated huge pages don't count as ordinary memory (nodestatus/setters.go).
    pages = sum(amount for name, amount in hugepages if name.startswith(HUGEPAGES_PREFIX))
    left[MEMORY] = max(0, left[MEMORY] - pages)
    bounds = [("maxPods", config.max_pods, 1)]
    if config.pods_per_core:
        bounds.append(("podsPerCore", config.pods_per_core, cpu_count))
    pods = min(value * times for _, value, times in bounds)
    return Allocatable(pods, tuple(sorted(left.items())), tuple(bounds))
