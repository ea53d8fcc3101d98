"""Which containers of a runtime hold what was promised to their key, as one immutable value, and what each event makes of it.

A *key* is a pod's UID and a container's name: it outlives the ids that the runtime gives the container each time it is made, and a new one
may come before the old one goes. The rules:

- What is promised belongs to the key. Its containers have it one after the other: none begins beside another one of its key.
- It is given back once the runtime has none of them left and their cgroups have been seen without processes since.
- A container that was not placed when it was created doesn't begin. One that began while nobody was asked is found by Synchronize, which
  is the truth about what there is: what it leaves out has been removed.
- A refusal is remembered with what was asked for, until that changes or kubelet says something else of the pod, the pod goes, or somebody
  asks for a retry: kubelet tries for ever.
- Events may be lost, come twice, or late: what each makes of a container is a table (stages.py), and one that it doesn't have is illegal.

Decides nothing about CPUs: what is `Decide` here is decided by the managers, and told to `settled`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.cgroup_paths import cgroup_of
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
    Todo,
    Unserved,
)
from nodeagent.core.domains.runtime.stages import ContainerEvent, Effect, transition_of
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
"""Characters of a container's name that a reason repeats: Kubernetes' names have no more."""


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
"""Events that say anew in which pod and cgroup a container is."""


class Stepped(Struct, frozen=True):
    registry: Registry
    todo: tuple[Todo, ...] = ()


def happened(registry: Registry, what: Happening, wanted: Mapping[ContainerKey, WantedPlacement]) -> Stepped:
    """Return the registry after an event, and what is to be done.

    Args:
        registry: before it.
        what: the event.
        wanted: what the containers of each key should hold that something is promised to: for Synchronize and a look, which go by that
            and not by what was told before.
    """
    match what:
        case Synchronized():
            return _synchronize(registry, what, wanted)
        case Looked(found):
            return _look(registry, found, wanted)
        case Populated(ids):
            return _give_back(registry, ids)
        case Unserved(ids):
            return _give_up(registry, ids)
        case Retried(pod_uid):
            return _retry(registry, pod_uid)
        case Call():
            if what.pod is not None:
                registry = _with_pods(_with_sandbox(registry, what.sandbox), (what.pod,))
            return _called(registry, what)


def settled(registry: Registry, key: ContainerKey, container_id: str, refusal: str | None) -> Stepped:
    """Take over what was decided on. Refusal: the reason; None: it was promised what it asks for, with all of its key that run unplaced.

    A container that is refused before it has begun is as if it had never been. One that runs stays known; an update leaves what it holds.
    """
    entry = registry.entry(key)
    made = next((made for made in entry.made if made.id == container_id), None)
    if made is None:
        return Stepped(registry)
    if refusal is None:
        placed = [one.id for one in entry.made if one.id == container_id or _runs_unplaced(one, made.asked)]
        everybody = tuple(replace(one, is_placed=one.is_placed or one.id in placed) for one in entry.made)
        entry = replace(entry, made=everybody, is_held=True, asked=made.asked)
        kept = tuple(one for one in registry.refused if one.key != key)
        return Stepped(_put(replace(registry, refused=kept), entry), tuple(Place(key, one) for one in placed))
    if made.is_placed:
        assert entry.asked is not None
        entry = _with(entry, replace(made, asked=entry.asked))
    elif made.stage is Stage.CREATED:
        entry = replace(entry, made=tuple(one for one in entry.made if one.id != container_id))
    others = (one for one in registry.refused if one.key != key)
    refused = tuple(sorted((*others, RefusedKey(key, made.asked, refusal)), key=lambda one: one.key))
    return Stepped(
        _put(replace(registry, refused=refused), entry), (Refuse(key, container_id, refusal, is_first=True),)
    )


def wanted_by_id(
    registry: Registry, wanted: Mapping[ContainerKey, WantedPlacement], pool: WantedPlacement, populated: frozenset[str]
) -> dict[str, WantedPlacement]:
    """Return what each container should hold now.

    Of several that have processes, CPUs that are their key's alone are the oldest's; the others are in the shared pool until it has ended.
    So is everything that began while nobody was asked, until it has been decided on, and what was refused then: elsewhere it would be on
    other pods' CPUs.

    Args:
        registry: of all.
        wanted: by key, what is promised.
        pool: what a container holds that nothing is promised to.
        populated: ids of the containers whose cgroups have processes.
    """
    found = {}
    for entry in registry.entries:
        promised = wanted.get(entry.key, pool)
        placed = [made.id for made in entry.made if made.is_placed]
        owner = next((one for one in placed if one in populated), placed[-1] if placed else "")
        for made in entry.made:
            is_given = made.id == owner or (made.is_placed and not promised.exclusive_cpus)
            found[made.id] = promised if is_given else pool
    return found


def _runs_unplaced(made: MadeContainer, asked: Asked) -> bool:
    return not made.is_placed and made.stage is Stage.STARTED and made.asked == asked


def _called(registry: Registry, call: Call) -> Stepped:
    sandbox, container = call.sandbox, call.container
    if call.event is Event.UPDATE_POD_SANDBOX:
        return Stepped(registry, () if call.pod is None else _of_pod(registry, sandbox))
    if container is None:
        return _sandbox_event(registry, call.event, sandbox)
    event = _EVENTS.get(call.event)
    if event is None:
        return Stepped(registry)
    key = ContainerKey.of(sandbox, container)
    if event in {ContainerEvent.STOP, ContainerEvent.REMOVE}:
        key = registry.key_of(container.id) or key
    seen = _Seen(event, key, sandbox, container, call.resources or NriResources())
    if event in {ContainerEvent.CREATE, ContainerEvent.UPDATE}:
        registry = _with_sandbox(registry, sandbox)
    if event is ContainerEvent.CREATE and any(s.id == sandbox.id and s.is_stopped for s in registry.sandboxes):
        return Stepped(registry, _illegal(seen))
    entry, todo = _step(registry, registry.entry(key), seen)
    if event is ContainerEvent.UPDATE and any(isinstance(one, Place) for one in todo):
        refused = tuple(one for one in registry.refused if one.key != key or not one.is_of_update)
        registry = replace(registry, refused=refused)
    return Stepped(_put(registry, entry), todo)


def _sandbox_event(registry: Registry, event: Event, sandbox: Sandbox) -> Stepped:
    match event:
        case Event.RUN_POD_SANDBOX:
            return Stepped(_with_sandbox(registry, sandbox))
        case Event.STOP_POD_SANDBOX:
            sandboxes = (replace(s, is_stopped=True) if s.id == sandbox.id else s for s in registry.sandboxes)
            return Stepped(_ended(replace(registry, sandboxes=tuple(sandboxes)), sandbox.id))
        case Event.REMOVE_POD_SANDBOX:
            left = tuple(known for known in registry.sandboxes if known.id != sandbox.id)
            return Stepped(_ended(_without_the_gone(replace(registry, sandboxes=left)), sandbox.id))
        case _:
            return Stepped(registry)


def _ended(registry: Registry, sandbox_id: str) -> Registry:
    """None of a pod's containers will run again: what they hold need not wait until their remains are removed."""
    entries = tuple(
        replace(
            entry,
            made=tuple(
                _moved(one, ContainerEvent.POD_END) if one.sandbox_id == sandbox_id else one for one in entry.made
            ),
        )
        for entry in registry.entries
    )
    return replace(registry, entries=entries)


