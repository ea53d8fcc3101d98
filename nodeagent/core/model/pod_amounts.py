"""Requested amounts of a pod, and copies of the pod with other amounts, for suggestions to users. CPU is in thousandths of a CPU, memory in
bytes, and devices are counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

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
from nodeagent.core.model.pod_resources import aggregate_container_requests, is_device
from nodeagent.core.model.quantity import Quantity

MIB = 2**20
MILLI = 1000
EXCLUSIVE_CPUS = "exclusive-cpus"
"""Name under which the annotation for exclusive CPUs appears in lists of resources."""

Carry = Callable[[Pod], Pod]
"""Function that takes a pod whose containers' amounts have been changed, and returns the pod with pod-level amounts that fit the change."""


def list_memory_resources(pod: Pod) -> list[str]:
    parts = [c.resources for c in pod.containers] + ([] if pod.resources is None else [pod.resources])
    names = {name for part in parts for name, _ in part.requests}
    return sorted(name for name in names if name == MEMORY or name.startswith(HUGEPAGES_PREFIX))


def list_device_resources(pod: Pod) -> list[str]:
    """Return the names of the extended resources that the pod's containers request."""
    return sorted({name for container in pod.containers for name, _ in container.devices})


def get_requested(resources: ResourceRequirements, resource: str) -> int:
    """Return the requested amount of a resource: CPU in thousandths, memory in bytes, devices as a count."""
    return _to_integer(resources.requests.get(resource), resource)


def _to_integer(amount: Quantity | None, resource: str) -> int:
    if amount is None:
        return 0
    return amount.milli() if resource == CPU else amount.value()


def list_requesting(pod: Pod, resource: str) -> list[tuple[Container, int]]:
    return [(c, amount) for c in pod.containers if (amount := get_requested(c.resources, resource))]


def find_shared_part(container: Container) -> int:
    """Return the part of the container's CPU request for which it uses the shared pool, in thousandths. It is 0 for a container without the
    annotation for exclusive CPUs.
    """
    if container.exclusive_cpus is None:
        return 0
    return get_requested(container.resources, CPU) - container.exclusive_cpus * MILLI


def sum_requests(pod: Pod, resource: str) -> int:
    """Return the sum of the requests of all app containers and sidecars, which run at the same time."""
    return sum(get_requested(c.resources, resource) for c in pod.containers if c.kind is not ContainerKind.INIT)


def find_least_pod_amount(pod: Pod, resource: str) -> int:
    """Return the smallest pod-level request that the containers' requests permit."""
    return _to_integer(aggregate_container_requests(pod).get(resource), resource)


def is_within_budget(pod: Pod) -> bool:
    """Return whether the pod's amounts are valid in a manifest: the exclusive CPUs must fit into the CPU request, and the containers'
    amounts into the pod-level amounts.
    """
    if any(find_shared_part(container) < 0 for container in pod.containers):
        return False
    if pod.resources is None:
        return True
    own = pod.resources
    if any(get_requested(own, name) < find_least_pod_amount(pod, name) for name, _ in own.requests):
        return False
    bounded = [own.requests, *(container.resources.limits for container in pod.containers)]
    return all(
        (most := own.limits.get(name)) is None or amount.nano <= most.nano for part in bounded for name, amount in part
    )


def find_smallest_step(resource: str) -> int:
    """Return the smallest change of a request that is worth suggesting to a user: one CPU, one device, one MiB or one huge page."""
    if resource == CPU:
        return MILLI
    if is_device(resource):
        return 1
    return MIB if resource == MEMORY else Quantity.parse(resource.removeprefix(HUGEPAGES_PREFIX)).value()


def get_least_amount(resource: str) -> int:
    """Return the smallest request that is worth suggesting to a user. For huge pages and devices, it is zero."""
    return MIB if resource == MEMORY else 0


def quantity_of(resource: str, amount: int) -> Quantity:
    return Quantity(amount * 10**6) if resource == CPU else Quantity.of_bytes(amount)


def with_amounts(pod: Pod, container: str | None, amounts: Mapping[str, int]) -> Pod:
    """Return a copy of the pod with other amounts for one container. If `container` is None, the copy has other pod-level amounts
    instead.
    """
    if container is None:
        assert pod.resources is not None
        return replace(pod, resources=_with_resource_amounts(pod.resources, amounts))
    return replace(
        pod, containers=tuple(_with_container_amounts(c, amounts) if c.name == container else c for c in pod.containers)
    )


