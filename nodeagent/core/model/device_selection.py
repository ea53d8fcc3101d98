"""Which discovered devices make up a resource that pods ask for by number: the configuration's `devices`. Knows no pods."""

from fnmatch import fnmatchcase

from msgspec import Struct

from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices


class DeviceSelector(Struct, frozen=True):
    """Devices of which all of this is true; what isn't given is true of any."""

    kind: DeviceKind | None = None
    address: str = ""
    """Of a PCI function, with * for any text."""
    vendor: int | None = None
    model: int | None = None
    driver: str = ""
    name: str = ""
    """One of its names: network interface, InfiniBand device, controller; with * for any text."""
    numa_node: int | None = None
    virtual_functions_of: str = ""
    """The address or a name of the function that it is a virtual one of. Empty: it is no virtual function, unless its address is given."""

    def selects(self, device: Device, node: int | None, physical: Device | None) -> bool:
        """Judge a device.

        Args:
            device: any.
            node: its NUMA node. None: unknown.
            physical: the function that it is a virtual one of.
        """
        if self.virtual_functions_of:
            if physical is None or self.virtual_functions_of not in {physical.address, *physical.names}:
                return False
        elif device.physical_function is not None and not self.address:
            return False
        return (
            (self.kind is None or device.kind is self.kind)
            and (not self.address or fnmatchcase(device.address, self.address))
            and (self.vendor is None or device.vendor == self.vendor)
            and (self.model is None or device.model == self.model)
            and (not self.driver or device.driver == self.driver)
            and (not self.name or any(fnmatchcase(name, self.name) for name in device.names))
            and (self.numa_node is None or node == self.numa_node)
        )


class DeviceSelection(Struct, frozen=True):
    """One entry of `devices`."""

    resource: str
    """The name that pods ask for, such as example.com/nic-100g."""
    selectors: tuple[DeviceSelector, ...]
    """A device is of the resource if one of them selects it."""


def selected(
    selections: tuple[DeviceSelection, ...], there: PlacedDevices
) -> tuple[tuple[str, tuple[tuple[Device, int | None], ...]], ...]:
    """Return the devices of each resource, with their NUMA nodes. A device is of the first resource that selects it, and of no other."""
    physical = {device.address: device for device, _ in there.placed}
    found: dict[str, list[tuple[Device, int | None]]] = {selection.resource: [] for selection in selections}
    for device, node in there.placed:
        above = None if device.physical_function is None else physical.get(device.physical_function)
        for selection in selections:
            if any(selector.selects(device, node, above) for selector in selection.selectors):
                found[selection.resource].append((device, node))
                break
    return tuple((resource, tuple(devices)) for resource, devices in found.items())
