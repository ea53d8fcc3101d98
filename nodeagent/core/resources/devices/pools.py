"""What there is of each resource that pods ask for by number: its devices, with their NUMA nodes and whether they can be given."""

from msgspec import Struct

from nodeagent.core.model.device_selection import DeviceSelection, select_devices
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.resources.devices.holdings import HeldDevice
from nodeagent.core.resources.devices.plugins import DevicePlugin


class PoolDevice(Struct, frozen=True):
    id: str
    """Of a discovered one its PCI address."""
    nodes: NumaMask | None = None
    """The NUMA nodes that it is near. None: nothing is said of them."""
    is_healthy: bool = True
    """Whether it can be given to somebody else."""
    kind: str = ""
    """Of a discovered one."""
    names: tuple[str, ...] = ()

    def held(self, resource: str) -> HeldDevice:
        """Return it as somebody's."""
        return HeldDevice(resource, self.id, NumaSet(self.nodes or NumaMask(0)), self.kind, self.names)


class DevicePool(Struct, frozen=True):
    """All devices of one resource, in the order in which they are given."""

    resource: str
    devices: tuple[PoolDevice, ...]
    plugin: DevicePlugin | None = None
    """That is asked when some are given. None: nobody is."""

    @property
    def has_topology(self) -> bool:
        """Whether something is said of the NUMA nodes of any: where not, they have no opinion (kubelet: deviceHasTopologyAlignment)."""
        return any(device.nodes is not None for device in self.devices)

    @property
    def healthy(self) -> tuple[PoolDevice, ...]:
        return tuple(device for device in self.devices if device.is_healthy)


def pools_of(selections: tuple[DeviceSelection, ...], there: PlacedDevices) -> tuple[DevicePool, ...]:
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
        for resource, devices in select_devices(selections, there)
    )
