"""One turn of the agent: the node's state and what was observed in, the next state and what happened out.

Order of one turn: record what ended, end pods, release what is over, resize pods of which only amounts have changed, decide on new pods (in
manifest order), replace changed ones, start containers. Knows neither files nor the clock: everything observed is in the World.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    Report,
    admit,
    in_turn,
    remove_pod,
    start_container,
)
from nodeagent.core.admission.node_capacity import Allocatable, Insufficient, Usage, insufficient, usage_of
from nodeagent.core.admission.resize import (
    differences,
    is_resizable,
    is_resize,
    lowers_request,
    moves_instead,
    resized,
    restarted,
)
from nodeagent.core.admission.units import UnitTaken, unit_taken
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.model.cgroup import ObservedCgroups, unclear_units
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod, qos_class
from nodeagent.core.model.promises import Promises, UnrecoveredPod
from nodeagent.core.model.refusals import RELEASED, RESIZE_DEFERRED, NotResized
from nodeagent.core.model.state import (
    ContainerStatus,
    Idle,
    NodeState,
    Origin,
    PodEntry,
    RecordedRefusal,
    RefusedChange,
)
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of, with_default_set
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.adoption import found, may_run, populated_pods
from nodeagent.core.turn.changes import Occupancy, exchanged
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.core.turn.pod_sources import Manifest, PodSource, counting, is_unclear, offered
from nodeagent.core.turn.recovery import settled


class World(Struct, frozen=True):
    """Everything observed for one turn."""

    config: Config
    managers: Managers
    allocatable: Allocatable
    sources: tuple[PodSource, ...]
    """In the order in which their manifests count. Pods whose own source is unreadable now stay as they are."""
    runs: Runs | None
    """None: the launcher doesn't answer."""
    observed: ObservedCgroups
    now_ms: int
    retried: frozenset[str] = frozenset()
    """UIDs of pods to decide on again on request, or whose changed manifests to decide on again."""
    released: frozenset[str] = frozenset()
    """UIDs of pods that somebody asked to end, whatever their manifests say."""
    down: frozenset[str] = frozenset()
    """Paths of systemd's units that are not active, and are not being started."""
    is_all_told: bool = True
    """False: a container runtime has not told yet of which pods it runs."""
    asked: frozenset[str] = frozenset()
    """Run ids to whose processes this process has sent SIGTERM, or has tried to."""


class EventKind(enum.StrEnum):
    """What can happen to a pod or container; the value is the log event's name."""

    POD_ADMITTED = "pod_admitted"
    POD_REFUSED = "pod_refused"
    CHANGE_REFUSED = "change_refused"
    POD_RESIZED = "pod_resized"
    POD_ENDING = "pod_ending"
    POD_REMOVED = "pod_removed"
    POD_RELEASED = "pod_released"
    POD_FINISHED = "pod_finished"
    POD_RESTED = "pod_rested"
    POD_RESUMED = "pod_resumed"
    RESUME_REFUSED = "resume_refused"
    CONTAINER_STARTING = "container_starting"
    CONTAINER_EXITED = "container_exited"
    MANIFEST_SHADOWED = "manifest_shadowed"
    MANIFEST_NOTE = "manifest_note"
    POD_ADOPTED = "pod_adopted"
    PROMISE_CHANGED = "promise_changed"


class TurnEvent(Struct, frozen=True):
    """One thing that happened in a turn: data for the log, the metrics and the tests."""

    kind: EventKind
    pod: Pod
    origin: Origin
    container: str | None = None
    fields: tuple[tuple[str, str | int], ...] = ()
    report: Report | None = None


class Turn(Struct, frozen=True):
    state: NodeState
    events: tuple[TurnEvent, ...] = ()
    deltas: tuple[MetricDelta, ...] = ()
    wake_at_ms: int | None = None
    """When time alone will change something."""
    postponed: tuple[tuple[Pod, str], ...] = ()
    """The pods that the next turn decides on, each with the reason."""


class _Draft(Struct, frozen=True):
    """A turn in progress."""

    state: NodeState
    events: tuple[TurnEvent, ...] = ()
    deltas: tuple[MetricDelta, ...] = field(default=())
    postponed: tuple[tuple[Pod, str], ...] = ()

    def plus(self, state: NodeState, *events: TurnEvent, deltas: tuple[MetricDelta, ...] = ()) -> "_Draft":
        return _Draft(state, self.events + events, self.deltas + deltas, self.postponed)

    def postponing(self, pod: Pod, why: str) -> "_Draft":
        return replace(self, postponed=(*self.postponed, (pod, why)))


