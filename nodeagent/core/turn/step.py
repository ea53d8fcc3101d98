"""One turn of the agent: from the node's state and the observations to the next state and events.

This module calls the stages in order. Each stage is a function in a module of its own, which takes the draft of the turn and returns the
next draft. The code of a turn accesses neither files nor a clock, because the World contains all observations.
"""

from nodeagent.core.model.state import NodeState
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.admit import admit
from nodeagent.core.turn.advance import advance
from nodeagent.core.turn.change import follow_changes
from nodeagent.core.turn.decision import Decide, admit_off_orphans
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.due import note_room
from nodeagent.core.turn.ending import end_pods
from nodeagent.core.turn.files import add_new_manifests, follow_files
from nodeagent.core.turn.idle import note_settings, rest, resume
from nodeagent.core.turn.lost import adopt_running, release_lost
from nodeagent.core.turn.observe import observe
from nodeagent.core.turn.released import release_ended
from nodeagent.core.turn.resize import resize
from nodeagent.core.turn.world import Turn, World


def step(state: NodeState, world: World, decide: Decide = admit_off_orphans) -> Turn:
    """Make all decisions that follow from the state and the observations.

    Args:
        state: the state before the turn.
        world: the observations of this turn.
        decide: function that decides on a pod. The daemon passes a function that also measures the time, because this module has no clock.
    """
    draft = observe(Draft(state, seen_room=world.seen_room), world)
    draft = follow_files(draft, world)
    draft = release_lost(draft, world)
    draft = end_pods(draft, world)
    draft = release_ended(draft, world)
    draft = adopt_running(add_new_manifests(draft, world), world)
    draft = rest(draft, world)
    before = draft.state
    draft = resume(draft, world, decide)
    draft = resize(draft, world)
    draft = admit(draft, world, decide)
    draft = follow_changes(draft, world)
    draft = advance(draft, world)
    draft = rest(note_settings(draft, world), world)
    moments = [lifecycle.wake_at_ms(entry, world.now_ms) for entry in world.awake(draft.state.entries)]
    for one in (one for source in world.sources for one in source.reservations):
        moments += [at_ms for at_ms in (one.from_ms, one.until_ms) if at_ms > world.now_ms]
    if draft.is_unfinished:
        moments.append(world.now_ms)
    wake_at_ms = min((moment for moment in moments if moment is not None), default=None)
    turn = Turn(draft.state, draft.events, draft.deltas, wake_at_ms, draft.postponed, draft.seen_room)
    return note_room(turn, before, world)
