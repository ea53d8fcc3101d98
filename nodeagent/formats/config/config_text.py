"""Formatter of a Config as fields of a configuration file. `parse_config` reads these fields back as the same Config."""

from typing import Any

from msgspec import to_builtins

from nodeagent.core.model.config import Config, JobBounds, JobShare, Placement
from nodeagent.core.model.digest import sha256_hex
from nodeagent.core.model.pod import Resources
from nodeagent.core.model.quiet import SHIPPED_PROFILES
from nodeagent.formats.config.configuration_sources import AGENT_KIND
from nodeagent.formats.syntax.quiet_settings import format_settings
from nodeagent.formats.syntax.yaml_lines import yaml_lines

KIND = AGENT_KIND
Document = dict[str, Any]


def config_fields(config: Config, *, with_places: bool = True) -> Document:
    """Format every field, in the order of docs/reference/configuration.md. Paths and addresses are included only with `with_places`,
    because a running agent doesn't publish them.
    """
    placement = config.placement
    fields: Document = {
        "cpuManagerPolicy": placement.cpu_manager_policy,
        "cpuManagerPolicyOptions": dict(placement.cpu_manager_policy_options),
        "cpuManagerPlugins": plugin_entries(placement),
        "reservedSystemCPUs": str(placement.reserved_system_cpus),
        "systemReserved": _format_amounts(config.system_reserved),
        "kubeReserved": _format_amounts(config.kube_reserved),
        "topologyManagerPolicy": placement.topology_manager_policy,
        "topologyManagerScope": placement.topology_manager_scope,
        "topologyManagerPolicyOptions": dict(placement.topology_manager_policy_options),
        "isolatedCPUs": placement.isolated_cpus,
        "exclusiveCoreClass": placement.exclusive_core_class,
        "sharedCoreClass": placement.shared_core_class,
        "preferCPUsNumaNode": placement.prefer_cpus_numa_node,
        "sameNumaNodes": placement.same_numa_nodes,
        "spreadHugePages": placement.spread_huge_pages,
        "resizeBelowAdmittedCPUs": placement.resize_below_admitted_cpus,
        "devices": device_entries(placement),
        "memoryManagerPolicy": placement.memory_manager_policy,
        "reservedMemory": [
            {"numaNode": entry.numa_node, "limits": _format_amounts(entry.limits)}
            for entry in placement.reserved_memory
        ],
        "evictionHard": {"memory.available": _format_threshold(config)},
        "featureGates": dict(placement.feature_gates),
        "cpuManagerReconcilePeriod": _format_duration(config.cpu_manager_reconcile_period_ms * 1000),
        "fileCheckFrequency": _format_duration(config.file_check_frequency_ms * 1000),
        "fullCheckPeriod": _format_duration(config.full_check_period_ms * 1000),
        "hostIsolation": config.host_isolation,
        "hostCoreClass": config.host_core_class,
        "interruptIsolation": config.interrupt_isolation,
        "cpuCFSQuota": config.cpu_cfs_quota,
        "cpuCFSQuotaPeriod": _format_duration(config.cpu_cfs_quota_period_us),
        "memorySwap": {"swapBehavior": config.swap_behavior},
        "checkAllocatable": config.check_allocatable,
        "retryRefused": config.retry_refused,
        "maxPods": config.max_pods,
        "podPidsLimit": config.pod_pids_limit,
        "podsPerCore": config.pods_per_core,
    }
    if not with_places:
        return fields
    places: Document = {
        "manifestDirectory": config.static_pod_path,
        "stateDirectory": config.state_directory,
        "stateRecovery": config.state_recovery,
        "runtimeDirectory": config.runtime_directory,
        "launcherSocket": config.launcher_socket,
        "logDirectory": config.log_directory,
        "metricsBindAddress": config.metrics_bind_address,
        "metricsAliases": config.metrics_aliases,
        "metricsContainers": config.metrics_containers,
        "podResourcesSocket": config.pod_resources_socket,
        "devicePluginSocket": config.device_plugin_socket,
        "nriSocket": config.nri_socket,
        "kubeletPodsSocket": config.kubelet_pods_socket,
    }
    if config.cgroup_root is not None:
        places["cgroupRoot"] = config.cgroup_root
    if (jobs := config.jobs) is not None:
        places["jobs"] = {"group": jobs.group, **_format_job_share(jobs)}
        if jobs.shares:
            places["jobs"]["shares"] = [
                ({"user": share.user} if share.user else {"group": share.group}) | _format_job_share(share)
                for share in jobs.shares
            ]
    if config.run_thresholds:
        places["runThresholds"] = dict(config.run_thresholds)
    own = [one for one in config.profiles if one not in SHIPPED_PROFILES]
    if own:
        places["profiles"] = {
            name: format_settings(profile.settings)
            | to_builtins(profile.process)
            | ({"runThresholds": dict(profile.run_thresholds)} if profile.run_thresholds else {})
            for name, profile in own
        }
    places["machineWideBoost"] = config.machine_wide_boost
    return fields | places


def _format_job_share(share: JobBounds | JobShare) -> Document:
    bounds = {"maxCPUs": share.max_cpus, "maxMemory": share.max_memory}
    limits = {name: None if bound is None else str(bound) for name, bound in bounds.items()}
    numbers = {"maxPerUser": share.max_per_user, "maxReservations": share.max_reservations, "weight": share.weight}
    return {name: value for name, value in (limits | numbers).items() if value is not None}


def plugin_entries(placement: Placement) -> list[Document]:
    """Format the CPU plugins."""
    return [
        {"name": plugin.name, **({"options": dict(plugin.options)} if plugin.options else {})}
        for plugin in placement.cpu_plugins
    ]


def device_entries(placement: Placement) -> list[Document]:
    """Format the selections of extended resources."""
    if not placement.devices:
        return []
    from nodeagent.formats.config.device_fields import devices_document  # noqa: PLC0415 - few nodes have devices

    return devices_document(placement.devices)


def config_text(fields: Document) -> str:
    """Format the fields as YAML. Fields with their default value get a comment."""
    default = config_fields(Config())
    lines: list[str] = []
    for name, value in fields.items():
        first, *rest = yaml_lines({name: value}, is_utf8=False)
        lines += [f"{first} # default" if default.get(name) == value else first, *rest]
    return "\n".join(lines) + "\n"


def hash_config(config: Config) -> str:
    """Return a short hash of all fields of a configuration. The notation and the order of the fields in the file don't affect the hash."""
    return sha256_hex(config_text(config_fields(config)).encode())[:12]


def _format_amounts(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources}


def _format_threshold(config: Config) -> str:
    """Format the eviction threshold. 0% means no threshold, as in kubelet."""
    if config.eviction_memory_percent is not None:
        return f"{config.eviction_memory_percent}%"
    size = config.eviction_memory_bytes
    if size is None:
        return "0%"
    return f"{size >> 20}Mi" if size % 2**20 == 0 else str(size)


def _format_duration(microseconds: int) -> str:
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds}us"
