"""What is asked of a device plugin when its devices are given (kubelet's device plugin API, v1beta1). Knows no protocol."""

from typing import Protocol


class DevicePluginFailedError(Exception):
    """A device plugin has no answer. The text says whose it is, and why."""


class DevicePlugin(Protocol):
    """One that has registered. Whoever asks waits for a bounded time."""

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return so many of the available devices that go well together, with those that must be among them; none: it has no preference.

        Raises:
            DevicePluginFailedError: there is no answer.
        """

    def allocate(self, ids: tuple[str, ...]) -> bytes:
        """Give these devices to a container. Returns what it needs for them, as it is kept.

        Raises:
            DevicePluginFailedError: they can't be given.
        """
