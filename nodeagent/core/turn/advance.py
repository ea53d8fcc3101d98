"""Stage: decide which containers start and stop, and mark pods that have finished."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import remove_pod, start_container
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def advance(draft: Draft, world: World) -> Draft:
    """Decide which containers to start and stop next. Nothing is decided while the launcher doesn't answer."""
    changed, promises = list[PodEntry](), draft.state.promises
    events, deltas = list[TurnEvent](), list[MetricDelta]()
    for entry in world.awake(draft.state.entries) if world.runs is not None else ():
        if entry.refusal is not None or (entry.outcome is not None and entry.deleting_since_ms is None):
            continue
        after = lifecycle.advance(entry, world.runs or {}, world.observed, world.now_ms, world.asked_to_end)
        if after == entry:
            continue
        for old, new in zip(entry.containers, after.containers, strict=True):
            if new.attempt > old.attempt:
                promises = start_container(world.managers, promises, entry.pod, new.name)
                fields = (("restarts", new.restarts),)
                events.append(TurnEvent(EventKind.CONTAINER_STARTING, entry.pod, entry.origin, new.name, fields))
        if after.outcome is not None:
            phase = (("phase", after.outcome.value),)
            events.append(TurnEvent(EventKind.POD_FINISHED, entry.pod, entry.origin, None, phase))
            last = (
                replace(status, had_cpus=own_set_of(promises, entry.pod.uid, status.name))
                for status in after.containers
            )
            after = replace(after, containers=tuple(last))
            promises, freed = remove_pod(world.managers, promises, entry.pod.uid)
            deltas += freed
            if after.refused_change is not None and after.outcome is not entry.outcome:
                # the manifest has changed, so the next turn applies the change
                draft = replace(draft, is_unfinished=True)
        changed.append(after)
    state = replace(draft.state.with_entries(changed), promises=promises) if changed else draft.state
    return draft.plus(state, *events, deltas=tuple(deltas))
