"""Act: let each domain finish the turn, start, signal and forget processes, and move back those that have left their cgroup."""

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.domain import TurnDone
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
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.problem import Problem, as_problem, owner_fields, problem_if_failed
from nodeagent.daemon.turn.reattach import reattach


class Acted(Struct, frozen=True):
    memory: TurnMemory
    moved_back: int
    """Main processes that were moved back into their container's cgroup."""
    problems: tuple[Problem, ...]


def act(edges: Edges, memory: TurnMemory, world: World, done: TurnDone, *, reattaches: bool) -> Acted:
    """Do with processes what the saved state asks for.

    Args:
        edges: to do it by.
        memory: with the saved state.
        world: as the state was decided from.
        done: the turn so far.
        reattaches: look for main processes that have left their cgroup.
    """
    state, tree, runner = memory.state, edges.tree, edges.runner
    problems: list[Problem | None] = [as_problem(text) for domain in edges.domains for text in domain.finish(done)]
    ending = list_stopping(state)
    signalled, asked = memory.signalled & ending, memory.asked & ending
    for action in list_actions(state, world, done.ready, done.placed, signalled):
        edges.alive()
        match action:
            case Launch():
                problems.append(runner.launch(action, memory.node.config, str(tree.root)))
            case Terminate(run_id) | TerminateAll(run_id):
                if isinstance(action, TerminateAll):
                    owner = owner_fields(state, action.path)
                    failed = problem_if_failed(partial(tree.terminate, action.path), owner)
                else:
                    failed = runner.terminate(run_id)
                asked |= {run_id}
                signalled |= {run_id} if failed is None else frozenset()
                problems.append(failed)
            case KillCgroup(path):
                problems.append(problem_if_failed(partial(tree.kill, path), owner_fields(state, path)))
            case KillMain(run_id):
                problems.append(runner.kill(run_id))
            case Forget(run_ids):
                problems.append(runner.forget(run_ids))
    memory = replace(memory, signalled=signalled, asked=asked)
    moved_back = 0
    if reattaches:
        moved_back, misplaced = reattach(state, world.runs or {}, done.ready, tree, edges.log)
        memory = replace(memory, misplaced="; ".join(misplaced))
    return Acted(memory, moved_back, tuple(problem for problem in problems if problem is not None))
