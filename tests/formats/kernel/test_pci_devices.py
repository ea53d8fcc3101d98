"""Devices that work goes to, from the files of /sys: what they are, where, and what else is said of them."""

import os
from pathlib import Path

import pytest

from nodeagent.core.model.devices import Device, DeviceKind, DevicePlace, NodeDoubt, find_node_of, group_by_node
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.edge.kernel.sysfs import read_devices
from nodeagent.formats.kernel.pci_devices import PCI, devices_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from tests.support.builders import MACHINE_A, machine
from tests.support.machine_tree import put_device as put


def found(root: Path) -> tuple[Device, ...]:
    return devices_of(read_devices(str(root)))


def test_everything_that_is_said_of_a_card(tmp_path: Path) -> None:
    put(
        tmp_path,
        "0000:3b:00.0",
        {"virtfn0": "0000:3b:00.2", "virtfn1": "0000:3b:00.3"},
        **{"class": "0x020000"},
        vendor="0x15b3",
        device="0x1017",
        uevent="DRIVER=mlx5_core\nPCI_CLASS=20000",
        numa_node="1",
        local_cpulist="4-7,12-15",
        irq="16",
        sriov_totalvfs="8",
        msi_irqs__121="",
        msi_irqs__120="",
        net__eth1__="",
        net__eth0__="",
        infiniband__mlx5_0__="",
    )
    put(tmp_path, "0000:3b:00.2", {"physfn": "0000:3b:00.0"}, **{"class": "0x020000"}, numa_node="1")
    put(tmp_path, "0000:3b:00.3", {"physfn": "0000:3b:00.0"}, **{"class": "0x020000"}, numa_node="1")
    card, *functions = found(tmp_path)
    assert card == Device(
        "0000:3b:00.0",
        DeviceKind.NETWORK,
        0x020000,
        vendor=0x15B3,
        model=0x1017,
        driver="mlx5_core",
        names=("eth0", "eth1", "mlx5_0"),
        numa_node=1,
        local_cpus=CpuSet.parse("4-7,12-15"),
        interrupts=(120, 121),
        max_virtual_functions=8,
        virtual_functions=("0000:3b:00.2", "0000:3b:00.3"),
    )
    assert [(each.address, each.physical_function) for each in functions] == [
        ("0000:3b:00.2", "0000:3b:00.0"),
        ("0000:3b:00.3", "0000:3b:00.0"),
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("0x020000", "network"),
        ("0x028000", "network"),
        ("0x020700", "infiniband"),
        ("0x0c0600", "infiniband"),
        ("0x010802", "nvme"),
        ("0x030000", "gpu"),
        ("0x030200", "gpu"),
        ("0x120000", "accelerator"),
        ("0x0b4000", "accelerator"),
        ("0x050210", "cxl-memory"),
        ("0x010601", None),
        ("0x060400", None),
        ("0x000000", None),
    ],
)
def test_kinds(code: str, kind: str | None, tmp_path: Path) -> None:
    put(tmp_path, "0000:00:1f.0", **{"class": code})
    assert [each.kind for each in found(tmp_path)] == ([] if kind is None else [kind])


def test_names_of_each_kind(tmp_path: Path) -> None:
    put(tmp_path, "0000:01:00.0", **{"class": "0x010802"}, nvme__nvme0__="")
    put(tmp_path, "0000:02:00.0", **{"class": "0x030200"}, drm__card1__="", drm__renderD128__="")
    put(tmp_path, "0000:03:00.0", **{"class": "0x120000"}, accel__accel0__="")
    put(tmp_path, "0000:04:00.0", **{"class": "0x050210"}, mem0__="")
    put(tmp_path, "0000:05:00.0", **{"class": "0x020000"}, virtio2__net__ens5__="")
    put(tmp_path, "10000:01:00.0", **{"class": "0x010802"}, nvme__nvme1__="")
    assert [(each.address, each.names) for each in found(tmp_path)] == [
        ("0000:01:00.0", ("nvme0",)),
        ("0000:02:00.0", ("card1",)),
        ("0000:03:00.0", ("accel0",)),
        ("0000:04:00.0", ("mem0",)),
        ("0000:05:00.0", ("ens5",)),
        ("10000:01:00.0", ("nvme1",)),
    ]


def test_a_name_of_any_bytes_is_text_that_can_be_saved(tmp_path: Path) -> None:
    put(tmp_path, "0000:3b:00.0", **{"class": "0x020000"}, net__eth0__="")
    os.mkdir(os.fsencode(tmp_path) + b"/" + PCI.encode() + b"/0000:3b:00.0/net/\xff\xc3\xa4")  # noqa: PTH102 - no str has this name
    (card,) = found(tmp_path)
    assert card.names == ("eth0", "\\xff\\xc3\\xa4")


