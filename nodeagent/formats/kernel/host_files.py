"""Paths of the files of host settings that restrict CPUs or belong to a CPU, and the notation of their values."""

from nodeagent.core.host.settings import WITH_TEXT, Setting, SettingKind, Value
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.sysfs_sample import format_cpu_mask, parse_cpu_mask

IRQS = "proc/irq"
QUEUES = "sys/class/net"
CPUS = "sys/devices/system/cpu"
WORKQUEUES = "sys/devices/virtual/workqueue"
CPUMASK = "cpumask"
REQUESTED = "cpumask_requested"
"""File next to `cpumask`, on newer kernels, with the value as written. `cpumask` itself excludes CPUs of isolated
partitions.
"""

WRITABLE = 0o222
"""Write bits of a file's mode. Newer kernels clear these bits of an interrupt's affinity file if the interrupt can't be
moved.
"""


_LONGEST_TEXT = 40


class HostFileError(NodeAgentError):
    """A file of a host setting can't be read or is malformed."""


def path_of(setting: Setting) -> str:
    """Return the path of a setting's file, relative to the root.

    Raises:
        ValueError: settings of this kind have no file.
    """
    match setting.kind:
        case SettingKind.IRQ:
            return f"{IRQS}/{setting.name}/smp_affinity_list"
        case SettingKind.NEW_IRQS:
            return f"{IRQS}/default_smp_affinity"
        case SettingKind.QUEUE:
            return f"{QUEUES}/{setting.name}"
        case SettingKind.WORKQUEUE:
            return f"{WORKQUEUES}/{CPUMASK}"
        case SettingKind.IDLE_LATENCY:
            return f"{CPUS}/cpu{setting.name}/power/pm_qos_resume_latency_us"
        case SettingKind.GOVERNOR:
            return f"{CPUS}/cpu{setting.name}/cpufreq/scaling_governor"
        case SettingKind.MIN_FREQUENCY:
            return f"{CPUS}/cpu{setting.name}/cpufreq/scaling_min_freq"
        case SettingKind.MAX_FREQUENCY:
            return f"{CPUS}/cpu{setting.name}/cpufreq/scaling_max_freq"
        case SettingKind.BOOST:
            return f"{CPUS}/cpu{setting.name}/cpufreq/boost"
        case SettingKind.MACHINE_BOOST:
            return f"{CPUS}/{setting.name}"
        case _:
            raise ValueError(f"{setting.kind} has no file")


def place_of(setting: Setting) -> str:
    """Return the absolute path or the kernel thread that names the setting in a request to the launcher."""
    return f"thread {setting.name}" if setting.kind is SettingKind.THREAD else f"/{path_of(setting)}"


def format_value(setting: Setting, value: Value) -> str:
    """Format a value for the setting's file or for a kernel thread."""
    if isinstance(value, str):
        return value
    return str(value) if setting.kind in {SettingKind.IRQ, SettingKind.THREAD} else format_cpu_mask(value)


def read_value(setting: Setting, text: str) -> Value:
    """Parse the content of a setting's file.

    Raises:
        HostFileError: the content is neither a set of CPUs nor a single word, whichever this setting requires.
    """
    if setting.kind in WITH_TEXT:
        word = text.strip()
        if not word or len(word.split()) > 1 or len(word) > _LONGEST_TEXT:
            raise _format_error(setting, "a word", text)
        return word
    if setting.kind is SettingKind.IRQ:
        try:
            return CpuSet.parse(text.strip())
        except IdSetSyntaxError as err:
            raise _format_error(setting, "a CPU list such as 0-3,8", text) from err
    try:
        return parse_cpu_mask(text)
    except ValueError as err:
        raise _format_error(setting, "a CPU mask such as 00000000,0000ff0f", text) from err


def describe_setting(setting: Setting) -> str:
    """Return the setting's description for a message."""
    match setting.kind:
        case SettingKind.IRQ:
            return f"interrupt {setting.name}"
        case SettingKind.NEW_IRQS:
            return "new interrupts"
        case SettingKind.QUEUE:
            return f"network queue {setting.name}"
        case SettingKind.WORKQUEUE:
            return "unbound workqueues"
        case SettingKind.IRQBALANCE:
            return "irqbalance"
        case SettingKind.BALANCING:
            return f"interrupt {setting.name} in irqbalance"
        case SettingKind.THREAD:
            return f"kernel thread {setting.name.partition('@')[0]}"
        case SettingKind.UNIT:
            return setting.name
        case SettingKind.IDLE_LATENCY:
            return f"idle latency of CPU {setting.name}"
        case SettingKind.GOVERNOR:
            return f"frequency governor of CPU {setting.name}"
        case SettingKind.MIN_FREQUENCY:
            return f"lowest frequency of CPU {setting.name}"
        case SettingKind.MAX_FREQUENCY:
            return f"highest frequency of CPU {setting.name}"
        case SettingKind.BOOST:
            return f"boost of CPU {setting.name}"
        case SettingKind.MACHINE_BOOST:
            return f"boost of all CPUs ({setting.name})"


def _format_error(setting: Setting, expected: str, text: str) -> HostFileError:
    return HostFileError(
        f"/{path_of(setting)}: expected {expected}, found {text.strip()[:80]!r}",
        hint="please report this with the output of `uname -r`; `interruptIsolation: none` and `hostIsolation: none` avoid these files",
    )
