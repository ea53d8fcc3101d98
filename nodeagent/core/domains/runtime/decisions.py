"""What a container runtime tells, in a turn: its containers' pods admitted, grown, and given back with their last container.

The rules of who holds what are in core/domains/runtime/registry.py; the managers decide as for any pod. An admitted pod has the
containers that have been told of so far: each that comes is one more of the same pod, which keeps what it has.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, Report, remove_container
from nodeagent.core.admission.node_capacity import Insufficient, usage_of
from nodeagent.core.admission.resize import differences, is_resize
from nodeagent.core.domains.runtime.instructions import (
    Adopt,
    CountFailOpen,
    CountIllegal,
    Decide,
    GiveBack,
    Happening,
    Looked,
    Place,
    Refuse,
    Todo,
)
from nodeagent.core.domains.runtime.occupants import Node, promised
from nodeagent.core.domains.runtime.pod_model import runtime_pod
from nodeagent.core.domains.runtime.registry import happened, has_all, settled
from nodeagent.core.domains.runtime.stated_pod import StatedPod, with_kubelets
from nodeagent.core.metrics.agent_metrics import RUNTIME_ILLEGAL
from nodeagent.core.metrics.deltas import MetricDelta, Series
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import NriContainer, Sandbox, Synchronized
from nodeagent.core.model.pod import Pod, ResourceRequirements, Resources
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import (
    INVALID_ANNOTATIONS,
    INVALID_NAME,
    OF_RESIZES,
    POD_NOT_KNOWN,
    RESIZE_DEFERRED,
    RESIZE_INFEASIBLE,
    UID_TAKEN,
    NotResized,
)
from nodeagent.core.model.runtime_containers import ContainerKey, KeyEntry, MadeContainer, Registry, Stage
from nodeagent.core.model.state import ContainerStatus, NodeState, PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import default_set
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.keep import kept_devices
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.turn.decision import Decide as PodDecision, admitted_beside, cpus_of_orphans, decide_pod, resize_pod
from nodeagent.core.turn.draft import Draft, refusal_event, with_refused
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.core.turn.world import EventKind, TurnEvent

_NAMESPACE = "default"
"""Of a pod that has none, as those of `crictl`."""


class Taken(Struct, frozen=True):
    """The draft after an event that has been decided on, and what is left to be done."""

    draft: Draft
    todo: tuple[Todo, ...] = ()


def take(draft: Draft, what: Happening, node: Node) -> Taken:
    """Decide on everything that an event asks for."""
    is_list = isinstance(what, Synchronized | Looked)
    stepped = happened(draft.state.runtime, what, promised(draft.state, node) if is_list else {})
    draft = draft.plus(replace(draft.state, runtime=stepped.registry))
    todo, done = _narrowest_first(stepped.todo, node), list[Todo]()
    while todo:
        match todo.pop(0):
            case Decide() as decide:
                draft, more = _decided(draft, decide, node)
                todo[:0] = more
            case GiveBack(key):
                draft = _given_back(draft, key, node)
            case Place(key, container_id) as place:
                draft = draft.plus(_with_cgroup(draft.state, key, container_id, node))
                done.append(place)
            case CountIllegal(event):
                illegal = MetricDelta(Series(RUNTIME_ILLEGAL, (("event", event.value),)))
                draft = draft.plus(draft.state, deltas=(illegal,))
            case other:
                done.append(other)
    draft = draft.plus(_without_old_refusals(draft.state))
    return Taken(draft, tuple(_where_they_belong(draft.state, done, node) if is_list else done))


def _narrowest_first(todo: tuple[Todo, ...], node: Node) -> list[Todo]:
    """Whoever is found on few CPUs may keep them: others, who may be anywhere, are decided on later."""
    return sorted(
        todo, key=lambda one: len(_stands_on(one.id, node) or node.kernel.online) if isinstance(one, Decide) else 0
    )


def _stands_on(container_id: str, node: Node) -> CpuSet | None:
    """Return the CPUs that the runtime gives a container; None: any."""
    told = node.reported.containers.get(container_id)
    return None if told is None else told.resources.cpus


def _where_they_belong(state: NodeState, todo: list[Todo], node: Node) -> list[Todo]:
    """What was found on the CPUs that it has been promised now was placed by an agent that has lost its state since: it did ask."""
    wanted = promised(state, node)

    def is_there(one: CountFailOpen) -> bool:
        told = node.reported.containers.get(one.id)
        return one.key in wanted and told is not None and has_all(told.resources, wanted[one.key])

    return [Adopt(one.key, one.id) if isinstance(one, CountFailOpen) and is_there(one) else one for one in todo]


def _decided(draft: Draft, decide: Decide, node: Node) -> tuple[Draft, tuple[Todo, ...]]:
    state = draft.state
    _, made = _made(state.runtime, decide.key, decide.id)
    sandbox = None if made is None else node.reported.sandboxes.get(made.sandbox_id)
    if made is None or sandbox is None:
        return draft, ()
    stated = node.stated(sandbox)
    counting = _names(state, decide.key)
    seen = (container for name in counting if (container := _as_asked(state.runtime, sandbox, name, decide, node)))
    said = with_kubelets(stated.pod, state.runtime.pod(decide.key.pod_uid))
    found = runtime_pod(sandbox, seen, said, node.world.managers.topology.memory_bytes)
    names = {"name": found.pod.name or sandbox.id, "namespace": found.pod.namespace or _NAMESPACE}
    before = state.entry(decide.key.pod_uid)
    pod = _with_held(replace(found.pod, uid=decide.key.pod_uid, **names), before, counting)
    pod = _without_ended(pod, before, decide.key.name)
    if decide.is_of_pod and before is not None and _whole(before.pod) == _whole(pod):
        return draft, ()
    if misnamed := node.misnamed(pod):
        return _refused(draft, decide, pod, INVALID_NAME, "; ".join(misnamed), node, is_kept=False)
    contradictions = tuple(one.text for one in found.contradictions)
    if problems := (*stated.problems, *contradictions):
        return _refused(draft, decide, pod, INVALID_ANNOTATIONS, "; ".join(problems), node)
    if node.world.config.placement.topology_manager_scope == "pod" and not found.is_whole:
        what = ", ".join(dict.fromkeys(f"{one.container} {one.what}".strip() for one in found.estimates))
        return _refused(
            draft,
            decide,
            pod,
            POD_NOT_KNOWN,
            f"with topologyManagerScope pod all of it must be known, and these are estimates: {what}; {_why_not_whole(said)}",
            node,
        )
    if before is not None and not before.is_requested_per_container:
        return _refused(draft, decide, pod, UID_TAKEN, f"pod {before.pod.full_name} has its UID", node)
    return _admitted(draft, decide, pod, before, node)


def _why_not_whole(said: StatedPod) -> str:
    if said.is_kubelets:
        return "kubelet's pods API says otherwise than kubelet has asked the runtime for: a resize that is not done?"
    return "kubelet's pods API (kubeletPodsSocket) has not told them; the pod's annotations can state them"


def _admitted(
    draft: Draft, decide: Decide, pod: Pod, before: PodEntry | None, node: Node
) -> tuple[Draft, tuple[Todo, ...]]:
    state, world = draft.state, node.world
    if before is not None and (change := _exclusive_change(before.pod, pod, decide, state, node)):
        return _resized(draft, decide, pod, before, change, node)
    name, promises = decide.key.name, state.promises
    freed: tuple[MetricDelta, ...] = ()
    for container in () if before is None else before.pod.containers:
        if _is_decided_anew(container.name, pod, before, decide, state):
            promises, deltas = remove_container(world.managers, promises, pod.uid, container.name)
            promises = _with_its_devices(
                promises, state.promises.of_pod(pod.uid).of(DeviceHoldings), pod, container.name
            )
            freed += deltas
    free = replace(state, promises=_with_its_own(promises, pod, name))
    others = tuple(entry.pod for entry in state.entries if entry.holds and entry.pod.uid != pod.uid)
    usage = usage_of(others, pod_level_resources=world.pod_level_resources)
    decision = decide_pod(free, pod, usage, cpus_of_orphans(state, world), world, _decision_on(decide, state, node))
    if isinstance(decision, Insufficient):
        _, made = _made(state.runtime, decide.key, decide.id)
        is_running = decide.is_of_pod or (made is not None and made.is_placed)
        of_resize = RESIZE_INFEASIBLE if decision.requested > decision.capacity else RESIZE_DEFERRED
        return _refused(draft, decide, pod, of_resize if is_running else decision.reason, decision.message, node)
    if isinstance(decision, Rejected):
        _, made = _made(state.runtime, decide.key, decide.id)
        if decision.is_postponed and made is not None and made.stage is Stage.CREATED:
            return _denied_for_now(draft, decide, decision)
        draft = draft.plus(state, deltas=decision.deltas)
        return _refused(draft, decide, pod, decision.reason, decision.message, node, decision.report)
    known = {} if before is None else {status.name: status for status in before.containers}
    statuses = tuple(known.get(container.name, ContainerStatus(container.name)) for container in pod.containers)
    decided_at_ms = before.decided_at_ms if before is not None and before.is_active else world.now_ms
    entry = new_entry(Manifest(pod, node.origin), decided_at_ms, pod_level_resources=world.pod_level_resources)
    entry = replace(entry, containers=statuses)
    state = replace(state, promises=decision.promises)
    state = replace(state, entries=(*state.entries, entry)) if before is None else state.with_entry(entry)
    stepped = settled(state.runtime, decide.key, decide.id, None)
    event = TurnEvent(EventKind.POD_ADMITTED, pod, entry.origin, name, (("qos", entry.qos.value),), decision.report)
    return draft.plus(replace(state, runtime=stepped.registry), event, deltas=(*freed, *decision.deltas)), stepped.todo


def _denied_for_now(draft: Draft, decide: Decide, decision: Rejected) -> tuple[Draft, tuple[Todo, ...]]:
    """Deny a creation without remembering it: kubelet asks again, and a slow plugin has answered by then."""
    before = draft.state.runtime
    stepped = settled(before, decide.key, decide.id, f"{decision.reason}: {decision.message}")
    forgotten = replace(stepped.registry, refused=before.refused)
    return draft.plus(replace(draft.state, runtime=forgotten)), stepped.todo


def _with_its_own(promises: Promises, pod: Pod, name: str) -> Promises:
    """Let a container have the devices again that it has by records alone: its state was lost, and they are in its /dev."""
    lost = next((one for one in promises.unrecovered if one.uid == pod.uid), None)
    before = DeviceHoldings() if lost is None else lost.held.of(DeviceHoldings)
    if lost is None or not before.devices_of(name):
        return promises
    after = _with_its_devices(promises, kept_devices(promises, pod, before.of_container(name)), pod, name)
    if after is promises:
        return promises
    left = lost.held.having(before.without(name))
    others = (replace(one, held=left) if one is lost else one for one in promises.unrecovered)
    return replace(after, unrecovered=tuple(one for one in others if not one.held.is_nothing))


def _with_its_devices(promises: Promises, before: DeviceHoldings, pod: Pod, name: str) -> Promises:
    """Leave a container the devices that it had, if it asks for as many: one that runs has their files, and gets no others."""
    own = Counter(one.resource for one in before.devices_of(name))
    if own != {one: count.value() for one, count in pod.container(name).devices}:
        return promises
    held = promises.of_pod(pod.uid)
    return with_pod(promises, pod.uid, held.having(held.of(DeviceHoldings).plus(before.of_container(name))))


def _decision_on(decide: Decide, state: NodeState, node: Node) -> PodDecision:
    """Return how to decide: a container that runs already as if there were no other CPUs than those it is on, if that is possible."""
    _, made = _made(state.runtime, decide.key, decide.id)
    stands_on = _stands_on(decide.id, node)
    if made is None or made.stage is not Stage.STARTED or made.is_placed or stands_on is None:
        return admitted_beside

    def admitted_there(managers: Managers, promises: Promises, pod: Pod, orphans: CpuSet) -> Admitted | Rejected:
        decision = admitted_beside(managers, promises, pod, orphans | (default_set(promises) - stands_on))
        if not isinstance(decision, Rejected) or decision.is_of_a_failure:
            return decision
        return admitted_beside(managers, promises, pod, orphans)

    return admitted_there


def _resized(
    draft: Draft, decide: Decide, pod: Pod, before: PodEntry, change: str, node: Node
) -> tuple[Draft, tuple[Todo, ...]]:
    """Give a container that runs where it was placed other CPUs or memory of its own, by the rules for pods of our own (D50)."""
    state, world = draft.state, node.world
    if not is_resize(before.pod, pod):
        why = f"{change}: exclusive CPUs and memory that is promised stay as they are while the container runs"
        return _refused(draft, decide, pod, RESIZE_INFEASIBLE, why, node)
    answer = resize_pod(state, before.pod, pod, world)
    if isinstance(answer, NotResized):
        return _refused(draft, decide, pod, answer.reason, f"{change}: {answer.message}", node)
    changes = "; ".join(differences(state.promises, answer, before.pod, pod))
    state = replace(state.with_entry(replace(before, pod=pod)), promises=answer)
    stepped = settled(state.runtime, decide.key, decide.id, None)
    event = TurnEvent(EventKind.POD_RESIZED, pod, before.origin, decide.key.name, (("changes", changes),))
    return draft.plus(replace(state, runtime=stepped.registry), event), stepped.todo


def _whole(pod: Pod) -> tuple[ResourceRequirements | None, Resources]:
    return pod.resources, pod.overhead


def _exclusive_change(before: Pod, after: Pod, decide: Decide, state: NodeState, node: Node) -> str:
    """Return what a container that runs where it was placed, or its pod as a whole, would have otherwise; empty: what it holds for itself
    stays the same.
    """
    if decide.is_of_pod:
        was, becomes = (demand_of(node.world.managers.rules, pod) for pod in (before, after))
        if _held_by(was) == _held_by(becomes):
            return ""
        is_of_cpus = was.cpus != becomes.cpus
        return f"the pod as a whole: CPUs {was.cpus} → {becomes.cpus}" if is_of_cpus else "the pod as a whole"
    _, made = _made(state.runtime, decide.key, decide.id)
    if made is None or not made.is_placed:
        return ""
    had, has = (_holds(pod, decide.key.name, node) for pod in (before, after))
    if had is None or has is None or had == has:
        return ""
    return " and ".join(f"{name} {old} → {new}" for (name, old), (_, new) in zip(had, has, strict=True) if old != new)


def _holds(pod: Pod, name: str, node: Node) -> tuple[tuple[str, str], ...] | None:
    """What a container has for itself of each manager's resource, in words; None: it is none of the pod's."""
    managers = node.world.managers
    found = next((one for one in demand_of(managers.rules, pod).containers if one.name == name), None)
    if found is None:
        return None
    cpus = found.cpus if managers.providers.of(CpuResource).manager.static else 0
    memory = dict(found.memory or ()) if managers.providers.of(MemoryResource).manager.static else {}
    said = ", ".join(f"{resource} {size}" for resource, size in sorted(memory.items())) or "none"
    return (("exclusive CPUs", str(cpus)), ("memory", said))


def _held_by(demand: PodDemand) -> tuple[object, ...]:
    """What a pod and its containers have for themselves."""
    return demand.cpus, demand.memory, tuple((one.cpus, one.memory) for one in demand.containers)


def _is_decided_anew(name: str, pod: Pod, before: PodEntry | None, decide: Decide, state: NodeState) -> bool:
    """Whether a container asks for other amounts than what is promised to it, and has not been made of that."""
    known = {} if before is None else {container.name: container for container in before.pod.containers}
    after = {container.name: container for container in pod.containers}
    if name not in after or known[name] == after[name]:
        return False
    key = ContainerKey(pod.uid, name)
    return not state.runtime.entry(key).is_held or (key == decide.key and decide.is_again)


def _refused(
    draft: Draft,
    decide: Decide,
    pod: Pod,
    reason: str,
    message: str,
    node: Node,
    report: Report | None = None,
    *,
    is_kept: bool = True,
) -> tuple[Draft, tuple[Todo, ...]]:
    state = draft.state
    if decide.is_of_pod and not reason.startswith(OF_RESIZES):
        # It is kept with a container that has what it asks for: that may be made again.
        reason, message = RESIZE_INFEASIBLE, f"{reason}: {message}"
    stepped = settled(state.runtime, decide.key, decide.id, f"{reason}: {message}")
    known = next((one for one in state.runtime.refused if one.key == decide.key), None)
    is_told = known is not None and known.is_deferred and known.reason == f"{reason}: {message}"
    draft = draft.plus(replace(state, runtime=stepped.registry))
    world, before = node.world, state.entry(pod.uid)
    entry = new_entry(Manifest(pod, node.origin), world.now_ms, pod_level_resources=world.pod_level_resources)
    refusal = Waiting(reason, message, world.now_ms)
    if not is_told:
        draft = draft.plus(draft.state, refusal_event(entry, refusal, report, decide.key.name))
    if is_kept and (before is None or (before.is_requested_per_container and before.refusal is not None)):
        draft = draft.plus(with_refused(draft.state, entry, refusal))
    # The event tells it.
    return draft, tuple(replace(one, is_first=False) if isinstance(one, Refuse) else one for one in stepped.todo)


def _without_old_refusals(state: NodeState) -> NodeState:
    """A pod that was refused as a whole is forgotten with its refusal."""
    refused = {one.key.pod_uid for one in state.runtime.refused}
    left = tuple(
        entry
        for entry in state.entries
        if not entry.is_requested_per_container or entry.refusal is None or entry.pod.uid in refused
    )
    return state if len(left) == len(state.entries) else replace(state, entries=left)


def _given_back(draft: Draft, key: ContainerKey, node: Node) -> Draft:
    state, managers = draft.state, node.world.managers
    entry = state.entry(key.pod_uid)
    if entry is None or not entry.is_requested_per_container:
        return draft
    if not any(other.is_held for other in state.runtime.entries if other.key.pod_uid == key.pod_uid):
        return draft.without(entry, node.world)
    promises, deltas = remove_container(managers, state.promises, key.pod_uid, key.name)
    pod = replace(entry.pod, containers=tuple(one for one in entry.pod.containers if one.name != key.name))
    statuses = tuple(one for one in entry.containers if one.name != key.name)
    state = replace(state, promises=promises).with_entry(replace(entry, pod=pod, containers=statuses))
    return draft.plus(state, deltas=deltas)


def _made(registry: Registry, key: ContainerKey, container_id: str) -> tuple[KeyEntry, MadeContainer | None]:
    entry = registry.entry(key)
    return entry, next((made for made in entry.made if made.id == container_id), None)


def _names(state: NodeState, key: ContainerKey) -> tuple[str, ...]:
    """The containers of a pod that count: those that hold something, in their order, and the one that is decided on."""
    entry = state.entry(key.pod_uid)
    known = (
        () if entry is None or not entry.is_requested_per_container else tuple(one.name for one in entry.pod.containers)
    )
    keys = {one.key.name for one in state.runtime.entries if one.key.pod_uid == key.pod_uid and one.is_held}
    ordered: Iterable[str] = (*(name for name in known if name in keys), *sorted(keys - set(known)), key.name)
    return tuple(dict.fromkeys(ordered))


def _with_held(pod: Pod, before: PodEntry | None, counting: tuple[str, ...]) -> Pod:
    """Containers that still hold something belong to the pod, though the runtime may tell of them no more."""
    if before is None or not before.is_requested_per_container or not before.is_active:
        return pod
    names = {container.name for container in pod.containers}
    held = tuple(one for one in before.pod.containers if one.name in counting and one.name not in names)
    return replace(pod, containers=(*held, *pod.containers)) if held else pod


def _without_ended(pod: Pod, before: PodEntry | None, name: str) -> Pod:
    """Of an admitted pod's containers those count that have been promised something: one that has given it back gets it again when it is
    made again, and not because another one is made.
    """
    if before is None or not before.is_requested_per_container or not before.is_active:
        return pod
    left = {container.name for container in before.pod.containers} | {name}
    return replace(pod, containers=tuple(one for one in pod.containers if one.name in left))


def _as_asked(registry: Registry, sandbox: Sandbox, name: str, decide: Decide, node: Node) -> NriContainer | None:
    """Return a container as it was told, with what is asked for it since."""
    entry = registry.entry(ContainerKey(decide.key.pod_uid, name))
    made = next((one for one in entry.made if one.id == decide.id), entry.made[-1] if entry.made else None)
    told = None if made is None else node.reported.containers.get(made.id)
    if made is None or told is None:
        return None
    asked = made.asked if name == decide.key.name or entry.asked is None else entry.asked
    # Told by its id, which a runtime may have given twice: the key's name is the one that everything is kept under.
    return replace(told, name=name, sandbox_id=sandbox.id, resources=asked.resources, oom_score_adj=asked.oom_score_adj)


def _with_cgroup(state: NodeState, key: ContainerKey, container_id: str, node: Node) -> NodeState:
    entry, (_, made) = state.entry(key.pod_uid), _made(state.runtime, key, container_id)
    if entry is None or not entry.is_active or made is None or not made.cgroup:
        return state
    statuses = tuple(
        replace(status, cgroup=f"{node.mount}/{made.cgroup}") if status.name == key.name else status
        for status in entry.containers
    )
    return state.with_entry(replace(entry, containers=statuses))
