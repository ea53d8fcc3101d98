"""The CPUs of a container as lists and masks for other tools, printed by `nodeagent cpus`."""

from typing import Any

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod

Document = dict[str, Any]


def describe_container_cpus(pod: Pod, container: str, placement: ContainerPlacement, *, is_closed: bool) -> Document:
    """Describe the CPUs of a container.

    Args:
        pod: the pod of the container.
        container: the container's name.
        placement: the container's CPUs and memory nodes.
        is_closed: processes outside its cgroup are kept off its exclusive CPUs.
    """
    cpus = placement.exclusive_cpus | placement.shared_cpus
    return {
        "kind": "ContainerCPUs",
        "version": 1,
        "pod": pod.full_name,
        "uid": pod.uid,
        "container": container,
        "cpus": str(cpus),
        "exclusiveCPUs": str(placement.exclusive_cpus),
        "sharedCPUs": str(placement.shared_cpus),
        "memoryNodes": str(placement.memory_nodes),
        "masks": {
            "cpus": format_mask(cpus),
            "exclusiveCPUs": format_mask(placement.exclusive_cpus),
            "sharedCPUs": format_mask(placement.shared_cpus),
            "memoryNodes": format_mask(placement.memory_nodes),
        },
        "closed": is_closed,
    }


def format_mask(ids: CpuSet | NumaSet) -> str:
    """Format a set as a hexadecimal mask for `taskset` and DPDK's `-c`."""
    return f"{ids.bits:#x}"
