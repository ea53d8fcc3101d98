"""The part of the configuration that affects allocations, as the running agent publishes it in plain values.

Writer and reader have the same version. Unlike a configuration file, the document is not validated, and has no paths
or addresses.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

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
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.syntax.json_values import JsonValue

if TYPE_CHECKING:
    from nodeagent.core.model.device_selection import DeviceSelection

Document = dict[str, Any]
T = TypeVar("T")

_PERCENT = re.compile(r"(?=\.?\d)\d{0,18}(\.\d{1,18})?", re.ASCII)


def config_document(config: Config) -> Document:
    """Format a configuration with KubeletConfiguration's names where they exist."""
    placement = config.placement
    return {
        "checkAllocatable": config.check_allocatable,
        **({"retryRefused": config.retry_refused} if config.retry_refused != RETRY_NOTHING else {}),
        "cpuCFSQuota": config.cpu_cfs_quota,
        "cpuCFSQuotaPeriodMicroseconds": config.cpu_cfs_quota_period_us,
        "cpuManagerPolicy": placement.cpu_manager_policy,
        "cpuManagerPolicyOptions": dict(placement.cpu_manager_policy_options),
        **(
            {
                "cpuManagerPlugins": [
                    {"name": plugin.name, "options": dict(plugin.options)} for plugin in placement.cpu_plugins
                ]
            }
            if placement.cpu_plugins
            else {}
        ),
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
        "resizeBelowAdmittedCPUs": placement.resize_below_admitted_cpus,
    }


def config_from_document(document: JsonValue) -> Config:
    """Read the result of `config_document`.

    `node_capacity.with_machine` computes the memory reservation from the result and the machine.

    Raises:
        MisfitError: a value is missing, has the wrong type, or is not a policy of this version.
    """
    of = document.field
    placement = Placement(
        cpu_manager_policy=of("cpuManagerPolicy").among(CPU_MANAGER_POLICIES),
        cpu_manager_policy_options=of("cpuManagerPolicyOptions").by_name(JsonValue.text),
        cpu_plugins=_read_plugins(document),
        reserved_system_cpus=of("reservedSystemCPUs").cpus(),
        reserved_cpu_milli=_read_optional(document, "reservedCPUMillicores", JsonValue.whole),
        topology_manager_policy=of("topologyManagerPolicy").among(TOPOLOGY_MANAGER_POLICIES),
        topology_manager_scope=of("topologyManagerScope").among(TOPOLOGY_MANAGER_SCOPES),
        isolated_cpus=of("isolatedCPUs").among(ISOLATED_CPUS),
        exclusive_core_class=_read_core_class(document, "exclusiveCoreClass"),
        shared_core_class=_read_core_class(document, "sharedCoreClass"),
        prefer_cpus_numa_node=_read_flag(document, "preferCPUsNumaNode"),
        resize_below_admitted_cpus=_read_flag(document, "resizeBelowAdmittedCPUs"),
        topology_manager_policy_options=of("topologyManagerPolicyOptions").by_name(JsonValue.text),
        memory_manager_policy=of("memoryManagerPolicy").among(MEMORY_MANAGER_POLICIES),
        reserved_memory=of("reservedMemory").each(_read_reserved_memory),
        feature_gates=of("featureGates").by_name(JsonValue.flag),
        errata=of("errata").one_of(Errata),
        devices=_read_devices(document),
    )
    return Config(
        placement=placement,
        cpu_manager_reconcile_period_ms=of("cpuManagerReconcilePeriodMilliseconds").whole(),
        host_isolation=of("hostIsolation").among(HOST_ISOLATION),
        host_core_class=_read_core_class(document, "hostCoreClass"),
        interrupt_isolation=of("interruptIsolation").among(INTERRUPT_ISOLATION),
        cpu_cfs_quota=of("cpuCFSQuota").flag(),
        cpu_cfs_quota_period_us=of("cpuCFSQuotaPeriodMicroseconds").whole(),
        swap_behavior=_read_swap_behavior(document),
        check_allocatable=of("checkAllocatable").flag(),
        retry_refused=_read_retry_refused(document),
        max_pods=of("maxPods").whole(),
        pods_per_core=of("podsPerCore").whole(),
        system_reserved=_read_resources(of("systemReserved")),
        kube_reserved=_read_resources(of("kubeReserved")),
        eviction_memory_bytes=_read_optional(document, "evictionMemoryBytes", JsonValue.whole),
        eviction_memory_percent=_read_optional(document, "evictionMemoryPercent", _read_percentage),
    )


def _read_plugins(document: JsonValue) -> tuple[CpuPlugin, ...]:
    """Read the names and options of the CPU plugins. Their code is loaded later, by the reader's caller."""
    given = document.optional("cpuManagerPlugins")  # missing without plugins
    return () if given is None else given.each(_read_plugin)


def _read_plugin(value: JsonValue) -> CpuPlugin:
    return CpuPlugin(value.field("name").text(), tuple(value.field("options").by_name(JsonValue.text)))


def _format_devices(placement: Placement) -> list[Document]:
    from nodeagent.formats.config.device_fields import devices_document  # noqa: PLC0415 - few nodes have devices

    return devices_document(placement.devices)


def _read_devices(document: JsonValue) -> "tuple[DeviceSelection, ...]":
    given = document.optional("devices")  # missing without devices
    if given is None:
        return ()
    from nodeagent.formats.config.device_fields import devices_from_document  # noqa: PLC0415 - few nodes have devices

    return devices_from_document(given)


def _read_core_class(document: JsonValue, name: str) -> str:
    chosen = document.optional(name)  # missing in older captures
    return ANY_CLASS if chosen is None else chosen.among(CORE_CLASS_CHOICES)


def _read_retry_refused(document: JsonValue) -> str:
    given = document.optional("retryRefused")
    return RETRY_NOTHING if given is None else given.among(RETRY_REFUSED)


def _read_swap_behavior(document: JsonValue) -> str:
    given = document.optional("memorySwap")  # missing in captures of older agents, which didn't limit swap
    return UNLIMITED_SWAP if given is None else given.field("swapBehavior").among(SWAP_BEHAVIORS)


def _read_flag(document: JsonValue, name: str) -> bool:
    chosen = document.optional(name)  # missing in older captures
    return chosen is not None and chosen.flag()


def _format_amounts(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources}


def _read_optional(document: JsonValue, name: str, read: Callable[[JsonValue], T]) -> T | None:
    value = document.optional(name)
    return None if value is None else read(value)


def _read_resources(amounts: JsonValue) -> Resources:
    return Resources.of(dict(amounts.by_name(_read_amount)))


def _read_amount(value: JsonValue) -> Quantity:
    try:
        return Quantity.parse(value.text())
    except QuantitySyntaxError as err:
        raise value.misfit("an amount such as 2Gi") from err


def _read_reserved_memory(value: JsonValue) -> ReservedMemory:
    node, limits = value.row(2)
    return ReservedMemory(node.whole(), _read_resources(limits))


def _read_percentage(value: JsonValue) -> str:
    if not _PERCENT.fullmatch(value.text()):
        raise value.misfit("a percentage such as 5 or 7.5")
    return value.text()
