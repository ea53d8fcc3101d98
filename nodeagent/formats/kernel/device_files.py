"""Rules that find the device files in /dev of a PCI function, from the function's directory in /sys.

For each device file, the kernel creates a `dev` file with its numbers and a `uevent` file with its name (sysfs(5), DEVNAME of
Documentation/core-api/kobject.rst). Some other device files are shared by all functions of a kind.
"""

import re

from nodeagent.core.model.device_access import DeviceFile
from nodeagent.formats.kernel.sysfs_sample import SysfsError

BLOCK = "block"
"""Name of the subsystem with block devices. All other subsystems have character devices."""
_NUMBERS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_NAME = re.compile(r"^DEVNAME=(.+)$", re.MULTILINE)
_HIDDEN_DISK = re.compile(r"nvme([0-9]+)c[0-9]+(n[0-9]+)")
_VERBS = "/dev/infiniband/uverbs"


def parse_device_file(directory: str, dev: str, uevent: str, *, is_block: bool) -> DeviceFile:
    """Parse the files in /sys about one device file.

    Args:
        directory: the directory in /sys. Its last part is the device's name if `uevent` has none.
        dev: the device numbers, such as `259:1`.
        uevent: the lines of NAME=VALUE.
        is_block: whether the device is a block device.

    Raises:
        SysfsError: the numbers are invalid, or the name leads out of /dev.
    """
    numbers = _NUMBERS.fullmatch(dev.strip())
    if numbers is None:
        raise SysfsError(f"{directory}/dev", "expected two numbers such as 259:1", value=dev.strip())
    found = _NAME.search(uevent)
    name = found[1] if found else directory.rpartition("/")[2]
    if name.startswith("/") or not {".", ".."}.isdisjoint(name.split("/")):
        raise SysfsError(f"{directory}/uevent", "expected a name below /dev", value=name)
    return DeviceFile(f"/dev/{name}", is_block, int(numbers[1]), int(numbers[2]))


def find_multipath_disk(name: str) -> str | None:
    """Return the multipath disk of an NVMe path. None means that the name isn't the name of an NVMe path.

    With native multipath, a path such as nvme0c1n1 has no device file. Only the disk nvme0n1 has a device file, but its directory in
    /sys isn't below a controller.
    """
    found = _HIDDEN_DISK.fullmatch(name)
    return None if found is None else f"nvme{found[1]}{found[2]}"


def shared_files(driver: str, iommu_group: str, files: tuple[DeviceFile, ...]) -> tuple[str, ...]:
    """Return the directories below /sys/class of the device files that a function shares with other functions.

    Args:
        driver: the function's driver. Empty if it has none.
        iommu_group: the number of the function's IOMMU group. Empty if it has none.
        files: the function's own device files.
    """
    if "vfio" in driver:
        # An IOMMU group has one of these two files; the second exists if there is no IOMMU. /dev/iommu is for single functions (iommufd).
        groups = (f"vfio/{iommu_group}", f"vfio/noiommu-{iommu_group}") if iommu_group else ()
        return ("misc/vfio", "misc/iommu", *groups)
    if any(file.path.startswith(_VERBS) for file in files):
        return ("misc/rdma_cm",)
    return ("kfd/kfd",) if driver == "amdgpu" else ()
