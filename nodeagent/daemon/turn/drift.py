"""Detection of drift. A cgroup file that had its desired value after the last turn and must be written again was changed by another
program.
"""

from collections.abc import Mapping

from nodeagent.core.cgroups.partitions import without_partition
from nodeagent.core.cgroups.write_order import Change, GatherThreads, MakeCgroup, SetAttribute, concerns_partition
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
    """Log each cgroup file that the agent corrected because another program had changed it. Return the metric's label for each of them.

    `in_sync` contains the cgroups that had their desired values after the last turn.
    """
    found = [
        (change.path, fields)
        for change in outcome.written
        if (fields := _describe_correction(change, in_sync)) is not None
    ]
    for path, fields in found:
        log.warning("cgroup_drift_corrected", **owner_fields(state, path), cgroup=path, **fields)
    return tuple(fields["file"] for _, fields in found)


def log_gathered(world: World, outcome: ExecutionResult, state: NodeState, log: Log) -> None:
    """Log each container whose processes or threads the agent moved back to the container's CPUs."""
    for change in outcome.written:
        if isinstance(change, GatherThreads):
            there = world.observed[change.path]
            found, cpus = str(there.elsewhere), str(there.cpus_effective)
            log.warning(
                "processes_gathered", **owner_fields(state, change.path), cgroup=change.path, found=found, cpus=cpus
            )


def cgroups_in_sync(wanted: tuple[DesiredCgroup, ...], outcome: ExecutionResult) -> dict[str, DesiredCgroup]:
    """Return the cgroups that have their desired values after a turn, by path.

    Cgroups with failed or deferred writes are left out. If a later turn writes their values, this isn't a correction of drift.
    """
    in_sync = {want.path: want for want in wanted if want.goes_back_to is None}
    undone = [*(change for change, _ in outcome.failed), *outcome.held_back]
    of_partitions = {change.path for change in undone if concerns_partition(change)}
    others = {change.path for change in undone if not concerns_partition(change)}
    for path in others & in_sync.keys():
        del in_sync[path]
    return in_sync | {path: without_partition(in_sync[path]) for path in of_partitions & in_sync.keys()}


def _describe_correction(change: Change, in_sync: Mapping[str, DesiredCgroup]) -> dict[str, str] | None:
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
