"""Step `act` of a turn: let each domain finish the turn, start and signal processes, have the launcher forget ended runs, and move stray
main processes back into their cgroups.
"""

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.domain import TurnDone
from nodeagent.core.model.state import run_id
from nodeagent.core.turn.actions import (
    Forget,
    KillCgroup,
    KillMain,
    Launch,
    Terminate,
    TerminateAll,
    list_actions,
    list_stopping,
)
from nodeagent.core.turn.world import World
from nodeagent.daemon.reports.logs import pod_fields
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.problem import Problem, as_problem, owner_fields, problem_if_failed
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError


class Acted(Struct, frozen=True):
    memory: TurnMemory
    moved_back: int
    """Number of main processes that were moved back into their containers' cgroups."""
    problems: tuple[Problem, ...]


def act(edges: Edges, memory: TurnMemory, world: World, done: TurnDone, strays: frozenset[str]) -> Acted:
    """Start and signal processes as the saved state requires.

    Args:
        edges: the parts of the agent that access the machine.
        memory: the memory of the turn.
        world: the observations of the turn.
        done: the result of the turn's writes.
        strays: IDs of the runs whose main processes have left their cgroups and are moved back.
    """
    state, tree, runner = memory.state, edges.tree, edges.runner
    problems: list[Problem | None] = [as_problem(text) for domain in edges.domains for text in domain.finish(done)]
    ending = list_stopping(world.awake(state.entries))
    signalled, asked = memory.signalled & ending, memory.asked & ending
    for action in list_actions(state, world, done.ready, done.placed, signalled):
        edges.alive()
        match action:
            case Launch():
                problems.append(runner.launch(action, memory.node.config, str(tree.root)))
            case Terminate(run_id) | TerminateAll(run_id):
                if isinstance(action, TerminateAll):
                    owner = owner_fields(state, action.path)
                    failed = problem_if_failed(partial(tree.processes.terminate, action.path), owner)
                else:
                    failed = runner.terminate(run_id)
                asked |= {run_id}
                signalled |= {run_id} if failed is None else frozenset()
                problems.append(failed)
            case KillCgroup(path):
                problems.append(problem_if_failed(partial(tree.processes.kill, path), owner_fields(state, path)))
            case KillMain(run_id):
                problems.append(runner.kill(run_id))
            case Forget(run_ids):
                problems.append(runner.forget(run_ids))
    memory = replace(memory, signalled=signalled, asked=asked)
    moved_back, misplaced = _reattach(edges, memory, world, done.ready, strays)
    memory = replace(memory, misplaced_problem="; ".join(misplaced))
    return Acted(memory, moved_back, tuple(problem for problem in problems if problem is not None))


def _reattach(
    edges: Edges, memory: TurnMemory, world: World, ready: frozenset[str], strays: frozenset[str]
) -> tuple[int, list[str]]:
    """Move main processes back into their containers' cgroups, because they use other CPUs outside of them.

    Returns:
        The number of moved processes, and texts about those that could not be moved.
    """
    moved_back, problems = 0, []
    known = {
        run_id(entry, status): (entry, status)
        for entry in (memory.state.entries if strays else ())
        for status in entry.containers
    }
    for stray in sorted(strays & known.keys()):
        run, (entry, status) = (world.runs or {}).get(stray), known[stray]
        if run is None or run.pid is None or run.start_ticks is None:
            continue
        path = entry.container_path(status.name)
        if path not in ready or status.stop_by_ms is not None:
            continue
        try:
            if not edges.tree.processes.bring_back(path, run.pid, run.start_ticks):
                continue
        except CgroupError as err:
            problems.append(
                f"the main process of {entry.pod.full_name} {status.name} is outside its cgroup: {err.message} ({err.hint})"
            )
            continue
        moved_back += 1
        edges.log.warning("process_brought_back", **pod_fields(entry.pod, status.name), cgroup=path, pid=run.pid)
    return moved_back, problems
