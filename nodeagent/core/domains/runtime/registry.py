"""Registry of a container runtime's containers: which of them may use an allocation, and how each event changes that. All values are
immutable.

A *key* is a pod's UID with a container's name. It stays the same when the runtime creates the container again, which then has a new ID. The
runtime may create the new container before it removes the old one. The rules:

- An allocation belongs to a key. The containers of the key use it one after the other. None of them may start while another still runs.
- The allocation is released after two conditions are met: the runtime has removed all containers of the key, and the agent has then seen
  their cgroups without processes.
- A container that wasn't placed when it was created may not start. Containers that started without a call to the agent are found in the
  list of NRI's call Synchronize. The list is complete, so containers that aren't in it count as removed.
- kubelet repeats a refused request again and again, so the refusal is stored with the request. It is dropped when the request changes, when
  kubelet reports other data of the pod, when the pod is removed, and on `nodeagent retry`. With `retryRefused: room`, a refusal for lack of
  resources is also dropped once there is more room.
- Events can be lost, repeated or late. A table in stages.py gives the effect of each event. An event that isn't in the table is illegal.

The registry doesn't choose CPUs. For each `Decide`, the managers decide, and `record_decision` stores the result.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.cgroup_paths import decode_cgroup_path
from nodeagent.core.domains.runtime.instructions import (
    Adopt,
    Correct,
    CountFailOpen,
    CountIllegal,
    Decide,
    GiveBack,
    Happening,
    LetStart,
    Looked,
    Place,
    Populated,
    Refuse,
    Retried,
    RoomMade,
    Todo,
    Unserved,
)
from nodeagent.core.domains.runtime.stages import ContainerEvent, Effect, find_transition
from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.nri import Call, ContainerState, Event, NriContainer, NriResources, Sandbox, Synchronized
from nodeagent.core.model.runtime_containers import (
    Asked,
    ContainerKey,
    KeyEntry,
    KnownSandbox,
    MadeContainer,
    RefusedKey,
    Registry,
    Stage,
)
from nodeagent.errors import printable

_MAX_NAME = 63
"""Maximum length of a container name in a message. Kubernetes doesn't permit longer names."""

_EVENTS = {
    Event.CREATE_CONTAINER: ContainerEvent.CREATE,
    Event.START_CONTAINER: ContainerEvent.START,
    Event.UPDATE_CONTAINER: ContainerEvent.UPDATE,
    Event.STOP_CONTAINER: ContainerEvent.STOP,
    Event.REMOVE_CONTAINER: ContainerEvent.REMOVE,
}
_LISTED = {
    ContainerState.CREATED: ContainerEvent.LISTED_CREATED,
    ContainerState.PAUSED: ContainerEvent.LISTED_RUNNING,
    ContainerState.RUNNING: ContainerEvent.LISTED_RUNNING,
    ContainerState.UNKNOWN: ContainerEvent.LISTED_RUNNING,
    ContainerState.STOPPED: ContainerEvent.LISTED_STOPPED,
}
_DESCRIBING = frozenset({ContainerEvent.CREATE, ContainerEvent.SEEN_RUNNING, *_LISTED.values()})
"""Events that come with the full data of the container, including its pod and cgroup."""

_DENIALS = {
    ContainerEvent.CREATE: "has already started, or the container or its pod has been stopped; the kubelet creates another container",
    ContainerEvent.START: (
        "was not placed when it was created, because nodeagent was not called then, or has been stopped since; the kubelet creates "
        "another container (see `nodeagent inspect`)"
    ),
}
"""Text of the denial for each event that can be denied. It follows the container's name."""


class Stepped(Struct, frozen=True):
    registry: Registry
    todo: tuple[Todo, ...] = ()

    @property
    def is_illegal(self) -> bool:
        """Whether the event was illegal and therefore changed nothing."""
        return any(isinstance(one, CountIllegal) for one in self.todo)


