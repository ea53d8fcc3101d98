"""Step `carry_out` of a turn: move the host's work off exclusive CPUs, write the cgroups in the plan's order, and withdraw released devices
from processes.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement, container_placements
from nodeagent.core.cgroups.partitions import find_unpartitioned_cpus
from nodeagent.core.host.irq_owners import interrupt_requests
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import UNITS_UNCLEAR, cpuset_path, is_pinned, unit_at
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.daemon.domains.all import DomainWriter, take_back_all
from nodeagent.daemon.host.host_settings import WantedSettings, cpus_to_avoid
from nodeagent.daemon.reports.problems import (
    describe_refused_partitions,
    describe_unknown_profiles,
    describe_unserved_interrupts,
)
from nodeagent.daemon.turn.drift import cgroups_in_sync
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.execution import ExecutionResult, execute, respond, uncreated_partitions
from nodeagent.daemon.turn.look import Seen
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.plan import Planned
from nodeagent.daemon.turn.problem import Problem, as_problem, owner_fields


class CarriedOut(Struct, frozen=True):
    memory: TurnMemory
    result: ExecutionResult
    in_sync: Mapping[str, DesiredCgroup]
    """Cgroups that have their desired values after the writes, by path."""
    placed: Mapping[str, ContainerPlacement]
    """Placements of the containers whose cgroups are in `in_sync`, by path."""
    host: WantedSettings
    files_in_use: Mapping[str, str]
    """Device files that could not be withdrawn from their last user, with that user's name (such as a unit)."""
    problems: tuple[Problem, ...]
    deferred: frozenset[Problem]
    """Problems whose operations are tried again only at the next rescan or at a scheduled time, not within a second."""
    conditions: tuple[str, ...]


def carry_out(edges: Edges, seen: Seen, planned: Planned) -> CarriedOut:
    """Carry out the plan for a saved state."""
    assert not isinstance(seen.domains, Problem)
    memory = planned.memory
    quiet = memory.quiet_cores.follow(memory.state, memory.full_topology, memory.node.config)
    memory = replace(memory, quiet_cores=quiet)
    state, wanted, observed = memory.state, planned.wanted, seen.domains.cgroups
    refused = memory.refused_partitions
    if refused is None:
        refused = find_unpartitioned_cpus(wanted, observed)
    recorded = [as_problem(text) for domain in edges.domains for text in domain.record(state, observed)]
    disturbing, conditions, host = _update_host_settings(edges, memory, observed, wanted, refused, rescan=seen.rescan)
    with edges.tree.writing():
        result = execute(planned.changes, wanted, DomainWriter(edges.domains), edges.alive)
    failures = respond(result, memory.failures, partial(owner_fields, state))
    if (found := uncreated_partitions(result)) != refused:
        disturbing, conditions, host = _update_host_settings(edges, memory, observed, wanted, found, rescan=False)
    # devices are taken from their last users before a domain starts a container with these devices
    taken = take_back_all(edges.domains, state)
    unknown = tuple(map(as_problem, seen.domains.problems))
    orphans = tuple(
        Problem(_describe_orphan(edges.tree.root / path, observed[cpuset_path(path)]), kind=ProblemKind.ORPHAN)
        for path in planned.changes.orphans
    )
    deferred = {
        *failures.problems,
        *(disturbing if edges.host_settings.waits else ()),
        *(() if seen.domains.retries else unknown),
    }
    problems = (*map(as_problem, taken.problems), *unknown, *failures.problems, *orphans, *recorded, *disturbing)
    memory = replace(memory, failures=failures, refused_partitions=found)
    in_sync = cgroups_in_sync(wanted, result)
    placements = container_placements(memory.node.managers, state, in_sync, memory.placements)
    memory = replace(memory, placements=placements)
    return CarriedOut(
        memory,
        result,
        in_sync,
        placements.by_key(),
        host,
        taken.files_in_use,
        problems,
        frozenset(deferred),
        conditions,
    )


def _describe_orphan(path: Path, observed: ObservedCgroup) -> str:
    """Describe a cgroup that has processes but belongs to no pod. Its CPUs are named if it has a cpuset."""
    cpus = observed.cpus_effective
    where = "" if cpus is None else f", on CPUs {cpus}"
    return f"processes run in {path}, which no pod owns{where} (end them: echo 1 > {path}/cgroup.kill)"


def _update_host_settings(
    edges: Edges,
    memory: TurnMemory,
    observed: ObservedCgroups,
    wanted: tuple[DesiredCgroup, ...],
    refused: CpuSet,
    *,
    rescan: bool,
) -> tuple[tuple[Problem, ...], tuple[str, ...], WantedSettings]:
    """Change host settings so that the host's work avoids exclusive CPUs. Return the problems, the conditions, and the wanted settings.

    On the CPUs of partitions that can't be created (`refused`), systemd's units are kept off through AllowedCPUs=, as on a kernel without
    partitions.
    """
    edges.alive()
    node, exclusive = memory.node, exclusive_cpus(memory.state.promises)
    root = next((want for want in wanted if not want.path), None)
    # the pods' cgroup must contain the CPUs of all partitions below it
    partitioned = CpuSet() if root is None else root.partition_cpus()
    to_avoid = cpus_to_avoid(node.config, node.topology, exclusive, partitioned - refused)
    interrupts = interrupt_requests(memory.state) if node.config.interrupt_isolation != "none" else ()
    places = memory.unit_cgroups
    unclear = (cgroup for unit, cgroup in places.items() if f"{UNITS_UNCLEAR}/{unit}" in observed)
    pinned = dict.fromkeys(unclear, CpuSet()) | {
        places[unit_at(want.path)]: want.exclusive_cpus
        for want in (wanted if places else ())
        if is_pinned(want.path) and unit_at(want.path) in places
    }
    host = memory.full_topology.online - exclusive
    quiet = memory.quiet_cores
    wanted_settings = WantedSettings(to_avoid, host, interrupts, partitioned - refused, pinned, quiet.values)
    problems = edges.host_settings.keep(wanted_settings, rescan=rescan)
    conditions = (
        edges.host_settings.lost_record or "",
        describe_unknown_profiles(quiet.unknown),
        describe_refused_partitions(refused) if refused else "",
        describe_unserved_interrupts(interrupts, edges.host_settings.interrupt_owners)
        if node.config.interrupt_isolation != "none"
        else "",
    )
    return problems, tuple(filter(None, conditions)), wanted_settings
