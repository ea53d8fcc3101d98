"""Plan: what each cgroup should hold, and the changes that lead there, in their order."""

import os

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.cgroups.desired_cgroups import Kernel, desired_cgroups
from nodeagent.core.cgroups.write_order import Plan, diff
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups, unclear_units
from nodeagent.core.model.cgroup_layout import UNITS_LEFT
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.world import World
from nodeagent.daemon.reports.problems import lost_pods_problem, units_of_unknown_pods, units_without_cpus
from nodeagent.daemon.turn.edges import Edges

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Planned(Struct, frozen=True):
    wanted: tuple[DesiredCgroup, ...]
    changes: Plan
    conditions: tuple[str, ...]
    """Problems that the plan leaves."""


def plan(edges: Edges, node: NodeSetup, state: NodeState, world: World) -> Planned:
    """Plan the changes of all cgroups for a saved state.

    Without a launcher nothing can be started, and no cgroup is created for it: the pods' unit may be stopping. systemd could neither remove
    its cgroup nor start the unit in what is left of it (D9).
    """
    wanted = desired_cgroups(node.config, node.managers, kernel_of(node, world.observed), state)
    wanted += tuple(
        DesiredCgroup(path, is_leaf=True, goes_back_to=there.unit_before)
        for path, there in sorted(world.observed.items())
        if path.startswith(f"{UNITS_LEFT}/") and there.unit_before is not None
    )
    unclear = unclear_units(world.observed)
    conditions = (
        units_without_cpus(wanted),
        lost_pods_problem(state.promises.lost_pods),
        units_of_unknown_pods(unclear) if unclear else "",
    )
    if world.runs is None:
        wanted = tuple(want for want in wanted if want.path in world.observed)
    changes = diff(wanted, world.observed)
    changes = replace(changes, occupied=changes.occupied | edges.runtime.occupied(state))
    return Planned(wanted, changes, tuple(filter(None, conditions)))


def kernel_of(node: NodeSetup, observed: ObservedCgroups) -> Kernel:
    """Return what the kernel has on this machine."""
    return Kernel.of(node.topology, _PAGE_BYTES, observed)