def apply_event(
    registry: Registry,
    what: Happening,
    wanted: Mapping[ContainerKey, WantedPlacement],
    due: Collection[ContainerKey] = (),
) -> Stepped:
    """Apply an event. Return the new registry, and the instructions that follow from the event.

    Args:
        registry: the registry before the event.
        what: the event.
        wanted: the desired placement of each key that has an allocation. It is needed only for lists of containers, which are compared with
            it.
        due: keys whose stored refusals are ignored, because there is more room than at the refusal.
    """
    match what:
        case Synchronized():
            return _synchronize(registry, what, wanted, due)
        case Looked(found):
            return _look(registry, found, wanted, due)
        case RoomMade():
            return Stepped(registry, _keep_newest_of_key(_decide_unplaced(registry, due)))
        case Populated(ids):
            return _release_empty(registry, ids)
        case Unserved(ids):
            # Stored refusals and sandboxes are removed as well, because no runtime will retry a refusal or report the end of a pod.
            ended = (_apply_to_containers(entry, ContainerEvent.UNLISTED) for entry in registry.entries)
            return _release_empty(Registry(entries=tuple(ended)), ids)
        case Retried(pod_uid):
            # kubelet retries the creation of a refused container. The agent decides now on a refused container that is running.
            refused = tuple(one for one in registry.refused if one.key.pod_uid != pod_uid)
            keys = {entry.key for entry in registry.entries if entry.key.pod_uid == pod_uid}
            todo = _keep_newest_of_key(_decide_unplaced(registry, keys))
            return Stepped(replace(registry, refused=refused), todo)
        case Call():
            known = registry if what.pod is None else _store_pods(_add_sandbox(registry, what.sandbox), (what.pod,))
            stepped = _apply_call(known, what, due)
            return Stepped(registry, stepped.todo) if stepped.is_illegal else stepped


def record_decision(registry: Registry, key: ContainerKey, container_id: str, refusal: str | None) -> Stepped:
    """Store the decision on a container's request, and return the instructions that follow. The decision also applies to running containers
    that have the same key and the same request, but don't use the key's allocation yet.

    If a container is refused before its start, it is removed from the registry. A running container stays, and keeps its allocation if only
    an update was refused.

    Args:
        registry: the registry before the decision.
        key: pod UID and name of the container.
        container_id: ID of the container.
        refusal: the reason of the refusal. None means that the request was granted.
    """
    entry = registry.entry(key)
    made = entry.find(container_id)
    if made is None:
        return Stepped(registry)
    others = tuple(one for one in registry.refused if one.key != key)
    if refusal is None:
        placed = [
            one.id
            for one in entry.made
            if one.id == container_id or (not one.is_placed and one.stage is Stage.STARTED and one.asked == made.asked)
        ]
        everybody = tuple(replace(one, is_placed=one.is_placed or one.id in placed) for one in entry.made)
        entry = replace(entry, made=everybody, is_held=True, asked=made.asked)
        return Stepped(
            _replace_entry(replace(registry, refused=others), entry), tuple(Place(key, one) for one in placed)
        )
    if made.is_placed:
        assert entry.asked is not None
        entry = _replace_container(entry, replace(made, asked=entry.asked))
    elif made.stage is Stage.CREATED:
        entry = replace(entry, made=tuple(one for one in entry.made if one.id != container_id))
    refused = tuple(sorted((*others, RefusedKey(key, made.asked, refusal)), key=lambda one: one.key))
    return Stepped(
        _replace_entry(replace(registry, refused=refused), entry), (Refuse(key, container_id, refusal, is_first=True),)
    )


