"""What another tool needs to be told to be on a container's CPUs: lists and masks, as `nodeagent cpus` prints them. Decides nothing."""

from typing import Any

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod

Document = dict[str, Any]


def container_cpus(pod: Pod, container: str, placement: ContainerPlacement, *, is_closed: bool) -> Document:
    """Describe where a container runs.

    Args:
        pod: the container's.
        container: its name.
        placement: of it.
        is_closed: its exclusive CPUs are closed to what is not in its cgroup.
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
            "cpus": mask(cpus),
            "exclusiveCPUs": mask(placement.exclusive_cpus),
            "sharedCPUs": mask(placement.shared_cpus),
            "memoryNodes": mask(placement.memory_nodes),
        },
        "closed": is_closed,
    }


def mask(ids: CpuSet | NumaSet) -> str:
    """Return a set as a number in hexadecimal, as `taskset` and DPDK's `-c` read it."""
    return f"{ids.bits:#x}"
