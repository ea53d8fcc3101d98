"""Device pools: the devices of each extended resource, with their NUMA nodes and health."""

from msgspec import Struct

from nodeagent.core.model.device_selection import DeviceSelection, select_devices
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.resources.devices.holdings import HeldDevice
from nodeagent.core.resources.devices.plugins import DevicePlugin


class PoolDevice(Struct, frozen=True):
    id: str
    """ID of the device. For a discovered device this is its PCI address."""
    nodes: NumaMask | None = None
    """NUMA nodes near the device. None means unknown. An empty mask means a topology without nodes, which real plugins send."""
    is_healthy: bool = True
    """Whether the device can be allocated."""
    kind: str = ""
    """Kind of the device if it was discovered."""
    names: tuple[str, ...] = ()
    lists_minus_one: bool = False
    """Whether the plugin lists the node -1 (the kernel's NUMA_NO_NODE), or another impossible node, among the device's nodes."""

    @property
    def has_topology(self) -> bool:
        """Whether the plugin lists any node of the device, be it -1 or a node that the machine lacks."""
        return bool(self.nodes) or self.lists_minus_one

    def held(self, resource: str) -> HeldDevice:
        """Return the device as a pod holds it under this resource."""
        nodes = NumaSet(self.nodes or NumaMask(0))
        return HeldDevice(
            resource, self.id, nodes, self.kind, self.names, lists_minus_one=self.lists_minus_one and bool(nodes)
        )


class DevicePool(Struct, frozen=True):
    """All devices of one resource, in the order of allocation."""

    resource: str
    devices: tuple[PoolDevice, ...]
    plugin: DevicePlugin | None = None
    """Plugin to call at an allocation. None for discovered devices, and in trials."""
    is_registered: bool = True
    """Whether the resource is known. kubelet forgets a resource whose plugin is gone for five minutes, but not its devices' nodes."""

    @property
    def has_topology(self) -> bool:
        """Whether any device lists a node. Otherwise the resource accepts any nodes (kubelet: deviceHasTopologyAlignment)."""
        return any(device.has_topology for device in self.devices)

    @property
    def healthy(self) -> tuple[PoolDevice, ...]:
        return tuple(device for device in self.devices if device.is_healthy)


def pools_of(selections: tuple[DeviceSelection, ...], discovered: PlacedDevices) -> tuple[DevicePool, ...]:
    """Return the pools of discovered devices, in the order of the configuration."""
    return tuple(
        DevicePool(
            resource,
            tuple(
                PoolDevice(
                    device.address,
                    None if node is None else NumaMask(1 << node),
                    kind=device.kind.value,
                    names=device.names,
                )
                for device, node in devices
            ),
        )
        for resource, devices in select_devices(selections, discovered)
    )