def _apply_call(registry: Registry, call: Call, due: Collection[ContainerKey]) -> Stepped:
    sandbox, container = call.sandbox, call.container
    match call.event:
        case Event.UPDATE_POD_SANDBOX:
            return Stepped(registry, () if call.pod is None else _decide_pod(registry, sandbox))
        case Event.RUN_POD_SANDBOX if container is None:
            return Stepped(_add_sandbox(registry, sandbox))
        case Event.STOP_POD_SANDBOX if container is None:
            sandboxes = (replace(s, is_stopped=True) if s.id == sandbox.id else s for s in registry.sandboxes)
            return Stepped(_end_pod(replace(registry, sandboxes=tuple(sandboxes)), sandbox.id))
        case Event.REMOVE_POD_SANDBOX if container is None:
            left = tuple(known for known in registry.sandboxes if known.id != sandbox.id)
            return Stepped(_end_pod(_forget_removed_pods(replace(registry, sandboxes=left)), sandbox.id))
    event = _EVENTS.get(call.event)
    if event is None or container is None:
        return Stepped(registry)
    key = ContainerKey.of(sandbox, container)
    if event in {ContainerEvent.STOP, ContainerEvent.REMOVE}:
        key = registry.key_of(container.id) or key
    change = call.resources or NriResources()
    report = _ContainerReport(event, key, sandbox, container, change, is_due=key in due)
    if event in {ContainerEvent.CREATE, ContainerEvent.UPDATE}:
        registry = _add_sandbox(registry, sandbox)
    if event is ContainerEvent.CREATE and any(s.id == sandbox.id and s.is_stopped for s in registry.sandboxes):
        return Stepped(registry, _count_illegal(report))
    entry, todo = _apply_transition(registry, registry.entry(key), report)
    if event is ContainerEvent.UPDATE and any(isinstance(one, Place) for one in todo):
        refused = tuple(one for one in registry.refused if one.key != key or not one.is_of_update)
        registry = replace(registry, refused=refused)
    return Stepped(_replace_entry(registry, entry), todo)


def _end_pod(registry: Registry, sandbox_id: str) -> Registry:
    """Return the registry after the end of a pod, whose containers then never run again. Their allocations can be released even before the
    runtime removes the containers.
    """
    ended = (
        _apply_to_containers(entry, ContainerEvent.POD_END, lambda one: one.sandbox_id == sandbox_id)
        for entry in registry.entries
    )
    return replace(registry, entries=tuple(ended))


def _apply_to_containers(
    entry: KeyEntry, event: ContainerEvent, applies: Callable[[MadeContainer], bool] = lambda _: True
) -> KeyEntry:
    """Return the entry of a key after an event of some of its containers. The event must be legal in every condition, and its only effect
    must be another stage.
    """
    made = list(entry.made)
    for position, one in enumerate(made):
        if applies(one):
            transition = find_transition(one, event)
            assert transition is not None
            assert transition[0] is not None
            made[position] = replace(one, stage=transition[0])
    return replace(entry, made=tuple(made))


def _decide_pod(registry: Registry, sandbox: Sandbox) -> tuple[Decide, ...]:
    """Return the instruction to decide on changed pod-level amounts. It names one of the pod's containers with an allocation, because
    decisions are made per container. The runtime reports changed amounts of the containers themselves in separate calls.
    """
    for entry in registry.entries:
        if entry.key.pod_uid == (sandbox.uid or sandbox.id) and entry.is_held:
            for made in entry.made:
                if made.is_placed and made.stage < Stage.STOPPED:
                    return (Decide(entry.key, made.id, is_again=True, is_of_pod=True),)
    return ()


class _ContainerReport(Struct, frozen=True):
    """Event of one container, with the data that the runtime reports."""

    event: ContainerEvent
    key: ContainerKey
    sandbox: Sandbox
    container: NriContainer
    change: NriResources = NriResources()
    """Values that an update is about to change."""
    wanted: WantedPlacement | None = None
    """Desired placement of the container, which is given only for events from lists of containers. None means that nothing is allocated to
    the container's key.
    """
    is_due: bool = False
    """Whether an earlier refusal is ignored, because there is more room now."""


def _apply_transition(
    registry: Registry, entry: KeyEntry, report: _ContainerReport
) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Apply an event to a container by the table in stages.py. Return the new entry of the container's key, and the instructions."""
    before = entry.find(report.container.id)
    transition = find_transition(before, report.event)
    if transition is None:
        return entry, _count_illegal(report)
    stage, effect = transition
    if stage is None:
        return entry, (_deny(report),) if effect is Effect.DENY_START else ()
    made = _update_container(report, stage, before)
    refusal = None if report.is_due else registry.refusal(entry.key, made.asked)
    match effect:
        case Effect.NOTHING:
            return _replace_container(entry, made), ()
        case Effect.DENY_START:
            return entry, (_deny(report),)
        case Effect.LET_START:
            rivals = tuple(other.id for other in entry.made if other.id != made.id)
            return _replace_container(entry, made), (LetStart(report.key, made.id, rivals),)
        case Effect.OFFER:
            return _offer(entry, made, refusal)
        case Effect.OFFER_CHANGE:
            return _offer_change(entry, made, refusal)
        case Effect.COMPARE | Effect.COUNT_AND_COMPARE:
            return _compare(entry, made, report, refusal, counts=effect is Effect.COUNT_AND_COMPARE)


