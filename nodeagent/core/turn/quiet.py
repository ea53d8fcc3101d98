"""Quiet pods: an earlier turn left them unchanged, and since then nothing has changed that could affect them. A turn skips them to save
time.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from nodeagent.core.model.derived import find_replaced, list_replaced
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World

K = TypeVar("K")
V = TypeVar("V")

_LONGEST_UID = 36
"""Length in characters of the longest UID that is part of run IDs. For a pod with a longer UID, run IDs contain a hash, from which the pod
can't be found.
"""


class LeftAlone(Struct, frozen=True):
    """Pods that a turn left unchanged, with the state after this turn and its observations."""

    pods: frozenset[str]
    """UIDs of the unchanged pods, except pods that wait for a certain time or for a change that doesn't wake the agent."""
    state: NodeState
    """State after the turn."""
    world: World


def find_left_alone(before: NodeState, after: NodeState, world: World, turn: Turn) -> LeftAlone:
    """Return the pods that a turn left unchanged, as candidates for the quiet pods of the next turn.

    Args:
        before: the state before the turn.
        after: the saved state after the turn.
        world: the observations of the turn.
        turn: the result of the turn, as saved.
    """
    postponed = {entry.pod.uid for entry in turn.postponed}
    if world.runs is None or after.promises.unrecovered:
        return LeftAlone(frozenset(), after, world)
    known = {id(entry) for entry in world.awake(before.entries)}
    settled = {
        entry.pod.uid
        for entry in world.awake(after.entries)
        if id(entry) in known and entry.pod.uid not in postponed and _is_settled(entry, world)
    }
    return LeftAlone(world.quiet | settled, after, world)


def _is_settled(entry: PodEntry, world: World) -> bool:
    return (
        entry.is_active
        and entry.deleting_since_ms is None
        and not entry.waiting
        and not entry.pins_units
        and not entry.is_requested_per_container
        and len(entry.pod.uid) <= _LONGEST_UID
        and lifecycle.wake_at_ms(entry, world.now_ms) is None
        and not lifecycle.is_unsettled(entry, world.runs or {}, world.observed)
    )


def find_quiet(left: LeftAlone | None, state: NodeState, world: World) -> frozenset[str]:
    """Return the UIDs of the pods that this turn can skip.

    Args:
        left: the pods that the previous turn left unchanged. None means that there was no previous turn.
        state: the state before this turn.
        world: the observations of this turn, without `quiet`.
    """
    if left is None or left.state is not state or world.runs is None or left.world.runs is None:
        return frozenset()
    before = left.world
    if before.config is not world.config or before.has_reported_all != world.has_reported_all:
        return frozenset()
    if list(map(_without_pods, before.sources)) != list(map(_without_pods, world.sources)):
        return frozenset()
    touched = {uid for path in _list_changed(before.observed, world.observed) for uid in _list_pods_at(path)}
    touched.update(attempt.partition("/")[0] for attempt in _list_changed(before.runs or {}, world.runs))
    touched |= world.retried | world.released
    for old, new in zip(before.sources, world.sources, strict=True):
        gone, came = find_replaced(old.pods, new.pods)
        touched.update(manifest.pod.uid for manifest in (*old.pods[gone], *new.pods[came]))
    return left.pods - touched


def _without_pods(source: PodSource) -> tuple[object, ...]:
    return source.name, source.is_blind, source.is_partial, source.unreadable, source.misspelt


def _list_changed(old: Mapping[K, V], new: Mapping[K, V]) -> Iterator[K]:
    if old is not new:
        yield from (key for key in list_replaced(old, new) if old.get(key) != new[key])
        yield from old.keys() - new.keys()


def _list_pods_at(path: str) -> Iterator[str]:
    """Yield the UID of the pod whose cgroup is at this path or above it. If there is no such pod, yield nothing."""
    return (part.removeprefix("pod") for part in path.split("/") if part.startswith("pod"))
