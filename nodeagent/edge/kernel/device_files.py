"""Device files of PCI functions. They are searched anew in each call, because device numbers aren't the same after each boot."""

import os
from collections.abc import Iterator
from pathlib import Path

from nodeagent.core.model.device_access import DeviceFile
from nodeagent.formats.kernel.device_files import BLOCK, find_multipath_disk, parse_device_file, shared_files
from nodeagent.formats.kernel.pci_devices import PCI, is_address
from nodeagent.formats.kernel.sysfs_sample import SysfsError

_MOST_DIRECTORIES = 20_000
"""Maximum number of directories to search below a PCI function. For comparison, a card with 128 RDMA queues has about a thousand."""
_SKIPPED_DIRECTORIES = frozenset(
    {"msi_irqs", "power", "queues", "statistics", "counters", "hw_counters", "link", "wakeup"}
)


def find_device_files(address: str, root: str = "/") -> tuple[DeviceFile, ...]:
    """Return the device files of a PCI function, sorted by path. A network interface has none.

    Raises:
        SysfsError: the function doesn't exist, or its directory in /sys can't be read.
    """
    sys = Path(root) / "sys"
    function = Path(root) / PCI / address
    if not is_address(address) or not function.is_dir():
        raise SysfsError(str(function), "there is no such device: it was unplugged or removed through sysfs (`remove`)")
    own = {file.path: file for file in _find_below(function, sys / "class/block")}
    driver, iommu_group = _read_link(function / "driver"), _read_link(function / "iommu_group")
    for name in shared_files(driver, iommu_group, tuple(own.values())):
        own |= {file.path: file for file in _read_file_in(sys / "class" / name)}
    return tuple(own[path] for path in sorted(own))


def _find_below(function: Path, disks: Path) -> Iterator[DeviceFile]:
    """Yield the device files below a PCI function, and those of its multipath disks. PCI functions behind a bridge aren't searched."""
    for count, (directory, below, _) in enumerate(os.walk(function)):
        if count > _MOST_DIRECTORIES:
            raise SysfsError(str(function), f"it has more than {_MOST_DIRECTORIES} directories")
        for name in below:
            if disk := find_multipath_disk(name):
                for path in sorted(disks.glob(f"{disk}*")):  # the pattern finds the disk and its partitions
                    if path.name == disk or path.name.removeprefix(f"{disk}p").isdecimal():
                        yield from _read_file_in(path)
        below[:] = [name for name in below if name not in _SKIPPED_DIRECTORIES and not is_address(name)]
        yield from _read_file_in(Path(directory))


def _read_file_in(directory: Path) -> Iterator[DeviceFile]:
    try:
        dev = (directory / "dev").read_text(encoding="ascii", errors="backslashreplace")
        uevent = (directory / "uevent").read_text(encoding="ascii", errors="backslashreplace")
    except (FileNotFoundError, NotADirectoryError):
        return  # the directory belongs to no device, or was removed
    except OSError as err:
        raise SysfsError(str(directory), err.strerror or str(err)) from err
    yield parse_device_file(str(directory), dev, uevent, is_block=_read_link(directory / "subsystem") == BLOCK)


def _read_link(path: Path) -> str:
    """Return the last part of a symbolic link's target. Empty means that the link doesn't exist."""
    try:
        return path.readlink().name
    except OSError:
        return ""