def _update_container(report: _ContainerReport, stage: Stage, before: MadeContainer | None) -> MadeContainer:
    """Return the container in its new stage, with the request and cgroup that the event reports."""
    sandbox, container = report.sandbox, report.container
    asked = Asked.of(sandbox, container) if before is None or report.event is ContainerEvent.CREATE else before.asked
    if report.event is ContainerEvent.UPDATE:
        new = {
            name: getattr(report.change, name)
            for name in NriResources.__struct_fields__
            if name not in {"cpus", "mems"}
        }
        new = {name: value for name, value in new.items() if value not in {None, ()}}
        asked = replace(asked, resources=replace(asked.resources, **new))
    if before is not None and report.event not in _DESCRIBING:
        return replace(before, stage=stage, asked=asked)
    is_placed = before is not None and before.is_placed
    cgroup = decode_cgroup_path(container.cgroups_path)
    return MadeContainer(container.id, sandbox.id, stage, asked, is_placed=is_placed, cgroup=cgroup)


def _count_illegal(report: _ContainerReport) -> tuple[Todo, ...]:
    """Return the instruction to count an illegal event. If the runtime waits for permission to create or start the container, add a
    denial.
    """
    count = CountIllegal(report.event)
    return (count, _deny(report)) if report.event in _DENIALS else (count,)


def _deny(report: _ContainerReport) -> Refuse:
    why = f"container {printable(report.key.name[:_MAX_NAME])} {_DENIALS[report.event]}"
    return Refuse(report.key, report.container.id, why, is_first=True)


def _offer(entry: KeyEntry, made: MadeContainer, refusal: RefusedKey | None) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Place a container that is being created, if exactly its request is already allocated to its key. If the same request was refused
    before, refuse it again. In all other cases, ask for a decision.
    """
    if refusal is not None and not (refusal.is_of_update or refusal.is_deferred):
        return entry, (Refuse(entry.key, made.id, refusal.reason, is_first=False),)
    is_as_promised = entry.is_held and entry.asked == made.asked
    todo = Place(entry.key, made.id) if is_as_promised else Decide(entry.key, made.id, is_again=entry.is_held)
    return _replace_container(entry, replace(made, is_placed=is_as_promised)), (todo,)


def _offer_change(
    entry: KeyEntry, made: MadeContainer, refusal: RefusedKey | None
) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Handle an update of a container. Place the container if its key has an allocation for these amounts, refuse the update if it was
    refused before, or ask for a decision. Until the decision, the container keeps its allocation.
    """
    if made.is_placed and entry.asked == made.asked:
        return entry, (Place(entry.key, made.id),)
    if refusal is not None and not refusal.is_deferred:
        return entry, (Refuse(entry.key, made.id, refusal.reason, is_first=False),)
    return _replace_container(entry, made), (Decide(entry.key, made.id, is_again=entry.is_held),)