Decide = Callable[[Managers, Promises, Pod, CpuSet], Admitted | Rejected]
"""A decision on one pod: see `admitted_beside`."""


def admitted_beside(managers: Managers, promises: Promises, pod: Pod, orphans: CpuSet) -> Admitted | Rejected:
    """Decide on a pod: with CPUs that it can use at once, where no orphaned process runs, if there are enough of them."""
    taken = default_set(promises) & orphans
    if taken:
        decision = admit(managers, with_default_set(promises, default_set(promises) - taken), pod)
        if isinstance(decision, Admitted):
            return replace(decision, promises=_with_shared(decision.promises, taken))
        if decision.is_of_a_failure:
            attempted = _with_shared(decision.attempted, taken)
            return replace(decision, promises=_with_shared(decision.promises, taken), attempted=attempted)
    return admit(managers, promises, pod)


def _with_shared(promises: Promises, cpus: CpuSet) -> Promises:
    return with_default_set(promises, default_set(promises) | cpus)


def step(state: NodeState, world: World, decide: Decide = admitted_beside) -> Turn:
    """Decide on everything that the world asks for.

    Args:
        state: as it is.
        world: what was observed.
        decide: how to decide on each new pod; for callers that have a clock and measure that.
    """
    draft = _Draft(state)
    if world.runs is not None:
        draft = _observe(draft, world.runs, world)
    wanted, shadowed = counting(offered(world.sources), state.own_entries())
    draft = _without_gone(draft, wanted, world)
    draft = draft.plus(draft.state, *(_shadowed_event(m, by) for m, by in shadowed))
    draft = _follow_files(draft, wanted, world)
    successors = _successors(draft.state, wanted, world)
    draft = _end_unwanted(draft, wanted, successors, world)
    draft = _remove_gone(_end_released(draft, world), wanted, successors, world)
    draft = _resume(_rest(draft, world), world, decide)
    draft, replacing = _resize(draft, successors, world)
    draft = _try_changes(_admit_new(draft, wanted, world, decide), replacing, world)
    before = draft.state.entries
    if world.runs is not None:
        draft = _advance(draft, world)
    draft = _rest(_see_units(draft, world), world)
    moments = [lifecycle.wake_at_ms(entry, world.now_ms) for entry in draft.state.entries]
    finished = [new for old, new in zip(before, draft.state.entries, strict=True) if new.outcome is not old.outcome]
    if any(entry.refused_change is not None for entry in finished):
        moments.append(world.now_ms)  # decide on the changed manifest at once
    wake_at_ms = min((moment for moment in moments if moment is not None), default=None)
    return Turn(draft.state, draft.events, draft.deltas, wake_at_ms, draft.postponed)


def _see_units(draft: _Draft, world: World) -> _Draft:
    for entry in _standing_for_units(draft.state):
        draft = draft.plus(draft.state.with_entry(lifecycle.with_units_seen(entry, world.observed)))
    return draft


def _standing_for_units(state: NodeState) -> tuple[PodEntry, ...]:
    return tuple(e for e in state.entries if e.is_of_systemd and e.is_active and e.deleting_since_ms is None)


def _rest(draft: _Draft, world: World) -> _Draft:
    """Take back what pods were promised that give it back while none of their units is active. They stay: their units are kept off
    exclusive CPUs, as whatever shares.
    """
    for entry in _standing_for_units(draft.state):
        if entry.idle == Idle() or not lifecycle.is_to_rest(entry, world.down):
            continue
        promises, deltas = remove_pod(world.managers, draft.state.promises, entry.pod.uid)
        state = replace(draft.state.with_entry(replace(entry, idle=Idle())), promises=promises)
        events = () if entry.idle else (TurnEvent(EventKind.POD_RESTED, entry.pod, entry.origin),)
        draft = draft.plus(state, *events, deltas=deltas)
    return draft


