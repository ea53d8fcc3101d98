"""Devices of the selected node. For trial decisions, they are read only if a pod needs devices."""

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nodeagent.cli.support.node.selected_machine import SourceError, read_machine_file
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.edge.kernel.sysfs import read_devices
from nodeagent.formats.kernel.sysfs_sample import SysfsSample

if TYPE_CHECKING:
    from nodeagent.core.model.devices import Device


def read_selected_devices(options: argparse.Namespace) -> "tuple[Device, ...]":
    """Read the PCI devices of the selected node.

    Raises:
        NodeAgentError: the devices can't be read, or the file that `--machine` names contains no devices.
    """
    from nodeagent.formats.kernel.pci_devices import devices_of

    return devices_of(_read_sample(options))


def _read_sample(options: argparse.Namespace) -> SysfsSample:
    if options.machine is None:
        return read_devices(options.root or "/")
    capture = read_machine_file(options.machine)[1]
    if capture is None or capture.devices is None:
        raise SourceError(
            f"{options.machine} contains no devices",
            hint="use this version of nodeagent to take a new capture on the node: nodeagent capture --out FILE",
        )
    return capture.devices


def add_selected_devices(what_if: WhatIf, pods: Iterable[Pod], options: argparse.Namespace) -> WhatIf:
    """Return the selected node with its devices added, if the given pods or the node's own pods need any.

    Raises:
        NodeAgentError: the devices can't be read, or the file that `--machine` names contains no devices.
    """
    is_described = options.topology is not None
    return _add_devices(
        what_if, pods, lambda: "a described machine has no devices" if is_described else _read_sample(options)
    )


def add_this_nodes_devices(what_if: WhatIf, pods: Iterable[Pod]) -> WhatIf:
    """Return this node with its devices added, if the given pods or the node's own pods need any.

    Raises:
        SysfsError: a file is malformed, or can't be read.
    """
    return _add_devices(what_if, pods, lambda: read_devices("/"))


def add_captured_devices(what_if: WhatIf, pods: Iterable[Pod], devices: SysfsSample | None) -> WhatIf:
    """Return a captured node with its devices added, if the given pods or the node's own pods need any.

    Raises:
        SysfsError: a captured file is malformed.
    """
    return _add_devices(what_if, pods, lambda: "the capture contains no devices" if devices is None else devices)


def _add_devices(what_if: WhatIf, pods: Iterable[Pod], read: Callable[[], SysfsSample | str]) -> WhatIf:
    """Add the devices to a node if a pod needs any. `read` returns the devices, or the reason why they are unknown."""
    every = (*pods, *what_if.pods, *what_if.idle)
    gives = bool(what_if.managers.placement.devices)
    if not any(pod.near or pod.claims or (gives and pod.asks_for_devices) for pod in every):
        return what_if
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.formats.kernel.pci_devices import devices_of

    found = read()
    managers = what_if.managers
    placed = (
        PlacedDevices(problem=found)
        if isinstance(found, str)
        else PlacedDevices.of(devices_of(found), managers.topology)
    )
    return replace(what_if, managers=managers.knowing(placed))
