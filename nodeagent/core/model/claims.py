"""Resource claims as values (resource.k8s.io/v1): what a pod claims, and what was allocated for it. Decides nothing."""

import hashlib

from msgspec import Struct

_LONGEST_NAME = 253
"""Of an object in Kubernetes."""


CPU_DRIVER, MEMORY_DRIVER, CARD_DRIVER = "dra.cpu", "dra.memory", "nodeagent.io"
_CPU_PREFIX = "cpudev"


def cpu_name(cpu: int) -> str:
    """Return what a CPU is called among what can be claimed, as by dra-driver-cpu."""
    return f"{_CPU_PREFIX}{cpu:03}"


def cpu_of(name: str) -> int:
    """Return the CPU that `cpu_name` calls so.

    Raises:
        ValueError: it calls none so.
    """
    return int(name.removeprefix(_CPU_PREFIX))


def card_name(address: str) -> str:
    """Return what a card is called, by its PCI address: names have no colons and dots."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


class DeviceRequest(Struct, frozen=True):
    """What is asked for in one way (`exactly`, or one of `firstAvailable`)."""

    name: str
    """Of a subrequest. Empty: the request has but this one way."""
    device_class: str
    selectors: tuple[str, ...] = ()
    """CEL expressions that a device has to meet, those of the class first."""
    count: int | None = 1
    """None: all devices that meet them (`allocationMode: All`)."""
    capacity: tuple[tuple[str, int], ...] = ()
    """How much of a device is wanted of each of its capacities, by qualified name."""


class ClaimRequest(Struct, frozen=True):
    name: str
    ways: tuple[DeviceRequest, ...]
    """In the order in which they are tried."""


class MatchAttribute(Struct, frozen=True):
    """All devices of these requests have the same value of an attribute; or each another one."""

    attribute: str
    """Its qualified name."""
    requests: tuple[str, ...] = ()
    """Names of requests, or `request/subrequest`. Empty: all of the claim."""
    is_distinct: bool = False
    """Each has a value of its own instead (`distinctAttribute`)."""

    def is_about(self, request: str, way: str) -> bool:
        return not self.requests or request in self.requests or (bool(way) and f"{request}/{way}" in self.requests)


class ClaimSpec(Struct, frozen=True):
    requests: tuple[ClaimRequest, ...]
    constraints: tuple[MatchAttribute, ...] = ()


class PodClaim(Struct, frozen=True):
    """One of a pod's `spec.resourceClaims`."""

    name: str
    """By which its containers refer to it."""
    claim: str = ""
    """The ResourceClaim in its namespace (`resourceClaimName`)."""
    template: str = ""
    """The ResourceClaimTemplate there from which it gets a claim of its own. One of the two is given."""
    spec: ClaimSpec | None = None
    """What it asks for. None: no document says."""
    missing: str = ""
    """The kind and name of the document that there is none of. Empty: it is there, or nobody has looked."""

    def claim_name(self, pod: str) -> str:
        """Return the ResourceClaim's name, for a pod of this name: as long as names may be."""
        return self.claim or shortened(f"{pod}-{self.name}", _LONGEST_NAME)


def shortened(name: str, longest: int) -> str:
    """Return a name, or, if it is too long, its begin and a hash of all of it."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: longest - 11].rstrip('.-')}-{digest}"


class ContainerClaim(Struct, frozen=True):
    """One of a container's `resources.claims`."""

    name: str
    """Of the pod's claim."""
    request: str = ""
    """It uses the devices of this request only. Empty: of all."""

    def uses(self, claim: str, request: str) -> bool:
        return self.name == claim and self.request in {"", request}


class AllocatedDevice(Struct, frozen=True):
    """One result of an allocation."""

    request: str
    """`request`, or `request/subrequest`."""
    driver: str
    device: str
    """Its name in the ResourceSlices of the node."""
    capacity: tuple[tuple[str, int], ...] = ()
    """How much of it is taken, by qualified name, where that can be less than all."""


class ClaimAllocation(Struct, frozen=True):
    claim: str
    """`namespace/name`."""
    name: str
    """By which the pod's containers refer to it."""
    devices: tuple[AllocatedDevice, ...]
    is_own: bool = False
    """It is the pod's own, made from a template: no other pod may have it."""
