"""What to do with processes, derived from a saved state: doing it twice, or again after a crash, is harmless.

Knows no launcher and no file; the caller passes which cgroups are ready for a start.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.pod import Container
from nodeagent.core.model.state import NodeState, PodEntry, run_id
from nodeagent.core.turn.world import World


class Launch(Struct, frozen=True):
    run_id: str
    entry: PodEntry
    container: Container
    path: str
    placement: ContainerPlacement
    """Where it will run: its first process is told."""


class Terminate(Struct, frozen=True):
    run_id: str


class TerminateAll(Struct, frozen=True):
    """SIGTERM to every process of a cgroup that other processes entered."""

    run_id: str
    """Of the life that ends: what comes back under the same path is another one."""
    path: str


class KillCgroup(Struct, frozen=True):
    path: str


class KillMain(Struct, frozen=True):
    """SIGKILL to a main process that has left its container's cgroup."""

    run_id: str


class Forget(Struct, frozen=True):
    """The launcher may drop these runs: their ends are in the saved state, or don't matter any more."""

    run_ids: tuple[str, ...]


Action = Launch | Terminate | TerminateAll | KillCgroup | KillMain | Forget


def actions(
    state: NodeState,
    world: World,
    ready: frozenset[str],
    placed: Mapping[str, ContainerPlacement],
    signalled: frozenset[str],
) -> Iterator[Action]:
    """Return what to do with processes for a saved state. Derived from the state alone, so a repeat after a crash is harmless.

    Args:
        state: saved.
        world: as the state was decided from.
        ready: paths of the cgroups that hold what is promised, with nobody else on their exclusive CPUs.
        placed: where the containers of at least these cgroups run.
        signalled: run ids whose processes got their SIGTERM from this process.
    """
    runs = world.runs
    if runs is None:
        return
    for entry in state.entries:
        for container, status in entry.pairs():
            path = entry.container_path(status.name)
            there = world.observed.get(path)
            populated = there is not None and there.is_populated
            attempt = run_id(entry, status)
            run = runs.get(attempt)
            is_running = run is not None and run.exit is None
            if status.stop_by_ms is not None:
                is_late = world.now_ms >= status.stop_by_ms
                if populated and (is_late or (container.is_launched and not is_running)):
                    yield KillCgroup(path)
                elif is_late and is_running:
                    yield KillMain(attempt)  # it has left, and cgroup.kill does not reach it
                elif (populated or is_running) and not is_late and attempt not in signalled:
                    yield Terminate(attempt) if is_running else TerminateAll(attempt, path)
            elif container.is_launched and populated and not is_running:
                # What the main process left behind ends with it, and a process that nobody can wait for must not keep the container from
                # starting.
                yield KillCgroup(path)
            elif status.is_started and run is None and path in ready and not populated:
                yield Launch(attempt, entry, container, path, placed[path])
    needed = {run_id(e, s) for e in state.entries for s in e.containers if s.is_started}
    over = tuple(sorted(r.id for r in runs.values() if r.exit is not None and r.id not in needed))
    if over:
        yield Forget(over)


def stopping(state: NodeState) -> frozenset[str]:
    """Return the run ids of the containers that are being stopped."""
    return frozenset(
        run_id(entry, status) for entry in state.entries for _, status in entry.pairs() if status.stop_by_ms is not None
    )
