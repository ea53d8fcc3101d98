"""What a container runtime tells, in a turn: its containers' pods admitted, grown, and given back with their last container.

The rules of who holds what are in core/domains/runtime/registry.py; the managers decide as for any pod. An admitted pod has the
containers that have been told of so far: each that comes is one more of the same pod, which keeps what it has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, Report, remove_container, remove_pod
from nodeagent.core.admission.node_capacity import insufficient, usage_of
from nodeagent.core.admission.resize import differences, is_resize, resized
from nodeagent.core.cgroups.desired_cgroups import Kernel, runtime_cgroups, shared_pool
from nodeagent.core.domains.runtime.answers import Occupant, Response, WantedPlacement, gate, response
from nodeagent.core.domains.runtime.pod_model import runtime_pod
from nodeagent.core.domains.runtime.registry import (
    Adopt,
    CountFailOpen,
    Decide,
    GiveBack,
    Happening,
    LetBegin,
    Looked,
    Place,
    Refuse,
    Todo,
    happened,
    has_all,
    settled,
    wanted_by_id,
)
from nodeagent.core.domains.runtime.stated_pod import StatedPod, with_kubelets
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.model.cgroup import Attribute, CpuMax, DesiredCgroup, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import is_above
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import Answer, Call, Denial, Event, NriContainer, NriResources, Sandbox, Synchronized
from nodeagent.core.model.pod import Pod, ResourceRequirements, Resources, qos_class
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
from nodeagent.core.model.state import CONTAINERD, ContainerStatus, NodeState, Origin, PodEntry, RecordedRefusal
from nodeagent.core.resources.cpu.holdings import default_set
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.keep import kept_devices
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.turn.step import EventKind, TurnEvent, World, admitted_beside, cpus_of_orphans

_ORIGIN = Origin(CONTAINERD, CONTAINERD)
_NAMESPACE = "default"
"""Of a pod that has none, as those of `crictl`."""


class Stated(Struct, frozen=True):
    """What a pod says of itself."""

    pod: StatedPod = StatedPod()
    problems: tuple[str, ...] = ()
    """It is to be refused for them."""


class Told(Struct, frozen=True):
    """What the runtime has told last, by its ids."""

    sandboxes: Mapping[str, Sandbox]
    containers: Mapping[str, NriContainer]


class Node(Struct, frozen=True):
    """What decisions on a runtime's containers need beside the world."""

    world: World
    kernel: Kernel
    told: Told
    stated: Callable[[Sandbox], Stated]
    mount: str
    """Of the root of all cgroups."""
    misnamed: Callable[[Pod], tuple[str, ...]]
    """What is wrong with a pod's names: such a pod is never part of a state."""


class Taken(Struct, frozen=True):
    """What an event makes of the state, and what is left to be done: it has been decided on."""

    state: NodeState
    todo: tuple[Todo, ...] = ()
    events: tuple[TurnEvent, ...] = ()
    deltas: tuple[MetricDelta, ...] = ()

    def plus(self, state: NodeState, *events: TurnEvent, deltas: tuple[MetricDelta, ...] = ()) -> "Taken":
        return replace(self, state=state, events=self.events + events, deltas=self.deltas + deltas)


def take(state: NodeState, what: Happening, node: Node) -> Taken:
    """Decide on everything that an event asks for."""
    stepped = happened(state.runtime, what, promised(state, node) if isinstance(what, Synchronized | Looked) else {})
    taken = Taken(replace(state, runtime=stepped.registry))
    todo, done = _narrowest_first(stepped.todo, node), list[Todo]()
    while todo:
        match todo.pop(0):
            case Decide() as decide:
                taken, more = _decided(taken, decide, node)
                todo[:0] = more
            case GiveBack(key):
                taken = _given_back(taken, key, node)
            case Place(key, container_id) as place:
                taken = taken.plus(_with_cgroup(taken.state, key, container_id, node))
                done.append(place)
            case other:
                done.append(other)
    taken = taken.plus(_without_old_refusals(taken.state))
    if isinstance(what, Synchronized | Looked):
        done = _where_they_belong(taken.state, done, node)
    return replace(taken, todo=tuple(done))


