"""From what /sys says below a PCI function to the files in /dev by which programs use it.

The kernel makes a `dev` beside each thing that has a file, with its numbers, and a `uevent` with its name (sysfs(5), DEVNAME of
Documentation/core-api/kobject.rst). Beside those of the function itself, a few are one for all functions of a kind.
"""

import re

from nodeagent.core.model.device_access import DeviceFile
from nodeagent.formats.kernel.sysfs_sample import SysfsError

BLOCK = "block"
"""The subsystem whose files are block devices; all others' are character devices."""
_NUMBERS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_NAME = re.compile(r"^DEVNAME=(.+)$", re.MULTILINE)
_HIDDEN_DISK = re.compile(r"nvme([0-9]+)c[0-9]+(n[0-9]+)")
_VERBS = "/dev/infiniband/uverbs"


def device_file(directory: str, dev: str, uevent: str, *, is_block: bool) -> DeviceFile:
    """Read one file.

    Args:
        directory: in /sys, for messages; its last part is the name where `uevent` says none.
        dev: the numbers, as in `259:1`.
        uevent: lines of NAME=VALUE.
        is_block: by its subsystem.

    Raises:
        SysfsError: the numbers are none, or the name leads out of /dev.
    """
    numbers = _NUMBERS.fullmatch(dev.strip())
    if numbers is None:
        raise SysfsError(f"{directory}/dev", "expected two numbers such as 259:1", value=dev.strip())
    found = _NAME.search(uevent)
    name = found[1] if found else directory.rpartition("/")[2]
    if name.startswith("/") or not {".", ".."}.isdisjoint(name.split("/")):
        raise SysfsError(f"{directory}/uevent", "expected a name below /dev", value=name)
    return DeviceFile(f"/dev/{name}", is_block, int(numbers[1]), int(numbers[2]))


def disk_of_paths(name: str) -> str | None:
    """Return the disk that several NVMe controllers lead to, given the name of one of the ways to it, which has no file of its own.

    With native multipath the kernel calls a way nvme0c1n1, and the disk nvme0n1, which is below no controller.
    """
    found = _HIDDEN_DISK.fullmatch(name)
    return None if found is None else f"nvme{found[1]}{found[2]}"


def shared_files(driver: str, iommu_group: str, files: tuple[DeviceFile, ...]) -> tuple[str, ...]:
    """Return the directories below /sys/class of the files that a function is used by, and that are not its own.

    Args:
        driver: the function's; empty: none.
        iommu_group: the number of its group; empty: it is in none.
        files: the function's own.
    """
    if "vfio" in driver:
        # A group has one of the two files, the second where there is no IOMMU; /dev/iommu is for files of single functions (iommufd).
        groups = (f"vfio/{iommu_group}", f"vfio/noiommu-{iommu_group}") if iommu_group else ()
        return ("misc/vfio", "misc/iommu", *groups)
    if any(file.path.startswith(_VERBS) for file in files):
        return ("misc/rdma_cm",)
    return ("kfd/kfd",) if driver == "amdgpu" else ()
