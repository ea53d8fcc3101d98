"""What is asked of a device plugin when its devices are given (kubelet's device plugin API, v1beta1). Knows no protocol."""

from typing import Protocol


class DevicePluginFailedError(Exception):
    """A device plugin has no answer. The text says whose it is, and why."""


class DevicePluginPostponedError(DevicePluginFailedError):
    """A device plugin is not asked in this turn, because device plugins have used up its time. The next turn asks it."""


class DevicePlugin(Protocol):
    """One that has registered. Whoever asks waits for a bounded time."""

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return so many of the available devices that go well together, with those that must be among them; none: it has no preference.

        Args:
            pod_uid: UID of the pod that the devices are for. A decision on the pod that was postponed goes on with the answers it has got.
            available: ids of the devices to choose from.
            must: ids of those that are already chosen.
            size: how many to choose.

        Raises:
            DevicePluginFailedError: there is no answer.
        """

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        """Give these devices to a container of a pod (see `preferred`). Returns what it needs for them, as it is kept.

        Raises:
            DevicePluginFailedError: they can't be given.
        """
