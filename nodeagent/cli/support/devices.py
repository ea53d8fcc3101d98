"""The devices of the node that a command is about: of this one, of a copied one, or of a capture."""

import argparse

from nodeagent.cli.support.sources import SourceError, machine_file
from nodeagent.core.model.devices import Device
from nodeagent.edge.sysfs import read_files
from nodeagent.formats.kernel.pci_devices import CLASSES, devices_of, wanted_of
from nodeagent.formats.kernel.sysfs_sample import SysfsSample


def devices_below(root: str) -> SysfsSample:
    """Read what is needed of devices.

    Raises:
        SysfsError: a file can't be read.
    """
    return read_files(wanted_of(read_files(CLASSES, root)), root)


def devices_from(options: argparse.Namespace) -> tuple[Device, ...]:
    """Return the selected node's devices.

    Raises:
        NodeAgentError: they can't be read, or a named file has none.
    """
    if options.machine is None:
        return devices_of(devices_below(options.root or "/"))
    capture = machine_file(options.machine)[1]
    if capture is None or capture.devices is None:
        raise SourceError(
            f"{options.machine} says nothing about devices",
            hint="take a capture on the node with this version: nodeagent capture --out FILE",
        )
    return devices_of(capture.devices)
