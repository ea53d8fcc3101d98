"""Where the kernel has the settings of the host that name CPUs, and how it spells them."""

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.sysfs_sample import parse_cpu_mask, print_cpu_mask

IRQS = "proc/irq"
QUEUES = "sys/class/net"
WORKQUEUES = "sys/devices/virtual/workqueue"
CPUMASK = "cpumask"
REQUESTED = "cpumask_requested"
"""Beside it on newer kernels: what was written, of which `cpumask` has those that are in no isolated partition."""

WRITABLE = 0o222
"""Of a file's mode; newer kernels show the affinity of an interrupt that can't be moved without it."""


class HostFileError(NodeAgentError):
    """A file does not hold a set of CPUs."""


def path_of(setting: Setting) -> str:
    """Return the file of a setting, relative to the root.

    Raises:
        ValueError: its kind has no file.
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
    """Return what the launcher is asked to write to: a file, or a kernel thread."""
    return f"thread {setting.name}" if setting.kind is SettingKind.THREAD else f"/{path_of(setting)}"


def spelled(setting: Setting, cpus: CpuSet) -> str:
    """Return what to write to the setting's file, or for a kernel thread."""
    return str(cpus) if setting.kind in {SettingKind.IRQ, SettingKind.THREAD} else print_cpu_mask(cpus)


def read_cpus(setting: Setting, text: str) -> CpuSet:
    """Read the setting's file.

    Raises:
        HostFileError: it holds something else.
    """
    if setting.kind is SettingKind.IRQ:
        try:
            return CpuSet.parse(text.strip())
        except IdSetSyntaxError as err:
            raise _misfit(setting, "a CPU list such as 0-3,8", text) from err
    try:
        return parse_cpu_mask(text)
    except ValueError as err:
        raise _misfit(setting, "a CPU mask such as 00000000,0000ff0f", text) from err


def described(setting: Setting) -> str:
    """Name a setting in a message."""
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


def _misfit(setting: Setting, expected: str, text: str) -> HostFileError:
    return HostFileError(
        f"/{path_of(setting)}: expected {expected}, found {text.strip()[:80]!r}",
        hint="`uname -r` for a report of it; `interruptIsolation: none` and `hostIsolation: none` do without these files",
    )
