"""The part of the configuration that affects allocations. The running agent publishes it as plain values.

The same version of nodeagent writes and reads the document, so its values aren't validated. Unlike a configuration file, the document has
no paths or addresses.
"""

import re
from typing import TYPE_CHECKING, Any

from nodeagent.core.model.config import (
    ANY_CLASS,
    CORE_CLASS_CHOICES,
    CPU_MANAGER_POLICIES,
    HOST_ISOLATION,
    INTERRUPT_ISOLATION,
    ISOLATED_CPUS,
    MEMORY_MANAGER_POLICIES,
    RETRY_NOTHING,
    RETRY_REFUSED,
    SWAP_BEHAVIORS,
    TOPOLOGY_MANAGER_POLICIES,
    TOPOLOGY_MANAGER_SCOPES,
    UNLIMITED_SWAP,
    Config,
    CpuPlugin,
    Errata,
    Placement,
    ReservedMemory,
)
from nodeagent.core.model.pod import Resources
from nodeagent.formats.syntax.json_values import JsonValue

if TYPE_CHECKING:
    from nodeagent.core.model.device_selection import DeviceSelection

Document = dict[str, Any]
_PERCENT = re.compile(r"(?=\.?\d)\d{0,18}(\.\d{1,18})?", re.ASCII)


def config_document(config: Config) -> Document:
    """Convert a configuration to plain values, with KubeletConfiguration's names where they exist."""
    placement = config.placement
    plugins = [{"name": plugin.name, "options": dict(plugin.options)} for plugin in placement.cpu_plugins]
    return {
        "checkAllocatable": config.check_allocatable,
        **({"retryRefused": config.retry_refused} if config.retry_refused != RETRY_NOTHING else {}),
        "cpuCFSQuota": config.cpu_cfs_quota,
        "cpuCFSQuotaPeriodMicroseconds": config.cpu_cfs_quota_period_us,
        "cpuManagerPolicy": placement.cpu_manager_policy,
        "cpuManagerPolicyOptions": dict(placement.cpu_manager_policy_options),
        **({"cpuManagerPlugins": plugins} if plugins else {}),
        "cpuManagerReconcilePeriodMilliseconds": config.cpu_manager_reconcile_period_ms,
        **({"devices": _format_devices(placement)} if placement.devices else {}),
        "errata": placement.errata.value,
        "evictionMemoryBytes": config.eviction_memory_bytes,
        "evictionMemoryPercent": config.eviction_memory_percent,
        "featureGates": dict(placement.feature_gates),
        "hostIsolation": config.host_isolation,
        "hostCoreClass": config.host_core_class,
        "interruptIsolation": config.interrupt_isolation,
        "kubeReserved": _format_amounts(config.kube_reserved),
        "maxPods": config.max_pods,
        "podPidsLimit": config.pod_pids_limit,
        "memoryManagerPolicy": placement.memory_manager_policy,
        "memorySwap": {"swapBehavior": config.swap_behavior},
        "podsPerCore": config.pods_per_core,
        "reservedCPUMillicores": placement.reserved_cpu_milli,
        "reservedMemory": [[entry.numa_node, _format_amounts(entry.limits)] for entry in placement.reserved_memory],
        "reservedSystemCPUs": str(placement.reserved_system_cpus),
        "systemReserved": _format_amounts(config.system_reserved),
        "topologyManagerPolicy": placement.topology_manager_policy,
        "topologyManagerPolicyOptions": dict(placement.topology_manager_policy_options),
        "topologyManagerScope": placement.topology_manager_scope,
        "isolatedCPUs": placement.isolated_cpus,
        "exclusiveCoreClass": placement.exclusive_core_class,
        "sharedCoreClass": placement.shared_core_class,
        "preferCPUsNumaNode": placement.prefer_cpus_numa_node,
        "sameNumaNodes": placement.same_numa_nodes,
        "spreadHugePages": placement.spread_huge_pages,
        "resizeBelowAdmittedCPUs": placement.resize_below_admitted_cpus,
    }