def _narrowest_first(todo: tuple[Todo, ...], node: Node) -> list[Todo]:
    """Whoever is found on few CPUs may keep them: others, who may be anywhere, are decided on later."""
    return sorted(
        todo, key=lambda one: len(_stands_on(one.id, node) or node.kernel.online) if isinstance(one, Decide) else 0
    )


def _stands_on(container_id: str, node: Node) -> CpuSet | None:
    """Return the CPUs that the runtime gives a container; None: any."""
    told = node.told.containers.get(container_id)
    return None if told is None else told.resources.cpus


def _where_they_belong(state: NodeState, todo: list[Todo], node: Node) -> list[Todo]:
    """What was found on the CPUs that it has been promised now was placed by an agent that has lost its state since: it did ask."""
    wanted = promised(state, node)

    def is_there(one: CountFailOpen) -> bool:
        told = node.told.containers.get(one.id)
        return one.key in wanted and told is not None and has_all(told.resources, wanted[one.key])

    return [Adopt(one.key, one.id) if isinstance(one, CountFailOpen) and is_there(one) else one for one in todo]


def promised(state: NodeState, node: Node) -> dict[ContainerKey, WantedPlacement]:
    """Return what the containers of each key should hold that something is promised to."""
    held = {entry.key for entry in state.runtime.entries if entry.is_held}
    world = node.world
    cgroups = runtime_cgroups(world.config, world.managers, node.kernel, state)
    return {key: WantedPlacement.of(want) for key, want in cgroups.items() if key in held}


def occupants(
    state: NodeState, node: Node, seen: Mapping[str, ObservedCgroup], asked_for: Mapping[str, CpuSet]
) -> tuple[Occupant, ...]:
    """Return the runtime's containers that may have processes.

    Args:
        state: decided.
        node: of the turn.
        seen: their cgroups, by id; those that aren't there are missing.
        asked_for: by id, CPUs that the runtime was told to give them and may give them any moment.
    """
    populated = frozenset(id_ for id_, there in seen.items() if there.is_populated)
    wanted = wanted_by_id(state.runtime, promised(state, node), WantedPlacement(pool_of(state, node)), populated)
    names = {entry.pod.uid: entry.pod.full_name for entry in state.entries}
    found = []
    for entry in state.runtime.entries:
        for made in entry.made:
            there = seen.get(made.id)
            if there is None or made.id not in populated:
                continue
            found.append(
                Occupant(
                    f"pod {names.get(entry.key.pod_uid, entry.key.pod_uid)}, container {entry.key.name}",
                    (there.cpus_effective or CpuSet()) | asked_for.get(made.id, CpuSet()),
                    wanted[made.id],
                    made.id,
                    held(there),
                )
            )
    return tuple(found)


def pool_of(state: NodeState, node: Node) -> CpuSet:
    """Return the shared pool."""
    return shared_pool(node.world.managers, state.promises, node.kernel.online)


def strangers(found: Mapping[str, CpuSet]) -> tuple[Occupant, ...]:
    """Return who has processes where the runtime's containers are, and is none of them.

    Args:
        found: by cgroup, the CPUs that they may run on.
    """
    return tuple(Occupant(f"cgroup {path}", cpus, None) for path, cpus in sorted(found.items()))