def _moved(made: MadeContainer, event: ContainerEvent) -> MadeContainer:
    """Return the container after an event that each condition's row has, with the same effect: none."""
    transition = transition_of(made, event)
    assert transition is not None
    stage, _ = transition
    assert stage is not None
    return replace(made, stage=stage)


def _of_pod(registry: Registry, sandbox: Sandbox) -> tuple[Decide, ...]:
    """Decide on a pod by one of its containers that has what it was promised: their own amounts have calls of their own."""
    for entry in registry.entries:
        if entry.key.pod_uid == (sandbox.uid or sandbox.id) and entry.is_held:
            for made in entry.made:
                if made.is_placed and made.stage < Stage.STOPPED:
                    return (Decide(entry.key, made.id, is_again=True, is_of_pod=True),)
    return ()


class _Seen(Struct, frozen=True):
    """An event of a container, and what came with it."""

    event: ContainerEvent
    key: ContainerKey
    sandbox: Sandbox
    container: NriContainer
    change: NriResources = NriResources()
    """Of an update."""
    wanted: WantedPlacement | None = None
    """What is promised to the key, for a list or a look. None means that nothing is."""


def _step(registry: Registry, entry: KeyEntry, seen: _Seen) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Take an event through the table of stages.py. Returns the key's entry after it, and what follows."""
    before = next((one for one in entry.made if one.id == seen.container.id), None)
    transition = transition_of(before, seen.event)
    if transition is None:
        return entry, _illegal(seen)
    stage, effect = transition
    if stage is None:
        return entry, (_denied_start(seen),) if effect is Effect.DENY_START else ()
    made = _made(seen, stage, before)
    match effect:
        case Effect.NOTHING:
            return _with(entry, made), ()
        case Effect.DENY_START:
            return entry, (_denied_start(seen),)
        case Effect.LET_START:
            rivals = tuple(other.id for other in entry.made if other.id != made.id)
            return _with(entry, made), (LetStart(seen.key, made.id, rivals),)
        case Effect.OFFER:
            return _offer(registry, entry, made)
        case Effect.OFFER_CHANGE:
            return _offer_change(registry, entry, made)
        case Effect.COUNT_AND_DECIDE:
            todo = CountFailOpen(seen.key, made.id), Decide(seen.key, made.id, is_again=entry.is_held)
            return _with(entry, made), todo
        case Effect.COMPARE | Effect.COUNT_AND_COMPARE:
            return _compare(registry, entry, made, seen, counts=effect is Effect.COUNT_AND_COMPARE)


