"""What a pod requests of a resource, and the pod with other amounts. Cpu is in thousandths, all else in bytes. Knows no node."""

from collections.abc import Callable

from msgspec.structs import replace

from nodeagent.core.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    ResourceRequirements,
    Resources,
)
from nodeagent.core.pod_resources import aggregated_container_requests
from nodeagent.core.quantity import Quantity

MIB = 2**20
MILLI = 1000


def memory_resources(pod: Pod) -> list[str]:
    parts = [c.resources for c in pod.containers] + ([] if pod.resources is None else [pod.resources])
    names = {name for part in parts for name, _ in part.requests}
    return sorted(name for name in names if name == MEMORY or name.startswith(HUGEPAGES_PREFIX))


def asked_of(resources: ResourceRequirements, resource: str) -> int:
    """How much of it: cpu in thousandths, all else in bytes."""
    return _whole(resources.requests.get(resource), resource)


def _whole(amount: Quantity | None, resource: str) -> int:
    if amount is None:
        return 0
    return amount.milli() if resource == CPU else amount.value()


def askers(pod: Pod, resource: str) -> list[tuple[Container, int]]:
    return [(c, amount) for c in pod.containers if (amount := asked_of(c.resources, resource))]


def asked_alone(pod: Pod, resource: str) -> int:
    """What containers that stay ask for themselves."""
    return sum(asked_of(c.resources, resource) for c in pod.containers if c.kind is not ContainerKind.INIT)


def budget_floor(pod: Pod, resource: str) -> int:
    """What the pod's own amount must be at least."""
    return _whole(aggregated_container_requests(pod).get(resource), resource)


def is_within_budget(pod: Pod) -> bool:
    """Whether the containers' amounts are within the pod's own, as a manifest's must be."""
    if pod.resources is None:
        return True
    limits = pod.resources.limits
    return all(budget_floor(pod, name) <= asked_of(pod.resources, name) for name, _ in pod.resources.requests) and all(
        (most := limits.get(name)) is None or limit.nano <= most.nano
        for container in pod.containers
        for name, limit in container.resources.limits
    )


def unit_of(resource: str) -> int:
    """The least amount that is worth naming."""
    if resource == CPU:
        return MILLI
    return MIB if resource == MEMORY else Quantity.parse(resource.removeprefix(HUGEPAGES_PREFIX)).value()


def quantity_of(resource: str, amount: int) -> Quantity:
    return Quantity(amount * 10**6) if resource == CPU else Quantity.of_bytes(amount)


def with_amounts(pod: Pod, container: Container, amounts: dict[str, int]) -> Pod:
    resources = container.resources
    for name, amount in amounts.items():
        resources = _with_amount(resources, name, amount)
    other = replace(container, resources=resources)
    return replace(pod, containers=tuple(other if c is container else c for c in pod.containers))


def changer(pod: Pod, containers: tuple[Container, ...], resource: str) -> Callable[[int], Pod]:
    """Give the pod with so much for each of these containers that has more (or, if it is one, exactly so much)."""

    def changed(value: int) -> Pod:
        return replace(
            pod,
            containers=tuple(
                replace(c, resources=_with_amount(c.resources, resource, value))
                if c in containers and (len(containers) == 1 or asked_of(c.resources, resource) > value)
                else c
                for c in pod.containers
            ),
        )

    return changed


def with_pod_amount(pod: Pod, resource: str, value: int) -> Pod:
    assert pod.resources is not None
    return replace(pod, resources=_with_amount(pod.resources, resource, value))


def _with_amount(resources: ResourceRequirements, resource: str, value: int) -> ResourceRequirements:
    """Give the list with another request; a limit that was equal stays so. Nothing of a resource: it isn't named."""
    was = resources.requests.get(resource)

    def put(part: Resources) -> Resources:
        amounts = {name: quantity_of(resource, value) if (name, old) == (resource, was) else old for name, old in part}
        return Resources.of({name: amount for name, amount in amounts.items() if amount.nano})

    return ResourceRequirements(put(resources.requests), put(resources.limits))
