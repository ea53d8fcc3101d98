"""Which containers of a runtime hold what was promised to their key, as one immutable value, and what each event makes of it.

A *key* is a pod's UID and a container's name: it outlives the ids that the runtime gives the container each time it is made, and a new one
may come before the old one goes. The rules:

- What is promised belongs to the key. Its containers have it one after the other: none begins beside another one of its key.
- It is given back once the runtime has none of them left and their cgroups have been seen without processes since.
- A container that was not placed when it was created doesn't begin. One that began while nobody was asked is found by Synchronize, which
  is the truth about what there is: what it leaves out has been removed.
- A refusal is remembered with what was asked for, until that changes or kubelet says something else of the pod, the pod goes, or somebody
  asks for a retry: kubelet tries for ever.
- Events may be lost, come twice, or late: an id that has ended never comes back to life by one.

Decides nothing about CPUs: what is `Decide` here is decided by the managers, and told to `settled`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.cgroup_paths import cgroup_of
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


class Populated(Struct, frozen=True):
    """The containers' cgroups were looked at."""

    ids: frozenset[str]
    """Those with processes in them."""


class Unserved(Struct, frozen=True):
    """The containers' cgroups were looked at, and nobody tells what becomes of them any more: a container without processes has ended."""

    ids: frozenset[str]
    """Those with processes in them, or in a cgroup that nobody knows."""


class Looked(Struct, frozen=True):
    """What runs, seen in passing. What it leaves out may be under way: a runtime lists what it is making only when that is made."""

    found: Synchronized


class Retried(Struct, frozen=True):
    """Somebody wants a pod to be decided on again."""

    pod_uid: str


Happening = Call | Synchronized | Looked | Populated | Unserved | Retried


class Decide(Struct, frozen=True):
    """Let the managers decide, and tell `settled` before anything is answered."""

    key: ContainerKey
    id: str
    is_again: bool
    """The key holds something, which was asked for with other amounts."""
    is_of_pod: bool = False
    """Nothing else is asked than that the pod as a whole may have other amounts now, which kubelet's pods API says."""


class Place(Struct, frozen=True):
    """Give it what is promised to its key, all of it: it is about to be created or updated, or has just been decided on."""

    key: ContainerKey
    id: str


class Refuse(Struct, frozen=True):
    """Deny what the runtime is about to do."""

    key: ContainerKey
    id: str
    reason: str
    is_first: bool
    """Otherwise it has been told before: no log line."""


class LetBegin(Struct, frozen=True):
    """Read the cpusets, and let it begin if `gate` (answers.py) does."""

    key: ContainerKey
    id: str
    rivals: tuple[str, ...]
    """Other containers of its key. While one has processes on CPUs that are the key's alone, it may not begin."""


class Adopt(Struct, frozen=True):
    """It runs, and has what is promised to it."""

    key: ContainerKey
    id: str


class PutRight(Struct, frozen=True):
    """It has something else than what is promised to it: a difference to show, and to correct."""

    key: ContainerKey
    id: str
    wanted: WantedPlacement
    has: NriResources


class CountFailOpen(Struct, frozen=True):
    """It began while nobody was asked."""

    key: ContainerKey
    id: str


class AwaitEmpty(Struct, frozen=True):
    """Look for `Populated` once these cgroups may have become empty."""

    ids: tuple[str, ...]


class GiveBack(Struct, frozen=True):
    """Nobody has any more what was promised to the key."""

    key: ContainerKey


Todo = Decide | Place | Refuse | LetBegin | Adopt | PutRight | CountFailOpen | AwaitEmpty | GiveBack


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
    match call.event:
        case Event.CREATE_CONTAINER:
            return _create(_with_sandbox(registry, sandbox), sandbox, container)
        case Event.START_CONTAINER:
            return _start(registry, sandbox, container)
        case Event.UPDATE_CONTAINER:
            return _update(_with_sandbox(registry, sandbox), sandbox, container, call.resources or NriResources())
        case Event.STOP_CONTAINER:
            return _ends(registry, container.id, Stage.STOPPED)
        case Event.REMOVE_CONTAINER:
            return _ends(registry, container.id, Stage.REMOVED)
        case _:
            return Stepped(registry)


