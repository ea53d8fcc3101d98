"""Calls to a device plugin when its devices are allocated (kubelet's device plugin API, v1beta1). The protocol itself is not here."""

from typing import Protocol


class DevicePluginFailedError(Exception):
    """A device plugin has given no answer. The text names the plugin and the reason."""


class DevicePluginPostponedError(DevicePluginFailedError):
    """A device plugin is not called in this turn, because device plugins have used up the turn's time. The next turn calls the plugin."""


class DevicePlugin(Protocol):
    """A registered device plugin. Each call takes a limited time."""

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return the plugin's preferred choice from the available devices. It includes the devices that are already chosen. Empty means no
        preference.

        Args:
            pod_uid: UID of the pod that gets the devices. A postponed decision on this pod continues with the answers so far.
            available: IDs of the devices to choose from.
            must: IDs of the devices that are already chosen.
            size: the number of devices to choose.

        Raises:
            DevicePluginFailedError: there is no answer.
        """

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        """Allocate these devices to a container of a pod (see `preferred`). Return the encoded answer with what the container needs to use
        them.

        Raises:
            DevicePluginFailedError: the devices can't be allocated.
        """
