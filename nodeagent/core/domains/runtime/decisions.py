"""Decisions on events of a container runtime: pods are admitted, get further containers, and release their allocations.

core/domains/runtime/registry.py determines which container may use an allocation, and the managers decide as for any pod. A new pod
consists of the containers that the runtime has reported so far. Containers that follow are added one by one, and the pod keeps its
allocations.
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
from nodeagent.core.domains.runtime.occupants import Node, wanted_by_key
from nodeagent.core.domains.runtime.pod_model import build_runtime_pod
from nodeagent.core.domains.runtime.registry import apply_event, has_wanted_values, record_decision
from nodeagent.core.domains.runtime.stated_pod import add_kubelet_data
from nodeagent.core.metrics.agent_metrics import RUNTIME_ILLEGAL
from nodeagent.core.metrics.deltas import MetricDelta, Series
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import NriContainer, Sandbox, Synchronized
from nodeagent.core.model.pod import Pod
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
from nodeagent.core.model.runtime_containers import ContainerKey, MadeContainer, Registry, Stage
from nodeagent.core.model.state import ContainerStatus, NodeState, PodEntry
from nodeagent.core.model.waiting import RequestKind, Waiting
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.keep import kept_devices
from nodeagent.core.turn.decision import (
    Decide as PodDecision,
    admit_off_orphans,
    decide_pod,
    find_orphan_cpus,
    resize_pod,
)
from nodeagent.core.turn.draft import Draft, make_refusal_event, record_refusal
from nodeagent.core.turn.due import list_due
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.core.turn.world import EventKind, RequestKey, TurnEvent, World

_NAMESPACE = "default"
"""Namespace of pods that have none, such as pods made with `crictl`."""


class _Case(Struct, frozen=True):
    """A container on which the agent has to decide, and its pod, which includes the container."""

    decide: Decide
    made: MadeContainer
    pod: Pod
    before: PodEntry | None
    """Entry of the pod before the decision. None means that the pod is new."""
    node: Node


class EventDecided(Struct, frozen=True):
    """Turn after the decisions on one event, and the instructions that remain to be carried out."""

    draft: Draft
    todo: tuple[Todo, ...] = ()
    is_illegal: bool = False
    """Whether the event was ignored, because it came out of order."""


def decide_event(draft: Draft, what: Happening, node: Node) -> EventDecided:
    """Decide on all requests of a container runtime that follow from one event."""
    is_list = isinstance(what, Synchronized | Looked)
    wanted = wanted_by_key(draft.state, node) if is_list else {}
    stepped = apply_event(draft.state.runtime, what, wanted, find_due(draft, node.world))
    draft = draft.plus(replace(draft.state, runtime=stepped.registry))
    # Containers that can stay on their CPUs come first, and among them those on the fewest CPUs.
    todo, done = sorted(stepped.todo, key=lambda one: _count_cpus(one, node)), list[Todo]()
    postponed = set[Decide]()
    while todo:
        match todo.pop(0):
            case Decide() as decide:
                tried, more = _decide_container(draft, decide, node)
                if is_list and decide not in postponed and _has_to_move(tried.state, decide, node):
                    postponed.add(decide)
                    todo.append(decide)
                else:
                    draft, todo[:0] = tried, more
            case GiveBack(key):
                draft = _release(draft, key, node)
            case Place(key, container_id) as place:
                draft = draft.plus(_record_cgroup(draft.state, key, container_id, node))
                done.append(place)
            case CountIllegal(event):
                illegal = MetricDelta(Series(RUNTIME_ILLEGAL, (("event", event.value),)))
                draft = draft.plus(draft.state, deltas=(illegal,))
            case other:
                done.append(other)
    draft = draft.plus(_forget_refused_pods(draft.state))
    done = _adopt_placed(draft.state, done, node) if is_list else done
    return EventDecided(draft, tuple(done), stepped.is_illegal)


def find_due(draft: Draft, world: World) -> frozenset[ContainerKey]:
    """Return those refused containers on which the agent should decide again, because there is more room than at the refusal."""
    due = list_due(draft.state, draft.seen_room, world) if draft.state.runtime.refused else ()
    return frozenset(ContainerKey(one.pod_uid, one.container) for one in due if one.kind is RequestKind.CONTAINER)


def _count_cpus(one: Todo, node: Node) -> int:
    """Return the number of CPUs on which the container of a `Decide` may run now, and 0 for all other instructions. The number is used for
    sorting.
    """
    return len(_reported_cpus(one.id, node) or node.kernel.online) if isinstance(one, Decide) else 0


def _has_to_move(state: NodeState, decide: Decide, node: Node) -> bool:
    """Return whether the container has been allocated exclusive CPUs outside the CPUs on which the runtime now lets it run."""
    own, reported = own_set_of(state.promises, decide.key.pod_uid, decide.key.name), _reported_cpus(decide.id, node)
    return own is not None and reported is not None and not own <= reported


def _reported_cpus(container_id: str, node: Node) -> CpuSet | None:
    """Return the CPUs on which a container may run, as reported by the runtime. None means that the runtime reported no restriction."""
    reported = node.reported.containers.get(container_id)
    return None if reported is None else reported.resources.cpus


def _adopt_placed(state: NodeState, todo: list[Todo], node: Node) -> list[Todo]:
    """Adopt each container that is on its allocated CPUs, instead of counting it as started without a call (`CountFailOpen`).

    The agent itself must have placed such a container before it lost its state.
    """
    wanted = wanted_by_key(state, node)

    def is_there(one: CountFailOpen) -> bool:
        reported = node.reported.containers.get(one.id)
        return one.key in wanted and reported is not None and has_wanted_values(reported.resources, wanted[one.key])

    return [Adopt(one.key, one.id) if isinstance(one, CountFailOpen) and is_there(one) else one for one in todo]


def _decide_container(draft: Draft, decide: Decide, node: Node) -> tuple[Draft, tuple[Todo, ...]]:
    state = draft.state
    made = state.runtime.entry(decide.key).find(decide.id)
    sandbox = None if made is None else node.reported.sandboxes.get(made.sandbox_id)
    if made is None or sandbox is None:
        return draft, ()
    stated = node.stated(sandbox)
    before = _runtime_entry(state, decide.key.pod_uid)
    counting = _list_counting(state, before, decide.key)
    seen = (
        container
        for name in counting
        if (container := _requested_container(state.runtime, sandbox, name, decide, node))
    )
    described = add_kubelet_data(stated.pod, state.runtime.pod(decide.key.pod_uid))
    found = build_runtime_pod(sandbox, seen, described, node.world.managers.topology.memory_bytes)
    names = {"name": found.pod.name or sandbox.id, "namespace": found.pod.namespace or _NAMESPACE}
    pod = replace(found.pod, uid=decide.key.pod_uid, **names)
    if before is not None and before.is_active:
        pod = _keep_allocated(pod, before.pod, counting, decide.key.name)
    known = None if before is None else (before.pod.resources, before.pod.overhead)
    if decide.is_of_pod and known == (pod.resources, pod.overhead):
        return draft, ()
    case = _Case(decide, made, pod, before, node)
    if misnamed := node.misnamed(pod):
        return _refuse(draft, case, INVALID_NAME, "; ".join(misnamed), is_kept=False)
    contradictions = tuple(one.text for one in found.contradictions)
    if problems := (*stated.problems, *contradictions):
        return _refuse(draft, case, INVALID_ANNOTATIONS, "; ".join(problems))
    if node.world.config.placement.topology_manager_scope == "pod" and not found.is_whole:
        what = ", ".join(dict.fromkeys(f"{one.container} {one.what}".strip() for one in found.estimates))
        why = (
            "kubelet's pods API and kubelet's request to the runtime differ, perhaps because a resize is not complete"
            if described.is_kubelets
            else "kubelet's pods API (kubeletPodsSocket) has not returned them; annotations of the pod can supply them"
        )
        message = (
            f"with topologyManagerScope pod, the whole pod must be known, but these values are estimates: {what}; {why}"
        )
        return _refuse(draft, case, POD_NOT_KNOWN, message)
    if before is None and (other := state.entry(decide.key.pod_uid)) is not None:
        return _refuse(draft, case, UID_TAKEN, f"pod {other.pod.full_name} already has the UID of this pod")
    return _admit(draft, case)


def _admit(draft: Draft, case: _Case) -> tuple[Draft, tuple[Todo, ...]]:
    state, world, decide, pod, before = draft.state, case.node.world, case.decide, case.pod, case.before
    if before is not None and (change := _describe_exclusive_change(before.pod, case)):
        return _resize(draft, case, before, change)
    name, promises = decide.key.name, state.promises
    freed: tuple[MetricDelta, ...] = ()
    after = {container.name: container for container in pod.containers}
    for container in () if before is None else before.pod.containers:
        if container.name not in after or container == after[container.name]:
            continue
        key = ContainerKey(pod.uid, container.name)
        if not state.runtime.entry(key).is_held or (key == decide.key and decide.is_again):
            promises, deltas = remove_container(world.managers, promises, pod.uid, container.name)
            promises = _keep_devices(promises, state.promises.of_pod(pod.uid).of(DeviceHoldings), pod, container.name)
            freed += deltas
    free = replace(state, promises=_recover_devices(promises, pod, name))
    others = tuple(entry.pod for entry in state.entries if entry.holds and entry.pod.uid != pod.uid)
    usage = usage_of(others, pod_level_resources=world.pod_level_resources)
    decision = decide_pod(free, pod, usage, find_orphan_cpus(state, world), world, _decision_for(case))
    if isinstance(decision, Insufficient):
        is_running = decide.is_of_pod or case.made.is_placed
        of_resize = RESIZE_INFEASIBLE if decision.requested > decision.capacity else RESIZE_DEFERRED
        return _refuse(draft, case, of_resize if is_running else decision.reason, decision.message)
    if isinstance(decision, Rejected):
        if decision.is_postponed and case.made.stage is Stage.CREATED:
            # The refusal isn't stored: when kubelet tries again, the slow device plugin will have answered.
            stepped = record_decision(state.runtime, decide.key, decide.id, f"{decision.reason}: {decision.message}")
            forgotten = replace(stepped.registry, refused=state.runtime.refused)
            return draft.plus(replace(state, runtime=forgotten)), stepped.todo
        draft = draft.plus(state, deltas=decision.deltas)
        return _refuse(draft, case, decision.reason, decision.message, decision.report)
    known = {} if before is None else {status.name: status for status in before.containers}
    statuses = tuple(known.get(container.name, ContainerStatus(container.name)) for container in pod.containers)
    decided_at_ms = before.decided_at_ms if before is not None and before.is_active else world.now_ms
    entry = new_entry(Manifest(pod, case.node.origin), decided_at_ms, pod_level_resources=world.pod_level_resources)
    entry = replace(entry, containers=statuses)
    state = replace(state, promises=decision.promises)
    state = replace(state, entries=(*state.entries, entry)) if before is None else state.with_entry(entry)
    stepped = record_decision(state.runtime, decide.key, decide.id, None)
    event = TurnEvent(EventKind.POD_ADMITTED, pod, entry.origin, name, (("qos", entry.qos.value),), decision.report)
    return draft.plus(replace(state, runtime=stepped.registry), event, deltas=(*freed, *decision.deltas)), stepped.todo


def _recover_devices(promises: Promises, pod: Pod, name: str) -> Promises:
    """Allocate a container's devices to it again after the state was lost. The devices are known from records, and the container's /dev
    still has them.
    """
    lost = next((one for one in promises.unrecovered if one.uid == pod.uid), None)
    before = DeviceHoldings() if lost is None else lost.held.of(DeviceHoldings)
    if lost is None or not before.devices_of(name):
        return promises
    after = _keep_devices(promises, kept_devices(promises, pod, before.of_container(name)), pod, name)
    if after is promises:
        return promises
    left = lost.held.having(before.without(name))
    others = (replace(one, held=left) if one is lost else one for one in promises.unrecovered)
    return replace(after, unrecovered=tuple(one for one in others if not one.held.is_nothing))


def _keep_devices(promises: Promises, before: DeviceHoldings, pod: Pod, name: str) -> Promises:
    """Keep a container's devices allocated if it requests the same number as before. A running container can't get other devices, because
    its device files already exist.
    """
    own = Counter(one.resource for one in before.devices_of(name))
    if own != {one: count.value() for one, count in pod.container(name).devices}:
        return promises
    held = promises.of_pod(pod.uid)
    return with_pod(promises, pod.uid, held.having(held.of(DeviceHoldings).plus(before.of_container(name))))


def _decision_for(case: _Case) -> PodDecision:
    """Return the function that decides on a container.

    If the container doesn't use its allocation yet, the function first tries to allocate only CPUs on which the container already runs, as
    reported by the runtime. Such a container is running, or was created before the agent lost its state.
    """
    running_on = _reported_cpus(case.decide.id, case.node)
    if case.made.stage >= Stage.STOPPED or case.made.is_placed or running_on is None:
        return admit_off_orphans

    def admitted_there(managers: Managers, promises: Promises, pod: Pod, orphans: CpuSet) -> Admitted | Rejected:
        decision = admit_off_orphans(managers, promises, pod, orphans | (default_set(promises) - running_on))
        if not isinstance(decision, Rejected) or decision.is_of_a_failure:
            return decision
        return admit_off_orphans(managers, promises, pod, orphans)

    return admitted_there


def _resize(draft: Draft, case: _Case, before: PodEntry, change: str) -> tuple[Draft, tuple[Todo, ...]]:
    """Resize a container that has an allocation, by the rules that apply to the agent's own pods (D50)."""
    state, decide, pod = draft.state, case.decide, case.pod
    if not is_resize(before.pod, pod):
        why = f"{change}: exclusive CPUs and allocated memory stay as they are while the container runs"
        return _refuse(draft, case, RESIZE_INFEASIBLE, why)
    answer = resize_pod(state, before.pod, pod, case.node.world)
    if isinstance(answer, NotResized):
        return _refuse(draft, case, answer.reason, f"{change}: {answer.message}")
    changes = "; ".join(differences(state.promises, answer, before.pod, pod))
    state = replace(state.with_entry(replace(before, pod=pod)), promises=answer)
    stepped = record_decision(state.runtime, decide.key, decide.id, None)
    event = TurnEvent(EventKind.POD_RESIZED, pod, before.origin, decide.key.name, (("changes", changes),))
    return draft.plus(replace(state, runtime=stepped.registry), event), stepped.todo


