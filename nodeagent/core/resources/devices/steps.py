"""Allocations of devices as steps of an explanation."""

from collections.abc import Sequence

from msgspec import Struct

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.resource import Allocated


class DeviceStep(Struct, frozen=True):
    """Allocation of devices to a container, or to a pod as a whole."""

    container: str | None
    devices: tuple[HeldDevice, ...]
    """Allocated devices. Empty after a refusal."""
    refused: bool


def device_step(event: Allocated, _picks: Sequence[object], pod: Pod) -> DeviceStep | None:
    """Describe an allocation. None means that nothing was allocated."""
    before, after = event.before.of_pod(pod.uid), event.after.of_pod(pod.uid)
    if event.refusal is not None:
        return DeviceStep(event.container, (), refused=True)
    if after.of(DeviceHoldings).devices == before.of(DeviceHoldings).devices:
        return None
    given = tuple(
        one for name, own in after.of(DeviceHoldings).devices for one in own if event.container in {None, name}
    )
    return DeviceStep(event.container, given, refused=False)
