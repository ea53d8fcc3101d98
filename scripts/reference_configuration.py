# ruff: noqa: INP001, E501 - a part of scripts/reference.py, with a table of one row per line
"""The fields of the configuration, with their defaults and meanings, for docs/reference/configuration.md."""

from nodeagent.core.model.config import DEFAULT_GATES, Config
from nodeagent.core.resources.cpu.options import OPTIONS

_DEFAULT = Config()
_PLACED = _DEFAULT.placement
_ON, _OFF = (", ".join(f"`{name}`" for name, on in DEFAULT_GATES.items() if on is wanted) for wanted in (True, False))

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("cpuManagerPolicy", _PLACED.cpu_manager_policy, "`static`: containers of Guaranteed pods that request whole CPUs get exclusive CPUs"),
    ("cpuManagerPolicyOptions", "", ", ".join(f"`{option}`" for option in OPTIONS)),
    ("cpuManagerPlugins", "", "installed plugins that take part in the choice of CPUs, by `name`, with `options`: `spread-caches`, `prefer-class`, your own"),
    ("reservedSystemCPUs", "", "CPUs that are never allocated exclusively; `static` needs this field, or an amount of cpu in one of the next two"),
    ("systemReserved, kubeReserved", "", "`cpu` and `memory` that pods can't have"),
    ("topologyManagerPolicy", _PLACED.topology_manager_policy, "`best-effort`, `restricted`, `single-numa-node`"),
    (
        "isolatedCPUs",
        _PLACED.isolated_cpus,
        "exclusive allocation of CPUs isolated at boot (`isolcpus`): `prefer`: these CPUs come first; `only`: no other CPUs; `ignore`: no difference",
    ),
    (
        "exclusiveCoreClass",
        _PLACED.exclusive_core_class,
        "on machines with several kinds of cores: the preferred kind for exclusive CPUs, `performance` or `efficiency`",
    ),
    ("sharedCoreClass", _PLACED.shared_core_class, "on such machines: the kind of cores for containers without exclusive CPUs"),
    ("devices", "", "extended resources that pods can request, each with its name (`resource`) and the rules that `select` its devices"),
    (
        "preferCPUsNumaNode",
        "false",
        "`true`: if the hints of a pod's devices and CPUs conflict, a NUMA node that is preferred for the CPUs wins",
    ),
    (
        "sameNumaNodes",
        "false",
        "`true`: a container's CPUs and its memory are on the same NUMA nodes if such an allocation exists",
    ),
    (
        "spreadHugePages",
        "false",
        "`true`: a container's huge pages are spread over the NUMA nodes of its CPUs, in proportion to the CPUs",
    ),
    ("resizeBelowAdmittedCPUs", "false", "`true`: a resize may take away CPUs that a container was admitted with"),
    ("topologyManagerScope", _PLACED.topology_manager_scope, "`pod`: one decision for all containers of a pod"),
    ("topologyManagerPolicyOptions", "", "`prefer-closest-numa-nodes`, `max-allowable-numa-nodes`, `numa-allocation-strategy`, `numa-score-weights`, `prefer-most-allocated-numa-node`"),
    ("memoryManagerPolicy", _PLACED.memory_manager_policy, "`Static`: memory and huge pages of Guaranteed pods are allocated on chosen NUMA nodes"),
    ("reservedMemory", "", "required by `Static`, per NUMA node; must add up to the node's total reservation"),
    ("evictionHard", "memory.available: 100Mi", "memory that is reserved in addition; no pod is evicted"),
    ("mergeDefaultEvictionSettings", "false", "thresholds not listed in `evictionHard` keep their defaults"),
    ("featureGates", "", f"as in kubelet 1.36 on: {_ON}; off: {_OFF}"),
    ("cpuManagerReconcilePeriod", f"{_DEFAULT.cpu_manager_reconcile_period_ms // 1000}s", "interval at which cgroups are compared with their desired values"),
    ("fileCheckFrequency", f"{_DEFAULT.file_check_frequency_ms // 1000}s", "interval at which manifests are read even without a notification of a change"),
    (
        "fullCheckPeriod",
        f"{_DEFAULT.full_check_period_ms // 60_000}m",
        "time within which each cgroup and file is read again, to find changes that the kernel doesn't report",
    ),
    (
        "hostIsolation",
        _DEFAULT.host_isolation,
        "`partition`: processes of the host leave exclusive CPUs, too",
    ),
    (
        "hostCoreClass",
        _DEFAULT.host_core_class,
        "with `hostIsolation`: the kind of cores for processes of the host and work of the kernel, `performance` or `efficiency`",
    ),
    ("interruptIsolation", _DEFAULT.interrupt_isolation, "`affinity`: interrupts that can be moved leave exclusive CPUs, too"),
    ("cpuCFSQuota", str(_DEFAULT.cpu_cfs_quota).lower(), "whether CPU limits of containers without exclusive CPUs are enforced"),
    ("cpuCFSQuotaPeriod", f"{_DEFAULT.cpu_cfs_quota_period_us // 1000}ms", "other values need the gate `CustomCPUCFSQuotaPeriod`"),
    (
        "podPidsLimit",
        str(_DEFAULT.pod_pids_limit),
        "limit on the processes and threads of a pod or job (`pids.max` of its cgroup); `-1`: no limit, kubelet's default",
    ),
    (
        "memorySwap",
        f"swapBehavior: {_DEFAULT.swap_behavior}",
        "`NoSwap`: containers use no swap; `UnlimitedSwap`: as much as the host has; `LimitedSwap`: none either, as for kubelet's static pods",
    ),
    ("checkAllocatable", str(_DEFAULT.check_allocatable).lower(), "whether pods that request more than the node has left are refused before the managers decide"),
    ("retryRefused", _DEFAULT.retry_refused, "`room`: pods that were refused for room are decided again when other pods release resources; `none`: pods are decided again only on request or with a changed manifest, as in kubelet"),
    ("maxPods, podsPerCore", f"{_DEFAULT.max_pods}, {_DEFAULT.pods_per_core}", "limits on the number of pods; `podsPerCore: 0`: no limit per CPU"),
    ("manifestDirectory, staticPodPath", _DEFAULT.static_pod_path, "two names for one directory; its `*.yaml`, `*.yml` and `*.json` files are manifests"),
    ("stateDirectory", _DEFAULT.state_directory, "files that must survive a reboot"),
    ("runtimeDirectory", _DEFAULT.runtime_directory, "the agent's sockets, and the files that tell containers their CPUs"),
    ("launcherSocket", _DEFAULT.launcher_socket, "the launcher's socket"),
    ("logDirectory", _DEFAULT.log_directory, "output of containers, on hosts without a journal"),
    ("cgroupRoot", "", "directory of the pods' cgroup, on hosts without systemd"),
    ("metricsBindAddress", _DEFAULT.metrics_bind_address, "address and port, or `unix:PATH`; empty: no metrics are served"),
    (
        "metricsContainers",
        str(_DEFAULT.metrics_containers).lower(),
        "export series for each container with exclusive CPUs: interrupts, softirqs, throttling, pressure",
    ),
    ("metricsAliases", str(_DEFAULT.metrics_aliases).lower(), "also export kubelet's metrics without the `kubelet_` prefix"),
    ("podResourcesSocket", _DEFAULT.pod_resources_socket, "socket of kubelet's PodResources API; empty: not served"),
    ("devicePluginSocket", _DEFAULT.device_plugin_socket, "socket at which Kubernetes' device plugins register, as with kubelet; empty: no device plugins"),
    ("nriSocket", _DEFAULT.nri_socket, "containerd's NRI socket, `/var/run/nri/nri.sock`: the agent also places containerd's containers; empty: it doesn't"),
    ("kubeletPodsSocket", _DEFAULT.kubelet_pods_socket, "socket of kubelet's pods API (1.37), which has data about containerd's pods that NRI lacks; empty: kubelet isn't asked"),
    ("jobs", "", "the group whose members may run jobs (root always may), and the limits for all jobs of one user together: `{group: NAME, maxCPUs: 8, maxMemory: 32Gi, maxPerUser: 10, maxReservations: 2, weight: 100}`, with [`shares`](../how-to/job.md#who-may) of users and groups"),
    ("runThresholds", "", "thresholds for [disturbances](../how-to/certificate.md#what-disturbs) of a clean run that differ from the defaults, as thousandths, per second, or as a number of times: `{steal: 50, interrupts: 200}`"),
    ("profiles", "quiet", "named settings for [quiet cores](../how-to/quiet.md) and for jobs' processes, and thresholds for runs with these settings: `{fast: {idleLatency: 2us, governor: performance, minFrequency: 2400MHz, maxFrequency: 2400MHz, boost: false, runThresholds: {steal: 5}}}`"),
    ("machineWideBoost", str(_DEFAULT.machine_wide_boost).lower(), "`true`: while a job or pod requests no boost, boost is switched off for the whole machine if there is no setting for each CPU"),
    ("stateRecovery", _DEFAULT.state_recovery, "`recover` rebuilds an unusable state from the running pods; `strict` refuses to start, as kubelet does"),
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
"""Fields that are accepted and leave nothing to choose."""


def fields_table() -> str:
    """Format the table of the fields."""
    lines = ["| field | default | meaning |", "| --- | --- | --- |"]
    for names, default, meaning in FIELDS:
        fields = ", ".join(f"`{name}`" for name in names.split(", "))
        lines.append(f"| {fields} | {f'`{default}`' if default else ''} | {meaning} |")
    return "\n".join(lines)
