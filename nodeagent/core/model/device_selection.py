"""Assignment of discovered PCI devices to the extended resources in the configuration field `devices`."""

from fnmatch import fnmatchcase

from msgspec import Struct

from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices


class DeviceSelector(Struct, frozen=True):
    """Criteria that select discovered devices for an extended resource. A device must meet all criteria that are set."""

    kind: DeviceKind | None = None
    address: str = ""
    """PCI address of a device function. `*` matches any text."""
    vendor: int | None = None
    model: int | None = None
    driver: str = ""
    name: str = ""
    """Name of a network interface, an InfiniBand device or a controller of the device. `*` matches any text."""
    numa_node: int | None = None
    virtual_functions_of: str = ""
    """PCI address or name of a physical function, to select its virtual functions. If this field is empty, a virtual function can be
    selected only by its own `address`.
    """

    def selects(self, device: Device, node: int | None, physical: Device | None) -> bool:
        """Return whether a device meets all criteria.

        Args:
            device: the device.
            node: NUMA node of the device, or None if unknown.
            physical: physical function of the device, if the device is a virtual function.
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
    """One entry of the configuration field `devices`."""

    resource: str
    """Extended resource that pods request, such as example.com/nic-100g."""
    selectors: tuple[DeviceSelector, ...]
    """Alternative criteria. A device is selected if it matches at least one selector."""


def select_devices(
    selections: tuple[DeviceSelection, ...], devices: PlacedDevices
) -> tuple[tuple[str, tuple[tuple[Device, int | None], ...]], ...]:
    """Return each extended resource with its devices and their NUMA nodes. A device belongs to the first resource that selects it."""
    physical = {device.address: device for device, _ in devices.placed}
    found: dict[str, list[tuple[Device, int | None]]] = {selection.resource: [] for selection in selections}
    for device, node in devices.placed:
        above = None if device.physical_function is None else physical.get(device.physical_function)
        for selection in selections:
            if any(selector.selects(device, node, above) for selector in selection.selectors):
                found[selection.resource].append((device, node))
                break
    return tuple((resource, tuple(devices)) for resource, devices in found.items())
