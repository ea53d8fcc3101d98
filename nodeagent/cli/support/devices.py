"""The devices of the node that a command is about: of this one, of a copied one, or of a capture."""

import argparse

from nodeagent.cli.support.sources import SourceError, machine_file
from nodeagent.core.model.devices import Device
from nodeagent.edge.kernel.sysfs import read_devices
from nodeagent.formats.kernel.pci_devices import devices_of
from nodeagent.formats.kernel.sysfs_sample import SysfsSample


def devices_from(options: argparse.Namespace) -> tuple[Device, ...]:
    """Return the selected node's devices.

    Raises:
        NodeAgentError: they can't be read, or a named file has none.
    """
    return devices_of(device_sample(options))


def device_sample(options: argparse.Namespace) -> SysfsSample:
    """Return what was read of them.

    Raises:
        NodeAgentError: it can't be read, or a named file has none.
    """
    if options.machine is None:
        return read_devices(options.root or "/")
    capture = machine_file(options.machine)[1]
    if capture is None or capture.devices is None:
        raise SourceError(
            f"{options.machine} says nothing about devices",
            hint="take a capture on the node with this version: nodeagent capture --out FILE",
        )
    return capture.devices
