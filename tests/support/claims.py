"""Claims in a line each."""

from typing import Any

from nodeagent.core.model.claims import (
    ClaimRequest,
    ClaimSpec,
    ContainerClaim,
    DeviceRequest,
    MatchAttribute,
    PodClaim,
)
from nodeagent.core.model.devices import Device, DeviceKind
from nodeagent.core.model.pod import Pod
from tests.support import builders, pods

NUMA = "resource.kubernetes.io/numaNode"
ETH0 = Device("0000:3b:00.0", DeviceKind.NETWORK, 0x020000, names=("eth0",), numa_node=1, root="pci0000:3a")
NVME0 = Device("0000:40:00.0", DeviceKind.NVME, 0x010802, names=("nvme0",))


def way(
    device_class: str = "dra.cpu", *selectors: str, count: int | None = 1, name: str = "", **sizes: int
) -> DeviceRequest:
    """One way to meet a request: devices of a driver that meet selectors; `size` in bytes, of memory."""
    capacity = tuple((f"{device_class}/{key}", size) for key, size in sizes.items())
    every = (f'device.driver == "{device_class}"', *selectors)
    return DeviceRequest(name, device_class, every, count, capacity)


def request(name: str, *args: Any, **more: Any) -> ClaimRequest:
    """A request with one way."""
    return ClaimRequest(name, (way(*args, **more),))


def spec(*requests: ClaimRequest, match: str | MatchAttribute | None = None) -> ClaimSpec:
    """What a claim asks for; `match`: an attribute that all devices have the same value of."""
    constraint = MatchAttribute(match) if isinstance(match, str) else match
    return ClaimSpec(requests, () if constraint is None else (constraint,))


def template(*requests: ClaimRequest, name: str = "own", match: str | MatchAttribute | None = None) -> PodClaim:
    """A claim of the pod's own."""
    return PodClaim(name, template="some", spec=spec(*requests, match=match))


def claiming(uid: str, cpu: str | None, *claims: PodClaim, memory: str = "64Mi", **more: Any) -> Pod:
    """A pod with one container, that uses all the pod's claims."""
    users = tuple(ContainerClaim(claim.name) for claim in claims)
    return builders.pod(uid, pods.app("app", cpu, memory, claims=users), claims=claims, **more)
