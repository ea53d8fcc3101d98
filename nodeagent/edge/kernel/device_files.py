"""Finder of the files in /dev of a PCI function. They are looked up each time, because device numbers may change with each boot."""

import os
from collections.abc import Iterator
from pathlib import Path

from nodeagent.core.model.device_access import DeviceFile
from nodeagent.formats.kernel.device_files import BLOCK, find_multipath_disk, parse_device_file, shared_files
from nodeagent.formats.kernel.pci_devices import PCI, is_address
from nodeagent.formats.kernel.sysfs_sample import SysfsError

_MOST_DIRECTORIES = 20_000
"""Limit below one function. A card with 128 RDMA queues has about a thousand."""
_WITHOUT_FILES = frozenset({"msi_irqs", "power", "queues", "statistics", "counters", "hw_counters", "link", "wakeup"})


def files_of(address: str, root: str = "/") -> tuple[DeviceFile, ...]:
    """Return the device files of a function, by path. A function without any, such as a network interface, has none.

    Raises:
        SysfsError: the function is absent, or its entry in /sys can't be read.
    """
    sys = Path(root) / "sys"
    function = Path(root) / PCI / address
    if not is_address(address) or not function.is_dir():
        raise SysfsError(str(function), "there is no such device: it was unplugged, or `remove` was written to")
    own = {file.path: file for file in _below(function, sys)}
    shared = shared_files(_linked(function / "driver"), _linked(function / "iommu_group"), tuple(own.values()))
    for name in shared:
        own |= {file.path: file for file in _at(sys / "class" / name)}
    return tuple(own[path] for path in sorted(own))


def _below(function: Path, sys: Path) -> Iterator[DeviceFile]:
    """Return the directories below a function, without those of functions behind it (of a bridge)."""
    for count, (directory, below, _) in enumerate(os.walk(function)):
        if count > _MOST_DIRECTORIES:
            raise SysfsError(str(function), f"it has more than {_MOST_DIRECTORIES} directories")
        for name in below:
            if disk := find_multipath_disk(name):
                yield from _disk(sys / "class/block", disk)
        below[:] = [name for name in below if name not in _WITHOUT_FILES and not is_address(name)]
        yield from _at(Path(directory))


def _disk(block: Path, name: str) -> Iterator[DeviceFile]:
    """Return the files of a disk and its partitions."""
    for path in sorted(block.glob(f"{name}*")):
        if path.name == name or path.name.removeprefix(f"{name}p").isdecimal():
            yield from _at(path)


def _at(directory: Path) -> Iterator[DeviceFile]:
    try:
        dev = (directory / "dev").read_text(encoding="ascii", errors="backslashreplace")
        uevent = (directory / "uevent").read_text(encoding="ascii", errors="backslashreplace")
    except (FileNotFoundError, NotADirectoryError):
        return  # the file is absent, or gone
    except OSError as err:
        raise SysfsError(str(directory), err.strerror or str(err)) from err
    yield parse_device_file(str(directory), dev, uevent, is_block=_linked(directory / "subsystem") == BLOCK)


def _linked(path: Path) -> str:
    """Return the last part of a link's target, or an empty text."""
    try:
        return path.readlink().name
    except OSError:
        return ""
