"""Carry out: move the host's work off exclusive CPUs, write the cgroups, give and take devices, answer the container runtime.

The host's work leaves before CPUs are granted: a partition changes the CPUs of kernel threads, too. If it then turns out that a partition
is refused, or ends, that is made up for.
"""

from collections.abc import Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.partitions import running_without
from nodeagent.core.host.irq_owners import interrupt_requests
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups, UnitSettings
from nodeagent.core.model.cgroup_layout import UNITS_LEFT, UNITS_UNCLEAR, is_of_systemd, unit_at
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.host.host_settings import Wanted, alone_of
from nodeagent.daemon.reports.problems import refused_partitions, unserved_interrupts
from nodeagent.daemon.turn.drift import cgroups_in_sync
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.execution import ExecutionResult, execute, respond, uncreated_partitions, unvacated_cpus
from nodeagent.daemon.turn.look import Seen
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.plan import Planned
from nodeagent.daemon.turn.troubles import Trouble, owner_of


class CarriedOut(Struct, frozen=True):
    memory: TurnMemory
    result: ExecutionResult
    in_sync: Mapping[str, DesiredCgroup]
    """The cgroups that have their desired values now, by path."""
    troubles: tuple[Trouble, ...]
    patient: frozenset[Trouble]
    """Those that are not tried again within a second: at the next rescan, or at their own time."""
    conditions: tuple[str, ...]


def carry_out(edges: Edges, memory: TurnMemory, seen: Seen, planned: Planned) -> CarriedOut:
    """Carry out a plan, whose state is saved."""
    assert not isinstance(seen.observed, Trouble)
    state, wanted, observed = memory.state, planned.wanted, seen.observed
    refused = memory.refused_partitions
    if refused is None:
        refused = running_without(wanted, observed)
    recorded = edges.unit_records.keep(_unit_settings_to_keep(edges, state, seen, observed))
    disturbing, conditions = _keep_host_away(edges, memory, wanted, refused, rescan=seen.rescan)
    result = execute(planned.changes, wanted, edges.cgroups, edges.alive)
    failures = respond(result, memory.failures, partial(owner_of, state))
    if (found := uncreated_partitions(result)) != refused:
        disturbing, conditions = _keep_host_away(edges, memory, wanted, found, rescan=False)
    # In this order: what a unit gives back is taken from it before a container is created with it.
    unclear = frozenset(map(unit_at, seen.unclear))
    devices = edges.unit_devices.keep(state, rescan=seen.rescan, unclear=unclear)
    answered = edges.runtime.answer(state, wanted, unvacated_cpus(result), edges.unit_devices.overdue)
    unknown = tuple(
        Trouble(one.problem, owner_of(state, one.path))
        for one in edges.cgroups.unknown
        if one.path not in seen.left | seen.unclear
    )
    orphans = tuple(
        Trouble(
            f"processes run in {edges.tree.root / path}, which no pod owns, on CPUs {observed[path].cpus_effective} "
            f"(end them: echo 1 > {edges.tree.root / path}/cgroup.kill)"
        )
        for path in planned.changes.orphans
    )
    patient = {
        *failures.troubles,
        *(disturbing if edges.host_settings.waits else ()),
        *(() if edges.cgroups.unanswered else unknown),
    }
    troubles = (*devices, *answered, *unknown, *failures.troubles, *orphans, *recorded, *disturbing)
    memory = replace(memory, failures=failures, refused_partitions=found)
    return CarriedOut(memory, result, cgroups_in_sync(wanted, result), troubles, frozenset(patient), conditions)


def _unit_settings_to_keep(
    edges: Edges, state: NodeState, seen: Seen, observed: ObservedCgroups
) -> dict[str, UnitSettings]:
    """Return what units go back to. It is on record before they are changed, and until they have that again."""
    wanted = {
        container.unit: status.unit_before
        for entry in state.entries
        if entry.is_of_systemd
        for container, status in entry.pairs()
        if status.unit_before is not None
    }
    for unit, before in edges.unit_records.look().items():
        path = f"{UNITS_LEFT}/{unit}"
        there = observed.get(path)
        is_over = not edges.cgroups.unanswered if there is None else there.unit == before
        if path not in seen.left:  # whether the pod that pinned the unit has ended in this turn and left it that
            is_over = any(
                group.unit == before
                for place, group in observed.items()
                if is_of_systemd(place) and unit_at(place) == unit and not place.startswith(f"{UNITS_UNCLEAR}/")
            )
        if unit not in wanted and not is_over:
            wanted[unit] = before
    return wanted


def _keep_host_away(
    edges: Edges, memory: TurnMemory, wanted: tuple[DesiredCgroup, ...], refused: CpuSet, *, rescan: bool
) -> tuple[tuple[Trouble, ...], tuple[str, ...]]:
    """Move the host's work off exclusive CPUs. Return what could not be moved, and other problems.

    Where a partition is refused, systemd keeps its units off, as it does where the kernel has none.
    """
    edges.alive()
    node, exclusive = memory.node, memory.state.promises.exclusive()
    partitioned = CpuSet()
    for want in wanted:
        partitioned |= want.partition_cpus()
    alone = alone_of(node.config, node.topology, exclusive, partitioned - refused)
    asked = interrupt_requests(memory.state)
    places = edges.cgroups.unit_cgroups
    pinned = {
        places[unit_at(want.path)]: want.exclusive_cpus
        for want in wanted
        if is_of_systemd(want.path) and want.is_exclusive and unit_at(want.path) in places
    }
    host = memory.whole.online - exclusive
    troubles = edges.host_settings.keep(Wanted(alone, host, asked, partitioned - refused, pinned), rescan=rescan)
    conditions = (
        edges.host_settings.lost_record or "",
        refused_partitions(refused) if refused else "",
        unserved_interrupts(asked, edges.host_settings.claimed) if node.config.interrupt_isolation != "none" else "",
    )
    return troubles, tuple(filter(None, conditions))
