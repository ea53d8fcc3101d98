"""Device pools. A pool contains the devices of one extended resource, with their NUMA nodes and health, and the device plugin to ask."""

from typing import Protocol

from msgspec import Struct

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import NumaMask, NumaSet


class DevicePluginFailedError(Exception):
    """A device plugin failed to answer. The text names the plugin and the reason."""


class DevicePluginPostponedError(DevicePluginFailedError):
    """A device plugin hasn't answered yet, so the decision on the pod is postponed. After the answer, the agent decides on the pod from the
    start in a later turn.
    """


class DevicePlugin(Protocol):
    """Interface of a registered device plugin. The methods never block: the first call sends the question, and raises
    DevicePluginPostponedError until the answer has arrived.
    """

    def describe_wait(self, pod_uid: str) -> str:
        """Return the reason why the plugin can't be asked about a pod now, so that the decision on the pod must wait. Empty means that the
        plugin can be asked.
        """

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return the devices that the plugin prefers among the available ones, including all devices in `must`. An empty result means that
        the plugin has no preference.

        Args:
            pod_uid: UID of the pod that gets the devices.
            available: IDs of the devices to choose from.
            must: IDs of devices that the result must contain.
            size: number of devices to choose, including those in `must`.

        Raises:
            DevicePluginPostponedError: the plugin hasn't answered yet.
            DevicePluginFailedError: the plugin failed to answer.
        """

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        """Tell the plugin that these devices are allocated to a container of the pod. Return its encoded answer (AllocateResponse), with
        the environment variables, device files and mounts for the container.

        Raises:
            DevicePluginPostponedError: the plugin hasn't answered yet.
            DevicePluginFailedError: the plugin failed to answer.
        """


class PoolDevice(Struct, frozen=True):
    id: str
    """Device ID. For a device that the agent discovered, this is the PCI address."""
    nodes: NumaMask | None = None
    """NUMA nodes near the device. None means that they are unknown. An empty mask means that the plugin reported a topology without nodes,
    as some plugins do.
    """
    is_healthy: bool = True
    """Whether the device is healthy, so that it can be allocated."""
    kind: str = ""
    """Device kind (`DeviceKind`). Empty for a device that a device plugin reported."""
    names: tuple[str, ...] = ()
    lists_minus_one: bool = False
    """Whether the nodes that the plugin lists for the device include an impossible one, such as -1 (the kernel's NUMA_NO_NODE)."""

    @property
    def has_topology(self) -> bool:
        """Whether the plugin lists any NUMA node for the device, even one that the machine doesn't have."""
        return bool(self.nodes) or self.lists_minus_one

    def held(self, resource: str) -> HeldDevice:
        """Return the record of this device for the container to which it is allocated, under the requested resource name."""
        nodes = NumaSet(self.nodes or NumaMask(0))
        return HeldDevice(
            resource, self.id, nodes, self.kind, self.names, lists_minus_one=self.lists_minus_one and bool(nodes)
        )


class DevicePool(Struct, frozen=True):
    """All devices of one extended resource, in the order in which they are allocated."""

    resource: str
    devices: tuple[PoolDevice, ...]
    plugin: DevicePlugin | None = None
    """Device plugin to ask when devices of the pool are allocated. None means that the agent discovered the devices itself, or that the
    decision is only a trial.
    """
    is_registered: bool = True
    """Whether the resource still exists for kubelet. Five minutes after its plugin has gone, kubelet forgets a resource, but remembers the
    NUMA nodes of its devices.
    """

    @property
    def has_topology(self) -> bool:
        """Whether the plugin lists a NUMA node for at least one device. Without any, the resource gives no NUMA hints (kubelet:
        deviceHasTopologyAlignment).
        """
        return any(device.has_topology for device in self.devices)

    @property
    def healthy(self) -> tuple[PoolDevice, ...]:
        return tuple(device for device in self.devices if device.is_healthy)
