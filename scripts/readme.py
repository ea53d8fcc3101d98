# ruff: noqa: INP001, E501 - a script of its own, with a table of one row per line
"""Writes the README's tables from the code they are about: `make readme`. Tests hold the README to it."""

import re
import sys
from pathlib import Path

from nodeagent.core.cpu.options import OPTIONS
from nodeagent.core.model.config import DEFAULT_GATES, Config
from nodeagent.core.model.errata import ERRATA

README = Path(__file__).parent.parent / "README.md"
_DEFAULT = Config()
_PLACED = _DEFAULT.placement
_ON, _OFF = (", ".join(f"`{name}`" for name, on in DEFAULT_GATES.items() if on is wanted) for wanted in (True, False))

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("cpuManagerPolicy", _PLACED.cpu_manager_policy, "`static`: Guaranteed containers that ask for whole CPUs get their own"),
    ("cpuManagerPolicyOptions", "", ", ".join(f"`{option}`" for option in OPTIONS)),
    ("cpuManagerPlugins", "", "installed plugins that choose CPUs beside the policy, by `name`, with `options`: `spread-caches`, `prefer-class`, your own"),
    ("reservedSystemCPUs", "", "CPUs that are never given exclusively; `static` needs this, or an amount of cpu in one of the next two"),
    ("systemReserved, kubeReserved", "", "`cpu` and `memory` that pods can't have"),
    ("topologyManagerPolicy", _PLACED.topology_manager_policy, "`best-effort`, `restricted`, `single-numa-node`"),
    (
        "isolatedCPUs",
        _PLACED.isolated_cpus,
        "for exclusive use, `prefer` the CPUs isolated with `isolcpus`, or give `only` those",
    ),
    (
        "exclusiveCoreClass",
        _PLACED.exclusive_core_class,
        "where cores are of several kinds, `performance` or `efficiency`: exclusive CPUs are of this kind, if that is possible",
    ),
    ("sharedCoreClass", _PLACED.shared_core_class, "likewise: containers without exclusive CPUs run on this kind"),
    ("devices", "", "what pods may ask for by number, to have it alone: a `resource`, and what `select`s its devices"),
    (
        "preferCPUsNumaNode",
        "false",
        "`true`: where a pod's devices and its CPUs conflict, a NUMA node that its CPUs prefer wins over the devices'",
    ),
    ("resizeBelowAdmittedCPUs", "false", "`true`: a resize may take away CPUs that a container was admitted with"),
    ("topologyManagerScope", _PLACED.topology_manager_scope, "`pod`: one decision for all containers of a pod"),
    ("topologyManagerPolicyOptions", "", "`prefer-closest-numa-nodes`, `max-allowable-numa-nodes`, `prefer-most-allocated-numa-node`"),
    ("memoryManagerPolicy", _PLACED.memory_manager_policy, "`Static`: Guaranteed pods' memory and huge pages on chosen NUMA nodes"),
    ("reservedMemory", "", "required by `Static`, per NUMA node; must add up to the node's total reservation"),
    ("evictionHard", "memory.available: 100Mi", "set aside like a reservation; nothing is evicted"),
    ("mergeDefaultEvictionSettings", "false", "thresholds not listed in `evictionHard` keep their defaults"),
    ("featureGates", "", f"as in kubelet 1.36 on: {_ON}; off: {_OFF}"),
    ("cpuManagerReconcilePeriod", f"{_DEFAULT.cpu_manager_reconcile_period_ms // 1000}s", "how often cgroups are compared with what they should be"),
    ("fileCheckFrequency", f"{_DEFAULT.file_check_frequency_ms // 1000}s", "how often manifests are read even without a change notification"),
    (
        "hostIsolation",
        _DEFAULT.host_isolation,
        "`partition`: the host's processes leave exclusive CPUs, too",
    ),
    (
        "hostCoreClass",
        _DEFAULT.host_core_class,
        "with `hostIsolation`, `performance` or `efficiency`: the host's processes and the kernel's work are on this kind of cores",
    ),
    ("interruptIsolation", _DEFAULT.interrupt_isolation, "`affinity`: interrupts that can be moved leave exclusive CPUs, too"),
    ("cpuCFSQuota", str(_DEFAULT.cpu_cfs_quota).lower(), "enforce CPU limits of containers without exclusive CPUs"),
    ("cpuCFSQuotaPeriod", f"{_DEFAULT.cpu_cfs_quota_period_us // 1000}ms", "other values need the gate `CustomCPUCFSQuotaPeriod`"),
    (
        "memorySwap",
        f"swapBehavior: {_DEFAULT.swap_behavior}",
        "containers use no swap; `UnlimitedSwap`: as much as the host has; `LimitedSwap` is `NoSwap` here, as for kubelet's static pods",
    ),
    ("checkAllocatable", str(_DEFAULT.check_allocatable).lower(), "refuse pods that ask for more than the node has left"),
    ("maxPods, podsPerCore", f"{_DEFAULT.max_pods}, {_DEFAULT.pods_per_core}", "limits on the number of pods; `podsPerCore: 0`: no limit per CPU"),
    ("manifestDirectory, staticPodPath", _DEFAULT.static_pod_path, "two names for one directory; its `*.yaml`, `*.yml` and `*.json` files are manifests"),
    ("stateDirectory", _DEFAULT.state_directory, "files that must survive a reboot"),
    ("runtimeDirectory", _DEFAULT.runtime_directory, "the agent's socket, and what containers are told of their CPUs"),
    ("launcherSocket", _DEFAULT.launcher_socket, ""),
    ("logDirectory", _DEFAULT.log_directory, "container output, on hosts without a journal"),
    ("cgroupRoot", "", "directory of the pods' cgroup, on hosts without systemd"),
    ("metricsBindAddress", _DEFAULT.metrics_bind_address, "or `unix:PATH`; empty: none"),
    ("metricsAliases", str(_DEFAULT.metrics_aliases).lower(), "also export kubelet's metrics without the `kubelet_` prefix"),
    ("podResourcesSocket", _DEFAULT.pod_resources_socket, "where kubelet's PodResources API is served; empty: nowhere"),
    ("devicePluginSocket", _DEFAULT.device_plugin_socket, "where Kubernetes' device plugins register, as with a kubelet; empty: nowhere"),
    ("nriSocket", _DEFAULT.nri_socket, "of containerd, whose containers the agent places then, too: `/var/run/nri/nri.sock`; empty: none"),
    ("kubeletPodsSocket", _DEFAULT.kubelet_pods_socket, "of kubelet's pods API (1.37), which says of containerd's pods what that isn't told; empty: ask nobody"),
    ("jobs", "", "who besides root may run jobs, and how much a user's jobs hold together: `{group: NAME, maxCPUs: 8, maxMemory: 32Gi, maxPerUser: 10}`"),
    ("stateRecovery", _DEFAULT.state_recovery, "rebuild an unusable state from the running pods; `strict`: refuse to start, as kubelet does"),
)  # fmt: skip
"""Fields, default, meaning."""