def test_of_other_devices_nothing_but_the_class_is_read(tmp_path: Path) -> None:
    put(tmp_path, "0000:00:01.0", **{"class": "0x060400"}, numa_node="nonsense")
    put(tmp_path, "0000:02:00.0", **{"class": "0x020000"}, numa_node="-1", irq="34")
    sample = read_devices(str(tmp_path))
    assert sorted(sample.files) == [f"{PCI}/0000:02:00.0/{name}" for name in ("class", "irq", "numa_node")]
    (card,) = devices_of(sample)
    assert (card.numa_node, card.interrupts, card.driver, card.local_cpus) == (None, (34,), None, None)


def test_a_machine_without_pci_has_none(tmp_path: Path) -> None:
    assert found(tmp_path) == ()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("vendor", "15b3", "vendor: expected a hexadecimal number such as 0x020000"),
        ("vendor", "0x" + "f" * 99, "vendor: expected a hexadecimal number"),
        ("numa_node", "-2", "numa_node: expected a whole number from -1 to"),
        ("numa_node", "one", "numa_node: expected a whole number from -1 to"),
        ("local_cpulist", "4-", "local_cpulist: expected a CPU list such as 0-3,8"),
        ("local_cpus", "xyz", "local_cpus: expected a CPU mask"),
        ("irq", "99999999999", "irq: expected a whole number"),
        ("sriov_totalvfs", "-1", "sriov_totalvfs: expected a whole number"),
    ],
)
def test_what_the_kernel_does_not_write_is_an_error(file: str, text: str, message: str, tmp_path: Path) -> None:
    put(tmp_path, "0000:02:00.0", **{"class": "0x020000", file: text})
    with pytest.raises(SysfsError) as caught:
        found(tmp_path)
    assert message in caught.value.message


def test_the_root_that_a_card_is_below_is_where_its_link_leads(tmp_path: Path) -> None:
    behind = tmp_path / "sys/devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0"
    behind.mkdir(parents=True)
    (behind / "class").write_text("0x020000\n")
    (tmp_path / PCI).mkdir(parents=True)
    (tmp_path / PCI / "0000:3b:00.0").symlink_to("../../../devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0")
    put(tmp_path, "0000:40:00.0", **{"class": "0x010802"})
    found = {device.address: device.root for device in devices_of(read_devices(str(tmp_path)))}
    assert found == {"0000:3b:00.0": "pci0000:3a", "0000:40:00.0": None}, "of a copy without links nobody says it"


def test_a_link_elsewhere_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "0000:02:00.2", {"physfn": "etc/passwd"}, **{"class": "0x020000"})
    with pytest.raises(SysfsError, match="physfn: expected a link to a PCI device"):
        found(tmp_path)
    (tmp_path / PCI / "0000:02:00.2/physfn").unlink()
    (tmp_path / PCI / "0000:02:00.2/physfn").write_text("no link")
    with pytest.raises(SysfsError, match="physfn: Invalid argument"):
        found(tmp_path)


TWO = MACHINE_A
"""CPUs 0-3,8-11 are on node 0, 4-7,12-15 on node 1."""


def card(node: int | None, local: str | None) -> Device:
    cpus = None if local is None else CpuSet.parse(local)
    return Device("0000:02:00.0", DeviceKind.NETWORK, 0x020000, numa_node=node, local_cpus=cpus)


@pytest.mark.parametrize(
    ("node", "local", "place"),
    [
        (1, "4-7,12-15", DevicePlace(1)),
        (1, "4-7,12-15,16-99", DevicePlace(1)),
        (1, None, DevicePlace(1)),
        (1, "0-15", DevicePlace(1, NodeDoubt.OTHER_CPUS)),
        (0, "4-7,12-15", DevicePlace(0, NodeDoubt.OTHER_CPUS)),
        (7, "0-15", DevicePlace(None, NodeDoubt.NO_SUCH_NODE)),
        (None, "4-7,12-15", DevicePlace(1, NodeDoubt.BY_CPUS)),
        (None, "0-15", DevicePlace(None, NodeDoubt.NOT_SAID)),
        (None, "4-7", DevicePlace(None, NodeDoubt.NOT_SAID)),
        (None, None, DevicePlace(None, NodeDoubt.NOT_SAID)),
        (None, "", DevicePlace(None, NodeDoubt.NOT_SAID)),
    ],
)
def test_where_a_card_is(node: int | None, local: str | None, place: DevicePlace) -> None:
    assert find_node_of(card(node, local), TWO) == place


def test_where_there_is_one_node_it_is_there() -> None:
    one: Topology = machine(nodes=1)
    assert find_node_of(card(None, None), one) == DevicePlace(0)
    assert find_node_of(card(3, None), one) == DevicePlace(None, NodeDoubt.NO_SUCH_NODE)


def test_they_are_grouped_by_node() -> None:
    cards = tuple(
        Device(f"0000:0{n}:00.0", DeviceKind.NVME, 0x010802, numa_node=node) for n, node in enumerate((None, 1, 0, 1))
    )
    assert [(node, [each.address[5:7] for each in members]) for node, members in group_by_node(cards, TWO)] == [
        (0, ["02"]),
        (1, ["01", "03"]),
        (None, ["00"]),
    ]
