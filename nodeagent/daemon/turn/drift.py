"""Reports what others changed in the pods' cgroups, from the changes of the turn that corrected it."""

from collections.abc import Mapping

from nodeagent.core.cgroups.partitions import without_partition
from nodeagent.core.cgroups.write_order import Change, GatherThreads, MakeCgroup, SetAttribute, is_of_partitions
from nodeagent.core.metrics.agent_metrics import REMOVED
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.world import World
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.execution import ExecutionResult
from nodeagent.daemon.turn.problem import owner_fields


def log_corrected(
    outcome: ExecutionResult, in_sync: Mapping[str, DesiredCgroup], state: NodeState, log: Log
) -> tuple[str, ...]:
    """Find the changes that restored what somebody else had changed.

    Args:
        outcome: of this turn.
        in_sync: the cgroups that had their desired values when the previous turn ended.
        state: whose pods the cgroups belong to.
        log: gets each change.

    Returns:
        What was restored, as the metric calls it.
    """
    found = [(change.path, fields) for change in outcome.written if (fields := _corrected(change, in_sync)) is not None]
    for path, fields in found:
        log.warning("cgroup_drift_corrected", **owner_fields(state, path), cgroup=path, **fields)
    return tuple(fields["file"] for _, fields in found)


def log_gathered(world: World, outcome: ExecutionResult, state: NodeState, log: Log) -> None:
    """Log which containers' processes are back on the CPUs that are theirs.

    Args:
        world: as the turn saw it.
        outcome: of the turn.
        state: whose pods the cgroups belong to.
        log: gets each container.
    """
    for change in outcome.written:
        if isinstance(change, GatherThreads):
            there = world.observed[change.path]
            found, cpus = str(there.elsewhere), str(there.cpus_effective)
            log.warning(
                "processes_gathered", **owner_fields(state, change.path), cgroup=change.path, found=found, cpus=cpus
            )


def cgroups_in_sync(wanted: tuple[DesiredCgroup, ...], outcome: ExecutionResult) -> dict[str, DesiredCgroup]:
    """Return the cgroups that have their desired values at the end of a turn, by path.

    Cgroups with failed or deferred writes are left out, so that a later correction isn't taken for a foreign change.
    """
    undone = [*(change for change, _ in outcome.failed), *outcome.held_back]
    of_partitions = {change.path for change in undone if is_of_partitions(change)}
    others = {change.path for change in undone if not is_of_partitions(change)}
    done = (want for want in wanted if want.path not in others and want.goes_back_to is None)
    return {want.path: without_partition(want) if want.path in of_partitions else want for want in done}


def _corrected(change: Change, in_sync: Mapping[str, DesiredCgroup]) -> dict[str, str] | None:
    before = in_sync.get(change.path)
    if before is None:
        return None
    match change:
        case MakeCgroup():
            return {"file": REMOVED, "found": "removed", "restored": "made again"}
        case SetAttribute(_, attribute, value) if change.before is not None and before.get(attribute) == value:
            return {"file": attribute.value, "found": str(change.before), "restored": str(value)}
        case _:
            return None
