"""Derivation of the PCI devices of supported kinds from a sample of /sys (Documentation/ABI/testing/sysfs-bus-pci).

Devices are sampled separately from the machine and only when needed, because decisions about CPUs and memory don't use
them.
"""

import re
from collections.abc import Iterator

from nodeagent.core.model.devices import Device, DeviceKind
from nodeagent.core.model.idset import MAX_ID
from nodeagent.formats.kernel.sysfs_sample import SysfsSample

PCI = "sys/bus/pci/devices"
CLASSES = (f"{PCI}/*/class",)
"""Files with the class of each device, which tells whether its kind is supported."""
_DEVICE_FILES = (
    "class",
    "vendor",
    "device",
    "uevent",
    "numa_node",
    "local_cpulist",
    "local_cpus",
    "irq",
    "msi_irqs/#/",
    "sriov_totalvfs",
    "virtfn#@",
    "physfn@",
    "net/*/",
    "virtio#/net/*/",
    "infiniband/*/",
    "nvme/*/",
    "drm/card#/",
    "accel/accel#/",
    "mem#/",
)
_NAMES = ("net", "infiniband", "nvme", "drm", "accel")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HEXADECIMAL = re.compile(r"0x([0-9a-f]{1,8})")
_DRIVER = re.compile(r"^DRIVER=(.+)$", re.MULTILINE)
_ROOT = re.compile(r"/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/")
_KINDS = {
    0x0108: DeviceKind.NVME,
    0x0207: DeviceKind.INFINIBAND,
    0x0C06: DeviceKind.INFINIBAND,
    0x0502: DeviceKind.CXL_MEMORY,
    0x0B40: DeviceKind.ACCELERATOR,
}
"""Kinds of devices by PCI base class and subclass (include/linux/pci_ids.h)."""
_BASE_KINDS = {0x02: DeviceKind.NETWORK, 0x03: DeviceKind.GPU, 0x12: DeviceKind.ACCELERATOR}
"""Kinds of devices by PCI base class, for all subclasses that `_KINDS` doesn't list."""
_MAX_INTERRUPT = 2**31 - 1
_MAX_FUNCTIONS = 2**16 - 1


def list_device_files(classes: SysfsSample) -> tuple[str, ...]:
    """Return the files to read for the devices of supported kinds, given the classes of all devices."""
    directories = [
        f"{PCI}/{address}"
        for address in _list_addresses(classes)
        if _find_kind(_read_class(classes, address)) is not None
    ]
    # The directory of a device is a link, and its target contains the device's PCI root.
    return tuple(
        path
        for directory in directories
        for path in (f"{directory}@", *(f"{directory}/{file}" for file in _DEVICE_FILES))
    )


def devices_of(sample: SysfsSample) -> tuple[Device, ...]:
    """Return the devices of supported kinds, sorted by address.

    Raises:
        SysfsError: a file is malformed.
    """
    return tuple(device for address in _list_addresses(sample) if (device := _read_device(sample, address)) is not None)


def is_address(name: str) -> bool:
    """Tell whether a directory's name is the address of a PCI function."""
    return _ADDRESS.fullmatch(name) is not None


def _list_addresses(sample: SysfsSample) -> Iterator[str]:
    """Yield the addresses in order. Domains with more than four digits come last."""
    depth = PCI.count("/") + 1
    found = {path.split("/")[depth] for path in sample.files if path.startswith(f"{PCI}/")}
    yield from sorted((name for name in found if is_address(name)), key=lambda name: (len(name), name))


def _find_kind(class_code: int) -> DeviceKind | None:
    return _KINDS.get(class_code >> 8) or _BASE_KINDS.get(class_code >> 16)


def _read_class(sample: SysfsSample, address: str) -> int:
    return _read_hexadecimal(sample, f"{PCI}/{address}/class") or 0


def _read_device(sample: SysfsSample, address: str) -> Device | None:
    directory = f"{PCI}/{address}"
    class_code = _read_class(sample, address)
    kind = _find_kind(class_code)
    if kind is None:
        return None
    driver = _DRIVER.search(sample.files.get(f"{directory}/uevent", ""))
    node = sample.number(f"{directory}/numa_node", -1, MAX_ID)
    local = sample.cpu_list(f"{directory}/local_cpulist")
    if local is None:
        local = sample.cpu_map(f"{directory}/local_cpus")
    of_virtio = [f"{name}/net" for name, _ in sample.numbered(directory, "virtio")]
    names = [name for below in (*of_virtio, *_NAMES) for name in sample.names(f"{directory}/{below}") or ()]
    messages = tuple(sorted(number for _, number in sample.numbered(f"{directory}/msi_irqs", "")))
    # legacy interrupt line, used only if the device has no message-signalled interrupts (MSI)
    line = sample.number(f"{directory}/irq", 0, _MAX_INTERRUPT)
    return Device(
        address=address,
        kind=kind,
        class_code=class_code,
        vendor=_read_hexadecimal(sample, f"{directory}/vendor"),
        model=_read_hexadecimal(sample, f"{directory}/device"),
        driver=None if driver is None else driver[1],
        names=(*names, *(name for name, _ in sample.numbered(directory, "mem"))),
        numa_node=None if node == -1 else node,
        local_cpus=local,
        interrupts=messages or ((line,) if line else ()),
        max_virtual_functions=sample.number(f"{directory}/sriov_totalvfs", 0, _MAX_FUNCTIONS) or 0,
        virtual_functions=tuple(
            _read_link(sample, f"{directory}/{name}")
            for name, _ in sorted(sample.numbered(directory, "virtfn"), key=lambda each: each[1])
        ),
        physical_function=_read_link(sample, f"{directory}/physfn") if f"{directory}/physfn" in sample.files else None,
        root=None if (root := _ROOT.search(sample.files.get(directory, ""))) is None else root[1],
    )


def _read_hexadecimal(sample: SysfsSample, path: str) -> int | None:
    text = sample.files.get(path)
    if text is None:
        return None
    match = _HEXADECIMAL.fullmatch(text.strip())
    if match is None:
        raise sample.error(path, "expected a hexadecimal number such as 0x020000", value=text.strip())
    return int(match[1], 16)


def _read_link(sample: SysfsSample, path: str) -> str:
    name = sample.files[path].rpartition("/")[2]
    if not is_address(name):
        raise sample.error(path, "expected a link to a PCI device", value=sample.files[path])
    return name
