"""CPUs of a container as lists and masks, in the formats that other tools expect. `nodeagent cpus` prints them."""

from typing import Any

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod

Document = dict[str, Any]


def describe_container_cpus(pod: Pod, container: str, placement: ContainerPlacement, *, is_closed: bool) -> Document:
    """Describe the CPUs of a container as lists and masks.

    Args:
        pod: the pod of the container.
        container: the container's name.
        placement: the container's CPUs and memory nodes.
        is_closed: whether host processes are kept off the container's exclusive CPUs.
    """
    sets: dict[str, CpuSet | NumaSet] = {
        "cpus": placement.exclusive_cpus | placement.shared_cpus,
        "exclusiveCPUs": placement.exclusive_cpus,
        "sharedCPUs": placement.shared_cpus,
        "memoryNodes": placement.memory_nodes,
    }
    return {
        "kind": "ContainerCPUs",
        "version": 1,
        "pod": pod.full_name,
        "uid": pod.uid,
        "container": container,
        **{name: str(ids) for name, ids in sets.items()},
        # `taskset` and DPDK's option `-c` need masks
        "masks": {name: f"{ids.bits:#x}" for name, ids in sets.items()},
        "closed": is_closed,
    }