def own_occupants(wanted: Iterable[DesiredCgroup], observed: ObservedCgroups, state: NodeState) -> tuple[Occupant, ...]:
    """Return the containers that are not the runtime's, and what no pod owns, as far as there are processes.

    Args:
        wanted: what the cgroups of ours should hold.
        observed: all of them, as they are now.
        state: whose containers they are.
    """
    names = {
        entry.container_path(status.name): f"pod {entry.pod.full_name}, container {status.name}"
        for entry in state.entries
        if not entry.is_of_runtime
        for status in entry.containers
    }
    leaves = {want.path: want for want in wanted if want.is_leaf}
    above = {path.rpartition("/")[0] for path in observed}
    found = []
    for path, there in observed.items():
        if not there.is_populated or there.is_frozen or path in above or not path or is_above(path):
            continue
        want = leaves.get(path)
        effective = (there.cpus_effective or CpuSet()) | there.elsewhere
        placement = None if want is None else WantedPlacement.of(want)
        found.append(Occupant(names.get(path, f"cgroup {path}"), effective, placement))
    return tuple(found)


def verdict(
    call: Call,
    todo: Iterable[Todo],
    wanted: Mapping[ContainerKey, WantedPlacement],
    there: tuple[Occupant, ...],
    seen: Mapping[str, ObservedCgroup],
    pool: CpuSet,
    reserved: CpuSet,
) -> Response | Denial:
    """Answer a call that has been decided on.

    Args:
        call: of the runtime.
        todo: what its decision has left to be done.
        wanted: by key, what is promised.
        there: everybody who has processes now.
        seen: the cgroups of the runtime's containers, by id.
        pool: the shared one.
        reserved: CPUs that are online and never anybody's own.
    """
    for one in todo:
        match one:
            case Refuse(reason=reason):
                return Denial(reason)
            case LetBegin(key, container_id, rivals):
                begins = seen.get(container_id)
                effective = CpuSet() if begins is None else begins.cpus_effective or CpuSet()
                placement = wanted.get(key)
                if placement is not None and _shares(placement):
                    placement = replace(placement, cpus=placement.cpus | reserved)
                starting = Occupant(f"container {key.name}", effective, placement, container_id)
                others = (other for other in there if other.id != container_id)
                return gate(starting, others, rivals) or Response(Answer())
            case Place(key, container_id) if call.event is Event.CREATE_CONTAINER and call.container is not None:
                placement = wanted.get(key)
                if placement is None or not placement.cpus:
                    return Denial(f"container {key.name}: no CPU is left for it: see `nodeagent inspect`")
                created = _until_begun(placement, reserved)
                return response(there, created=(created, call.container.resources), pool=pool)
            case _:
                continue
    updated = call.container.id if call.container is not None and call.event is Event.UPDATE_CONTAINER else ""
    return response(there, updated=updated, pool=pool) if updated else Response(Answer())


def _shares(placement: WantedPlacement) -> bool:
    return placement.cpus != placement.exclusive_cpus


def _until_begun(placement: WantedPlacement, reserved: CpuSet) -> WantedPlacement:
    """What a container is created with: of the CPUs that it shares only the reserved ones. The pool may have become smaller by the time
    that the runtime makes its cgroup, and begins in it. Once that is there it gets the rest like any other.
    """
    if not reserved or not _shares(placement):
        return placement
    return replace(placement, cpus=placement.exclusive_cpus | reserved)


def held(there: ObservedCgroup) -> NriResources:
    """Return what a cgroup holds, of what can be asked for."""
    cpus, mems, limit = (
        there.get(attribute) for attribute in (Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX)
    )
    return NriResources(
        cpus=cpus if isinstance(cpus, CpuSet) and cpus else None,
        mems=mems if isinstance(mems, NumaSet) and mems else None,
        cpu_quota_us=limit.quota_us if isinstance(limit, CpuMax) else None,
        cpu_period_us=limit.period_us if isinstance(limit, CpuMax) else None,
    )


def has_any(registry: Registry) -> bool:
    """Whether anything is known of a runtime's containers."""
    return bool(registry.entries or registry.refused or registry.sandboxes)


def awaits_end(registry: Registry) -> bool:
    """Whether something is given back once cgroups are seen to be empty."""
    return any(made.stage is Stage.REMOVED for entry in registry.entries for made in entry.made)


