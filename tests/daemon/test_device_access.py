"""What a container of a runtime's is given for its devices: what /sys and plugins say together, or why it can't have them."""

import os
from pathlib import Path

import pytest

from nodeagent.core.model.device_access import DeviceAccess, DeviceFile, DeviceMount
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.daemon.domains.runtime.device_access import find_device_access
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from tests.support.protos import generated

MESSAGES = generated("device_plugins")[0]
NULL = Path("/dev/null").stat().st_rdev
DISK = HeldDevice("example.com/disk", "0000:01:00.0", names=("nvme0",))
CARD = HeldDevice("example.com/nic", "0000:02:00.0", names=("eth0",))
GPU = HeldDevice("example.com/gpu", "0000:09:00.0")
"""A plugin's ids may look like addresses."""
FILES = {DISK.id: (DeviceFile("/dev/nvme0", is_block=False, major=240, minor=0),), CARD.id: ()}


def answer(**fields):
    return (("example.com/gpu", MESSAGES.ContainerAllocateResponse(**fields).SerializeToString()),)


def found(*devices, answers=(), own=(), takes_cdi=True):
    return find_device_access(devices, answers, own, takes_cdi=takes_cdi, files=FILES.__getitem__)


def test_the_nodes_devices_have_files_and_variables() -> None:
    assert found(DISK, CARD) == DeviceAccess(
        variables=(
            ("NODEAGENT_DEVICES", "0000:01:00.0,0000:02:00.0"),
            ("NODEAGENT_DEVICE_NAMES", "nvme0,eth0"),
            ("NODEAGENT_DEVICES_EXAMPLE_COM_DISK", "0000:01:00.0"),
            ("NODEAGENT_DEVICES_EXAMPLE_COM_NIC", "0000:02:00.0"),
        ),
        files=FILES[DISK.id],
    )


def test_a_plugins_devices_have_what_it_has_answered() -> None:
    said = answer(
        envs={"GPU": "3", "HOME": "/gpu"},
        devices=[MESSAGES.DeviceSpec(container_path="/dev/gpu", host_path="/dev/null")],
        mounts=[MESSAGES.Mount(container_path="/lib/gpu", host_path="/opt/gpu", read_only=True)],
        annotations={"gpu": "3"},
        cdi_devices=[MESSAGES.CDIDevice(name="example.com/gpu=3")],
    )
    assert found(DISK, GPU, answers=said, own=("HOME",)) == DeviceAccess(
        variables=(
            ("GPU", "3"),
            ("NODEAGENT_DEVICES", "0000:01:00.0,0000:09:00.0"),
            ("NODEAGENT_DEVICE_NAMES", "nvme0"),
            ("NODEAGENT_DEVICES_EXAMPLE_COM_DISK", "0000:01:00.0"),
            ("NODEAGENT_DEVICES_EXAMPLE_COM_GPU", "0000:09:00.0"),
        ),
        files=(DeviceFile("/dev/gpu", is_block=False, major=os.major(NULL), minor=os.minor(NULL)), *FILES[DISK.id]),
        mounts=(DeviceMount("/lib/gpu", "/opt/gpu", is_read_only=True),),
        annotations=(("gpu", "3"),),
        cdi_devices=("example.com/gpu=3",),
    )


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            {"devices": [MESSAGES.DeviceSpec(container_path="/dev/gpu", host_path="/nowhere/gpu")]},
            "the device plugin of example.com/gpu names /nowhere/gpu: No such file or directory",
        ),
        (
            {"devices": [MESSAGES.DeviceSpec(container_path="/dev/gpu", host_path="/dev")]},
            "the device plugin of example.com/gpu names /dev, which is not a device file",
        ),
        (
            {"mounts": [MESSAGES.Mount(container_path="lib", host_path="/opt")]},
            "invalid answer of the device plugin of example.com/gpu: container_path 'lib' is not an absolute path",
        ),
        (
            {"cdi_devices": [MESSAGES.CDIDevice(name="example.com/gpu=3")]},
            "names CDI devices (example.com/gpu=3), which this runtime supports only from NRI 0.7 on (containerd 2.0)",
        ),
    ],
)
def test_what_can_not_be_given_is_told(said, problem) -> None:
    why = found(GPU, answers=answer(**said), takes_cdi=False)
    assert isinstance(why, str)
    assert problem in why


def test_an_answer_of_a_damaged_state_is_told() -> None:
    """Its beginning is the variables, which were read when it came, and by nobody since."""
    why = found(GPU, answers=(("example.com/gpu", b"\x0a\x04\x0a\x02\xff\xfe"),))
    assert isinstance(why, str)
    assert why.startswith("invalid answer of the device plugin of example.com/gpu: ")


def test_a_device_that_is_gone_is_told() -> None:
    def gone(_address: str) -> tuple[DeviceFile, ...]:
        raise SysfsError("/sys/bus/pci/devices/0000:01:00.0", "there is no such device")

    why = find_device_access((DISK,), (), (), takes_cdi=True, files=gone)
    assert isinstance(why, str)
    assert why.startswith("device 0000:01:00.0 (example.com/disk): cannot use /sys/bus/pci/devices/0000:01:00.0: ")


def test_the_agents_unit_lets_it_see_the_files_that_plugins_name_and_open_none() -> None:
    unit = (Path(__file__).parents[2] / "systemd" / "nodeagent.service").read_text().splitlines()
    assert "PrivateDevices=yes" not in unit, "its /dev would have none of them, and every container with one be denied"
    assert {"ReadOnlyPaths=/dev", "DevicePolicy=closed"} <= {*unit}
