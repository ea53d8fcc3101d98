"""Devices for decisions that are tried out: read only if one of the pods asks to be near any, or for its own."""

import argparse
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from nodeagent.core.explain.what_if import WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.formats.kernel.sysfs_sample import SysfsSample


def selected_with_devices(what_if: WhatIf, pods: Iterable[Pod], options: argparse.Namespace) -> WhatIf:
    """Return the selected node for decisions on these pods, and on those that it has.

    Raises:
        NodeAgentError: they can't be read, or a named file has none.
    """

    def look() -> SysfsSample | str:
        from nodeagent.cli.support.devices import device_sample

        return "the machine is only described" if options.topology is not None else device_sample(options)

    return _knowing(what_if, pods, look)


def this_with_devices(what_if: WhatIf, pods: Iterable[Pod]) -> WhatIf:
    """Return this node for decisions on these pods, and on those that it has.

    Raises:
        SysfsError: a file is malformed, or can't be read.
    """

    def look() -> SysfsSample | str:
        from nodeagent.edge.kernel.sysfs import read_devices

        return read_devices("/")

    return _knowing(what_if, pods, look)


def captured_with_devices(what_if: WhatIf, pods: Iterable[Pod], devices: SysfsSample | None) -> WhatIf:
    """Return a node of which there is a capture.

    Raises:
        SysfsError: a file in it is malformed.
    """
    return _knowing(what_if, pods, lambda: "the capture says nothing about devices" if devices is None else devices)


def _knowing(what_if: WhatIf, pods: Iterable[Pod], look: Callable[[], SysfsSample | str]) -> WhatIf:
    every = (*pods, *what_if.pods, *what_if.idle)
    gives = bool(what_if.managers.placement.devices)
    if not any(pod.near or pod.claims or (gives and pod.asks_for_devices) for pod in every):
        return what_if
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.formats.kernel.pci_devices import devices_of

    found = look()
    managers = what_if.managers
    placed = (
        PlacedDevices(problem=found)
        if isinstance(found, str)
        else PlacedDevices.of(devices_of(found), managers.topology)
    )
    return replace(what_if, managers=managers.knowing(placed))
