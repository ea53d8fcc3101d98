"""A pod that asks to be near devices: what its topology manager is told of them, and whether there are any.

Loaded only for such a pod: no other needs to know what devices there are.
"""

from nodeagent.core.model.devices import Device, PlacedDevices
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.refusals import Reason, Refusal
from nodeagent.core.numa.device_hints import device_hints
from nodeagent.core.numa.resource_manager import ResourceHints

_MOST_NAMED = 12
"""Devices that a refusal names."""


def hints_near(devices: PlacedDevices | None, names: tuple[str, ...], every: NumaMask) -> ResourceHints:
    """Return the hints for each name; none where devices were not looked at: then what the pod holds is all that counts."""
    if devices is None:
        return ()
    return tuple((name, device_hints([node for _, node in devices.called(name)], every)) for name in names)


def without_such_devices(devices: PlacedDevices | None, names: tuple[str, ...]) -> Refusal | None:
    """Refuse a pod that asks to be near what the machine doesn't have."""
    if devices is None:
        return None
    missing = tuple(name for name in names if not devices.called(name))
    if not missing:
        return None
    wanted = f"it asks to be near {' and '.join(missing)}"
    if devices.problem:
        return Refusal(Reason.DEVICE, f"{wanted}, and which devices there are is not known: {devices.problem}")
    if not devices.placed:
        return Refusal(Reason.DEVICE, f"{wanted}, and this machine has no devices that anything could be near")
    shown = [_named(device) for device, _ in devices.placed if device.physical_function is None]
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return Refusal(Reason.DEVICE, f"{wanted}, and this machine has none: it has {', '.join(shown[:_MOST_NAMED])}{more}")


def _named(device: Device) -> str:
    return f"{' '.join(device.names) or device.address} ({device.kind.value})"
