"""Step `save` of a turn: save the decision before acting on it. If this fails, the decision has no effect, except that pods end."""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import list_plugin_notes
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.refusals import STATE_NOT_SAVED
from nodeagent.core.model.state import (
    Idle,
    NodeState,
    PodEntry,
    RefusedChange,
    apply_endings,
    has_only_starts,
    is_decided_again,
)
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn.pod_sources import is_unclear
from nodeagent.core.turn.world import EventKind, Turn
from nodeagent.daemon.domains.all import withdraw_all
from nodeagent.daemon.turn.decide import Decided
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.state_files import StateFileError, Sync

_DECISIONS = frozenset({EventKind.POD_ADMITTED, EventKind.POD_RESIZED, EventKind.POD_REFUSED, EventKind.CHANGE_REFUSED})


class Saved(Struct, frozen=True):
    """Result of saving: the part of the decision that takes effect."""

    memory: TurnMemory
    turn: Turn
    took_ms: tuple[int, ...]
    """Durations of the decisions that take effect, in milliseconds."""
    undone: Mapping[str, str]
    """Reasons why the turn couldn't fulfil requests, by the pods' UIDs."""
    problem: Problem | None = None
    """Reason why the decision couldn't be saved. None means that it was saved, or didn't have to be."""
    error: int | None = None
    """Error number (errno) of the failed save. None means that there was no failure, or a failure without a number."""


def save(edges: Edges, decided: Decided) -> Saved:
    """Save a decision. A decision that only confirms starts isn't saved, because a restarted agent finds these starts in the launcher's
    records.

    If saving fails, nothing is allocated or released. Pods still end, which may free space on the disk.
    """
    memory, turn = decided.memory, decided.turn
    is_changed = turn.state != memory.state
    if is_changed and memory.is_saved and has_only_starts(memory.state, turn.state):
        memory = replace(memory, state=turn.state)
    elif is_changed or not memory.is_saved:
        state = replace(turn.state, generation=memory.state.generation + 1)
        checked = memory.state if memory.is_saved and memory.adapted_to is memory.node.managers else None
        broken = tuple(violation.text for violation in violations(memory.node.managers, state, checked))
        assert not broken, f"a decision violates invariants: {broken}"
        sync = Sync.WHOLE if memory.is_saved and is_decided_again(memory.state, state) else Sync.DURABLE
        try:
            edges.recorder.save(memory.node, state, sync)
        except StateFileError as err:
            return _keep_endings(edges, decided, err)
        _log_returned_cpus(edges, memory, state)
        memory = replace(memory, state=state)
    undone = _unfulfilled(memory.state, decided, None)
    memory = replace(
        memory,
        adapted_to=memory.node.managers,
        is_saved=True,
        save_failed=False,
        unsaved=(),
        postponed=_list_postponed(memory, turn),
        seen_room=turn.seen_room,
    )
    return Saved(memory, turn, decided.took_ms, undone)


def _keep_endings(edges: Edges, decided: Decided, err: StateFileError) -> Saved:
    """Keep only the ends of pods from a decision that couldn't be saved. Everything else is refused until saving works again (E22)."""
    memory, turn, problem = decided.memory, decided.turn, Problem.from_error(err)
    withdraw_all(edges.domains, problem)
    unsaved = tuple(_list_unsaved(memory.state, decided, f"could not be saved: {problem}"))
    state = apply_endings(memory.state, turn.state)
    turn = Turn(state, tuple(event for event in turn.events if event.kind is EventKind.POD_ENDING))
    # The next turn saves again even without a new decision, to find out whether the problem is over.
    postponed = _list_postponed(memory, decided.turn)
    memory = replace(memory, state=state, is_saved=False, save_failed=True, unsaved=unsaved, postponed=postponed)
    return Saved(memory, turn, (), _unfulfilled(state, decided, problem), problem, err.errno)


def _list_unsaved(state: NodeState, decided: Decided, why: str) -> Iterator[PodEntry]:
    """Yield each pod that the decision admitted, changed or resumed. Because this decision couldn't be saved, the yielded pod has a refusal
    instead.
    """
    known = {entry.pod.uid: entry for entry in state.entries}
    for entry in decided.turn.state.entries:
        if not entry.is_active or entry.deleting_since_ms is not None:
            continue
        before = known.get(entry.pod.uid)
        if before is None:
            refusal = Waiting(STATE_NOT_SAVED, f"the admission {why}", entry.decided_at_ms)
            yield replace(entry, refusal=refusal, containers=())
        elif before.is_active and not before.is_requested_per_container and entry.pod != before.pod:
            refusal = Waiting(STATE_NOT_SAVED, f"the change {why}", decided.world.now_ms)
            yield replace(before, refused_change=RefusedChange(entry.pod, refusal))
        elif before.idle is not None and entry.idle is None:
            refusal = Waiting(STATE_NOT_SAVED, f"the resume {why}", decided.world.now_ms)
            yield replace(before, idle=Idle(refusal))


def _list_postponed(memory: TurnMemory, turn: Turn) -> tuple[PodEntry, ...]:
    """Return the pods that wait for device plugins, each with the time since which it has been waiting."""
    before = {entry.pod.uid: entry.refusal or entry.idle_refusal for entry in memory.postponed}
    entries = []
    for entry in turn.postponed:
        waiting, known = entry.refusal or entry.idle_refusal, before.get(entry.pod.uid)
        if waiting is not None and known is not None:
            waiting = replace(waiting, at_ms=known.at_ms)
        is_refused = entry.refusal is not None
        entries.append(replace(entry, refusal=waiting) if is_refused else replace(entry, idle=Idle(waiting)))
    return tuple(entries)


def _unfulfilled(state: NodeState, decided: Decided, problem: Problem | None) -> dict[str, str]:
    """Return the reasons why the turn couldn't fulfil the requests to retry or release pods, by the pods' UIDs."""
    requested = decided.world.retried | decided.world.released
    if not requested:
        return {}
    waiting = [entry for entry in state.entries if entry.pod.uid in requested and entry.deleting_since_ms is None]
    if problem is not None:
        return {entry.pod.uid: problem for entry in waiting}
    again = {event.pod.uid for event in decided.turn.events if event.kind in _DECISIONS}
    return {
        entry.pod.uid: f"manifest {entry.origin.name} cannot be read or is invalid"
        for entry in waiting
        if entry.pod.uid in decided.world.retried - again
        and (entry.refusal or entry.change_refusal)
        and is_unclear(entry, decided.world.sources)
    }


def _log_returned_cpus(edges: Edges, memory: TurnMemory, state: NodeState) -> None:
    """Log what CPU plugins have noted about released CPUs. Called only after the release is saved."""
    for note in list_plugin_notes(memory.node.managers, memory.state.promises, state.promises):
        log = edges.log.warning if note.has_failed else edges.log.info
        entry = memory.state.entry(note.pod_uid)
        assert entry is not None, "a pod with CPUs has an entry"
        whose = {"pod": entry.pod.full_name, "pod_uid": note.pod_uid, "container": note.container}
        log("cpus_returned", plugin=note.plugin, **whose, note=note.text)