def _decided(taken: Taken, decide: Decide, node: Node) -> tuple[Taken, tuple[Todo, ...]]:
    state = taken.state
    _, made = _made(state.runtime, decide.key, decide.id)
    sandbox = None if made is None else node.told.sandboxes.get(made.sandbox_id)
    if made is None or sandbox is None:
        return taken, ()
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
        return taken, ()
    if misnamed := node.misnamed(pod):
        return _refused(taken, decide, pod, INVALID_NAME, "; ".join(misnamed), node, is_kept=False)
    contradictions = tuple(one.text for one in found.contradictions)
    if problems := (*stated.problems, *contradictions):
        return _refused(taken, decide, pod, INVALID_ANNOTATIONS, "; ".join(problems), node)
    if node.world.config.placement.topology_manager_scope == "pod" and not found.is_whole:
        what = ", ".join(dict.fromkeys(f"{one.container} {one.what}".strip() for one in found.estimates))
        return _refused(
            taken,
            decide,
            pod,
            POD_NOT_KNOWN,
            f"with topologyManagerScope pod all of it must be known, and these are estimates: {what}; {_why_not_whole(said)}",
            node,
        )
    if before is not None and not before.is_of_runtime:
        return _refused(taken, decide, pod, UID_TAKEN, f"pod {before.pod.full_name} has its UID", node)
    return _admitted(taken, decide, pod, before, node)


def _why_not_whole(said: StatedPod) -> str:
    if said.is_kubelets:
        return "kubelet's pods API says otherwise than kubelet has asked the runtime for: a resize that is not done?"
    return "kubelet's pods API (kubeletPodsSocket) has not told them; the pod's annotations can state them"


def _admitted(
    taken: Taken, decide: Decide, pod: Pod, before: PodEntry | None, node: Node
) -> tuple[Taken, tuple[Todo, ...]]:
    state, world = taken.state, node.world
    gate = world.config.placement.gate("PodLevelResources")
    if before is not None and (change := _exclusive_change(before.pod, pod, decide, state, node)):
        return _resized(taken, decide, pod, before, change, node)
    if world.config.check_allocatable:
        others = tuple(entry.pod for entry in state.entries if entry.holds and entry.pod.uid != pod.uid)
        there = world.managers.with_amounts(world.allocatable, state.promises)
        short = insufficient(pod, usage_of(others, pod_level_resources=gate), there, pod_level_resources=gate)
        if short is not None:
            _, made = _made(state.runtime, decide.key, decide.id)
            is_running = decide.is_of_pod or (made is not None and made.is_placed)
            reason = RESIZE_INFEASIBLE if short.requested > short.capacity else RESIZE_DEFERRED
            return _refused(taken, decide, pod, reason if is_running else short.reason, short.message, node)
    name = decide.key.name
    promises = state.promises
    freed: tuple[MetricDelta, ...] = ()
    for container in () if before is None else before.pod.containers:
        if _is_decided_anew(container.name, pod, before, decide, state):
            promises, deltas = remove_container(world.managers, promises, pod.uid, container.name)
            promises = _with_its_devices(
                promises, state.promises.of_pod(pod.uid).of(DeviceHoldings), pod, container.name
            )
            freed += deltas
    promises = _with_its_own(promises, pod, name)
    decision = _decision(promises, decide, pod, cpus_of_orphans(state, world), taken, node)
    if isinstance(decision, Rejected):
        taken = taken.plus(state, deltas=decision.deltas)
        return _refused(taken, decide, pod, decision.reason, decision.message, node, decision.report)
    known = {} if before is None else {status.name: status for status in before.containers}
    statuses = tuple(known.get(container.name, ContainerStatus(container.name)) for container in pod.containers)
    decided_at_ms = before.decided_at_ms if before is not None and before.is_active else world.now_ms
    entry = PodEntry(pod, qos_class(pod, pod_level_resources=gate), _ORIGIN, decided_at_ms, containers=statuses)
    state = replace(state, promises=decision.promises)
    state = replace(state, entries=(*state.entries, entry)) if before is None else state.with_entry(entry)
    stepped = settled(state.runtime, decide.key, decide.id, None)
    event = TurnEvent(EventKind.POD_ADMITTED, pod, entry.origin, name, (("qos", entry.qos.value),), decision.report)
    return taken.plus(replace(state, runtime=stepped.registry), event, deltas=(*freed, *decision.deltas)), stepped.todo


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


