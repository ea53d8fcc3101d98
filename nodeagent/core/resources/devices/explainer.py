"""Explanations of device allocations, which list the allocated devices."""

from collections.abc import Sequence

from msgspec import Struct

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.explainer import Explainer, ResourceEvent
from nodeagent.core.resources.resource import Allocated


class DeviceStep(Struct, frozen=True):
    """Allocation of devices to a container or to a pod as a whole, as a step of an explanation."""

    container: str | None
    devices: tuple[HeldDevice, ...]
    """Allocated devices. The tuple is empty after a refusal."""
    refused: bool


class DeviceExplainer(Explainer, frozen=True):
    """Explainer of the device manager (core/resources/explainer.py)."""

    def explain_step(self, event: Allocated, _events: Sequence[ResourceEvent], pod: Pod) -> DeviceStep | None:
        if event.refusal is not None:
            return DeviceStep(event.container, (), refused=True)
        before, after = (held.of_pod(pod.uid).of(DeviceHoldings).devices for held in (event.before, event.after))
        if after == before:
            return None
        given = tuple(one for name, own in after for one in own if event.container in {None, name})
        return DeviceStep(event.container, given, refused=False)

    def find_lasting(self, held: PodPromises, _apps: frozenset[str]) -> DeviceHoldings:
        """Return the devices without the plugins' answers to Allocate. A decision that is repeated for an explanation has no such answers,
        because it calls no plugins.
        """
        return DeviceHoldings(held.of(DeviceHoldings).devices)
