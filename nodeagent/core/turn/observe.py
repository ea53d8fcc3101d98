"""Stage: record which containers have started and ended, as shown by the launcher and the cgroups."""

from nodeagent.core.model.state import ContainerStatus, PodEntry
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def observe(draft: Draft, world: World) -> Draft:
    """Record which containers have started and exited. Nothing is recorded while the launcher doesn't answer, because its runs are then
    unknown.
    """
    if world.runs is None:
        return draft
    changed, exited = list[PodEntry](), list[TurnEvent]()
    for entry in world.awake(draft.state.entries):
        after = lifecycle.observe(entry, world.runs, world.observed, world.now_ms)
        if after == entry:
            continue
        changed.append(after)
        exited += (
            TurnEvent(EventKind.CONTAINER_EXITED, entry.pod, entry.origin, new.name, _make_exit_fields(new))
            for old, new in zip(entry.containers, after.containers, strict=True)
            if new.exit is not None and old.exit is None
        )
    return draft.plus(draft.state.with_entries(changed), *exited)


def _make_exit_fields(status: ContainerStatus) -> tuple[tuple[str, str | int], ...]:
    assert status.exit is not None
    end = status.exit
    more = (("exit_code", end.code), ("signal", end.signal), ("start_error", end.start_error))
    known = ((name, value) for name, value in more if value is not None)
    return (("reason", end.reason), ("restarts", status.restarts), *known)
