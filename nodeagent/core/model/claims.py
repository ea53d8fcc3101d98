"""Value types for resource claims (resource.k8s.io/v1): a pod's claims and their allocations. This module makes no decisions."""

from msgspec import Struct

from nodeagent.core.model.digest import sha256_hex

_MAX_NAME_LENGTH = 253
"""Maximum length of a Kubernetes object's name."""


CPU_DRIVER, MEMORY_DRIVER, CARD_DRIVER = "dra.cpu", "dra.memory", "nodeagent.io"
_CPU_PREFIX = "cpudev"


def format_cpu_name(cpu: int) -> str:
    """Return the device name of a CPU in the node's ResourceSlices. The notation is that of dra-driver-cpu."""
    return f"{_CPU_PREFIX}{cpu:03}"


def decode_cpu_name(name: str) -> int:
    """Return the CPU that has this device name in the node's ResourceSlices.

    Raises:
        ValueError: no CPU can have this device name.
    """
    return int(name.removeprefix(_CPU_PREFIX))


def format_card_name(address: str) -> str:
    """Return the device name of a PCI card in the node's ResourceSlices. Kubernetes forbids colons and dots in device names, so they are
    replaced.
    """
    return "pci-" + address.replace(":", "-").replace(".", "-")


class DeviceRequest(Struct, frozen=True):
    """One alternative of a request in a resource claim: the request's `exactly`, or one entry of its `firstAvailable`."""

    name: str
    """Name of the subrequest (the entry of `firstAvailable`). The name is empty if the request has no alternatives."""
    device_class: str
    selectors: tuple[str, ...] = ()
    """CEL expressions that a device must satisfy. The expressions of the device class come before those of the request."""
    count: int | None = 1
    """Number of devices. None means all devices that satisfy the selectors (`allocationMode: All`)."""
    capacity: tuple[tuple[str, int], ...] = ()
    """Amount of each capacity that the request needs from a device, by the capacity's qualified name."""


class ClaimRequest(Struct, frozen=True):
    name: str
    ways: tuple[DeviceRequest, ...]
    """Alternatives of the request, in the order in which they are tried."""


class MatchAttribute(Struct, frozen=True):
    """Constraint of a resource claim on the devices of some or all of its requests. Either all these devices have the same value of an
    attribute, or each has a different value.
    """

    attribute: str
    """Qualified name of the devices' attribute."""
    requests: tuple[str, ...] = ()
    """Requests to which the constraint applies, as `request` or `request/subrequest`. If there are none, it applies to all requests of the
    claim.
    """
    is_distinct: bool = False
    """Whether each device must have a different value (`distinctAttribute`), instead of the same value (`matchAttribute`)."""

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
    """Name of the ResourceClaimTemplate from which a claim is made for this pod alone. Exactly one of `template` and `claim` is set."""
    spec: ClaimSpec | None = None
    """Requests of the claim. None means that the document with these requests hasn't been looked up, or wasn't found."""
    missing: str = ""
    """Kind and name of the document that wasn't found, such as a ResourceClaim. The text is empty if the document was found, or hasn't been
    looked up.
    """

    def claim_name(self, pod: str) -> str:
        """Return the name of the ResourceClaim. For a claim made from a template, the name consists of the pod's name and the entry's name,
        shortened to a valid length.
        """
        return self.claim or shorten_name(f"{pod}-{self.name}", _MAX_NAME_LENGTH)


def shorten_name(name: str, max_length: int) -> str:
    """Shorten a name that is longer than `max_length`. The result is the beginning of the name, followed by a hash of the whole name."""
    if len(name) <= max_length:
        return name
    digest = sha256_hex(name.encode())[:10]
    return f"{name[: max_length - 11].rstrip('.-')}-{digest}"


class ContainerClaim(Struct, frozen=True):
    """One entry of a container's `resources.claims`."""

    name: str
    """Name of the claim in the pod's `spec.resourceClaims`."""
    request: str = ""
    """Name of the claim's request whose devices the container uses. Empty means that the container uses the devices of all requests."""

    def uses(self, claim: str, request: str) -> bool:
        return self.name == claim and self.request in {"", request}


class AllocatedDevice(Struct, frozen=True):
    """One device that is allocated to a resource claim."""

    request: str
    """Request of the claim that got the device, as `request` or `request/subrequest`."""
    driver: str
    device: str
    """Device name in the node's ResourceSlices."""
    capacity: tuple[tuple[str, int], ...] = ()
    """Allocated amount of each capacity, by the capacity's qualified name. Empty means that the claim has the whole device."""


class ClaimAllocation(Struct, frozen=True):
    claim: str
    """Name of the ResourceClaim, as `namespace/name`."""
    name: str
    """Name by which the pod's containers refer to the claim (`spec.resourceClaims`)."""
    devices: tuple[AllocatedDevice, ...]
    is_own: bool = False
    """Whether the claim was made from a ResourceClaimTemplate, for this pod alone."""