def _compare(
    entry: KeyEntry, made: MadeContainer, report: _ContainerReport, refusal: RefusedKey | None, *, counts: bool
) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Compare the values of a listed container with the allocation of its key.

    A container that is unknown to the agent but runs on its allocated CPUs was placed there before the agent's last start. An unknown
    container on other CPUs has started without a call to the agent, unless the agent permitted its start.
    """
    key, wanted = entry.key, report.wanted
    has_wanted = wanted is not None and has_wanted_values(report.container.resources, wanted)
    count = (CountFailOpen(key, made.id),) if counts and not has_wanted else ()
    if wanted is not None and (has_wanted or made.is_placed or entry.asked in {None, made.asked}):
        entry = replace(entry, is_held=True, asked=entry.asked or made.asked)
        todo: Todo = Adopt(key, made.id) if has_wanted else Correct(key, made.id, wanted, report.container.resources)
        return _replace_container(entry, replace(made, is_placed=True)), (*count, todo)
    todo = (
        Decide(key, made.id, is_again=wanted is not None)
        if refusal is None
        else Refuse(key, made.id, refusal.reason, is_first=False)
    )
    return _replace_container(entry, replace(made, is_placed=False)), (*count, todo)


def _release_empty(registry: Registry, populated: frozenset[str]) -> Stepped:
    """Forget removed containers whose cgroups have no processes. Return instructions to release the allocations of keys that have no other
    containers.
    """
    left, todo = [], []
    for entry in registry.entries:
        made = tuple(one for one in entry.made if one.stage is not Stage.REMOVED or one.id in populated)
        if made:
            left.append(entry if made == entry.made else replace(entry, made=made))
        elif entry.is_held:
            todo.append(GiveBack(entry.key))
    return Stepped(replace(registry, entries=tuple(left)), tuple(todo))


def _decide_unplaced(registry: Registry, keys: Collection[ContainerKey]) -> Iterator[Decide]:
    """Yield an instruction to decide on each running container of these keys that doesn't use its key's allocation."""
    for entry in registry.entries:
        if entry.key in keys:
            for made in entry.made:
                if not made.is_placed and made.stage is Stage.STARTED:
                    yield Decide(entry.key, made.id, is_again=entry.is_held)


def _synchronize(
    registry: Registry,
    found: Synchronized,
    wanted: Mapping[ContainerKey, WantedPlacement],
    due: Collection[ContainerKey],
) -> Stepped:
    pods = {sandbox.id: sandbox for sandbox in found.sandboxes}
    listed = {container.id: container for container in found.containers if container.sandbox_id in pods}
    entries = {key: KeyEntry(key, is_held=True) for key in wanted}
    for entry in registry.entries:
        is_held = entry.key in wanted
        known = _apply_to_containers(entry, ContainerEvent.UNLISTED, lambda one: one.id not in listed)
        entries[entry.key] = replace(known, is_held=is_held, asked=entry.asked if is_held else None)
    registry = _store_pods(_replace_sandboxes(registry, pods.values()), found.pods)
    todo: list[Todo] = []
    for container in listed.values():
        todo += _compare_listed(
            registry, entries, _LISTED[container.state], pods[container.sandbox_id], container, wanted, due
        )
    left = (entries[key] for key in sorted(entries))
    entries_left = tuple(entry for entry in left if entry.made or entry.is_held)
    return Stepped(replace(registry, entries=entries_left), _keep_newest_of_key(todo))


def _look(
    registry: Registry,
    found: Synchronized,
    wanted: Mapping[ContainerKey, WantedPlacement],
    due: Collection[ContainerKey],
) -> Stepped:
    """Apply a list of the running containers, which shows containers that started without a call to the agent. Pods that aren't in the list
    stay unchanged, because other events report their end.
    """
    pods = {sandbox.id: sandbox for sandbox in found.sandboxes}
    entries = {entry.key: entry for entry in registry.entries}
    stopped = {known.id for known in registry.sandboxes if known.is_stopped}
    before = _replace_sandboxes(registry, pods.values(), stopped)
    registry = _store_pods(before, found.pods)
    # A refused container runs in the shared pool. With new data of its pod, the container may be admitted.
    news = {one.key.pod_uid for one in before.refused} - {one.key.pod_uid for one in registry.refused}
    todo: list[Todo] = [*_decide_unplaced(registry, {key for key in entries if key.pod_uid in news})]
    for container in found.containers:
        if _LISTED[container.state] is ContainerEvent.LISTED_RUNNING and container.sandbox_id in pods:
            sandbox = pods[container.sandbox_id]
            todo += _compare_listed(registry, entries, ContainerEvent.SEEN_RUNNING, sandbox, container, wanted, due)
    left = tuple(entries[key] for key in sorted(entries))
    return Stepped(replace(registry, entries=left), _keep_newest_of_key(todo))


def _compare_listed(
    registry: Registry,
    entries: dict[ContainerKey, KeyEntry],
    event: ContainerEvent,
    sandbox: Sandbox,
    container: NriContainer,
    wanted: Mapping[ContainerKey, WantedPlacement],
    due: Collection[ContainerKey],
) -> tuple[Todo, ...]:
    """Apply a list's event for one container, and change its entry in `entries`. Return the instructions."""
    key = ContainerKey.of(sandbox, container)
    report = _ContainerReport(event, key, sandbox, container, wanted=wanted.get(key), is_due=key in due)
    entries[key], todo = _apply_transition(registry, entries.get(key) or KeyEntry(key), report)
    return todo


