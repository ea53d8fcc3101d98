"""Occupants: cgroups whose processes may occupy CPUs. Each belongs to a container runtime or to another program, and has its present CPUs
and its desired values.
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
    """Description of a pod in its annotations, with the errors that were found in them."""

    pod: StatedPod = StatedPod()
    problems: tuple[str, ...] = ()
    """Errors in the annotations. A pod with such errors is refused."""


class Node(Struct, frozen=True):
    """Inputs for decisions on a runtime's containers: the observations of the turn (`World`), properties of the kernel, and the reports of
    the runtime.
    """

    world: World
    kernel: Kernel
    reported: RuntimeReport
    stated: Callable[[Sandbox], Stated]
    origin: Origin
    """Origin that the runtime's pods get in the state."""
    mount: str
    """Mount point of cgroup v2."""
    misnamed: Callable[[Pod], tuple[str, ...]]
    """Function that returns the errors in the names of a pod. A pod with such errors is refused, and isn't saved in the state."""


def wanted_by_key(state: NodeState, node: Node) -> dict[ContainerKey, WantedPlacement]:
    """Return the desired placement of each key (pod UID and container name) that has an allocation."""
    held = {entry.key for entry in state.runtime.entries if entry.is_held}
    world = node.world
    cgroups = runtime_cgroups(world.config, world.managers, node.kernel, state)
    return {key: WantedPlacement.of(want) for key, want in cgroups.items() if key in held}


def list_occupants(
    state: NodeState, node: Node, seen: Mapping[str, ObservedCgroup], asked_for: Mapping[str, CpuSet]
) -> tuple[Occupant, ...]:
    """Return those of the runtime's containers that have processes.

    Args:
        state: the state after the decisions of this turn.
        node: the node, as observed in this turn.
        seen: the containers' existing cgroups, by container ID.
        asked_for: CPUs that the agent has requested from the runtime, by container ID. They count as occupied, because the runtime may
            write them at any moment.
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
    """Return the desired placement of each container, by container ID.

    If several containers with the same key have processes, the oldest has the key's exclusive CPUs. The others belong in the shared pool
    until the oldest has ended. Refused and undecided containers belong in the shared pool, too, where they can't disturb exclusive CPUs.

    Args:
        registry: the runtime's containers and their keys.
        wanted: the desired placement of each key that has an allocation.
        pool: the placement of containers without an allocation.
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
    """Return the online CPUs of the shared pool."""
    return shared_pool(node.world.managers, state.promises, node.kernel.online)


def list_untracked_occupants(found: Mapping[str, CpuSet]) -> tuple[Occupant, ...]:
    """Return an occupant for each cgroup below kubepods that has processes, but isn't the cgroup of a container known to the agent.

    Args:
        found: CPUs on which the cgroup's processes may run, by cgroup path.
    """
    return tuple(Occupant(f"cgroup {path}", cpus, None) for path, cpus in sorted(found.items()))


def list_own_occupants(
    wanted: Iterable[DesiredCgroup], observed: ObservedCgroups, state: NodeState
) -> tuple[Occupant, ...]:
    """Return the occupants below the pods' top cgroup: containers of the agent's own pods, and cgroups that belong to no pod. Only cgroups
    with processes are returned.

    Args:
        wanted: the desired values of the agent's cgroups.
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
    """Return the present values of a cgroup, as far as NRI can set them."""
    cpus, mems, limit = (
        there.get(attribute) for attribute in (Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX)
    )
    return NriResources(
        cpus=cpus if isinstance(cpus, CpuSet) and cpus else None,
        mems=mems if isinstance(mems, NumaSet) and mems else None,
        cpu_quota_us=limit.quota_us if isinstance(limit, CpuMax) else None,
        cpu_period_us=limit.period_us if isinstance(limit, CpuMax) else None,
    )
