"""Files with the kernel and service settings that `nodeagent check` judges."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from nodeagent.formats.kernel.sysfs_sample import CPUS, NODES, SysfsSample

CGROUPS = "sys/fs/cgroup"
PODS_UNIT = f"{CGROUPS}/nodeagent.slice/nodeagent-pods.service"
KUBELET_STATE = "var/lib/kubelet/cpu_manager_state"
KUBEPODS = (f"{CGROUPS}/kubepods.slice/cgroup.events", f"{CGROUPS}/kubepods/cgroup.events")
"""Files that exist if kubelet has pods, even if kubelet is part of another program such as k3s."""
SYSTEMD = f"{CGROUPS}/init.scope/cgroup.events"
"""File that exists if the first process is systemd."""
SERVICES = ("irqbalance", "kubelet", "numad", "tuned")
"""Services that change settings on which the agent relies, or that move processes and interrupts to other CPUs."""

SWAPS = "proc/swaps"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
KSM = "sys/kernel/mm/ksm/run"
NO_TURBO, BOOST = f"{CPUS}/intel_pstate/no_turbo", f"{CPUS}/cpufreq/boost"
ASLR = "proc/sys/kernel/randomize_va_space"
_CLOCK = "sys/devices/system/clocksource/clocksource0"
CLOCKSOURCE, CLOCKSOURCES = f"{_CLOCK}/current_clocksource", f"{_CLOCK}/available_clocksource"
RT_RUNTIME = "proc/sys/kernel/sched_rt_runtime_us"
NMI_WATCHDOG = "proc/sys/kernel/nmi_watchdog"
STAT_INTERVAL = "proc/sys/vm/stat_interval"
PERF_RATE = "proc/sys/kernel/perf_event_max_sample_rate"
TIMER_MIGRATION = "proc/sys/kernel/timer_migration"
IDLE_STATE = f"{CPUS}/cpu0/cpuidle/state{{}}/{{}}"
"""Pattern of the files of an idle state, by its number and the file's name. All CPUs of a kind have the same states."""
VULNERABILITIES = tuple(
    f"{CPUS}/vulnerabilities/{name}"
    for name in (
        "meltdown",
        "spectre_v1",
        "spectre_v2",
        "mds",
        "retbleed",
        "srbds",
        "gather_data_sampling",
        "spec_rstack_overflow",
    )
)

SETTINGS = (
    "proc/cmdline",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/numa_balancing",
    f"{CPUS}/isolated",
    f"{CPUS}/nohz_full",
    f"{CPUS}/smt/control",
    f"{CPUS}/smt/active",
    f"{CPUS}/cpu#/cpufreq/scaling_governor",
    f"{NODES}/node#/hugepages/hugepages-#kB/free_hugepages",
    f"{CGROUPS}/cgroup.controllers",
    f"{CGROUPS}/cgroup.subtree_control",
    f"{PODS_UNIT}/cgroup.controllers",
    SYSTEMD,
    *(f"{CGROUPS}/system.slice/{name}.service/cgroup.events" for name in SERVICES),
    *KUBEPODS,
    KUBELET_STATE,
    *(
        SWAPS,
        THP,
        KSM,
        NO_TURBO,
        BOOST,
        ASLR,
        CLOCKSOURCE,
        CLOCKSOURCES,
        RT_RUNTIME,
        NMI_WATCHDOG,
        STAT_INTERVAL,
        PERF_RATE,
        TIMER_MIGRATION,
    ),
    *(IDLE_STATE.format("#", name) for name in ("name", "latency", "disable")),
    *VULNERABILITIES,
)
"""Paths of the files to read, below the root, in the notation of `sysfs_sample.WANTED`."""

COMMAND_LINE = "in GRUB_CMDLINE_LINUX of /etc/default/grub, then: sudo update-grub && sudo reboot # undo: the same with the old line"
"""Advice for users on where to set kernel parameters."""

_PARAMETERS = """
cgroup_disable cgroup_no_v1 default_hugepagesz hugepages hugepagesz irqaffinity isolcpus maxcpus mitigations nohz
nohz_full nosmt nr_cpus numa numa_balancing rcu_nocbs systemd.unified_cgroup_hierarchy transparent_hugepage
"""
KERNEL_PARAMETERS = frozenset(_PARAMETERS.split())
"""The only parameters read from the kernel's command line. Others may be secret, so captures leave them out."""


class Settings(Struct, frozen=True):
    sample: SysfsSample = field(default_factory=lambda: SysfsSample(MappingProxyType({}), MappingProxyType({})))
    unreadable: tuple[str, ...] = ()
    """Files of `SETTINGS` that could not be read."""


def remove_unknown_parameters(cmdline: str) -> str:
    """Remove all parameters except KERNEL_PARAMETERS."""
    return " ".join(word for word in cmdline.split() if word.partition("=")[0] in KERNEL_PARAMETERS) + "\n"


def parse_parameters(cmdline: str) -> Mapping[str, str]:
    """Return the kernel parameters' values by name. The last value of a repeated parameter counts, as for most kernel parameters."""
    pairs = (word.partition("=") for word in cmdline.split())
    return {name: value for name, _, value in pairs}
