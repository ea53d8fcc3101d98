"""The kernel's notation of settings that name CPUs."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.host.settings import NEW_IRQS, Setting, SettingKind
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.formats.kernel.host_files import HostFileError, cpu_map, described, path_of, read_cpus, spelled
from nodeagent.launcher.order import HOST_FILE, HOST_VALUE

IRQ = Setting(SettingKind.IRQ, "24")
QUEUE = Setting(SettingKind.QUEUE, "eth0/queues/tx-1/xps_cpus")
WORK, ONE_WORKQUEUE = Setting(SettingKind.WORKQUEUE), Setting(SettingKind.WORKQUEUE, "writeback")
FILES = {
    IRQ: "proc/irq/24/smp_affinity_list",
    NEW_IRQS: "proc/irq/default_smp_affinity",
    QUEUE: "sys/class/net/eth0/queues/tx-1/xps_cpus",
    WORK: "sys/devices/virtual/workqueue/cpumask",
    ONE_WORKQUEUE: "sys/devices/virtual/workqueue/writeback/cpumask",
}


@pytest.mark.parametrize("setting", FILES)
def test_each_has_its_file_which_the_launcher_writes(setting: Setting) -> None:
    assert path_of(setting) == FILES[setting]
    assert HOST_FILE.fullmatch("/" + path_of(setting))


@pytest.mark.parametrize(
    ("cpus", "text"),
    [("0-3", "0000000f"), ("32", "00000001,00000000"), ("", "00000000"), ("0,95", "80000000,00000000,00000001")],
)
def test_a_mask_has_words_of_32_bits(cpus: str, text: str) -> None:
    assert cpu_map(CpuSet.parse(cpus)) == text


@given(st.sampled_from(list(FILES)), st.integers(1, 2**1024 - 1))
def test_what_is_written_is_what_is_read(setting: Setting, bits: int) -> None:
    cpus = CpuSet(CpuMask(bits))
    assert read_cpus(setting, spelled(setting, cpus) + "\n") == cpus
    assert HOST_VALUE.fullmatch(spelled(setting, cpus))


@pytest.mark.parametrize(("setting", "text"), [(IRQ, "ffff\n"), (QUEUE, "0-3\n"), (WORK, ""), (WORK, "f" * 9)])
def test_anything_else_is_an_error_with_the_file(setting: Setting, text: str) -> None:
    with pytest.raises(HostFileError, match=f"/{path_of(setting)}: expected a CPU"):
        read_cpus(setting, text)


def test_messages_name_them() -> None:
    assert [described(setting) for setting in FILES] == [
        "interrupt 24",
        "new interrupts",
        "network queue eth0/queues/tx-1/xps_cpus",
        "unbound workqueues",
        "workqueue writeback",
    ]