def config_from_document(document: JsonValue) -> Config:
    """Read the result of `config_document`.

    The memory reservation is computed later, by `node_capacity.with_machine`, from the result and the machine.

    Raises:
        MisfitError: a value is missing, has the wrong type, or is not a policy of this version.
    """
    # Optional fields are missing in captures of older agents, and if the field's feature is off.
    field, read_optional = document.field, document.read_optional
    plugins = read_optional("cpuManagerPlugins", lambda listed: listed.each(lambda item: item), ())
    memory = field("reservedMemory").each(lambda item: item.row(2))
    placement = Placement(
        cpu_manager_policy=field("cpuManagerPolicy").among(CPU_MANAGER_POLICIES),
        cpu_manager_policy_options=field("cpuManagerPolicyOptions").by_name(JsonValue.text),
        cpu_plugins=tuple(
            CpuPlugin(plugin.field("name").text(), plugin.field("options").by_name(JsonValue.text))
            for plugin in plugins
        ),
        reserved_system_cpus=field("reservedSystemCPUs").cpus(),
        reserved_cpu_milli=read_optional("reservedCPUMillicores", JsonValue.whole, None),
        topology_manager_policy=field("topologyManagerPolicy").among(TOPOLOGY_MANAGER_POLICIES),
        topology_manager_scope=field("topologyManagerScope").among(TOPOLOGY_MANAGER_SCOPES),
        isolated_cpus=field("isolatedCPUs").among(ISOLATED_CPUS),
        exclusive_core_class=read_optional("exclusiveCoreClass", _read_core_class, ANY_CLASS),
        shared_core_class=read_optional("sharedCoreClass", _read_core_class, ANY_CLASS),
        prefer_cpus_numa_node=read_optional("preferCPUsNumaNode", JsonValue.flag, default=False),
        same_numa_nodes=read_optional("sameNumaNodes", JsonValue.flag, default=False),
        spread_huge_pages=read_optional("spreadHugePages", JsonValue.flag, default=False),
        resize_below_admitted_cpus=read_optional("resizeBelowAdmittedCPUs", JsonValue.flag, default=False),
        topology_manager_policy_options=field("topologyManagerPolicyOptions").by_name(JsonValue.text),
        memory_manager_policy=field("memoryManagerPolicy").among(MEMORY_MANAGER_POLICIES),
        reserved_memory=tuple(ReservedMemory(node.whole(), _read_resources(limits)) for node, limits in memory),
        feature_gates=field("featureGates").by_name(JsonValue.flag),
        errata=field("errata").one_of(Errata),
        devices=read_optional("devices", _read_devices, ()),
    )
    return Config(
        placement=placement,
        cpu_manager_reconcile_period_ms=field("cpuManagerReconcilePeriodMilliseconds").whole(),
        host_isolation=field("hostIsolation").among(HOST_ISOLATION),
        host_core_class=read_optional("hostCoreClass", _read_core_class, ANY_CLASS),
        interrupt_isolation=field("interruptIsolation").among(INTERRUPT_ISOLATION),
        cpu_cfs_quota=field("cpuCFSQuota").flag(),
        cpu_cfs_quota_period_us=field("cpuCFSQuotaPeriodMicroseconds").whole(),
        # Older agents didn't limit swap.
        swap_behavior=read_optional(
            "memorySwap", lambda value: value.field("swapBehavior").among(SWAP_BEHAVIORS), UNLIMITED_SWAP
        ),
        check_allocatable=field("checkAllocatable").flag(),
        retry_refused=read_optional("retryRefused", lambda value: value.among(RETRY_REFUSED), RETRY_NOTHING),
        max_pods=field("maxPods").whole(),
        # Older agents had no such limit.
        pod_pids_limit=read_optional("podPidsLimit", lambda value: value.whole(low=-1), -1),
        pods_per_core=field("podsPerCore").whole(),
        system_reserved=_read_resources(field("systemReserved")),
        kube_reserved=_read_resources(field("kubeReserved")),
        eviction_memory_bytes=read_optional("evictionMemoryBytes", JsonValue.whole, None),
        eviction_memory_percent=read_optional("evictionMemoryPercent", _read_percentage, None),
    )


def _format_devices(placement: Placement) -> list[Document]:
    from nodeagent.formats.config.device_fields import devices_document  # noqa: PLC0415 - few nodes have devices

    return devices_document(placement.devices)


def _read_devices(value: JsonValue) -> "tuple[DeviceSelection, ...]":
    from nodeagent.formats.config.device_fields import devices_from_document  # noqa: PLC0415 - few nodes have devices

    return devices_from_document(value)


def _read_core_class(value: JsonValue) -> str:
    return value.among(CORE_CLASS_CHOICES)


def _format_amounts(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources}


def _read_resources(amounts: JsonValue) -> Resources:
    return Resources.of(dict(amounts.by_name(JsonValue.quantity)))


def _read_percentage(value: JsonValue) -> str:
    if not _PERCENT.fullmatch(value.text()):
        raise value.misfit("a percentage such as 5 or 7.5")
    return value.text()