def with_whole_bytes(pod: Pod) -> Pod:
    """Return a copy of the pod in which each memory request for a fraction of a byte is replaced by the whole bytes that the author
    probably meant.
    """

    def whole(resources: ResourceRequirements) -> dict[str, int]:
        memory = [(name, amount) for name, amount in resources.requests if name == MEMORY]
        return {name: meant.value() for name, amount in memory if (meant := amount.as_whole_bytes()) != amount}

    for container in pod.containers:
        pod = with_amounts(pod, container.name, whole(container.resources))
    return pod if pod.resources is None else with_amounts(pod, None, whole(pod.resources))


def _with_container_amounts(container: Container, amounts: Mapping[str, int]) -> Container:
    """Return a copy of the container with other amounts. If the CPU request changes, the exclusive CPUs change, and the part from the
    shared pool stays the same.
    """
    changed = replace(container, resources=_with_resource_amounts(container.resources, amounts))
    if container.exclusive_cpus is None or CPU not in amounts:
        return changed
    return replace(changed, exclusive_cpus=max(1, (amounts[CPU] - find_shared_part(container)) // MILLI))


def make_request_limiter(
    pod: Pod, containers: tuple[Container, ...], resource: str, carry: Carry
) -> Callable[[int], Pod]:
    """Return a function that makes a copy of the pod in which none of these containers requests more than a given amount. If there is only
    one container, it requests exactly this amount.
    """

    def changed(value: int) -> Pod:
        other = pod
        for c in containers:
            if len(containers) == 1 or get_requested(c.resources, resource) > value:
                other = with_amounts(other, c.name, {resource: value})
        return carry(other)

    return changed


def keep_pod_amounts(changed: Pod) -> Pod:
    """Return the pod as it is. This is the adaptation that leaves the pod-level amounts unchanged after a change of the containers'
    amounts.
    """
    return changed


def list_adaptations(pod: Pod) -> Sequence[Carry]:
    """Return the ways to adapt the pod-level amounts to changed amounts of the containers. The way with the smallest change comes first.

    Only pod-level amounts that the manifest sets are adapted. Kubernetes computes the others from the containers.
    """
    own = pod.resources
    if own is None:
        return (keep_pod_amounts,)
    floors = {name: find_least_pod_amount(pod, name) for name, _ in own.requests}

    def with_own(changed: Pod, *, keeps_rest: bool) -> Pod:
        now = {name: find_least_pod_amount(changed, name) for name in floors}
        rest = {name: get_requested(own, name) - floors[name] if keeps_rest else 0 for name in floors}
        return with_amounts(
            changed, None, {name: now[name] + rest[name] for name in floors if now[name] != floors[name]}
        )

    ways: list[Carry] = [keep_pod_amounts, partial(with_own, keeps_rest=False)]
    if any(get_requested(own, name) > floor for name, floor in floors.items()):
        ways.append(partial(with_own, keeps_rest=True))
    return ways


def list_differences(before: Pod, after: Pod) -> Iterator[tuple[str | None, str, Quantity, Quantity]]:
    """Yield each difference between the requests of two versions of a pod, as (container, resource, request before, request after). The
    container is None for pod-level requests.
    """
    for old, new in zip(before.containers, after.containers, strict=True):
        for resource, was, now in _list_changed_requests(old.resources, new.resources):
            yield old.name, resource, was, now
        if (
            old.exclusive_cpus is not None
            and new.exclusive_cpus is not None
            and old.exclusive_cpus != new.exclusive_cpus
        ):
            yield old.name, EXCLUSIVE_CPUS, Quantity.of(old.exclusive_cpus), Quantity.of(new.exclusive_cpus)
    if before.resources is not None and after.resources is not None:
        for resource, was, now in _list_changed_requests(before.resources, after.resources):
            yield None, resource, was, now


def _list_changed_requests(
    old: ResourceRequirements, new: ResourceRequirements
) -> Iterator[tuple[str, Quantity, Quantity]]:
    for resource, was in old.requests:
        now = new.requests.get(resource) or Quantity(0)
        if now.nano != was.nano:
            yield resource, was, now


def _with_resource_amounts(resources: ResourceRequirements, amounts: Mapping[str, int]) -> ResourceRequirements:
    for name, amount in amounts.items():
        resources = _with_amount(resources, name, amount)
    return resources


def _with_amount(resources: ResourceRequirements, resource: str, value: int) -> ResourceRequirements:
    """Return a copy of the resources with a changed request for one resource. A limit that was equal to the request changes as well. A
    request of zero removes the resource.
    """
    was = resources.requests.get(resource)

    def put(part: Resources) -> Resources:
        amounts = {name: quantity_of(resource, value) if (name, old) == (resource, was) else old for name, old in part}
        return Resources.of({name: amount for name, amount in amounts.items() if amount.nano})

    return ResourceRequirements(put(resources.requests), put(resources.limits))
