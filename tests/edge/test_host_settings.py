"""Which settings of the host are found, and what is written to them."""

import errno
import os
from pathlib import Path

import pytest

from nodeagent.core.host.settings import NEW_IRQS, Facts, Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.host_settings import HostSettingsFiles, read_boot_id, read_host_cpus, read_possible_cpus
from nodeagent.formats.kernel.host_files import HostFileError

FILES = {
    "proc/irq/24/smp_affinity_list": "0-3\n",
    "proc/irq/9/smp_affinity_list": "1\n",
    "proc/irq/default_smp_affinity": "f\n",
    "sys/class/net/eth0/queues/rx-0/rps_cpus": "00\n",
    "sys/class/net/eth0/queues/tx-0/xps_cpus": "3\n",
    "sys/devices/virtual/workqueue/cpumask": "f\n",
    "sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us": "n/a\n",
    "sys/devices/system/cpu/cpu10/power/control": "auto\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil\n",
    "sys/devices/system/cpu/cpu1/cpufreq/related_cpus": "1\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_min_freq": "800000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_max_freq": "3500000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/boost": "1\n",
    "sys/devices/system/cpu/cpu2/cpufreq/scaling_max_freq": "3500000\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor": "schedutil\n",
    "sys/devices/system/cpu/cpu2/cpufreq/related_cpus": "2 3\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def found(root: Path, *kinds: SettingKind) -> dict[tuple[SettingKind, str], str]:
    read = HostSettingsFiles(str(root)).read(frozenset(kinds))
    return {(setting.kind, setting.name): str(cpus) for setting, cpus in read.items()}


def test_all_are_found(root: Path) -> None:
    assert found(root, *SettingKind) == {
        (SettingKind.IRQ, "24"): "0-3",
        (SettingKind.IRQ, "9"): "1",
        (SettingKind.NEW_IRQS, ""): "0-3",
        (SettingKind.QUEUE, "eth0/queues/rx-0/rps_cpus"): "",
        (SettingKind.QUEUE, "eth0/queues/tx-0/xps_cpus"): "0-1",
        (SettingKind.WORKQUEUE, ""): "0-3",
        (SettingKind.IDLE_LATENCY, "1"): "n/a",
        (SettingKind.GOVERNOR, "1"): "schedutil",
        (SettingKind.MIN_FREQUENCY, "1"): "800000",
        (SettingKind.MAX_FREQUENCY, "1"): "3500000",
        (SettingKind.BOOST, "1"): "1",
        (SettingKind.MACHINE_BOOST, "intel_pstate/no_turbo"): "0",
    }


def test_only_those_of_the_kinds_that_are_asked_for(root: Path) -> None:
    assert found(root, SettingKind.WORKQUEUE, SettingKind.THREAD).keys() == {(SettingKind.WORKQUEUE, "")}


def test_of_unbound_work_what_was_written_counts_where_the_kernel_shows_it(root: Path) -> None:
    """Its `cpumask` lacks the CPUs of isolated partitions."""
    requested = root / "sys/devices/virtual/workqueue/cpumask_requested"
    requested.write_text("7\n")
    requested.chmod(0o444)
    assert found(root, SettingKind.WORKQUEUE) == {(SettingKind.WORKQUEUE, ""): "0-2"}


def test_the_machines_cpus(root: Path) -> None:
    with pytest.raises(HostFileError, match="sys/devices/system/cpu/possible"):
        read_possible_cpus(str(root))
    for file, cpus in (("sys/devices/system/cpu/possible", "0-7"), ("sys/fs/cgroup/cpuset.cpus.effective", "0-1,4-7")):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"{cpus}\n")
    assert (str(read_possible_cpus(str(root))), str(read_host_cpus(str(root)))) == ("0-7", "0-1,4-7")


def test_one_that_nobody_may_write_cannot_be_changed(root: Path) -> None:
    (root / "proc/irq/24/smp_affinity_list").chmod(0o444)
    assert (SettingKind.IRQ, "24") not in found(root, SettingKind.IRQ)


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, *SettingKind) == {}
    assert read_boot_id(str(tmp_path)) == ""


