"""Calls to a device plugin when its devices are allocated (kubelet's device plugin API, v1beta1), without the protocol."""

from typing import Protocol


class DevicePluginFailedError(Exception):
    """A device plugin has given no answer. The text names the plugin and the reason."""


class DevicePluginPostponedError(DevicePluginFailedError):
    """A device plugin is not called in this turn, because device plugins have used up its time. The next turn calls it."""


class DevicePlugin(Protocol):
    """A registered device plugin. Its calls take a bounded time."""

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return the preferred devices among the available ones, including those that are already chosen. Empty means no preference.

        Args:
            pod_uid: UID of the pod that the devices are for. A decision that was postponed continues with the answers it already has.
            available: IDs of the devices to choose from.
            must: IDs of the devices that are already chosen.
            size: the number of devices to choose.

        Raises:
            DevicePluginFailedError: there is no answer.
        """

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        """Allocate these devices to a container of a pod (see `preferred`). Return what the container needs for them, as it is saved.

        Raises:
            DevicePluginFailedError: the devices can't be allocated.
        """
