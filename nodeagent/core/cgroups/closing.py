"""Explanation of how a container's exclusive CPUs are kept free of host processes (D27): by a cpuset partition or by systemd. The
explanation is derived from the desired cgroups, and doesn't change them.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.admission.node_rules import NodeRules, isolation
from nodeagent.core.cgroups.desired_cgroups import Kernel, desired_cgroups
from nodeagent.core.model.cgroup import MEMBER, Attribute, DesiredCgroup, Partition, PartitionKind
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import QosClass
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of


class Why(enum.StrEnum):
    """Reason why a container's CPUs are in a partition of a certain kind or in none, worded for users."""

    BALANCED = "the kernel balances the load among these CPUs"
    ASKED_FOR = "the pod asks for it, because it places its threads itself"
    ISOLATED_AT_BOOT = "these CPUs are isolated at boot (isolcpus), where the kernel allows no other kind"
    MIXED = "the container also uses the shared pool, which a partition would take from it"
    QOS = "the pod is not Guaranteed, and only CPUs of Guaranteed pods become a partition"
    PARTLY_ISOLATED = (
        "only some of them are isolated at boot (isolcpus), and the kernel allows no balanced partition of such a set"
    )
    IMPOSSIBLE = "this kernel has no partitions below other cgroups (6.7 and later have)"
    UNIT = "it is a systemd unit, and only systemd writes its cgroup"
    RUNTIME = "a container runtime owns its cgroup, and no cgroup above passes exclusive CPUs down to it"
    REUSED = (
        "an init container has the same CPUs, so the container can't be a partition, and other containers use the shared pool, so the "
        "pod can't be one"
    )


class Closing(Struct, frozen=True):
    """How host processes are kept off a container's exclusive CPUs, and why in this way."""

    cpus: CpuSet
    """Exclusive CPUs of the container that are online."""
    kind: PartitionKind | None
    """Kind of the cpuset partition that has these CPUs. None means that there is no partition, and only the units' `AllowedCPUs=` keep host
    processes away.
    """
    is_of_pod: bool
    """Whether the pod's cgroup is the partition. If not, the container's cgroup is."""
    why: Why


def find_closings(
    config: Config, node: NodeRules, promises: Promises, entry: PodEntry, *, has_partitions: bool = True
) -> dict[str, Closing]:
    """Explain, by container name, how the exclusive CPUs of each container are kept free of host processes. The result is empty if
    `hostIsolation` is off.

    Args:
        config: the configuration with which the pod was admitted.
        node: the machine, its reserved CPUs, and the rules for sharing CPUs.
        promises: the promises after the pod's admission.
        entry: the admitted pod.
        has_partitions: whether the kernel supports partitions below other cgroups.
    """
    if config.host_isolation == "none":
        return {}
    if entry.pins_units or entry.is_requested_per_container:
        why = Why.UNIT if entry.pins_units else Why.RUNTIME
        own = {c.name: own_set_of(promises, entry.pod.uid, c.name) or CpuSet() for c in entry.pod.containers}
        return {
            name: Closing(cpus & node.topology.online, None, is_of_pod=False, why=why)
            for name, cpus in own.items()
            if cpus & node.topology.online
        }
    kernel = Kernel(1, NumaSet(), node.topology.online, path_to_partitions=("",) if has_partitions else ())
    wanted = {want.path: want for want in desired_cgroups(config, node, kernel, NodeState(promises, (entry,)))}
    return {
        container.name: _find_closing(node, promises, entry, container.name, wanted)
        if has_partitions
        else Closing(
            wanted[entry.container_path(container.name)].exclusive_cpus, None, is_of_pod=False, why=Why.IMPOSSIBLE
        )
        for container in entry.pod.containers
        if wanted[entry.container_path(container.name)].is_exclusive
    }


def _find_closing(
    node: NodeRules, promises: Promises, entry: PodEntry, name: str, wanted: Mapping[str, DesiredCgroup]
) -> Closing:
    container = wanted[entry.container_path(name)]
    for want in (container, wanted[entry.pod_path]):
        found = want.get(Attribute.CPUSET_CPUS_PARTITION)
        if isinstance(found, Partition) and found != MEMBER:
            why = Why.ASKED_FOR if entry.pod.is_isolated else Why.ISOLATED_AT_BOOT
            if found.kind is PartitionKind.ROOT:
                why = Why.BALANCED
            return Closing(container.exclusive_cpus, found.kind, want is not container, why)
    if isolation(node, promises, entry.pod, name) is Isolation.MIXED:
        why = Why.MIXED
    elif entry.qos is not QosClass.GUARANTEED:
        why = Why.QOS
    else:
        is_isolated = container.exclusive_cpus & node.topology.isolated
        why = Why.PARTLY_ISOLATED if is_isolated else Why.REUSED
    return Closing(container.exclusive_cpus, None, is_of_pod=False, why=why)