def test_something_else_in_a_file_is_an_error(root: Path) -> None:
    (root / "proc/irq/24/smp_affinity_list").write_text("all\n")
    with pytest.raises(HostFileError, match="/proc/irq/24/smp_affinity_list"):
        found(root, SettingKind.IRQ)


def unreadable(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    """Let the kernel refuse to show what one file holds."""
    opened = os.open

    def open_file(path: str, *args: int) -> int:
        if path.endswith(name):
            raise OSError(error, os.strerror(error), path)
        return opened(path, *args)

    monkeypatch.setattr(os, "open", open_file)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOENT])
def test_a_queue_that_has_no_mask_holds_up_no_other(root: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    unreadable(monkeypatch, "xps_cpus", error)
    assert found(root, SettingKind.QUEUE).keys() == {(SettingKind.QUEUE, "eth0/queues/rx-0/rps_cpus")}


def test_one_that_cannot_be_read_although_it_is_there_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch, "xps_cpus", errno.EIO)
    with pytest.raises(HostFileError, match="xps_cpus: Input/output error"):
        found(root, SettingKind.QUEUE)


def test_each_write_has_its_own_result(root: Path) -> None:
    files = HostSettingsFiles(str(root))
    good, gone = files.path(NEW_IRQS), files.path(Setting(SettingKind.IRQ, "77"))
    assert files.write([(good, "3"), (gone, "0")]) == (None, os.strerror(errno.ENOENT))
    assert files.read({SettingKind.NEW_IRQS}) == {NEW_IRQS: CpuSet.parse("0-1")}


def test_the_boot_has_an_identity(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("4f3c\n")
    assert read_boot_id(str(tmp_path)) == "4f3c"


def test_an_interrupt_has_an_instance_and_the_cpus_of_its_devices_node(root: Path) -> None:
    for file, content in {
        "proc/irq/24/node": "1\n",
        "proc/irq/9/node": "-1\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
        "sys/devices/system/node/possible": "0-1\n",
        "sys/kernel/irq/24/type": "edge\n",
    }.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
    files = HostSettingsFiles(str(root))
    settings = files.read({SettingKind.IRQ, SettingKind.NEW_IRQS})
    assert files.read_facts(settings) == {
        Setting(SettingKind.IRQ, "24"): Facts((root / "sys/kernel/irq/24").stat().st_ino, CpuSet.parse("2-3")),
        Setting(SettingKind.IRQ, "9"): Facts(),
    }
    assert files.read_facts([Setting(SettingKind.IRQ, "77")]) == {Setting(SettingKind.IRQ, "77"): Facts()}


def test_a_queue_has_the_instance_of_its_interface(root: Path) -> None:
    files = HostSettingsFiles(str(root))
    queues = files.read({SettingKind.QUEUE})
    assert set(files.read_facts(queues).values()) == {Facts()}
    (root / "sys/class/net/eth0/ifindex").write_text("2\n")
    assert files.read_facts(queues) == dict.fromkeys(queues, Facts(2))


def test_interrupts_of_a_device_are_found_by_its_address_and_its_interface(root: Path) -> None:
    virtio = root / "sys/devices/pci0000:00/0000:00:03.0/virtio0"
    virtio.mkdir(parents=True)
    for number in ("24", "25"):
        (virtio.parent / "msi_irqs").mkdir(exist_ok=True)
        (virtio.parent / "msi_irqs" / number).write_text("msix\n")
    old = root / "sys/devices/pci0000:00/0000:00:04.0"
    old.mkdir()
    (old / "irq").write_text("11\n")
    none = root / "sys/devices/pci0000:00/0000:00:05.0"
    none.mkdir()
    (none / "irq").write_text("0\n")
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for device in (virtio.parent, old, none):
        (devices / device.name).symlink_to(device)
    (root / "sys/class/net/eth0/device").symlink_to(virtio)

    files = HostSettingsFiles(str(root))
    found = {
        device: sorted(setting.name for setting in files.interrupts_of(device))
        for device in ("0000:00:03.0", "eth0", "0000:00:04.0", "0000:00:05.0", "eth1", "lo")
    }
    assert found == {
        "0000:00:03.0": ["24", "25"],
        "eth0": ["24", "25"],
        "0000:00:04.0": ["11"],
        "0000:00:05.0": [],
        "eth1": [],
        "lo": [],
    }
