"""Plan: what each cgroup should hold, and the changes that lead there, in their order."""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.desired_cgroups import desired_cgroups, pod_cgroups
from nodeagent.core.cgroups.write_order import Plan, diff
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.turn.world import World
from nodeagent.daemon.reports.problems import lost_pods_problem, units_without_cpus
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.memory import TurnMemory


class Planned(Struct, frozen=True):
    memory: TurnMemory
    wanted: tuple[DesiredCgroup, ...]
    changes: Plan
    conditions: tuple[str, ...]
    """Problems that the plan leaves."""


def plan(edges: Edges, memory: TurnMemory, world: World) -> Planned:
    """Plan the changes of all cgroups for a saved state.

    Without a launcher nothing can be started, and no cgroup is created for it: the pods' unit may be stopping. systemd could neither remove
    its cgroup nor start the unit in what is left of it (D9).
    """
    assert world.kernel is not None
    node, state = memory.node, memory.state
    pods = pod_cgroups(node.config, node.managers, world.kernel, state, memory.pod_cgroups)
    wanted = desired_cgroups(node.config, node.managers, world.kernel, state, pods)
    wanted += tuple(one for domain in edges.domains for one in domain.desired(world.observed))
    conditions = (units_without_cpus(wanted), lost_pods_problem(state.promises.unrecovered))
    if world.runs is None:
        wanted = tuple(want for want in wanted if want.path in world.observed)
    changes = diff(wanted, world.observed)
    occupied = changes.occupied
    for domain in edges.domains:
        occupied |= domain.occupied(state)
    return Planned(
        replace(memory, pod_cgroups=pods), wanted, replace(changes, occupied=occupied), tuple(filter(None, conditions))
    )
