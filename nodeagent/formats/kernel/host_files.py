"""Paths and notation of host settings whose values are CPUs."""

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.sysfs_sample import format_cpu_mask, parse_cpu_mask

IRQS = "proc/irq"
QUEUES = "sys/class/net"
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


class HostFileError(NodeAgentError):
    """A file doesn't contain a set of CPUs."""


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
        case _:
            raise ValueError(f"{setting.kind} has no file")


def place_of(setting: Setting) -> str:
    """Return the setting's target in a request to the launcher: a file or a kernel thread."""
    return f"thread {setting.name}" if setting.kind is SettingKind.THREAD else f"/{path_of(setting)}"


def format_cpus(setting: Setting, cpus: CpuSet) -> str:
    """Format CPUs for the setting's file or for a kernel thread."""
    return str(cpus) if setting.kind in {SettingKind.IRQ, SettingKind.THREAD} else format_cpu_mask(cpus)


def read_cpus(setting: Setting, text: str) -> CpuSet:
    """Parse the content of a setting's file.

    Raises:
        HostFileError: the content is not a set of CPUs.
    """
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
    """Return the setting's name for a message."""
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


def _format_error(setting: Setting, expected: str, text: str) -> HostFileError:
    return HostFileError(
        f"/{path_of(setting)}: expected {expected}, found {text.strip()[:80]!r}",
        hint="please report this with the output of `uname -r`; `interruptIsolation: none` and `hostIsolation: none` avoid these files",
    )