def _resume(draft: _Draft, world: World, decide: Decide) -> _Draft:
    """Decide again on pods that have given back what they were promised, and of which a unit is active now: before new pods.

    Without room for it the unit goes on in the shared pool. That is tried in every turn, and reported when the reason is another one.
    """
    for entry in _standing_for_units(draft.state):
        if entry.idle is None or not lifecycle.is_to_wake(entry, world.observed, world.down):
            continue
        pods = draft.state.holding_pods()
        usage = usage_of(pods, pod_level_resources=world.config.placement.gate("PodLevelResources"))
        first = decide if entry.idle.refusal is None else admitted_beside
        decision = _decision(draft.state, entry.pod, usage, cpus_of_orphans(draft.state, world), world, first)
        if isinstance(decision, Admitted):
            state = replace(draft.state.with_entry(replace(entry, idle=None)), promises=decision.promises)
            event = TurnEvent(EventKind.POD_RESUMED, entry.pod, entry.origin, report=decision.report)
            draft = draft.plus(state, event, deltas=decision.deltas)
            continue
        if isinstance(decision, Rejected) and decision.is_postponed:
            draft = draft.postponing(entry.pod, decision.message)
            continue
        known = entry.idle.refusal
        if known is not None and (known.reason, known.message) == (decision.reason, decision.message):
            continue
        refusal = RecordedRefusal(decision.reason, decision.message, world.now_ms)
        fields = (("reason", refusal.reason), ("message", refusal.message))
        event = TurnEvent(EventKind.RESUME_REFUSED, entry.pod, entry.origin, None, fields)
        draft = draft.plus(draft.state.with_entry(replace(entry, idle=Idle(refusal))), event)
    return draft


def _resize(draft: _Draft, successors: Mapping[str, Manifest], world: World) -> tuple[_Draft, Mapping[str, Manifest]]:
    """Give pods of which only amounts have changed these, while they run: before new pods, that would take what they have waited for.

    Returns:
        The draft, and the changed manifests of all other pods.
    """
    others = dict(successors)
    changed = (entry for entry in draft.state.entries if entry.pod.uid in successors) if successors else ()
    found = [
        (entry, successors[entry.pod.uid])
        for entry in changed
        if is_resizable(entry) and is_resize(entry.pod, successors[entry.pod.uid].pod)
    ]
    # those that give something back come first: others may have waited for it
    for entry, manifest in sorted(found, key=lambda one: not lowers_request(one[0].pod, one[1].pod)):
        resized_to = _resized(draft, entry, manifest, world) if _is_to_try(entry, manifest, world) else draft
        if resized_to is not None:
            draft = resized_to
            del others[entry.pod.uid]
    return draft, others


def _resized(draft: _Draft, entry: PodEntry, manifest: Manifest, world: World) -> _Draft | None:
    """None: it is decided on anew."""
    state, gate = draft.state, world.config.placement.gate("PodLevelResources")
    answer = resized(
        world.managers,
        state.promises,
        entry.pod,
        manifest.pod,
        usage=usage_of(state.holding_pods(), pod_level_resources=gate),
        allocatable=world.allocatable if world.config.check_allocatable else None,
        occupied=cpus_of_orphans(state, world),
    )
    if moves_instead(manifest.pod, answer):
        return None
    if isinstance(answer, NotResized):
        known = entry.change_refusal
        is_known = entry.refused_change is not None and entry.refused_change.pod == manifest.pod
        is_known = is_known and entry.pod.uid not in world.retried
        if is_known and known is not None and (known.reason, known.message) == (answer.reason, answer.message):
            return draft
        return _with_refused_change(
            draft, entry, manifest, RecordedRefusal(answer.reason, answer.message, world.now_ms)
        )
    changes = "; ".join(differences(state.promises, answer, entry.pod, manifest.pod))
    after = replace(entry, pod=manifest.pod, origin=manifest.origin, refused_change=None)
    after = lifecycle.restarting(after, restarted(entry.pod, manifest.pod), world.now_ms)
    event = TurnEvent(EventKind.POD_RESIZED, manifest.pod, manifest.origin, None, (("changes", changes),))
    return draft.plus(replace(state.with_entry(after), promises=answer), *_noted(manifest), event)


def _with_refused_change(draft: _Draft, entry: PodEntry, manifest: Manifest, refusal: RecordedRefusal) -> _Draft:
    """Let a pod run as it is."""
    stays = replace(entry, origin=manifest.origin, refused_change=RefusedChange(manifest.pod, refusal))
    fields = (("reason", refusal.reason), ("message", refusal.message))
    event = TurnEvent(EventKind.CHANGE_REFUSED, entry.pod, manifest.origin, None, fields)
    return draft.plus(draft.state.with_entry(stays), *_noted(manifest), event)