def _made(seen: _Seen, stage: Stage, before: MadeContainer | None) -> MadeContainer:
    """Return the container at its next stage, with what the event says that it asks for and where it is."""
    sandbox, container = seen.sandbox, seen.container
    asked = Asked.of(sandbox, container) if before is None or seen.event is ContainerEvent.CREATE else before.asked
    if seen.event is ContainerEvent.UPDATE:
        asked = replace(asked, resources=_merged(asked.resources, seen.change))
    if before is not None and seen.event not in _DESCRIBING:
        return replace(before, stage=stage, asked=asked)
    is_placed = before is not None and before.is_placed
    cgroup = cgroup_of(container.cgroups_path)
    return MadeContainer(container.id, sandbox.id, stage, asked, is_placed=is_placed, cgroup=cgroup)


def _illegal(seen: _Seen) -> tuple[Todo, ...]:
    """Change nothing, count the event, and deny what the runtime is about to do."""
    count = CountIllegal(seen.event)
    match seen.event:
        case ContainerEvent.CREATE:
            name = printable(seen.key.name[:_MAX_NAME])
            why = (
                f"container {name} has already begun, or it or its pod has been stopped: the kubelet makes another one"
            )
            return count, Refuse(seen.key, seen.container.id, why, is_first=True)
        case ContainerEvent.START:
            return count, _denied_start(seen)
        case _:
            return (count,)


def _denied_start(seen: _Seen) -> Refuse:
    why = (
        f"container {printable(seen.key.name[:_MAX_NAME])} was not placed when it was created, or has been stopped since: nodeagent was "
        "not asked, see `nodeagent inspect`; the kubelet makes another one"
    )
    return Refuse(seen.key, seen.container.id, why, is_first=True)


def _offer(registry: Registry, entry: KeyEntry, made: MadeContainer) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Place a container that is to be created if its key holds what it asks for, refuse it if that was refused, else decide on it."""
    refusal = registry.refusal(entry.key, made.asked)
    if refusal is not None and not (refusal.is_of_update or refusal.is_deferred):
        return entry, (Refuse(entry.key, made.id, refusal.reason, is_first=False),)
    is_as_promised = entry.is_held and entry.asked == made.asked
    todo = Place(entry.key, made.id) if is_as_promised else Decide(entry.key, made.id, is_again=entry.is_held)
    return _with(entry, replace(made, is_placed=is_as_promised)), (todo,)


def _offer_change(registry: Registry, entry: KeyEntry, made: MadeContainer) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Do the same with a container that is to be updated. It stays as it is until that is decided."""
    if made.is_placed and entry.asked == made.asked:
        return entry, (Place(entry.key, made.id),)
    refusal = registry.refusal(entry.key, made.asked)
    if refusal is not None and not refusal.is_deferred:
        return entry, (Refuse(entry.key, made.id, refusal.reason, is_first=False),)
    return _with(entry, made), (Decide(entry.key, made.id, is_again=entry.is_held),)


