"""Container placements: the CPUs, memory nodes and devices of a container, which its processes can read from environment variables and from
a file.

A placement is derived from the values of the container's cgroup, so that the two always agree. The names of the variables and files are
defined in formats/manifest/placement_variables.py.
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
    """CPUs that only this container uses."""
    shared_cpus: CpuSet
    """CPUs of the shared pool, or of the pool that the containers of a pod share."""
    memory_nodes: NumaSet
    devices: tuple[HeldDevice, ...] = ()
    """Devices allocated to the container."""
    device_answers: tuple[tuple[str, bytes], ...] = ()
    """Device plugins' answers to Allocate, by resource. They say how the container gets access to its devices."""


class ContainerPlacements(Struct, frozen=True):
    """Placements of all containers."""

    of_pool: ContainerPlacement | None = None
    """Common placement of the containers that use only the shared pool's CPUs and memory nodes. None means that the pool's cgroup doesn't
    have its desired values yet.
    """
    pooled: tuple[str, ...] = ()
    """Cgroup paths of the containers to which `of_pool` applies."""
    others: Derived[tuple[PodEntry, PodPromises, str, DesiredCgroup, object], ContainerPlacement] = Derived()
    """Placements of all other containers, by cgroup path, with the values from which they were derived."""

    def by_key(self) -> dict[str, ContainerPlacement]:
        """Return all placements by cgroup path. `of_pool` is also listed under the path of the shared pool's cgroup."""
        pooled = {} if self.of_pool is None else dict.fromkeys((POOL, *self.pooled), self.of_pool)
        return pooled | self.others.by_key()


def container_placements(
    node: NodeRules, state: NodeState, cgroups: Mapping[str, DesiredCgroup], last: ContainerPlacements | None = None
) -> ContainerPlacements:
    """Derive the placement of each container whose cgroup has its desired values.

    Args:
        node: the machine, its reserved CPUs, and the rules for sharing CPUs.
        state: the state whose promises the cgroups implement.
        cgroups: the cgroups that have their desired values, by path. Containers whose cgroups aren't listed get no placement.
        last: the result of the previous call, whose placements are reused for unchanged containers.
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