def _observe(draft: _Draft, runs: Runs, world: World) -> _Draft:
    for entry in draft.state.entries:
        after = lifecycle.observe(entry, runs, world.observed, world.now_ms)
        if after == entry:
            continue
        events = []
        for old, new in zip(entry.containers, after.containers, strict=True):
            if new.exit is not None and old.exit is None:
                events.append(
                    TurnEvent(EventKind.CONTAINER_EXITED, entry.pod, entry.origin, new.name, _exit_fields(new))
                )
        draft = draft.plus(draft.state.with_entry(after), *events)
    return draft


def _exit_fields(status: ContainerStatus) -> tuple[tuple[str, str | int], ...]:
    assert status.exit is not None
    fields: list[tuple[str, str | int]] = [("reason", status.exit.reason), ("restarts", status.restarts)]
    if status.exit.code is not None:
        fields.append(("exit_code", status.exit.code))
    if status.exit.signal is not None:
        fields.append(("signal", status.exit.signal))
    if status.exit.start_error is not None:
        fields.append(("start_error", status.exit.start_error))
    return tuple(fields)


def _shadowed_event(manifest: Manifest, by: Manifest) -> TurnEvent:
    same = "name" if manifest.pod.full_name == by.pod.full_name else "uid"
    return TurnEvent(
        EventKind.MANIFEST_SHADOWED,
        manifest.pod,
        manifest.origin,
        None,
        (("same", same), ("first_source", by.origin.name)),
    )


def _is_wanted(entry: PodEntry, wanted: dict[str, Manifest], world: World) -> bool:
    manifest = wanted.get(entry.pod.full_name)
    if manifest is not None and (manifest.pod == entry.pod or manifest.origin == entry.origin):
        return manifest.pod == entry.pod
    # While a pod's own file can't be parsed, another file's pod of the same name does not replace it.
    return is_unclear(entry, world.sources)


def _follow_files(draft: _Draft, wanted: dict[str, Manifest], world: World) -> _Draft:
    """Record where pods, or their changes that were refused, come from now: a file may be renamed. A file that exists but can't be parsed
    now still belongs to the pod.
    """
    for entry, manifest in _with_manifests(draft.state.entries, wanted):
        known = entry.refused_change
        if manifest.pod == entry.pod:
            known = None
        elif known is None or manifest.pod != known.pod:
            continue
        followed = replace(entry, origin=manifest.origin, refused_change=known)
        if followed != entry and not is_unclear(entry, world.sources):
            draft = draft.plus(draft.state.with_entry(followed))
    return draft


def _with_manifests(entries: tuple[PodEntry, ...], wanted: dict[str, Manifest]) -> Iterator[tuple[PodEntry, Manifest]]:
    """Give the pods that have a manifest that counts, by the name or else the UID, each with it."""
    by_uid = {manifest.pod.uid: manifest for manifest in wanted.values()}
    for entry in entries:
        manifest = wanted.get(entry.pod.full_name) or by_uid.get(entry.pod.uid)
        if manifest is not None:
            yield entry, manifest


def _successors(state: NodeState, wanted: dict[str, Manifest], world: World) -> dict[str, Manifest]:
    """Return the changed manifests of pods, by the pods' UIDs."""
    return {
        entry.pod.uid: manifest
        for entry, manifest in _with_manifests(state.entries, wanted)
        if not _is_wanted(entry, wanted, world)
    }


def _end_unwanted(
    draft: _Draft, wanted: dict[str, Manifest], successors: Mapping[str, Manifest], world: World
) -> _Draft:
    for entry in draft.state.entries:
        if entry.is_active and entry.pod.uid in successors:
            continue
        is_wanted = _is_wanted(entry, wanted, world)
        is_retried = entry.refusal is not None and entry.pod.uid in world.retried and entry.pod.full_name in wanted
        if entry.deleting_since_ms is not None or (is_wanted and not is_retried):
            continue
        if not entry.is_active:
            rest = tuple(e for e in draft.state.entries if e.pod.uid != entry.pod.uid)
            events = () if is_wanted else (TurnEvent(EventKind.POD_REMOVED, entry.pod, entry.origin),)
            draft = draft.plus(replace(draft.state, entries=rest), *events)
            continue
        draft = _ending(draft, entry, world)
    return draft


def _ending(draft: _Draft, entry: PodEntry, world: World) -> _Draft:
    ending = replace(entry, deleting_since_ms=world.now_ms)
    ending = lifecycle.advance(ending, world.runs or {}, world.observed, world.now_ms, world.asked)
    return draft.plus(draft.state.with_entry(ending), TurnEvent(EventKind.POD_ENDING, entry.pod, entry.origin))