def _describe_exclusive_change(before: Pod, case: _Case) -> str:
    """Describe how the exclusive amounts of a container with an allocation, or of its pod as a whole, have changed. The result is empty if
    they are the same as before.
    """
    if case.decide.is_of_pod:
        was, becomes = (demand_of(case.node.world.managers.rules, pod) for pod in (before, case.pod))
        if _pod_amounts(was) == _pod_amounts(becomes):
            return ""
        is_of_cpus = was.cpus != becomes.cpus
        return f"the pod as a whole: CPUs {was.cpus} → {becomes.cpus}" if is_of_cpus else "the pod as a whole"
    if not case.made.is_placed:
        return ""
    had, has = (_exclusive_amounts(pod, case.decide.key.name, case.node) for pod in (before, case.pod))
    if had is None or has is None or had == has:
        return ""
    return " and ".join(f"{name} {old} → {new}" for (name, old), (_, new) in zip(had, has, strict=True) if old != new)


def _exclusive_amounts(pod: Pod, name: str, node: Node) -> tuple[tuple[str, str], ...] | None:
    """Return the amounts of CPUs and memory that a container requests exclusively, as texts. None means that the pod lacks this
    container.
    """
    managers = node.world.managers
    found = next((one for one in demand_of(managers.rules, pod).containers if one.name == name), None)
    if found is None:
        return None
    cpus = found.cpus if managers.placement.has_static_cpus else 0
    said = ", ".join(f"{resource} {size}" for resource, size in sorted(found.memory or ())) or "none"
    return (("exclusive CPUs", str(cpus)), ("memory", said))