def _decision(
    promises: Promises, decide: Decide, pod: Pod, orphans: CpuSet, taken: Taken, node: Node
) -> Admitted | Rejected:
    """One that runs already is decided on as if there were no other CPUs than those it is on, if that is possible."""
    managers = node.world.managers
    _, made = _made(taken.state.runtime, decide.key, decide.id)
    stands_on = _stands_on(decide.id, node)
    if made is not None and made.stage is Stage.STARTED and not made.is_placed and stands_on is not None:
        decision = admitted_beside(managers, promises, pod, orphans | (default_set(promises) - stands_on))
        if not isinstance(decision, Rejected) or decision.is_of_a_failure:
            return decision
    return admitted_beside(managers, promises, pod, orphans)


def _resized(
    taken: Taken, decide: Decide, pod: Pod, before: PodEntry, change: str, node: Node
) -> tuple[Taken, tuple[Todo, ...]]:
    """Give a container that runs where it was placed other CPUs or memory of its own, by the rules for pods of our own (D50)."""
    state, world = taken.state, node.world
    managers, gate = world.managers, world.config.placement.gate("PodLevelResources")
    if not is_resize(before.pod, pod):
        why = f"{change}: exclusive CPUs and memory that is promised stay as they are while the container runs"
        return _refused(taken, decide, pod, RESIZE_INFEASIBLE, why, node)
    answer = resized(
        managers,
        state.promises,
        before.pod,
        pod,
        usage=usage_of(state.holding_pods(), pod_level_resources=gate),
        allocatable=world.allocatable if world.config.check_allocatable else None,
        occupied=cpus_of_orphans(state, world),
    )
    if isinstance(answer, NotResized):
        return _refused(taken, decide, pod, answer.reason, f"{change}: {answer.message}", node)
    changes = "; ".join(differences(state.promises, answer, before.pod, pod))
    state = replace(state.with_entry(replace(before, pod=pod)), promises=answer)
    stepped = settled(state.runtime, decide.key, decide.id, None)
    event = TurnEvent(EventKind.POD_RESIZED, pod, before.origin, decide.key.name, (("changes", changes),))
    return taken.plus(replace(state, runtime=stepped.registry), event), stepped.todo


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
    taken: Taken,
    decide: Decide,
    pod: Pod,
    reason: str,
    message: str,
    node: Node,
    report: Report | None = None,
    *,
    is_kept: bool = True,
) -> tuple[Taken, tuple[Todo, ...]]:
    state = taken.state
    if decide.is_of_pod and not reason.startswith(OF_RESIZES):
        # It is kept with a container that has what it asks for: that may be made again.
        reason, message = RESIZE_INFEASIBLE, f"{reason}: {message}"
    stepped = settled(state.runtime, decide.key, decide.id, f"{reason}: {message}")
    refusal = RecordedRefusal(reason, message, node.world.now_ms)
    before = state.entry(pod.uid)
    if is_kept and (before is None or (before.is_of_runtime and before.refusal is not None)):
        gate = node.world.config.placement.gate("PodLevelResources")
        entry = PodEntry(pod, qos_class(pod, pod_level_resources=gate), _ORIGIN, node.world.now_ms, refusal)
        others = tuple(one for one in state.entries if one is not before)
        state = replace(state, entries=(*others, entry))
    fields = (("reason", reason), ("message", message))
    event = TurnEvent(EventKind.POD_REFUSED, pod, _ORIGIN, decide.key.name, fields, report)
    # The event tells it.
    todo = tuple(replace(one, is_first=False) if isinstance(one, Refuse) else one for one in stepped.todo)
    known = next((one for one in taken.state.runtime.refused if one.key == decide.key), None)
    is_told = known is not None and known.is_deferred and known.reason == f"{reason}: {message}"
    events = () if is_told else (event,)
    return taken.plus(replace(state, runtime=stepped.registry), *events), todo


