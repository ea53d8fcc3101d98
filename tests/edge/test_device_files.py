"""Which files in /dev a PCI function is used by, from what the kernel says below it."""

from pathlib import Path

import pytest

from nodeagent.core.model.device_access import DeviceFile
from nodeagent.edge.kernel.device_files import find_device_files
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from tests.support.machine_tree import put_device

CARD = "0000:3b:00.0"


def put(root: Path, place: str, numbers: str, name: str | None = None, subsystem: str = "misc") -> None:
    """Make what the kernel makes for a file, below /sys."""
    directory = root / "sys" / place
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dev").write_text(f"{numbers}\n")
    lines = "" if name is None else f"MAJOR={numbers.partition(':')[0]}\nDEVNAME={name}\n"
    (directory / "uevent").write_text(lines)
    (directory / "subsystem").symlink_to(f"/sys/class/{subsystem}")


def below(place: str, address: str = CARD) -> str:
    return f"bus/pci/devices/{address}/{place}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return put_device(tmp_path, CARD, {"physfn": "0000:3b:00.1"}, **{"class": "0x010802"}, msi_irqs__dev="9:9")


def paths(root: Path) -> list[str]:
    return [file.path for file in find_device_files(CARD, str(root))]


def test_a_disk_has_those_of_controller_namespaces_and_partitions(root: Path) -> None:
    put(root, below("nvme/nvme1"), "240:1", "nvme1", "nvme")
    put(root, below("nvme/nvme1/ng1n1"), "241:1", "ng1n1", "nvme-generic")
    put(root, below("nvme/nvme1/nvme1n1"), "259:4", "nvme1n1", "block")
    put(root, below("nvme/nvme1/nvme1n1/nvme1n1p2"), "259:6", "nvme1n1p2", "block")
    assert find_device_files(CARD, str(root)) == (
        DeviceFile("/dev/ng1n1", is_block=False, major=241, minor=1),
        DeviceFile("/dev/nvme1", is_block=False, major=240, minor=1),
        DeviceFile("/dev/nvme1n1", is_block=True, major=259, minor=4),
        DeviceFile("/dev/nvme1n1p2", is_block=True, major=259, minor=6),
    )


def test_a_disk_that_several_controllers_lead_to_is_not_below_any(root: Path) -> None:
    (root / "sys" / below("nvme/nvme0/nvme0c1n2")).mkdir(parents=True)
    put(root, "class/block/nvme0n2", "259:0", "nvme0n2", "block")
    put(root, "class/block/nvme0n2p1", "259:1", "nvme0n2p1", "block")
    put(root, "class/block/nvme0n21", "259:2", "nvme0n21", "block")
    assert paths(root) == ["/dev/nvme0n2", "/dev/nvme0n2p1"]


def test_names_below_dev_and_names_that_nobody_says(root: Path) -> None:
    put(root, below("drm/card0"), "226:0", "dri/card0", "drm")
    put(root, below("drm/renderD128"), "226:128", "dri/renderD128", "drm")
    put(root, below("uio/uio3"), "244:3", None, "uio")
    assert paths(root) == ["/dev/dri/card0", "/dev/dri/renderD128", "/dev/uio3"]


def test_functions_behind_it_and_links_out_of_it_are_not_its_own(root: Path) -> None:
    put(root, below("0000:3c:00.0/nvme/nvme7"), "240:7", "nvme7", "nvme")
    put_device(root, "0000:3b:00.1", nvme__nvme8__dev="240:8", nvme__nvme8__uevent="DEVNAME=nvme8")
    assert paths(root) == []


def test_the_files_that_are_one_for_all_of_a_kind(root: Path) -> None:
    put(root, "class/misc/vfio", "10:196", "vfio/vfio")
    put(root, "class/misc/rdma_cm", "10:121", "infiniband/rdma_cm")
    put(root, "class/kfd/kfd", "235:0", "kfd", "kfd")
    put(root, "class/vfio/17", "243:0", "vfio/17", "vfio")
    assert paths(root) == []
    put(root, below("infiniband_verbs/uverbs0"), "231:192", "infiniband/uverbs0", "infiniband_verbs")
    assert paths(root) == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    driver = root / "sys" / below("driver")
    driver.symlink_to("../../drivers/amdgpu")
    (root / "sys" / below("iommu_group")).symlink_to("../../../kernel/iommu_groups/17")
    (root / "sys" / below("infiniband_verbs/uverbs0/dev")).unlink()
    assert paths(root) == ["/dev/kfd"]
    driver.unlink()
    driver.symlink_to("../../drivers/vfio-pci")
    assert paths(root) == ["/dev/vfio/17", "/dev/vfio/vfio"]


@pytest.mark.parametrize(
    ("numbers", "name", "problem"),
    [
        ("240", "nvme1", 'expected two numbers such as 259:1, not "240"'),
        ("240:1", "../etc/shadow", 'expected a name below /dev, not "../etc/shadow"'),
        ("240:1", "/etc/shadow", 'expected a name below /dev, not "/etc/shadow"'),
    ],
)
def test_nonsense_is_none_of_its_files(root: Path, numbers: str, name: str, problem: str) -> None:
    put(root, below("nvme/nvme1"), numbers, name)
    with pytest.raises(SysfsError) as caught:
        find_device_files(CARD, str(root))
    assert problem in caught.value.message


@pytest.mark.parametrize("address", ["0000:00:1f.0", "", "..", "../devices/0000:3b:00.0", "GPU-1"])
def test_one_that_is_gone_or_none_is_told(root: Path, address: str) -> None:
    with pytest.raises(SysfsError, match=r": there is no such device"):
        find_device_files(address, str(root))


def test_what_newer_kernels_need_for_vfio_and_what_those_without_an_iommu_have(root: Path) -> None:
    put(root, "class/misc/iommu", "10:124", "iommu")
    put(root, "class/vfio/noiommu-3", "243:3", "vfio/noiommu-3")
    put(root, below("vfio-dev/vfio0"), "511:0", "vfio/devices/vfio0", "vfio-dev")
    (root / "sys" / below("iommu_group")).symlink_to("../../../kernel/iommu_groups/3")
    assert paths(root) == ["/dev/vfio/devices/vfio0"]
    (root / "sys" / below("driver")).symlink_to("../../drivers/mlx5-vfio-pci")
    assert paths(root) == ["/dev/iommu", "/dev/vfio/devices/vfio0", "/dev/vfio/noiommu-3"]