UNLISTED = {
    "apiVersion": "KubeletConfiguration's or none",
    "kind": "KubeletConfiguration or NodeAgentConfiguration or none",
    "cgroupsPerQOS": "must be true",
    "errata": "for simulate only",
    "kubeReservedCgroup": "excludes reservedSystemCPUs, no other use",
    "systemReservedCgroup": "excludes reservedSystemCPUs, no other use",
}
"""Fields that are understood and that nobody has to look up."""


def configuration() -> str:
    """Give the configuration's fields."""
    lines = ["| field | default | meaning |", "| --- | --- | --- |"]
    for names, default, meaning in FIELDS:
        fields = ", ".join(f"`{name}`" for name in names.split(", "))
        lines.append(f"| {fields} | {f'`{default}`' if default else ''} | {meaning} |")
    return "\n".join(lines)


def differences() -> str:
    """Give every difference from kubelet."""
    lines = ["| # | kubelet 1.36 | nodeagent | issues |", "| --- | --- | --- | --- |"]
    for entry in ERRATA:
        issues = ", ".join(f"[{link.rpartition('/')[2]}]({link})" for link in entry.links)
        number = f"{entry.erratum.value}{'*' if entry.always_fixed else ''}"
        lines.append(f"| {number} | {entry.kubelet} | {entry.nodeagent} | {issues} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """Put the tables between their marks."""
    for name, table in (("configuration", configuration()), ("differences", differences())):
        marks = f"(<!-- {name}: made by `make readme` -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(marks, lambda found, made=table: f"{found[1]}{made}\n{found[2]}", text, flags=re.DOTALL)
        assert count == 1, f"README.md has no place for {name}"
    return text


def main() -> int:
    """Rewrite the README."""
    README.write_text(rewritten(README.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