def _sandbox_event(registry: Registry, event: Event, sandbox: Sandbox) -> Stepped:
    match event:
        case Event.RUN_POD_SANDBOX:
            return Stepped(_with_sandbox(registry, sandbox))
        case Event.STOP_POD_SANDBOX:
            sandboxes = (replace(s, is_stopped=True) if s.id == sandbox.id else s for s in registry.sandboxes)
            return _ended(replace(registry, sandboxes=tuple(sandboxes)), sandbox.id)
        case Event.REMOVE_POD_SANDBOX:
            left = tuple(known for known in registry.sandboxes if known.id != sandbox.id)
            return _ended(_without_the_gone(replace(registry, sandboxes=left)), sandbox.id)
        case _:
            return Stepped(registry)


def _of_pod(registry: Registry, sandbox: Sandbox) -> tuple[Decide, ...]:
    """Decide on a pod by one of its containers that has what it was promised: their own amounts have calls of their own."""
    for entry in registry.entries:
        if entry.key.pod_uid == (sandbox.uid or sandbox.id) and entry.is_held:
            for made in entry.made:
                if made.is_placed and made.stage < Stage.STOPPED:
                    return (Decide(entry.key, made.id, is_again=True, is_of_pod=True),)
    return ()


def _create(registry: Registry, sandbox: Sandbox, container: NriContainer) -> Stepped:
    key, asked = ContainerKey.of(sandbox, container), Asked.of(sandbox, container)
    entry = registry.entry(key)
    if _is_over(registry, sandbox, entry, container.id):
        why = f"container {printable(key.name[:_MAX_NAME])} or its pod has already been stopped: the kubelet makes another one"
        return Stepped(registry, (Refuse(key, container.id, why, is_first=True),))
    refusal = registry.refusal(key, asked)
    if refusal is not None and not (refusal.is_of_update or refusal.is_deferred):
        return Stepped(registry, (Refuse(key, container.id, refusal.reason, is_first=False),))
    is_as_promised = entry.is_held and entry.asked == asked
    made = MadeContainer(
        container.id,
        sandbox.id,
        _stage_of(entry, container.id),
        asked,
        is_placed=is_as_promised,
        cgroup=cgroup_of(container.cgroups_path),
    )
    registry = _put(registry, _with(entry, made))
    if is_as_promised:
        return Stepped(registry, (Place(key, container.id),))
    return Stepped(registry, (Decide(key, container.id, is_again=entry.is_held),))


def _is_over(registry: Registry, sandbox: Sandbox, entry: KeyEntry, container_id: str) -> bool:
    is_stopped = any(known.id == sandbox.id and known.is_stopped for known in registry.sandboxes)
    return is_stopped or _stage_of(entry, container_id) >= Stage.STOPPED


def _stage_of(entry: KeyEntry, container_id: str) -> Stage:
    return next((made.stage for made in entry.made if made.id == container_id), Stage.CREATED)


def _start(registry: Registry, sandbox: Sandbox, container: NriContainer) -> Stepped:
    key = ContainerKey.of(sandbox, container)
    entry = registry.entry(key)
    made = next((made for made in entry.made if made.id == container.id), None)
    if made is None or not made.is_placed or made.stage >= Stage.STOPPED:
        why = (
            f"container {printable(key.name[:_MAX_NAME])} was not placed when it was created, or has been stopped since: nodeagent was "
            "not asked, see `nodeagent inspect`; the kubelet makes another one"
        )
        return Stepped(registry, (Refuse(key, container.id, why, is_first=True),))
    rivals = tuple(other.id for other in entry.made if other.id != container.id)
    registry = _put(registry, _with(entry, replace(made, stage=Stage.STARTED)))
    return Stepped(registry, (LetBegin(key, container.id, rivals),))