def _try_changes(draft: _Draft, successors: Mapping[str, Manifest], world: World) -> _Draft:
    """End the pods whose changed manifests could be followed; the others keep running as they are, with the refusal (D7).

    Several may change at once, and the order in which they will have ended is unknown: a successor has to fit both while the others are as
    they are and when those tried before it have been replaced by theirs.
    """
    tried = [
        (entry, successors[entry.pod.uid])
        for entry in draft.state.entries
        if entry.pod.uid in successors and _is_to_try(entry, successors[entry.pod.uid], world)
    ]
    refusals = _refused_changes(draft.state, tried, successors, world) if tried else {}
    for entry, manifest in tried:
        if entry.pod.uid not in refusals:
            draft = _ending(draft, replace(entry, refused_change=None), world)
            continue
        reason, message = refusals[entry.pod.uid]
        draft = _with_refused_change(draft, entry, manifest, RecordedRefusal(reason, message, world.now_ms))
    return draft


def _refused_changes(
    state: NodeState, tried: Collection[tuple[PodEntry, Manifest]], successors: Mapping[str, Manifest], world: World
) -> dict[str, tuple[str, str]]:
    """Return which changes can't be followed, by UID, with reason and message.

    A pod that stays keeps its units, and then those that would have got them stay, too.
    """
    refused: dict[str, tuple[str, str]] = {}
    while True:
        refused |= _refused_units(state, tried, successors, frozenset(refused))
        short = _refused_amounts(state, [one for one in tried if one[0].pod.uid not in refused], successors, world)
        refused |= short
        if not any(entry.pod.units for entry, _ in tried if entry.pod.uid in short):
            return refused


def _refused_units(
    state: NodeState,
    tried: Collection[tuple[PodEntry, Manifest]],
    successors: Mapping[str, Manifest],
    staying: frozenset[str],
) -> dict[str, tuple[str, str]]:
    """Pods may take over each other's units in one change: what counts is who has them when all have been replaced."""
    refused: dict[str, tuple[str, str]] = {}
    moving = [(entry, manifest) for entry, manifest in tried if entry.pod.uid not in staying]
    while True:
        leaving = {entry.pod.uid for entry, _ in moving}
        holders = {
            unit: entry.pod.full_name
            for entry in state.entries
            if entry.is_active and entry.pod.uid not in leaving
            for unit in _lasting_units(entry, successors)
        }
        for entry, manifest in moving:
            both = sorted({*manifest.pod.units} & holders.keys())
            if both:
                taken = UnitTaken(both[0], holders[both[0]])
                refused[entry.pod.uid] = (taken.reason, taken.message)
            else:
                holders |= dict.fromkeys(manifest.pod.units, manifest.pod.full_name)
        if not leaving & refused.keys():
            return refused
        moving = [(entry, manifest) for entry, manifest in moving if entry.pod.uid not in refused]


