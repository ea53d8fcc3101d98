"""The part of the configuration that decides what pods hold, as the running agent tells it to its readers: Config ↔ plain values.

Both ends are of one version: unlike a configuration file, nothing is judged here, and paths and addresses stay out.
"""

from collections.abc import Mapping
from typing import Any

from nodeagent.core.config import Config, Errata, Placement, ReservedMemory
from nodeagent.core.idset import CpuSet
from nodeagent.core.pod import Resources
from nodeagent.core.quantity import Quantity

Document = dict[str, Any]


def config_document(config: Config) -> Document:
    """Spell it in KubeletConfiguration's names, where there are any."""
    placement = config.placement
    return {
        "checkAllocatable": config.check_allocatable,
        "cpuCFSQuota": config.cpu_cfs_quota,
        "cpuCFSQuotaPeriodMicroseconds": config.cpu_cfs_quota_period_us,
        "cpuManagerPolicy": placement.cpu_manager_policy,
        "cpuManagerPolicyOptions": dict(placement.cpu_manager_policy_options),
        "cpuManagerReconcilePeriodMilliseconds": config.cpu_manager_reconcile_period_ms,
        "errata": placement.errata.value,
        "evictionMemoryBytes": config.eviction_memory_bytes,
        "evictionMemoryPercent": config.eviction_memory_percent,
        "featureGates": dict(placement.feature_gates),
        "kubeReserved": _amounts(config.kube_reserved),
        "maxPods": config.max_pods,
        "memoryManagerPolicy": placement.memory_manager_policy,
        "podsPerCore": config.pods_per_core,
        "reservedCPUMillicores": placement.reserved_cpu_milli,
        "reservedMemory": [[entry.numa_node, _amounts(entry.limits)] for entry in placement.reserved_memory],
        "reservedSystemCPUs": str(placement.reserved_system_cpus),
        "systemReserved": _amounts(config.system_reserved),
        "topologyManagerPolicy": placement.topology_manager_policy,
        "topologyManagerPolicyOptions": dict(placement.topology_manager_policy_options),
        "topologyManagerScope": placement.topology_manager_scope,
        "isolatedCPUs": placement.isolated_cpus,
    }


def config_from_document(document: Mapping[str, Any]) -> Config:
    """Read what `config_document` gave; raises what a document of another shape makes it raise.

    The memory reservation follows from the rest and from the machine: `node_capacity.with_machine`.
    """
    placement = Placement(
        cpu_manager_policy=document["cpuManagerPolicy"],
        cpu_manager_policy_options=tuple(document["cpuManagerPolicyOptions"].items()),
        reserved_system_cpus=CpuSet.parse(document["reservedSystemCPUs"]),
        reserved_cpu_milli=document["reservedCPUMillicores"],
        topology_manager_policy=document["topologyManagerPolicy"],
        topology_manager_scope=document["topologyManagerScope"],
        isolated_cpus=document["isolatedCPUs"],
        topology_manager_policy_options=tuple(document["topologyManagerPolicyOptions"].items()),
        memory_manager_policy=document["memoryManagerPolicy"],
        reserved_memory=tuple(ReservedMemory(node, _resources(limits)) for node, limits in document["reservedMemory"]),
        feature_gates=tuple(document["featureGates"].items()),
        errata=Errata(document["errata"]),
    )
    return Config(
        placement=placement,
        cpu_manager_reconcile_period_ms=document["cpuManagerReconcilePeriodMilliseconds"],
        cpu_cfs_quota=document["cpuCFSQuota"],
        cpu_cfs_quota_period_us=document["cpuCFSQuotaPeriodMicroseconds"],
        check_allocatable=document["checkAllocatable"],
        max_pods=document["maxPods"],
        pods_per_core=document["podsPerCore"],
        system_reserved=_resources(document["systemReserved"]),
        kube_reserved=_resources(document["kubeReserved"]),
        eviction_memory_bytes=document["evictionMemoryBytes"],
        eviction_memory_percent=document["evictionMemoryPercent"],
    )


def _amounts(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources}


def _resources(amounts: Mapping[str, str]) -> Resources:
    return Resources.of({name: Quantity.parse(text) for name, text in amounts.items()})