def _pod_amounts(demand: PodDemand) -> tuple[object, ...]:
    """Return the amounts that a pod and each of its containers request exclusively."""
    return demand.cpus, demand.memory, tuple((one.cpus, one.memory) for one in demand.containers)


def _refuse(
    draft: Draft, case: _Case, reason: str, message: str, report: Report | None = None, *, is_kept: bool = True
) -> tuple[Draft, tuple[Todo, ...]]:
    state, decide, world = draft.state, case.decide, case.node.world
    if decide.is_of_pod and not reason.startswith(OF_RESIZES):
        # The pod as a whole is refused, although this container's own request could be met. The refusal is stored with this
        # container, because the runtime may ask for it again.
        reason, message = RESIZE_INFEASIBLE, f"{reason}: {message}"
    stepped = record_decision(state.runtime, decide.key, decide.id, f"{reason}: {message}")
    known = next((one for one in state.runtime.refused if one.key == decide.key), None)
    # If the agent decides again on a refused request without being asked, it doesn't report the same refusal again.
    is_told = known is not None and (
        known.reason == f"{reason}: {message}"
        if known.is_deferred
        else known.is_for_room and known.asked == case.made.asked
    )
    draft = draft.plus(replace(state, runtime=stepped.registry))
    if world.config.retries_for_room:
        draft = draft.with_seen_room(RequestKey(decide.key.pod_uid, RequestKind.CONTAINER, decide.key.name), world)
    before = state.entry(case.pod.uid)
    entry = new_entry(Manifest(case.pod, case.node.origin), world.now_ms, pod_level_resources=world.pod_level_resources)
    refusal = Waiting(reason, message, world.now_ms)
    if not is_told:
        draft = draft.plus(draft.state, make_refusal_event(entry, refusal, report, decide.key.name))
    if is_kept and (before is None or (before.is_requested_per_container and before.refusal is not None)):
        draft = draft.plus(record_refusal(draft.state, entry, refusal))
    # The event is already a log line, so the refusal isn't logged again.
    return draft, tuple(replace(one, is_first=False) if isinstance(one, Refuse) else one for one in stepped.todo)


