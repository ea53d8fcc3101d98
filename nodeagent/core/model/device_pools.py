"""Device pools: the devices of each extended resource, with their NUMA nodes and health, and the device plugin to call."""

from typing import Protocol

from msgspec import Struct

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import NumaMask, NumaSet


class DevicePluginFailedError(Exception):
    """A device plugin has failed to answer. The text names the plugin and the reason."""


class DevicePluginPostponedError(DevicePluginFailedError):
    """A device plugin hasn't answered yet. Once it has answered, a later turn decides on the pod from the start, with all answers
    received so far.
    """


class DevicePlugin(Protocol):
    """A registered device plugin. The methods don't block. Each method only sends a question to the plugin, and a later turn gets the
    answer.
    """

    def describe_wait(self, pod_uid: str) -> str:
        """Return the reason why the plugin can't be asked about a pod now, so that no decision on the pod is possible. Empty means that
        the plugin can be asked.
        """

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return the plugin's preferred choice from the available devices, which includes the devices in `must`. An empty choice means that
        the plugin has no preference.

        Args:
            pod_uid: UID of the pod that gets the devices.
            available: IDs of the devices to choose from.
            must: IDs of the devices that are already chosen.
            size: the number of devices to choose.

        Raises:
            DevicePluginPostponedError: the plugin has not answered yet.
            DevicePluginFailedError: there is no answer.
        """

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        """Allocate these devices to a container of a pod (see `preferred`). Return the encoded answer, which names the
        variables, files and mounts that the container needs.

        Raises:
            DevicePluginPostponedError: the plugin has not answered yet.
            DevicePluginFailedError: the devices can't be allocated.
        """


class PoolDevice(Struct, frozen=True):
    id: str
    """ID of the device. For a discovered device this is its PCI address."""
    nodes: NumaMask | None = None
    """NUMA nodes near the device. None means that they are unknown. An empty mask is a topology without nodes, which real plugins do
    send.
    """
    is_healthy: bool = True
    """Whether the device can be allocated."""
    kind: str = ""
    """Kind of the device. It is empty if the device wasn't discovered, but reported by a plugin."""
    names: tuple[str, ...] = ()
    lists_minus_one: bool = False
    """Whether the plugin lists the node -1 (the kernel's NUMA_NO_NODE), or another impossible node, among the device's nodes."""

    @property
    def has_topology(self) -> bool:
        """Whether the plugin lists any node of the device, even -1 or a node that the machine doesn't have."""
        return bool(self.nodes) or self.lists_minus_one

    def held(self, resource: str) -> HeldDevice:
        """Return the device as a pod's holding of this resource."""
        nodes = NumaSet(self.nodes or NumaMask(0))
        return HeldDevice(
            resource, self.id, nodes, self.kind, self.names, lists_minus_one=self.lists_minus_one and bool(nodes)
        )


class DevicePool(Struct, frozen=True):
    """All devices of one resource, in the order of allocation."""

    resource: str
    devices: tuple[PoolDevice, ...]
    plugin: DevicePlugin | None = None
    """Plugin that is called for an allocation. None means that the devices were discovered by the agent, or that the decision is only a
    trial.
    """
    is_registered: bool = True
    """Whether the resource is still registered. kubelet forgets a resource whose plugin has been gone for five minutes, but remembers the
    NUMA nodes of its devices.
    """

    @property
    def has_topology(self) -> bool:
        """Whether at least one device lists a node. Otherwise the resource accepts any nodes (kubelet: deviceHasTopologyAlignment)."""
        return any(device.has_topology for device in self.devices)

    @property
    def healthy(self) -> tuple[PoolDevice, ...]:
        return tuple(device for device in self.devices if device.is_healthy)
