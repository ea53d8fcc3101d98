"""The kernel's notation of settings that name CPUs."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.host.settings import NEW_IRQS, Setting, SettingKind
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.formats.kernel.host_files import (
    HostFileError,
    describe_setting,
    format_value,
    path_of,
    place_of,
    read_value,
)
from nodeagent.formats.kernel.sysfs_sample import format_cpu_mask
from nodeagent.launcher.order import CPU_FILE, CPU_VALUE, HOST_FILE, HOST_VALUE, THREAD, parse_cpus

IRQ = Setting(SettingKind.IRQ, "24")
QUEUE = Setting(SettingKind.QUEUE, "eth0/queues/tx-1/xps_cpus")
WORK = Setting(SettingKind.WORKQUEUE)
FILES = {
    IRQ: "proc/irq/24/smp_affinity_list",
    NEW_IRQS: "proc/irq/default_smp_affinity",
    QUEUE: "sys/class/net/eth0/queues/tx-1/xps_cpus",
    WORK: "sys/devices/virtual/workqueue/cpumask",
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
    assert format_cpu_mask(CpuSet.parse(cpus)) == text


@given(st.sampled_from(list(FILES)), st.integers(1, 2**1024 - 1))
def test_what_is_written_is_what_is_read(setting: Setting, bits: int) -> None:
    cpus = CpuSet(CpuMask(bits))
    assert read_value(setting, format_value(setting, cpus) + "\n") == cpus
    assert HOST_VALUE.fullmatch(format_value(setting, cpus))


@pytest.mark.parametrize(("setting", "text"), [(IRQ, "ffff\n"), (QUEUE, "0-3\n"), (WORK, ""), (WORK, "f" * 9)])
def test_anything_else_is_an_error_with_the_file(setting: Setting, text: str) -> None:
    with pytest.raises(HostFileError, match=f"/{path_of(setting)}: expected a CPU"):
        read_value(setting, text)


def test_a_setting_of_one_cpu_is_a_word() -> None:
    latency = Setting(SettingKind.IDLE_LATENCY, "12")
    assert place_of(latency) == "/sys/devices/system/cpu/cpu12/power/pm_qos_resume_latency_us"
    assert CPU_FILE.fullmatch(place_of(latency))
    governor = Setting(SettingKind.GOVERNOR, "12")
    assert place_of(governor) == "/sys/devices/system/cpu/cpu12/cpufreq/scaling_governor"
    assert CPU_FILE.fullmatch(place_of(governor))
    assert describe_setting(governor) == "frequency governor of CPU 12"
    paths = {
        SettingKind.MIN_FREQUENCY: ("12", "cpu12/cpufreq/scaling_min_freq"),
        SettingKind.MAX_FREQUENCY: ("12", "cpu12/cpufreq/scaling_max_freq"),
        SettingKind.BOOST: ("12", "cpu12/cpufreq/boost"),
        SettingKind.MACHINE_BOOST: ("intel_pstate/no_turbo", "intel_pstate/no_turbo"),
    }
    for kind, (name, path) in paths.items():
        assert place_of(Setting(kind, name)) == f"/sys/devices/system/cpu/{path}"
        assert CPU_FILE.fullmatch(place_of(Setting(kind, name)))
        assert name in describe_setting(Setting(kind, name))
    assert not CPU_FILE.fullmatch("/sys/devices/system/cpu/intel_pstate/status")
    for word in ("0", "5", "n/a", "performance", "schedutil"):
        assert read_value(latency, f"{word}\n") == word == format_value(latency, word)
        assert CPU_VALUE.fullmatch(word)
    for text in ("", "\n", "5 6\n", "7" * 41):
        with pytest.raises(HostFileError, match="pm_qos_resume_latency_us: expected a word"):
            read_value(latency, text)
    assert describe_setting(latency) == "idle latency of CPU 12"


def test_a_kernel_thread_has_no_file_and_its_list_of_cpus() -> None:
    thread = Setting(SettingKind.THREAD, "45@1234")
    assert place_of(thread) == "thread 45@1234"
    assert THREAD.fullmatch(place_of(thread))
    assert parse_cpus(format_value(thread, CpuSet.parse("0-3,8"))) == (range(4), range(8, 9))
    with pytest.raises(ValueError, match="thread has no file"):
        path_of(thread)


def test_messages_name_them() -> None:
    others = [
        Setting(SettingKind.THREAD, "45@1"),
        Setting(SettingKind.UNIT, "user.slice"),
        Setting(SettingKind.IRQBALANCE),
    ]
    assert [describe_setting(setting) for setting in (*FILES, *others)] == [
        "interrupt 24",
        "new interrupts",
        "network queue eth0/queues/tx-1/xps_cpus",
        "unbound workqueues",
        "kernel thread 45",
        "user.slice",
        "irqbalance",
    ]
