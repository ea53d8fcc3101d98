"""Container placements: the CPUs, memory nodes and devices that a container's processes can read from their environment and a file.

A placement is derived from the values of the container's cgroup, so that the two always agree. The names of variables and files are chosen
elsewhere.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.admission.node_rules import NodeRules, isolation
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup
from nodeagent.core.model.cgroup_layout import POOL, cpuset_path
from nodeagent.core.model.derived import Derived
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings


class ContainerPlacement(Struct, frozen=True):
    """CPUs, memory nodes and devices of one container, as reported to its processes."""

    exclusive_cpus: CpuSet
    """CPUs that no other container uses."""
    shared_cpus: CpuSet
    """CPUs of the node's shared pool, or of the pod's own pool."""
    memory_nodes: NumaSet
    devices: tuple[HeldDevice, ...] = ()
    """Devices allocated to the container."""
    device_answers: tuple[tuple[str, bytes], ...] = ()
    """Answers of device plugins to Allocate, by resource."""


class ContainerPlacements(Struct, frozen=True):
    """Placements of containers."""

    of_pool: ContainerPlacement | None = None
    """Placement of the containers that have only the CPUs and memory nodes of the shared pool. None means that the pool's cgroup isn't
    ready.
    """
    pooled: tuple[str, ...] = ()
    """Cgroup paths of the containers with the placement `of_pool`."""
    others: Derived[tuple[PodEntry, PodPromises, str, DesiredCgroup, object], ContainerPlacement] = Derived()
    """Placements of all other containers, by the paths of their cgroups."""

    def by_key(self) -> dict[str, ContainerPlacement]:
        """Return all placements by cgroup path. The placement `of_pool` is listed under the path of the pool's cgroup."""
        pooled = {} if self.of_pool is None else dict.fromkeys((POOL, *self.pooled), self.of_pool)
        return pooled | self.others.by_key()


def container_placements(
    node: NodeRules, state: NodeState, cgroups: Mapping[str, DesiredCgroup], last: ContainerPlacements | None = None
) -> ContainerPlacements:
    """Derive the placement of each container.

    Args:
        node: the node's rules.
        state: the state whose promises the cgroups implement.
        cgroups: the cgroups that have their desired values, by path. Containers of other cgroups are left out.
        last: the result of an earlier call, which is reused for unchanged containers.
    """
    pool = cgroups.get(POOL)
    of_pool = None if pool is None else ContainerPlacement(CpuSet(), pool.cpus(), _find_memory_nodes(pool))

    def make(inputs: tuple[PodEntry, PodPromises, str, DesiredCgroup, object]) -> ContainerPlacement:
        entry, held, name, cgroup, _ = inputs
        cgroup = cgroups[cpuset_path(cgroup.path)]
        cpus, nodes = cgroup.cpus(), _find_memory_nodes(cgroup)
        exclusive = CpuSet()
        if isolation(node, state.promises, entry.pod, name).has_own_cpus:
            # Offline CPUs are left out. A container whose CPUs are all offline runs in the shared pool (D14).
            exclusive = cpus & (own_set_of(state.promises, entry.pod.uid, name) or CpuSet())
        devices = held.of(DeviceHoldings)
        answers = next((own for key, own in devices.answers if key == name), ())
        return ContainerPlacement(exclusive, cpus - exclusive, nodes, devices.devices_of(name), answers)

    pooled, others = list[str](), list[tuple[str, tuple[PodEntry, str, str]]]()
    for entry in [entry for entry in state.entries if entry.is_active]:
        if entry.is_placed_as_pool:
            pooled += entry.container_paths.values()
            continue
        for name, path in entry.container_paths.items():
            if path in cgroups and cpuset_path(path) in cgroups:
                others.append((path, (entry, name, path)))
    pooled = [path for path in pooled if path in cgroups]
    before = (last or ContainerPlacements()).others
    return ContainerPlacements(
        of_pool,
        tuple(pooled),
        before.derive(
            (node,),
            others,
            lambda item: (
                item[0],
                state.promises.of_pod(item[0].pod.uid),
                item[1],
                cgroups[item[2]],
                cgroups[cpuset_path(item[2])],
            ),
            make,
        ),
    )


def _find_memory_nodes(cgroup: DesiredCgroup) -> NumaSet:
    nodes = cgroup.get(Attribute.CPUSET_MEMS)
    assert isinstance(nodes, NumaSet), "every container's cgroup, and the pool's, has memory nodes"
    return nodes