def _update(registry: Registry, sandbox: Sandbox, container: NriContainer, change: NriResources) -> Stepped:
    """What an update doesn't say stays. A container that was made unnoticed is found by its update, too."""
    key = ContainerKey.of(sandbox, container)
    entry = registry.entry(key)
    before = next((made for made in entry.made if made.id == container.id), None)
    known = Asked.of(sandbox, container) if before is None else before.asked
    asked = replace(known, resources=_merged(known.resources, change))
    if before is None:
        made = MadeContainer(container.id, sandbox.id, Stage.STARTED, asked, cgroup=cgroup_of(container.cgroups_path))
        registry = _put(registry, _with(entry, made))
        return Stepped(registry, (CountFailOpen(key, made.id), Decide(key, made.id, is_again=entry.is_held)))
    if before.stage >= Stage.STOPPED:
        return Stepped(registry)
    if before.is_placed and entry.asked == asked:
        refused = tuple(one for one in registry.refused if one.key != key or not one.is_of_update)
        return Stepped(replace(registry, refused=refused), (Place(key, before.id),))
    refusal = registry.refusal(key, asked)
    if refusal is not None and not refusal.is_deferred:
        return Stepped(registry, (Refuse(key, before.id, refusal.reason, is_first=False),))
    registry = _put(registry, _with(entry, replace(before, asked=asked)))
    return Stepped(registry, (Decide(key, before.id, is_again=entry.is_held),))


def _merged(known: NriResources, change: NriResources) -> NriResources:
    said = {
        name: value for name in NriResources.__struct_fields__ if (value := getattr(change, name)) not in {None, ()}
    }
    return replace(known, **{name: value for name, value in said.items() if name not in {"cpus", "mems"}})


def _ends(registry: Registry, container_id: str, stage: Stage) -> Stepped:
    key = registry.key_of(container_id)
    if key is None:
        return Stepped(registry)
    entry = registry.entry(key)
    made = next(made for made in entry.made if made.id == container_id)
    registry = _put(registry, _with(entry, replace(made, stage=max(made.stage, stage))))
    return Stepped(registry, (AwaitEmpty((container_id,)),))


def _ended(registry: Registry, sandbox_id: str) -> Stepped:
    """None of a pod's containers will run again: what they hold need not wait until their remains are removed."""
    ids = tuple(made.id for entry in registry.entries for made in entry.made if made.sandbox_id == sandbox_id)
    entries = tuple(
        replace(
            entry,
            made=tuple(
                replace(made, stage=Stage.REMOVED) if made.sandbox_id == sandbox_id else made for made in entry.made
            ),
        )
        for entry in registry.entries
    )
    return Stepped(replace(registry, entries=entries), (AwaitEmpty(ids),) if ids else ())


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
        replace(entry, made=tuple(replace(one, stage=Stage.REMOVED) for one in entry.made))
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
    gone = tuple(made.id for entry in entries.values() for made in entry.made if made.id not in listed)
    todo: list[Todo] = [AwaitEmpty(gone)] if gone else []
    registry = replace(
        registry,
        sandboxes=tuple(sorted((KnownSandbox(p.id, p.uid or p.id) for p in pods.values()), key=lambda pod: pod.id)),
    )
    registry = _with_pods(_without_the_gone(registry), found.pods)
    for container in listed.values():
        sandbox = pods[container.sandbox_id]
        key = ContainerKey.of(sandbox, container)
        entries[key], more = _found(registry, entries.get(key) or KeyEntry(key), sandbox, container, wanted.get(key))
        todo += more
    left = (entries[key] for key in sorted(entries))
    entries_left = tuple(entry for entry in left if entry.made or entry.is_held)
    return Stepped(replace(registry, entries=entries_left), _once_per_key(todo))