def _compare(
    registry: Registry, entry: KeyEntry, made: MadeContainer, seen: _Seen, *, counts: bool
) -> tuple[KeyEntry, tuple[Todo, ...]]:
    """Compare a listed container with what is promised to its key.

    If it is new here and has that, it was placed before the agent's last start. If it hasn't, and was never let start, the runtime didn't
    wait for that.
    """
    key, wanted = entry.key, seen.wanted
    has_wanted = wanted is not None and has_all(seen.container.resources, wanted)
    count = (CountFailOpen(key, made.id),) if counts and not has_wanted else ()
    if wanted is not None and (has_wanted or made.is_placed or entry.asked in {None, made.asked}):
        entry = replace(entry, is_held=True, asked=entry.asked or made.asked)
        todo: Todo = Adopt(key, made.id) if has_wanted else Correct(key, made.id, wanted, seen.container.resources)
        return _with(entry, replace(made, is_placed=True)), (*count, todo)
    refusal = registry.refusal(key, made.asked)
    todo = (
        Decide(key, made.id, is_again=wanted is not None)
        if refusal is None
        else Refuse(key, made.id, refusal.reason, is_first=False)
    )
    return _with(entry, replace(made, is_placed=False)), (*count, todo)


def _merged(known: NriResources, change: NriResources) -> NriResources:
    said = {
        name: value for name in NriResources.__struct_fields__ if (value := getattr(change, name)) not in {None, ()}
    }
    return replace(known, **{name: value for name, value in said.items() if name not in {"cpus", "mems"}})


def _give_back(registry: Registry, populated: frozenset[str]) -> Stepped:
    left, todo = [], []
    for entry in registry.entries:
        made = tuple(one for one in entry.made if one.stage is not Stage.REMOVED or one.id in populated)
        if made:
            left.append(entry if made == entry.made else replace(entry, made=made))
        elif entry.is_held:
            todo.append(GiveBack(entry.key))
    return Stepped(replace(registry, entries=tuple(left)), tuple(todo))


def _give_up(registry: Registry, populated: frozenset[str]) -> Stepped:
    """No refusal is asked for again, and no pod is told to be gone."""
    ended = tuple(
        replace(entry, made=tuple(_moved(one, ContainerEvent.UNLISTED) for one in entry.made))
        for entry in registry.entries
    )
    return _give_back(Registry(entries=ended), populated)


def _retry(registry: Registry, pod_uid: str) -> Stepped:
    """What is to be created is asked for again by kubelet; what runs is decided on now."""
    refused = tuple(one for one in registry.refused if one.key.pod_uid != pod_uid)
    return Stepped(replace(registry, refused=refused), _once_per_key(_unplaced(registry, {pod_uid})))


def _unplaced(registry: Registry, pod_uids: Collection[str]) -> Iterator[Decide]:
    """What of these pods runs, and has nothing that it was promised."""
    for entry in registry.entries:
        if entry.key.pod_uid in pod_uids:
            for made in entry.made:
                if not made.is_placed and made.stage is Stage.STARTED:
                    yield Decide(entry.key, made.id, is_again=entry.is_held)


def _synchronize(registry: Registry, found: Synchronized, wanted: Mapping[ContainerKey, WantedPlacement]) -> Stepped:
    pods = {sandbox.id: sandbox for sandbox in found.sandboxes}
    listed = {container.id: container for container in found.containers if container.sandbox_id in pods}
    entries = {key: KeyEntry(key, is_held=True) for key in wanted}
    entries |= {e.key: _as_found(e, listed, is_held=e.key in wanted) for e in registry.entries}
    todo: list[Todo] = []
    registry = replace(
        registry,
        sandboxes=tuple(sorted((KnownSandbox(p.id, p.uid or p.id) for p in pods.values()), key=lambda pod: pod.id)),
    )
    registry = _with_pods(_without_the_gone(registry), found.pods)
    for container in listed.values():
        sandbox = pods[container.sandbox_id]
        key = ContainerKey.of(sandbox, container)
        seen = _Seen(_LISTED[container.state], key, sandbox, container, wanted=wanted.get(key))
        entries[key], more = _step(registry, entries.get(key) or KeyEntry(key), seen)
        todo += more
    left = (entries[key] for key in sorted(entries))
    entries_left = tuple(entry for entry in left if entry.made or entry.is_held)
    return Stepped(replace(registry, entries=entries_left), _once_per_key(todo))


