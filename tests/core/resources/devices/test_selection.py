"""Which discovered devices a configured resource has."""

import pytest

from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.resources.devices.resource import list_pools
from tests.support.builders import MACHINE_A

CARD = Device(
    "0000:3b:00.0",
    DeviceKind.NETWORK,
    0x20000,
    vendor=0x15B3,
    model=0x101D,
    driver="mlx5_core",
    names=("eth0",),
    numa_node=0,
    virtual_functions=("0000:3b:00.1",),
)
VIRTUAL = Device(
    "0000:3b:00.1", DeviceKind.NETWORK, 0x20000, driver="vfio-pci", numa_node=0, physical_function="0000:3b:00.0"
)
OTHER = Device("0000:af:00.0", DeviceKind.NETWORK, 0x20000, vendor=0x8086, model=0x1592, names=("eth1",), numa_node=1)
DISK = Device("0000:b0:00.0", DeviceKind.NVME, 0x10802, names=("nvme0",))
THERE = PlacedDevices.of((CARD, VIRTUAL, OTHER, DISK), MACHINE_A)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (DeviceSelector(kind=DeviceKind.NETWORK), (CARD, OTHER)),
        (DeviceSelector(kind=DeviceKind.NVME), (DISK,)),
        (DeviceSelector(address="0000:3b:00.1"), (VIRTUAL,)),
        (DeviceSelector(address="0000:3b:*"), (CARD, VIRTUAL)),
        (DeviceSelector(vendor=0x15B3), (CARD,)),
        (DeviceSelector(vendor=0x15B3, model=1), ()),
        (DeviceSelector(driver="mlx5_core"), (CARD,)),
        (DeviceSelector(name="eth*"), (CARD, OTHER)),
        (DeviceSelector(numa_node=1), (OTHER,)),
        (DeviceSelector(virtual_functions_of="eth0"), (VIRTUAL,)),
        (DeviceSelector(virtual_functions_of="0000:3b:00.0", driver="vfio-pci"), (VIRTUAL,)),
        (DeviceSelector(virtual_functions_of="eth1"), ()),
    ],
)
def test_a_selector_takes_what_all_of_it_is_true_of(selector: DeviceSelector, expected: tuple[Device, ...]) -> None:
    (found,) = list_pools((DeviceSelection("example.com/any", (selector,)),), THERE)
    assert [one.id for one in found.devices] == [device.address for device in expected]


def test_a_device_is_of_the_first_resource_that_selects_it() -> None:
    first = DeviceSelection("example.com/eth0", (DeviceSelector(name="eth0"), DeviceSelector(name="nvme0")))
    second = DeviceSelection("example.com/nic", (DeviceSelector(kind=DeviceKind.NETWORK),))
    found = {pool.resource: [one.id for one in pool.devices] for pool in list_pools((first, second), THERE)}
    assert found == {"example.com/eth0": [CARD.address, DISK.address], "example.com/nic": [OTHER.address]}
