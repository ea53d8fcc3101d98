"""Moves main processes back into their container's cgroup: only there do they have what was promised."""

from collections.abc import Collection
from typing import Protocol

from nodeagent.core.model.state import NodeState, run_id
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.daemon.reports.logs import Log, about
from nodeagent.edge.cgroups.cgroupfs import CgroupError


class ProcessMover(Protocol):
    """The pods' cgroups."""

    def has_left(self, path: str, pid: int, start_ticks: int) -> bool:
        """Return whether a process is elsewhere."""

    def bring_back(self, path: str, pid: int, start_ticks: int) -> None:
        """Move it back; raises CgroupError."""


def reattach(
    state: NodeState, runs: Runs, ready: Collection[str], tree: ProcessMover, log: Log
) -> tuple[int, list[str]]:
    """Find such processes and move them back.

    Args:
        state: saved.
        runs: what runs.
        ready: paths of the cgroups that hold what is promised.
        tree: the cgroups.
        log: gets each move.

    Returns:
        How many were moved back, and why others could not be.
    """
    back, problems = 0, []
    for entry in state.entries:
        for status in entry.containers:
            run, path = runs.get(run_id(entry, status)), entry.container_path(status.name)
            if run is None or run.pid is None or run.start_ticks is None or path not in ready:
                continue
            if status.stop_by_ms is not None:
                continue
            try:
                if not tree.has_left(path, run.pid, run.start_ticks):
                    continue
                tree.bring_back(path, run.pid, run.start_ticks)
            except CgroupError as err:
                problems.append(
                    f"the main process of {entry.pod.full_name} {status.name} has left it: {err.message} ({err.hint})"
                )
                continue
            back += 1
            log.warning("process_brought_back", **about(entry.pod, status.name), cgroup=path, pid=run.pid)
    return back, problems
