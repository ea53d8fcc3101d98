"""Actions on processes, derived from a saved state. Repeating an action, also after a crash, is harmless.

This module uses no launcher and no file. The caller passes the cgroups that are ready for a start.
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
    """CPUs and memory nodes for the environment variables of the container's first process."""


class Terminate(Struct, frozen=True):
    run_id: str


class TerminateAll(Struct, frozen=True):
    """Send SIGTERM to every process in a cgroup that other processes have entered."""

    run_id: str
    """ID of the run that ends. A later run in the same cgroup has another ID."""
    path: str


class KillCgroup(Struct, frozen=True):
    path: str


class KillMain(Struct, frozen=True):
    """Send SIGKILL to a main process that has left the cgroup of its container."""

    run_id: str


class Forget(Struct, frozen=True):
    """Let the launcher forget these runs, because their ends are in the saved state or no longer needed."""

    run_ids: tuple[str, ...]


Action = Launch | Terminate | TerminateAll | KillCgroup | KillMain | Forget


def list_actions(
    state: NodeState,
    world: World,
    ready: frozenset[str],
    placed: Mapping[str, ContainerPlacement],
    signalled: frozenset[str],
) -> Iterator[Action]:
    """Return the actions for a saved state.

    Args:
        state: the saved state.
        world: the observations that led to the state.
        ready: paths of the cgroups that have the allocated values, and whose exclusive CPUs aren't used by other processes.
        placed: placements of containers by cgroup path, at least of those in `ready`.
        signalled: IDs of the runs to whose processes the agent has sent SIGTERM since its start.
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
    """Return the settings of a container's process. Only a container with exclusive CPUs gets a real-time policy, because elsewhere the
    policy could starve other processes.
    """
    settings = launch.entry.pod.resolve_process(config.profiles)
    has_own_cpus = launch.placement.exclusive_cpus and not launch.placement.shared_cpus
    return settings if has_own_cpus or not settings.is_of_real_time else replace(settings, scheduler=None)


def list_stopping(entries: Iterable[PodEntry]) -> frozenset[str]:
    """Return the run IDs of the containers that are being stopped."""
    return frozenset(
        run_id(entry, status) for entry in entries for _, status in entry.pairs() if status.stop_by_ms is not None
    )
