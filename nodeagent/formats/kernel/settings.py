"""Files with the kernel and service settings that `nodeagent check` judges."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from nodeagent.formats.kernel.sysfs_sample import CPUS, NODES, SysfsSample

CGROUPS = "sys/fs/cgroup"
PODS_UNIT = f"{CGROUPS}/nodeagent.slice/nodeagent-pods.service"
KUBELET_STATE = "var/lib/kubelet/cpu_manager_state"
KUBEPODS = (f"{CGROUPS}/kubepods.slice/cgroup.events", f"{CGROUPS}/kubepods/cgroup.events")
"""Files that exist if there are kubelet's pods, no matter which program contains kubelet."""
SYSTEMD = f"{CGROUPS}/init.scope/cgroup.events"
"""File that exists if the first process is systemd."""
SERVICES = ("irqbalance", "kubelet", "numad", "tuned")
"""Services that write settings the agent relies on, or that move processes and interrupts."""

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
)
"""Files below the root, in the notation of `sysfs_sample.WANTED`."""

COMMAND_LINE = "in GRUB_CMDLINE_LINUX of /etc/default/grub, then: sudo update-grub && sudo reboot"
"""Advice where to set the kernel's parameters."""

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
    """Return the values by name. The last value of a repeated parameter counts, as for most kernel parameters."""
    pairs = (word.partition("=") for word in cmdline.split())
    return {name: value for name, _, value in pairs}
