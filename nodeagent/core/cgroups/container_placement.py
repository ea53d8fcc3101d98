"""Where each container runs now, as its processes are told: read from what its cgroup holds, so that the two always agree.

Knows no variable's name and no file.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.admission.managers import Managers, isolation
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.promises import HeldDevice
from nodeagent.core.model.state import NodeState, PodEntry


class ContainerPlacement(Struct, frozen=True):
    """The CPUs and memory nodes of a container's cgroup."""

    exclusive_cpus: CpuSet
    """Those on which no other container runs."""
    shared_cpus: CpuSet
    """Those of the shared pool, or of its pod's own pool."""
    memory_nodes: NumaSet
    devices: tuple[HeldDevice, ...] = ()
    """Those that are its own."""
    device_answers: tuple[tuple[str, bytes], ...] = ()
    """Of device plugins, by resource."""


def container_placements(
    managers: Managers, state: NodeState, cgroups: Mapping[str, DesiredCgroup]
) -> dict[str, ContainerPlacement]:
    """Return where the containers run, by the paths of their cgroups.

    Args:
        managers: of the node.
        state: whose promises the cgroups hold.
        cgroups: those that hold what is desired, by path; containers of others are left out.
    """
    return {
        path: _placement(managers, state, entry, container.name, cgroups[path])
        for entry in state.entries
        if entry.is_active
        for container in entry.pod.containers
        if (path := entry.container_path(container.name)) in cgroups
    }


def _placement(
    managers: Managers, state: NodeState, entry: PodEntry, name: str, cgroup: DesiredCgroup
) -> ContainerPlacement:
    cpus, nodes = cgroup.cpus(), cgroup.get(Attribute.CPUSET_MEMS)
    assert isinstance(nodes, NumaSet), "every container's cgroup has memory nodes"
    exclusive = CpuSet()
    if isolation(managers, state.promises, entry.pod, name).has_own_cpus:
        # Without those that are offline; a container that has none left runs in the shared pool (D14).
        exclusive = cpus & (state.promises.own_set(entry.pod.uid, name) or CpuSet())
    held = state.promises.of_pod(entry.pod.uid)
    answers = next((own for key, own in held.device_answers if key == name), ())
    return ContainerPlacement(exclusive, cpus - exclusive, nodes, held.devices_of(name), answers)