def _without_old_refusals(state: NodeState) -> NodeState:
    """A pod that was refused as a whole is forgotten with its refusal."""
    refused = {one.key.pod_uid for one in state.runtime.refused}
    left = tuple(
        entry for entry in state.entries if not entry.is_of_runtime or entry.refusal is None or entry.pod.uid in refused
    )
    return state if len(left) == len(state.entries) else replace(state, entries=left)


def _given_back(taken: Taken, key: ContainerKey, node: Node) -> Taken:
    state, managers = taken.state, node.world.managers
    entry = state.entry(key.pod_uid)
    if entry is None or not entry.is_of_runtime:
        return taken
    if not any(other.is_held for other in state.runtime.entries if other.key.pod_uid == key.pod_uid):
        promises, deltas = remove_pod(managers, state.promises, key.pod_uid)
        rest = tuple(one for one in state.entries if one is not entry)
        removed = TurnEvent(EventKind.POD_REMOVED, entry.pod, entry.origin)
        return taken.plus(replace(state, promises=promises, entries=rest), removed, deltas=deltas)
    promises, deltas = remove_container(managers, state.promises, key.pod_uid, key.name)
    pod = replace(entry.pod, containers=tuple(one for one in entry.pod.containers if one.name != key.name))
    statuses = tuple(one for one in entry.containers if one.name != key.name)
    state = replace(state, promises=promises).with_entry(replace(entry, pod=pod, containers=statuses))
    return taken.plus(state, deltas=deltas)


def _made(registry: Registry, key: ContainerKey, container_id: str) -> tuple[KeyEntry, MadeContainer | None]:
    entry = registry.entry(key)
    return entry, next((made for made in entry.made if made.id == container_id), None)


def _names(state: NodeState, key: ContainerKey) -> tuple[str, ...]:
    """The containers of a pod that count: those that hold something, in their order, and the one that is decided on."""
    entry = state.entry(key.pod_uid)
    known = () if entry is None or not entry.is_of_runtime else tuple(one.name for one in entry.pod.containers)
    keys = {one.key.name for one in state.runtime.entries if one.key.pod_uid == key.pod_uid and one.is_held}
    ordered: Iterable[str] = (*(name for name in known if name in keys), *sorted(keys - set(known)), key.name)
    return tuple(dict.fromkeys(ordered))


def _with_held(pod: Pod, before: PodEntry | None, counting: tuple[str, ...]) -> Pod:
    """Containers that still hold something belong to the pod, though the runtime may tell of them no more."""
    if before is None or not before.is_of_runtime or not before.is_active:
        return pod
    names = {container.name for container in pod.containers}
    held = tuple(one for one in before.pod.containers if one.name in counting and one.name not in names)
    return replace(pod, containers=(*held, *pod.containers)) if held else pod


def _without_ended(pod: Pod, before: PodEntry | None, name: str) -> Pod:
    """Of an admitted pod's containers those count that have been promised something: one that has given it back gets it again when it is
    made again, and not because another one is made.
    """
    if before is None or not before.is_of_runtime or not before.is_active:
        return pod
    left = {container.name for container in before.pod.containers} | {name}
    return replace(pod, containers=tuple(one for one in pod.containers if one.name in left))


def _as_asked(registry: Registry, sandbox: Sandbox, name: str, decide: Decide, node: Node) -> NriContainer | None:
    """Return a container as it was told, with what is asked for it since."""
    entry = registry.entry(ContainerKey(decide.key.pod_uid, name))
    made = next((one for one in entry.made if one.id == decide.id), entry.made[-1] if entry.made else None)
    told = None if made is None else node.told.containers.get(made.id)
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