def _forget_refused_pods(state: NodeState) -> NodeState:
    """Return the state without the entries of refused pods for which no refused container is stored any more."""
    refused = {one.key.pod_uid for one in state.runtime.refused}
    left = tuple(
        entry
        for entry in state.entries
        if not entry.is_requested_per_container or entry.refusal is None or entry.pod.uid in refused
    )
    return state if len(left) == len(state.entries) else replace(state, entries=left)


def _release(draft: Draft, key: ContainerKey, node: Node) -> Draft:
    state, managers = draft.state, node.world.managers
    entry = _runtime_entry(state, key.pod_uid)
    if entry is None:
        return draft
    if not any(other.is_held for other in state.runtime.entries if other.key.pod_uid == key.pod_uid):
        return draft.without(entry, node.world)
    promises, deltas = remove_container(managers, state.promises, key.pod_uid, key.name)
    pod = replace(entry.pod, containers=tuple(one for one in entry.pod.containers if one.name != key.name))
    statuses = tuple(one for one in entry.containers if one.name != key.name)
    state = replace(state, promises=promises).with_entry(replace(entry, pod=pod, containers=statuses))
    return draft.plus(state, deltas=deltas)


def _runtime_entry(state: NodeState, pod_uid: str) -> PodEntry | None:
    """Return the entry of a container runtime's pod. None means that there is none, or that the UID belongs to a pod of another domain."""
    entry = state.entry(pod_uid)
    return entry if entry is not None and entry.is_requested_per_container else None


