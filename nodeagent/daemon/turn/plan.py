"""Step `plan` of a turn: compute the desired cgroups, and the ordered changes that lead to them."""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.desired_cgroups import desired_cgroups, pod_cgroups
from nodeagent.core.cgroups.write_order import Plan, diff
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.turn.world import World
from nodeagent.daemon.reports.problems import describe_lost_pods, describe_units_without_cpus
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.memory import TurnMemory


class Planned(Struct, frozen=True):
    memory: TurnMemory
    wanted: tuple[DesiredCgroup, ...]
    changes: Plan
    conditions: tuple[str, ...]
    """Texts for users about problems that no change of a cgroup can solve."""


def plan(edges: Edges, memory: TurnMemory, world: World) -> Planned:
    """Plan the cgroup changes that a saved state requires.

    While the launcher doesn't answer, no cgroups are created, because systemd may be stopping the pods' unit. New cgroups in the unit's
    cgroup would keep systemd from removing it and from starting the unit again (D9).
    """
    assert world.kernel is not None
    node, state = memory.node, memory.state
    pods = pod_cgroups(node.config, node.managers, world.kernel, state, memory.pod_cgroups, world.quiet)
    wanted = desired_cgroups(node.config, node.managers, world.kernel, state, pods)
    wanted += tuple(cgroup for domain in edges.domains for cgroup in domain.desired(world.observed))
    units_without_cpus = describe_units_without_cpus(wanted) if state.pinning_entries() else ""
    conditions = (units_without_cpus, describe_lost_pods(state.promises.unrecovered))
    if world.runs is None:
        wanted = tuple(want for want in wanted if want.path in world.observed)
    changes = diff(wanted, world.observed, memory.in_place)
    occupied = changes.occupied
    for domain in edges.domains:
        occupied |= domain.occupied(state)
    memory = replace(memory, pod_cgroups=pods, in_place=changes.in_place)
    return Planned(memory, wanted, replace(changes, occupied=occupied), tuple(filter(None, conditions)))