def _keep_newest_of_key(todo: Iterable[Todo]) -> tuple[Todo, ...]:
    """Drop all decisions on a key except the last one, which concerns the newest container."""
    rows = tuple(todo)
    last = {one.key: one.id for one in rows if isinstance(one, Decide)}
    return tuple(one for one in rows if not isinstance(one, Decide) or last[one.key] == one.id)


def has_wanted_values(has: NriResources, wanted: WantedPlacement) -> bool:
    """Return whether a container has its desired CPUs and memory nodes, by the runtime's report."""
    return bool(wanted.cpus) and has.cpus == wanted.cpus and (not wanted.mems or has.mems == wanted.mems)


def _replace_sandboxes(registry: Registry, sandboxes: Iterable[Sandbox], stopped: Collection[str] = ()) -> Registry:
    """Return the registry with these pod sandboxes as the only known ones. Refusals and kubelet's data about other pods are dropped."""
    known = (KnownSandbox(pod.id, pod.uid or pod.id, pod.id in stopped) for pod in sandboxes)
    return _forget_removed_pods(replace(registry, sandboxes=tuple(sorted(known, key=lambda pod: pod.id))))


def _forget_removed_pods(registry: Registry) -> Registry:
    there = {known.pod_uid for known in registry.sandboxes}
    refused = tuple(one for one in registry.refused if one.key.pod_uid in there)
    return replace(registry, refused=refused, pods=tuple(pod for pod in registry.pods if pod.uid in there))


def _store_pods(registry: Registry, told: Iterable[KubeletPod]) -> Registry:
    """Return the registry with kubelet's data about these pods. If the data of a pod has changed, its stored refusals are dropped, so that
    the agent makes a new decision on the next request.
    """
    there = {known.pod_uid for known in registry.sandboxes}
    news = {pod.uid: pod for pod in told if pod.uid in there and pod != registry.pod(pod.uid)}
    if not news:
        return registry
    pods = {pod.uid: pod for pod in registry.pods} | news
    return replace(
        registry,
        pods=tuple(pods[uid] for uid in sorted(pods)),
        refused=tuple(one for one in registry.refused if one.key.pod_uid not in news),
    )


def _add_sandbox(registry: Registry, sandbox: Sandbox) -> Registry:
    if any(known.id == sandbox.id for known in registry.sandboxes):
        return registry
    known = (*registry.sandboxes, KnownSandbox(sandbox.id, sandbox.uid or sandbox.id))
    return replace(registry, sandboxes=tuple(sorted(known, key=lambda one: one.id)))


def _replace_container(entry: KeyEntry, made: MadeContainer) -> KeyEntry:
    """Return the entry of a key with this container, in place of the container with the same ID or at the end."""
    if entry.find(made.id) is not None:
        return replace(entry, made=tuple(made if one.id == made.id else one for one in entry.made))
    return replace(entry, made=(*entry.made, made))


def _replace_entry(registry: Registry, entry: KeyEntry) -> Registry:
    """Return the registry with this entry in place of the earlier entry of the same key. An entry that has neither containers nor an
    allocation is removed.
    """
    others = [one for one in registry.entries if one.key != entry.key]
    if entry.made or entry.is_held:
        others.append(entry)
    return replace(registry, entries=tuple(sorted(others, key=lambda one: one.key)))


def has_any(registry: Registry) -> bool:
    """Return whether the registry contains any data."""
    return bool(registry.entries or registry.refused or registry.sandboxes)


def awaits_end(registry: Registry) -> bool:
    """Return whether the cgroup of a removed container may still have processes, so that the container's allocation isn't released yet."""
    return any(made.stage is Stage.REMOVED for entry in registry.entries for made in entry.made)
