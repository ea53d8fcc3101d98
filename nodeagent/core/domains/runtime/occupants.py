"""Occupants: cgroups with processes, which belong to a container runtime or to other programs. Each occupant has the CPUs that its
processes may use, and its desired values.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from nodeagent.core.cgroups.desired_cgroups import Kernel, runtime_cgroups, shared_pool
from nodeagent.core.domains.runtime.answers import Occupant, WantedPlacement
from nodeagent.core.domains.runtime.reported import RuntimeReport
from nodeagent.core.domains.runtime.stated_pod import StatedPod
from nodeagent.core.model.cgroup import Attribute, CpuMax, DesiredCgroup, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import cpuset_path, is_above
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import NriResources, Sandbox
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.runtime_containers import ContainerKey, Registry
from nodeagent.core.model.state import NodeState, Origin
from nodeagent.core.turn.world import World


class Stated(Struct, frozen=True):
    """Description of a pod, taken from its annotations and from kubelet's data."""

    pod: StatedPod = StatedPod()
    problems: tuple[str, ...] = ()
    """Problems because of which the pod is refused."""


class Node(Struct, frozen=True):
    """Data on which decisions on a runtime's containers depend, in addition to the turn's observations (World)."""

    world: World
    kernel: Kernel
    reported: RuntimeReport
    stated: Callable[[Sandbox], Stated]
    origin: Origin
    """Origin of the runtime's pods."""
    mount: str
    """Mount point of the root of all cgroups."""
    misnamed: Callable[[Pod], tuple[str, ...]]
    """Function that finds the errors in a pod's names. A pod with such errors is never saved in the state."""


def wanted_by_key(state: NodeState, node: Node) -> dict[ContainerKey, WantedPlacement]:
    """Return the desired placement for each key (pod and container name) with an allocation."""
    held = {entry.key for entry in state.runtime.entries if entry.is_held}
    world = node.world
    cgroups = runtime_cgroups(world.config, world.managers, node.kernel, state)
    return {key: WantedPlacement.of(want) for key, want in cgroups.items() if key in held}


def list_occupants(
    state: NodeState, node: Node, seen: Mapping[str, ObservedCgroup], asked_for: Mapping[str, CpuSet]
) -> tuple[Occupant, ...]:
    """Return the runtime's containers with processes.

    Args:
        state: the state after the turn's decisions.
        node: the node in this turn.
        seen: existing cgroups of the containers, by ID.
        asked_for: CPUs that the agent has requested from the runtime, by container ID. The runtime may write them at any moment.
    """
    populated = frozenset(id_ for id_, there in seen.items() if there.is_populated)
    wanted = wanted_by_id(
        state.runtime, wanted_by_key(state, node), WantedPlacement(find_shared_pool(state, node)), populated
    )
    names = {entry.pod.uid: entry.pod.full_name for entry in state.entries}
    found = []
    for entry in state.runtime.entries:
        for made in entry.made:
            there = seen.get(made.id)
            if there is None or made.id not in populated:
                continue
            found.append(
                Occupant(
                    f"pod {names.get(entry.key.pod_uid, entry.key.pod_uid)}, container {entry.key.name}",
                    (there.cpus_effective or CpuSet()) | asked_for.get(made.id, CpuSet()),
                    wanted[made.id],
                    made.id,
                    find_settable_values(there),
                )
            )
    return tuple(found)


def wanted_by_id(
    registry: Registry, wanted: Mapping[ContainerKey, WantedPlacement], pool: WantedPlacement, populated: frozenset[str]
) -> dict[str, WantedPlacement]:
    """Return the desired placement of each container.

    If several containers of a key have processes, the oldest of them has the key's exclusive CPUs. The others are in the shared pool
    until the oldest has ended. Containers without a decision and refused containers are in the shared pool, too, where they can't disturb
    exclusive CPUs.

    Args:
        registry: the registry.
        wanted: desired placement of each key with an allocation.
        pool: desired placement of a container without an allocation.
        populated: IDs of the containers whose cgroups have processes.
    """
    found = {}
    for entry in registry.entries:
        promised = wanted.get(entry.key, pool)
        placed = [made.id for made in entry.made if made.is_placed]
        owner = next((one for one in placed if one in populated), placed[-1] if placed else "")
        for made in entry.made:
            has_allocation = made.id == owner or (made.is_placed and not promised.exclusive_cpus)
            found[made.id] = promised if has_allocation else pool
    return found


def find_shared_pool(state: NodeState, node: Node) -> CpuSet:
    """Return the CPUs of the shared pool, as far as they are online."""
    return shared_pool(node.world.managers, state.promises, node.kernel.online)


def list_untracked_occupants(found: Mapping[str, CpuSet]) -> tuple[Occupant, ...]:
    """Return an occupant for each cgroup below kubepods that has processes but doesn't belong to a known container of the runtime.

    Args:
        found: CPUs that the processes of each cgroup may use, by cgroup.
    """
    return tuple(Occupant(f"cgroup {path}", cpus, None) for path, cpus in sorted(found.items()))


def list_own_occupants(
    wanted: Iterable[DesiredCgroup], observed: ObservedCgroups, state: NodeState
) -> tuple[Occupant, ...]:
    """Return the containers of the agent's own pods that have processes, and the cgroups with processes that don't belong to any pod.

    Args:
        wanted: desired values of the agent's cgroups.
        observed: the agent's cgroups as they are now.
        state: the state with the containers' pods.
    """
    names = {
        entry.container_path(status.name): f"pod {entry.pod.full_name}, container {status.name}"
        for entry in state.own_entries()
        for status in entry.containers
    }
    leaves = {want.path: want for want in wanted if want.is_leaf}
    above = {path.rpartition("/")[0] for path in observed}
    found = []
    for path, there in observed.items():
        if not there.is_populated or there.is_frozen or path in above or not path or is_above(path):
            continue
        want, cpuset = leaves.get(path), observed[cpuset_path(path)]
        effective = (cpuset.cpus_effective or CpuSet()) | cpuset.elsewhere
        placement = None if want is None else WantedPlacement.of(leaves[cpuset_path(path)])
        found.append(Occupant(names.get(path, f"cgroup {path}"), effective, placement))
    return tuple(found)


def find_settable_values(there: ObservedCgroup) -> NriResources:
    """Return the values of a cgroup that NRI can set."""
    cpus, mems, limit = (
        there.get(attribute) for attribute in (Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX)
    )
    return NriResources(
        cpus=cpus if isinstance(cpus, CpuSet) and cpus else None,
        mems=mems if isinstance(mems, NumaSet) and mems else None,
        cpu_quota_us=limit.quota_us if isinstance(limit, CpuMax) else None,
        cpu_period_us=limit.period_us if isinstance(limit, CpuMax) else None,
    )
