"""Placement near devices: NUMA hints for pods that ask for it, and a refusal if the machine lacks the named devices.

The module is imported only for pods that name devices.
"""

from nodeagent.core.model.devices import Device, PlacedDevices
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.refusals import Reason, Refusal
from nodeagent.core.numa.device_hints import device_hints
from nodeagent.core.resources.resource import ResourceHints
from nodeagent.errors import printable

_MAX_DEVICES = 12
"""Maximum number of devices in a refusal's message."""
_MAX_NAMES = 3
"""Maximum number of names per device in a refusal's message. A network card may have hundreds of interfaces."""
_MAX_CHARACTERS = 64
"""Maximum length of a name in a refusal's message. Users can give interfaces long names. A quoted error may have ten times this length."""


def hints_near(devices: PlacedDevices | None, names: tuple[str, ...], every: NumaMask) -> ResourceHints:
    """Return the NUMA hints for each device name in the pod's `near` annotations.

    Args:
        devices: the discovered devices. None means that they weren't scanned, so there are no hints. That suffices for a pod that only
            keeps its allocation.
        names: names of devices, or kinds of devices.
        every: all NUMA nodes of the machine.
    """
    if devices is None:
        return ()
    return tuple((name, device_hints([node for _, node in devices.find_named(name)], every)) for name in names)


def without_such_devices(devices: PlacedDevices | None, names: tuple[str, ...]) -> Refusal | None:
    """Refuse a pod whose `near` annotations name devices that the machine lacks. None means that the machine has all of them, or hasn't
    been scanned for devices.
    """
    if devices is None:
        return None
    missing = tuple(name for name in names if not devices.find_named(name))
    if not missing:
        return None
    wanted = f"it asks to be near {_list_some([_shorten(name) for name in missing], _MAX_DEVICES, ' and ')}"
    if devices.problem:
        why = _shorten(devices.problem, 10 * _MAX_CHARACTERS)
        return Refusal(Reason.DEVICE, f"{wanted}, but the devices of this machine are unknown: {why}")
    if not devices.placed:
        return Refusal(Reason.DEVICE, f"{wanted}, but this machine has no devices of any kind")
    present = [_format_device(device) for device, _ in devices.placed if device.physical_function is None]
    return Refusal(Reason.DEVICE, f"{wanted}, but this machine has only {_list_some(present, _MAX_DEVICES)}")


def _format_device(device: Device) -> str:
    names = _list_some([_shorten(name) for name in device.names], _MAX_NAMES, " ")
    return f"{names or device.address} ({device.kind.value})"


def _list_some(texts: list[str], limit: int, between: str = ", ") -> str:
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return f"{between.join(texts[:limit])}{more}"


def _shorten(text: str, limit: int = _MAX_CHARACTERS) -> str:
    return printable(text if len(text) <= limit else f"{text[:limit]}…")
