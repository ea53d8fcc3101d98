"""Actions on processes that follow from a saved state. After a crash, each action can be repeated without harm.

This module accesses neither the launcher nor files. The caller says which cgroups are ready for a start.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Container
from nodeagent.core.model.quiet import ProcessSettings
from nodeagent.core.model.state import NodeState, PodEntry, run_id
from nodeagent.core.turn.world import World


class Launch(Struct, frozen=True):
    run_id: str
    entry: PodEntry
    container: Container
    path: str
    placement: ContainerPlacement
    """CPUs and memory nodes that are passed to the container's process in environment variables."""


class Terminate(Struct, frozen=True):
    run_id: str


class TerminateAll(Struct, frozen=True):
    """Action: send SIGTERM to each process in a cgroup. It is used for processes that the launcher hasn't started."""

    run_id: str
    """ID of the run that is being ended, which distinguishes it from a later run in the same cgroup."""
    path: str


class KillCgroup(Struct, frozen=True):
    path: str


class KillMain(Struct, frozen=True):
    """Action: send SIGKILL to a container's main process that has left the container's cgroup."""

    run_id: str


class Forget(Struct, frozen=True):
    """Action: tell the launcher to remove these ended runs from its list. Their ends are saved in the state, or are not needed."""

    run_ids: tuple[str, ...]


Action = Launch | Terminate | TerminateAll | KillCgroup | KillMain | Forget


def list_actions(
    state: NodeState,
    world: World,
    ready: frozenset[str],
    placed: Mapping[str, ContainerPlacement],
    signalled: frozenset[str],
) -> Iterator[Action]:
    """Yield the actions that follow from a saved state.

    Args:
        state: the saved state.
        world: the observations from which the state was derived.
        ready: the paths of the cgroups in which a container may start: they have their allocated values, and no other process uses their
            exclusive CPUs.
        placed: the placements of containers, by cgroup path, at least for all paths in `ready`.
        signalled: the IDs of the runs to which SIGTERM was sent since the agent's start.
    """
    runs = world.runs
    if runs is None:
        return
    for entry in world.awake(state.entries):
        for container, status in entry.pairs():
            path = entry.container_path(status.name)
            cgroup = world.observed.get(path)
            populated = cgroup is not None and cgroup.is_populated
            attempt = run_id(entry, status)
            run = runs.get(attempt)
            is_running = run is not None and run.exit is None
            if status.stop_by_ms is not None:
                is_late = world.now_ms >= status.stop_by_ms
                if populated and (is_late or (container.is_launched and not is_running)):
                    yield KillCgroup(path)
                elif is_late and is_running:
                    yield KillMain(attempt)  # cgroup.kill doesn't reach a main process that is outside of its cgroup
                elif (populated or is_running) and not is_late and attempt not in signalled:
                    yield Terminate(attempt) if is_running else TerminateAll(attempt, path)
            elif container.is_launched and populated and not is_running:
                # Processes that outlive the main process are killed, because they must not delay the container's restart.
                yield KillCgroup(path)
            elif status.is_started and run is None and path in ready and not populated:
                yield Launch(attempt, entry, container, path, placed[path])
    ended_runs = {run.id for run in runs.values() if run.exit is not None}
    if ended_runs:
        ended_runs -= {run_id(e, s) for e in state.entries for s in e.containers if s.is_started}
    if ended_runs:
        yield Forget(tuple(sorted(ended_runs)))


def find_process_settings(launch: Launch, config: Config) -> ProcessSettings:
    """Return the process settings for a container's main process. A real-time policy is used only if the container runs on exclusive CPUs,
    because on shared CPUs it could starve other processes.
    """
    settings = launch.entry.pod.resolve_process(config.profiles)
    has_own_cpus = launch.placement.exclusive_cpus and not launch.placement.shared_cpus
    return settings if has_own_cpus or not settings.is_of_real_time else replace(settings, scheduler=None)


def list_stopping(entries: Iterable[PodEntry]) -> frozenset[str]:
    """Return the run IDs of the containers that are being stopped."""
    return frozenset(
        run_id(entry, status) for entry in entries for _, status in entry.pairs() if status.stop_by_ms is not None
    )