def _list_counting(state: NodeState, before: PodEntry | None, key: ContainerKey) -> tuple[str, ...]:
    """Return the names of the containers that a decision takes into account: those with an allocation, then the container on which to
    decide.
    """
    known = () if before is None else tuple(one.name for one in before.pod.containers)
    keys = {one.key.name for one in state.runtime.entries if one.key.pod_uid == key.pod_uid and one.is_held}
    ordered: Iterable[str] = (*(name for name in known if name in keys), *sorted(keys - set(known)), key.name)
    return tuple(dict.fromkeys(ordered))


def _keep_allocated(pod: Pod, before: Pod, counting: tuple[str, ...], name: str) -> Pod:
    """Limit an admitted pod to the containers on which a decision may be based: those already in the pod, and the container on which to
    decide.

    A container with an allocation stays in the pod even if the runtime doesn't report it any more. A container without an allocation is
    decided only when the runtime creates it, not together with another container.
    """
    names = {container.name for container in pod.containers}
    held = tuple(one for one in before.containers if one.name in counting and one.name not in names)
    left = {container.name for container in before.containers} | {name}
    return replace(pod, containers=tuple(one for one in (*held, *pod.containers) if one.name in left))


def _requested_container(
    registry: Registry, sandbox: Sandbox, name: str, decide: Decide, node: Node
) -> NriContainer | None:
    """Return a container as the runtime reported it, but with its latest request. None means that the runtime hasn't reported it."""
    entry = registry.entry(ContainerKey(decide.key.pod_uid, name))
    made = entry.find(decide.id) or (entry.made[-1] if entry.made else None)
    reported = None if made is None else node.reported.containers.get(made.id)
    if made is None or reported is None:
        return None
    asked = made.asked if name == decide.key.name or entry.asked is None else entry.asked
    # If a runtime has used the ID for two names, the name in the key counts.
    return replace(
        reported, name=name, sandbox_id=sandbox.id, resources=asked.resources, oom_score_adj=asked.oom_score_adj
    )


def _record_cgroup(state: NodeState, key: ContainerKey, container_id: str, node: Node) -> NodeState:
    entry, made = state.entry(key.pod_uid), state.runtime.entry(key).find(container_id)
    if entry is None or not entry.is_active or made is None or not made.cgroup:
        return state
    statuses = tuple(
        replace(status, cgroup=f"{node.mount}/{made.cgroup}") if status.name == key.name else status
        for status in entry.containers
    )
    return state.with_entry(replace(entry, containers=statuses))
