"""Values for resource claims (resource.k8s.io/v1): the claims of a pod, and their allocation. This module makes no decisions."""

from msgspec import Struct

from nodeagent.core.model.digest import sha256_hex

_MAX_NAME_LENGTH = 253
"""Maximum length of a Kubernetes object's name."""


CPU_DRIVER, MEMORY_DRIVER, CARD_DRIVER = "dra.cpu", "dra.memory", "nodeagent.io"
_CPU_PREFIX = "cpudev"


def format_cpu_name(cpu: int) -> str:
    """Return the device name of a claimable CPU, in the form that dra-driver-cpu uses."""
    return f"{_CPU_PREFIX}{cpu:03}"


def decode_cpu_name(name: str) -> int:
    """Return the CPU with this device name.

    Raises:
        ValueError: the name isn't a CPU's device name.
    """
    return int(name.removeprefix(_CPU_PREFIX))


def format_card_name(address: str) -> str:
    """Return the device name of a PCI card. The name contains no colons and dots, because Kubernetes forbids them in device names."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


class DeviceRequest(Struct, frozen=True):
    """One alternative of a claim's request (`exactly`, or one of `firstAvailable`)."""

    name: str
    """Name of the subrequest. The name is empty if the request has no alternatives."""
    device_class: str
    selectors: tuple[str, ...] = ()
    """CEL expressions that a device has to satisfy. The expressions of the device class come first."""
    count: int | None = 1
    """Number of devices. None means all devices that satisfy the selectors (`allocationMode: All`)."""
    capacity: tuple[tuple[str, int], ...] = ()
    """Requested amount of each capacity of a device, by qualified name."""


class ClaimRequest(Struct, frozen=True):
    name: str
    ways: tuple[DeviceRequest, ...]
    """Alternatives in the order in which they are tried."""


class MatchAttribute(Struct, frozen=True):
    """Constraint on the devices of some requests. Either all of them have the same value of an attribute, or all have different values."""

    attribute: str
    """Qualified name of the attribute."""
    requests: tuple[str, ...] = ()
    """Names of requests, or `request/subrequest`. If there are none, the constraint applies to all requests of the claim."""
    is_distinct: bool = False
    """Whether the devices' values must differ (`distinctAttribute`)."""

    def applies_to(self, request: str, way: str) -> bool:
        return not self.requests or request in self.requests or (bool(way) and f"{request}/{way}" in self.requests)


class ClaimSpec(Struct, frozen=True):
    requests: tuple[ClaimRequest, ...]
    constraints: tuple[MatchAttribute, ...] = ()


class PodClaim(Struct, frozen=True):
    """One entry of a pod's `spec.resourceClaims`."""

    name: str
    """Name by which the containers refer to the claim."""
    claim: str = ""
    """Name of the ResourceClaim in the pod's namespace (`resourceClaimName`)."""
    template: str = ""
    """Name of the ResourceClaimTemplate from which the pod gets its own claim. Either `template` or `claim` is set."""
    spec: ClaimSpec | None = None
    """Requests of the claim. None means that no known document contains them."""
    missing: str = ""
    """Kind and name of a missing document. The text is empty if the document exists, or wasn't looked up."""

    def claim_name(self, pod: str) -> str:
        """Return the name of the ResourceClaim for a pod with the given name, shortened to a valid length."""
        return self.claim or shorten_name(f"{pod}-{self.name}", _MAX_NAME_LENGTH)


def shorten_name(name: str, max_length: int) -> str:
    """Shorten a name that is too long. The result keeps the name's beginning and ends with a hash."""
    if len(name) <= max_length:
        return name
    digest = sha256_hex(name.encode())[:10]
    return f"{name[: max_length - 11].rstrip('.-')}-{digest}"


class ContainerClaim(Struct, frozen=True):
    """One entry of a container's `resources.claims`."""

    name: str
    """Name of the pod's claim."""
    request: str = ""
    """Name of the request whose devices the container uses. An empty name means the devices of all requests."""

    def uses(self, claim: str, request: str) -> bool:
        return self.name == claim and self.request in {"", request}


class AllocatedDevice(Struct, frozen=True):
    """One allocated device of a claim."""

    request: str
    """Name of the request: `request`, or `request/subrequest`."""
    driver: str
    device: str
    """Name of the device in the node's ResourceSlices."""
    capacity: tuple[tuple[str, int], ...] = ()
    """Allocated amount of each capacity, by qualified name. It is set only if a part of the device is allocated."""


class ClaimAllocation(Struct, frozen=True):
    claim: str
    """Name of the claim as `namespace/name`."""
    name: str
    """Name by which the pod's containers refer to the claim."""
    devices: tuple[AllocatedDevice, ...]
    is_own: bool = False
    """Whether the claim was made from a template for this pod alone."""