def _look(registry: Registry, found: Synchronized, wanted: Mapping[ContainerKey, WantedPlacement]) -> Stepped:
    """Find what began without having been asked for. Pods that aren't listed are gone, or will be told of again with their containers."""
    pods = {sandbox.id: sandbox for sandbox in found.sandboxes}
    entries = {entry.key: entry for entry in registry.entries}
    stopped = {known.id for known in registry.sandboxes if known.is_stopped}
    sandboxes = (KnownSandbox(pod.id, pod.uid or pod.id, pod.id in stopped) for pod in pods.values())
    registry = _without_the_gone(replace(registry, sandboxes=tuple(sorted(sandboxes, key=lambda known: known.id))))
    before, registry = registry, _with_pods(registry, found.pods)
    # One that was refused runs in the shared pool: with what is known now, it may be promised what it asks for.
    todo: list[Todo] = [*_unplaced(registry, _refused_pods(before) - _refused_pods(registry))]
    for container in found.containers:
        if _LISTED[container.state] is ContainerEvent.LISTED_RUNNING and container.sandbox_id in pods:
            sandbox = pods[container.sandbox_id]
            key = ContainerKey.of(sandbox, container)
            seen = _Seen(ContainerEvent.SEEN_RUNNING, key, sandbox, container, wanted=wanted.get(key))
            entries[key], more = _step(registry, entries.get(key) or KeyEntry(key), seen)
            todo += more
    return Stepped(replace(registry, entries=tuple(entries[key] for key in sorted(entries))), _once_per_key(todo))


def _refused_pods(registry: Registry) -> set[str]:
    return {one.key.pod_uid for one in registry.refused}


def _once_per_key(todo: Iterable[Todo]) -> tuple[Todo, ...]:
    """Of several containers of a key, the last one is decided on: it is the newest."""
    rows = tuple(todo)
    last = {one.key: one.id for one in rows if isinstance(one, Decide)}
    return tuple(one for one in rows if not isinstance(one, Decide) or last[one.key] == one.id)


def _as_found(entry: KeyEntry, listed: Mapping[str, NriContainer], *, is_held: bool) -> KeyEntry:
    """What the runtime doesn't have any more has been removed; what nothing is promised to any more, holds nothing."""
    made = tuple(one if one.id in listed else _moved(one, ContainerEvent.UNLISTED) for one in entry.made)
    return replace(entry, made=made, is_held=is_held, asked=entry.asked if is_held else None)


def has_all(has: NriResources, wanted: WantedPlacement) -> bool:
    """Whether a container has what it should have, as its runtime tells."""
    return bool(wanted.cpus) and has.cpus == wanted.cpus and (not wanted.mems or has.mems == wanted.mems)


def _without_the_gone(registry: Registry) -> Registry:
    there = {known.pod_uid for known in registry.sandboxes}
    refused = tuple(one for one in registry.refused if one.key.pod_uid in there)
    return replace(registry, refused=refused, pods=tuple(pod for pod in registry.pods if pod.uid in there))


def _with_pods(registry: Registry, told: Iterable[KubeletPod]) -> Registry:
    """Take over what kubelet says. What was refused without knowing it is decided on once more when it is asked for again."""
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


def _with_sandbox(registry: Registry, sandbox: Sandbox) -> Registry:
    if any(known.id == sandbox.id for known in registry.sandboxes):
        return registry
    known = (*registry.sandboxes, KnownSandbox(sandbox.id, sandbox.uid or sandbox.id))
    return replace(registry, sandboxes=tuple(sorted(known, key=lambda one: one.id)))


def _with(entry: KeyEntry, made: MadeContainer) -> KeyEntry:
    """Put a container in its place, or at the end."""
    if any(one.id == made.id for one in entry.made):
        return replace(entry, made=tuple(made if one.id == made.id else one for one in entry.made))
    return replace(entry, made=(*entry.made, made))


def _put(registry: Registry, entry: KeyEntry) -> Registry:
    """An entry without containers that holds nothing is none."""
    others = [one for one in registry.entries if one.key != entry.key]
    if entry.made or entry.is_held:
        others.append(entry)
    return replace(registry, entries=tuple(sorted(others, key=lambda one: one.key)))


def has_any(registry: Registry) -> bool:
    """Whether anything is known of a runtime's containers."""
    return bool(registry.entries or registry.refused or registry.sandboxes)


def awaits_end(registry: Registry) -> bool:
    """Whether something is given back once cgroups are seen to be empty."""
    return any(made.stage is Stage.REMOVED for entry in registry.entries for made in entry.made)