def _look(registry: Registry, found: Synchronized, wanted: Mapping[ContainerKey, WantedPlacement]) -> Stepped:
    """Find what began without having been asked for. Pods that aren't listed are gone, or will be told of again with their containers."""
    pods = {sandbox.id: sandbox for sandbox in found.sandboxes}
    stages = {made.id: made.stage for entry in registry.entries for made in entry.made}
    entries = {entry.key: entry for entry in registry.entries}
    stopped = {known.id for known in registry.sandboxes if known.is_stopped}
    sandboxes = (KnownSandbox(pod.id, pod.uid or pod.id, pod.id in stopped) for pod in pods.values())
    registry = _without_the_gone(replace(registry, sandboxes=tuple(sorted(sandboxes, key=lambda known: known.id))))
    before, registry = registry, _with_pods(registry, found.pods)
    # One that was refused runs in the shared pool: with what is known now, it may be promised what it asks for.
    todo: list[Todo] = [*_unplaced(registry, _refused_pods(before) - _refused_pods(registry))]
    for container in found.containers:
        runs = _listed_stage(container.state) is Stage.STARTED and container.sandbox_id in pods
        if runs and stages.get(container.id, Stage.CREATED) is Stage.CREATED:
            sandbox = pods[container.sandbox_id]
            key = ContainerKey.of(sandbox, container)
            entry = entries.get(key) or KeyEntry(key)
            entries[key], more = _found(registry, entry, sandbox, container, wanted.get(key))
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
    made = tuple(one if one.id in listed else replace(one, stage=Stage.REMOVED) for one in entry.made)
    return replace(entry, made=made, is_held=is_held, asked=entry.asked if is_held else None)


def _found(
    registry: Registry, entry: KeyEntry, sandbox: Sandbox, container: NriContainer, wanted: WantedPlacement | None
) -> tuple[KeyEntry, list[Todo]]:
    """One that the runtime lists. If it is new here and has what is promised, it was placed before the agent's last start. If it hasn't,
    and nobody has let it begin, the runtime didn't wait for that.
    """
    key, stage = entry.key, _listed_stage(container.state)
    known = next((made for made in entry.made if made.id == container.id), None)
    asked = Asked.of(sandbox, container) if known is None else known.asked
    is_placed, cgroup = known is not None and known.is_placed, cgroup_of(container.cgroups_path)
    made = MadeContainer(container.id, sandbox.id, stage, asked, is_placed=is_placed, cgroup=cgroup)
    if stage is Stage.STOPPED:
        return _with(entry, made), []
    todo: list[Todo] = []
    is_as_wanted = wanted is not None and has_all(container.resources, wanted)
    if stage is Stage.STARTED and (known is None or known.stage is Stage.CREATED) and not is_as_wanted:
        todo.append(CountFailOpen(key, made.id))
    if wanted is not None and (is_as_wanted or made.is_placed or entry.asked in {None, asked}):
        entry = replace(entry, is_held=True, asked=entry.asked or asked)
        todo.append(Adopt(key, made.id) if is_as_wanted else PutRight(key, made.id, wanted, container.resources))
        return _with(entry, replace(made, is_placed=True)), todo
    if (refusal := registry.refusal(key, asked)) is not None:
        todo.append(Refuse(key, made.id, refusal.reason, is_first=False))
    else:
        todo.append(Decide(key, made.id, is_again=wanted is not None))
    return _with(entry, replace(made, is_placed=False)), todo


def has_all(has: NriResources, wanted: WantedPlacement) -> bool:
    """Whether a container has what it should have, as its runtime tells."""
    return bool(wanted.cpus) and has.cpus == wanted.cpus and (not wanted.mems or has.mems == wanted.mems)


def _listed_stage(state: ContainerState) -> Stage:
    match state:
        case ContainerState.CREATED:
            return Stage.CREATED
        case ContainerState.STOPPED:
            return Stage.STOPPED
        case ContainerState.RUNNING | ContainerState.PAUSED | ContainerState.UNKNOWN:
            return Stage.STARTED


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
