"""Decision on one pod in a turn. If possible, the decision avoids CPUs on which processes without a known pod run."""

from collections.abc import Callable
from itertools import chain

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit
from nodeagent.core.admission.node_capacity import Insufficient, Usage, insufficient, usage_of
from nodeagent.core.admission.resize import resized
from nodeagent.core.admission.room import Room
from nodeagent.core.model.cgroup import unclear_units
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import NotResized
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import default_set, with_default_set
from nodeagent.core.turn.adoption import find_populated_pods
from nodeagent.core.turn.world import World

Decide = Callable[[Managers, Promises, Pod, CpuSet], Admitted | Rejected]
"""Function that decides on one pod. Its arguments are the managers, the promises, the pod and the CPUs of orphaned processes."""


def admit_off_orphans(managers: Managers, promises: Promises, pod: Pod, orphans: CpuSet) -> Admitted | Rejected:
    """Try to admit a pod without the CPUs of orphaned processes, because the pod would have to wait until the processes have left. If that
    fails, decide with these CPUs.
    """
    taken = default_set(promises) & orphans
    if taken:
        decision = admit(managers, with_default_set(promises, default_set(promises) - taken), pod)
        if isinstance(decision, Admitted):
            return replace(decision, promises=_add_shared_cpus(decision.promises, taken))
        if decision.is_of_a_failure:
            attempted = _add_shared_cpus(decision.attempted, taken)
            return replace(decision, promises=_add_shared_cpus(decision.promises, taken), attempted=attempted)
    return admit(managers, promises, pod)


def _add_shared_cpus(promises: Promises, cpus: CpuSet) -> Promises:
    return with_default_set(promises, default_set(promises) | cpus)


def decide_pod(
    state: NodeState, pod: Pod, usage: Usage, orphans: CpuSet, world: World, decide: Decide
) -> Admitted | Rejected | Insufficient:
    """Decide on a pod. First its requests are checked against the node's allocatable amounts, then the resource managers decide."""
    if world.config.check_allocatable:
        managers = world.managers.with_amounts(world.allocatable, state.promises)
        shortage = insufficient(pod, usage, managers, pod_level_resources=world.pod_level_resources)
        if shortage is not None:
            return shortage
    return decide(world.managers, state.promises, pod, orphans)


def resize_pod(state: NodeState, old: Pod, new: Pod, world: World) -> Promises | NotResized:
    """Resize a running pod. Return the new promises, or the reason why the pod isn't resized."""
    return resized(
        world.managers,
        state.promises,
        old,
        new,
        usage=usage_of(state.holding_pods(), pod_level_resources=world.pod_level_resources),
        allocatable=world.allocatable if world.config.check_allocatable else None,
        occupied=find_orphan_cpus(state, world),
    )


def find_room(state: NodeState, world: World) -> Room:
    """Return the resources that are available to pods now (see `Room`)."""
    return Room(
        topology=world.managers.topology,
        config=world.config,
        allocatable=world.allocatable,
        usage=usage_of(state.holding_pods(), pod_level_resources=world.pod_level_resources),
        held=state.promises.pods,
        unrecovered=state.promises.unrecovered,
        orphans=find_orphan_cpus(state, world),
        reservations=tuple(
            (one, one.from_ms - world.lead_ms, one.from_ms <= world.now_ms)
            for source in world.sources
            for one in source.reservations
        ),
        plugged=world.managers.plugged,
    )


def find_orphan_cpus(state: NodeState, world: World) -> CpuSet:
    """Return the CPUs of processes in cgroups that belong to no known pod. A pod that gets such CPUs can't start before these processes
    have left.
    """
    active = [entry for entry in state.entries if entry.is_active]
    of_known = [entry.cgroup_paths for entry in active if entry.is_pooled]
    others = {path: world.observed[path] for path in world.observed.keys() - set(chain.from_iterable(of_known))}
    unknown = find_populated_pods(others) - {"", *OWN_DIRECTORIES}
    if unknown:
        unknown -= {entry.pod_path for entry in active}
    cpus = CpuSet()
    for unit_cpus in unclear_units(others).values():
        cpus |= unit_cpus
    for path, group in others.items() if unknown else ():
        if group.is_populated and path.rpartition("/")[0] in unknown:
            cpus |= group.cpus_effective or CpuSet()
    return cpus