def _lasting_units(entry: PodEntry, successors: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Return the units that a pod has in the end, or what comes in its place."""
    if entry.deleting_since_ms is None:
        return entry.pod.units
    successor = None if entry.is_released else successors.get(entry.pod.uid)
    return () if successor is None else successor.pod.units


def _refused_amounts(
    state: NodeState, tried: Iterable[tuple[PodEntry, Manifest]], successors: Mapping[str, Manifest], world: World
) -> dict[str, tuple[str, str]]:
    gate = world.config.placement.gate("PodLevelResources")
    allocatable = world.allocatable if world.config.check_allocatable else None
    pods = state.holding_pods()
    now = then = Occupancy(state.promises, pods, usage_of(pods, pod_level_resources=gate))
    for entry in state.entries:
        if entry.is_active and entry.deleting_since_ms is not None and entry.pod.uid in successors:
            after = exchanged(then, successors[entry.pod.uid].pod, world.managers, allocatable)
            then = after if isinstance(after, Occupancy) else then
    refused = {}
    for entry, manifest in tried:
        answers = [exchanged(held, manifest.pod, world.managers, allocatable) for held in (now, then)]
        short = next((answer for answer in answers if not isinstance(answer, Occupancy)), None)
        if short is None:
            (_, then) = cast("list[Occupancy]", answers)
        else:
            refused[entry.pod.uid] = (short.reason, short.message)
    return refused


def _is_to_try(entry: PodEntry, successor: Manifest, world: World) -> bool:
    if not entry.is_active or entry.deleting_since_ms is not None or entry.pod == successor.pod:
        return False
    known = entry.refused_change
    if known is None or known.pod != successor.pod or entry.pod.uid in world.retried:
        return True
    return known.refusal.reason == RESIZE_DEFERRED


def _end_released(draft: _Draft, world: World) -> _Draft:
    """End pods on request. Those that are already ending, for whatever reason, only won't come back."""
    for entry in draft.state.entries:
        if entry.pod.uid not in world.released or not entry.is_active or entry.is_released or entry.is_of_runtime:
            continue
        released = replace(entry, is_released=True)
        draft = draft.plus(draft.state.with_entry(released))
        if entry.deleting_since_ms is None:
            draft = _ending(draft, released, world)
    return draft


def _remove_gone(
    draft: _Draft, wanted: dict[str, Manifest], successors: Mapping[str, Manifest], world: World
) -> _Draft:
    """Release what ended pods held, once their cgroups are empty (D11). A released pod whose manifest exists stays, refused."""
    for entry in draft.state.entries:
        if entry.deleting_since_ms is None or not lifecycle.is_gone(entry, world.runs or {}, world.observed):
            continue
        if world.runs is None and any(s.is_started for s in entry.containers):
            continue  # unknown whether a start is in progress
        promises, deltas = remove_pod(world.managers, draft.state.promises, entry.pod.uid)
        rest = tuple(e for e in draft.state.entries if e.pod.uid != entry.pod.uid)
        state = replace(draft.state, promises=promises, entries=rest)
        removed = TurnEvent(EventKind.POD_REMOVED, entry.pod, entry.origin)
        if entry.is_released and _is_as_it_was(entry, wanted, successors, world):
            stays = _released(entry, world)
            others = {key for e in rest for key in (("name", e.pod.full_name), ("uid", e.pod.uid))}
            if others.isdisjoint((("name", stays.pod.full_name), ("uid", stays.pod.uid))):
                place = draft.state.entries.index(entry)
                state = replace(state, entries=(*rest[:place], stays, *rest[place:]))
                removed = TurnEvent(EventKind.POD_RELEASED, entry.pod, entry.origin)
        draft = draft.plus(state, removed, deltas=deltas)
    return draft


def _is_as_it_was(
    entry: PodEntry, wanted: dict[str, Manifest], successors: Mapping[str, Manifest], world: World
) -> bool:
    """Whether the manifest is as it was when last decided on: a change that was refused doesn't count any more."""
    if _is_wanted(entry, wanted, world):
        return True
    successor, known = successors.get(entry.pod.uid), entry.refused_change
    return successor is not None and known is not None and successor.pod == known.pod


def _released(entry: PodEntry, world: World) -> PodEntry:
    """Return the entry of what the manifest asks for, which comes back only by hand."""
    refusal = RecordedRefusal(RELEASED, "it was ended by `nodeagent release`", world.now_ms)
    pod = entry.pod if entry.refused_change is None else entry.refused_change.pod
    gate = world.config.placement.gate("PodLevelResources")
    entry = new_entry(Manifest(pod, entry.origin), world.now_ms, pod_level_resources=gate)
    return replace(entry, refusal=refusal, containers=())


def _admit_new(draft: _Draft, wanted: dict[str, Manifest], world: World, decide: Decide) -> _Draft:
    gate = world.config.placement.gate("PodLevelResources")
    names = {e.pod.full_name for e in draft.state.own_entries()}
    uids = {e.pod.uid for e in draft.state.entries}
    ending = {unit for e in draft.state.entries if e.deleting_since_ms is not None for unit in e.pod.units}
    new = [
        m
        for m in wanted.values()
        if m.pod.full_name not in names and m.pod.uid not in uids and ending.isdisjoint(m.pod.units)
    ]
    draft, new = _adopt_running(draft, new, world)
    usage = usage_of(draft.state.holding_pods(), pod_level_resources=gate)
    orphans = cpus_of_orphans(draft.state, world) if new else CpuSet()
    for manifest in in_turn(world.managers, new, lambda manifest: manifest.pod):
        draft = _decide(draft, manifest, usage, orphans, world, decide)
        entry = draft.state.entry(manifest.pod.uid)
        if entry is not None and entry.is_active:
            usage = usage.plus(manifest.pod, pod_level_resources=gate)
    return draft


def _has_pinned(entry: PodEntry, state: NodeState, world: World) -> bool:
    """Whether all units of a pod have what they were told for a pod that nobody knows any more."""
    if not entry.is_of_systemd or unit_taken(entry.pod, state.pods_of_units()) is not None:
        return False
    units = [world.observed.get(entry.container_path(status.name)) for status in entry.containers]
    return all(one is not None and one.unit_before not in {None, one.unit} for one in units)


def _without_gone(draft: _Draft, wanted: Mapping[str, Manifest], world: World) -> _Draft:
    """Give back what lost pods have had that run no more."""
    lost = draft.state.promises.unrecovered
    if not lost:
        return draft
    own = {manifest.pod.uid for manifest in wanted.values()}
    gate = world.config.placement.gate("PodLevelResources")
    coming = (new_entry(m, world.now_ms, pod_level_resources=gate) for m in wanted.values() if m.pod.units)
    pinned = {entry.pod.uid for entry in coming if _has_pinned(entry, draft.state, world)}
    made = {(entry.key.pod_uid, entry.key.name) for entry in draft.state.runtime.entries if entry.made}
    left = {one.uid: one for one in may_run(lost, world.observed, own, is_all_told=world.is_all_told, made=made)}
    left |= {one.uid: one for one in lost if one.uid in pinned}
    return draft.plus(_with_lost(draft.state, tuple(one for _, one in sorted(left.items()))))


def _with_lost(state: NodeState, lost: tuple[UnrecoveredPod, ...]) -> NodeState:
    return replace(state, promises=replace(state.promises, unrecovered=lost))


def _adopt_running(draft: _Draft, new: list[Manifest], world: World) -> tuple[_Draft, list[Manifest]]:
    """Adopt pods that already run, before their CPUs are allocated: the state that knew them was lost, and their manifests came later.

    A pod waits for processes of containers that it doesn't have.

    Returns:
        The draft, and the manifests that are left to be decided on.
    """
    gate = world.config.placement.gate("PodLevelResources")
    running = populated_pods(world.observed) if new else frozenset()
    entries = [new_entry(m, world.now_ms, pod_level_resources=gate) for m in new]
    there = [entry for entry in entries if entry.pod_path in running or _has_pinned(entry, draft.state, world)]
    waiting = {entry.pod.uid for entry in there if world.runs is None or entry.pod_path in running}
    left = [manifest for manifest in new if manifest.pod.uid not in waiting]
    if not there or world.runs is None:  # what they are is unknown: they wait as they are
        return draft, left
    lost = {one.uid: one.held for one in draft.state.promises.unrecovered}
    known = found(world.managers, there, observed=world.observed, runs=world.runs, recorded=lost, now_ms=world.now_ms)
    pods = tuple(pod for pod in known if pod.recovered.stays)
    adopted = {pod.entry.pod.uid for pod in pods}
    others = tuple(one for one in draft.state.promises.unrecovered if one.uid not in adopted)
    draft = draft.plus(_with_lost(draft.state, others))
    placed = settled(world.managers, tuple(pod.recovered for pod in pods), draft.state.promises)
    assert not placed.refused, "running pods are never refused"
    state = replace(draft.state, promises=placed.promises, entries=(*draft.state.entries, *(pod.entry for pod in pods)))
    events = [TurnEvent(EventKind.POD_ADOPTED, pod.entry.pod, pod.entry.origin) for pod in pods]
    origins = {pod.entry.pod.uid: pod.entry.origin for pod in pods}
    events += [
        TurnEvent(EventKind.PROMISE_CHANGED, each.pod, origins[each.pod.uid], each.container, each.fields)
        for each in placed.differences
    ]
    return draft.plus(state, *events), [manifest for manifest in left if manifest.pod.uid not in adopted]


def cpus_of_orphans(state: NodeState, world: World) -> CpuSet:
    """CPUs used by processes that belong to no pod, or to one that isn't known now: pods with these CPUs must wait until they are free."""
    owned = {entry.pod_path for entry in state.entries if entry.is_active}
    unknown = populated_pods(world.observed) - owned - {"", *OWN_DIRECTORIES}
    cpus = CpuSet()
    for there in unclear_units(world.observed).values():
        cpus |= there
    for path, group in world.observed.items() if unknown else ():
        if group.is_populated and path.rpartition("/")[0] in unknown:
            cpus |= group.cpus_effective or CpuSet()
    return cpus


def _decide(draft: _Draft, manifest: Manifest, usage: Usage, orphans: CpuSet, world: World, decide: Decide) -> _Draft:
    pod, state = manifest.pod, draft.state
    gate = world.config.placement.gate("PodLevelResources")
    entry = new_entry(manifest, world.now_ms, pod_level_resources=gate)
    undecided, draft = draft, draft.plus(state, *_noted(manifest))
    taken = unit_taken(pod, state.pods_of_units()) if pod.units else None  # most pods stand for none: nobody is asked
    if taken is not None:
        return _refused(draft, entry, taken.reason, taken.message, world.now_ms)
    decision = _decision(state, pod, usage, orphans, world, decide)
    match decision:
        case Insufficient():
            return _refused(draft, entry, decision.reason, decision.message, world.now_ms)
        case Rejected(is_postponed=True):
            return undecided.postponing(pod, decision.message)
        case Rejected():
            cleaned = draft.plus(replace(state, promises=decision.promises), deltas=decision.deltas)
            return _refused(cleaned, entry, decision.reason, decision.message, world.now_ms, decision.report)
        case Admitted():
            after = replace(state, promises=decision.promises, entries=(*state.entries, entry))
            fields = (("qos", entry.qos.value), ("unused_fields", " ".join(manifest.unused_fields)))
            event = TurnEvent(EventKind.POD_ADMITTED, pod, manifest.origin, None, fields, decision.report)
            return draft.plus(after, event, deltas=decision.deltas)


def _decision(
    state: NodeState, pod: Pod, usage: Usage, orphans: CpuSet, world: World, decide: Decide
) -> Admitted | Rejected | Insufficient:
    gate = world.config.placement.gate("PodLevelResources")
    there = world.managers.with_amounts(world.allocatable, state.promises)
    short = insufficient(pod, usage, there, pod_level_resources=gate)
    if world.config.check_allocatable and short is not None:
        return short
    return decide(world.managers, state.promises, pod, orphans)


def _noted(manifest: Manifest) -> Iterator[TurnEvent]:
    for note in manifest.notes:
        yield TurnEvent(EventKind.MANIFEST_NOTE, manifest.pod, manifest.origin, None, (("problem", note),))


def new_entry(manifest: Manifest, now_ms: int, *, pod_level_resources: bool) -> PodEntry:
    """Return the entry of a pod that was admitted just now."""
    pod = manifest.pod
    qos = qos_class(pod, pod_level_resources=pod_level_resources)
    return PodEntry(
        pod, qos, manifest.origin, now_ms, containers=tuple(ContainerStatus(c.name) for c in pod.containers)
    )


def _refused(
    draft: _Draft, entry: PodEntry, reason: str, message: str, now_ms: int, report: Report | None = None
) -> _Draft:
    refused = replace(entry, refusal=RecordedRefusal(reason, message, now_ms), containers=())
    after = replace(draft.state, entries=(*draft.state.entries, refused))
    return draft.plus(
        after,
        TurnEvent(
            EventKind.POD_REFUSED, entry.pod, entry.origin, None, (("reason", reason), ("message", message)), report
        ),
    )


def _with_last_cpus(entry: PodEntry, promises: Promises) -> PodEntry:
    uid = entry.pod.uid
    kept = (replace(status, had_cpus=own_set_of(promises, uid, status.name)) for status in entry.containers)
    return replace(entry, containers=tuple(kept))


def _advance(draft: _Draft, world: World) -> _Draft:
    for entry in draft.state.entries:
        if entry.refusal is not None or (entry.outcome is not None and entry.deleting_since_ms is None):
            continue
        after = lifecycle.advance(entry, world.runs or {}, world.observed, world.now_ms, world.asked)
        if after == entry:
            continue
        promises = draft.state.promises
        deltas: tuple[MetricDelta, ...] = ()
        events = []
        for old, new in zip(entry.containers, after.containers, strict=True):
            if new.attempt > old.attempt:
                promises = start_container(world.managers, promises, entry.pod, new.name)
                events.append(
                    TurnEvent(
                        EventKind.CONTAINER_STARTING, entry.pod, entry.origin, new.name, (("restarts", new.restarts),)
                    )
                )
        if after.outcome is not None:
            events.append(
                TurnEvent(EventKind.POD_FINISHED, entry.pod, entry.origin, None, (("phase", after.outcome.value),))
            )
            after = _with_last_cpus(after, promises)
            promises, deltas = remove_pod(world.managers, promises, entry.pod.uid)
        draft = draft.plus(replace(draft.state.with_entry(after), promises=promises), *events, deltas=deltas)
    return draft
