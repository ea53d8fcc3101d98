"""Calls to a device plugin when its devices are allocated (kubelet's device plugin API, v1beta1). The protocol itself is not here."""

from typing import Protocol


class DevicePluginFailedError(Exception):
    """A device plugin has given no answer. The text names the plugin and the reason."""


class DevicePluginPostponedError(DevicePluginFailedError):
    """A device plugin has not answered yet. A turn is due once it has, and decides the pod from the start, with the answers so far."""


class DevicePlugin(Protocol):
    """A registered device plugin. No call waits: a question goes to the plugin, and its answer is there in a later turn."""

    def describe_wait(self, pod_uid: str) -> str:
        """Return why the plugin can't be asked about a pod now. Empty means that it can be asked.

        A pod that can't ask need not be decided.
        """

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return the plugin's preferred choice from the available devices. It includes the devices that are already chosen. Empty means no
        preference.

        Args:
            pod_uid: UID of the pod that gets the devices.
            available: IDs of the devices to choose from.
            must: IDs of the devices that are already chosen.
            size: the number of devices to choose.

        Raises:
            DevicePluginPostponedError: the answer is not there yet.
            DevicePluginFailedError: there is no answer.
        """

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        """Allocate these devices to a container of a pod (see `preferred`). Return the encoded answer with what the container needs to use
        them.

        Raises:
            DevicePluginPostponedError: as for `preferred`.
            DevicePluginFailedError: the devices can't be allocated.
        """
