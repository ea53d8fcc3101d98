"""Pods that run but are missing from the state: what their cgroups and the launcher show, made into entries and claims.

Happens only when the state was lost or could not be used: pods keep their entry as long as they have processes. Knows no file; the caller
passes what was observed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.one_pod import is_by_pod
from nodeagent.core.admission.records import Records
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import is_of_systemd, pod_path
from nodeagent.core.model.claims import ClaimAllocation, card_name
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod, QosClass
from nodeagent.core.model.promises import NOTHING, PodPromises, UnrecoveredPod
from nodeagent.core.model.state import ContainerStatus, Exit, PodEntry, run_prefix
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import Block, Blocks, MemoryHoldings
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.turn.lifecycle import Run, Runs, with_units_seen
from nodeagent.core.turn.recovery import Claim


class Found(Struct, frozen=True):
    """A pod that is known to have been admitted."""

    entry: PodEntry
    claim: Claim


def found(
    managers: Managers,
    entries: Sequence[PodEntry],
    *,
    observed: ObservedCgroups,
    runs: Runs,
    recorded: Mapping[str, PodPromises],
    now_ms: int,
) -> tuple[Found, ...]:
    """Return those of some pods that were admitted before, in the order of their admission.

    Args:
        managers: as configured now.
        entries: of pods as if they were admitted just now, in manifest order.
        observed: the current cgroups.
        runs: what the launcher knows.
        recorded: what other files say that pods hold, by UID: trusted unless it contradicts a cgroup. The cards of claims are under no
            container's name, as in `UnrecoveredPod`.
        now_ms: wall clock.
    """
    pods = []
    by_prefix: dict[str, dict[str, Run]] = {}
    for run_id, run in runs.items():
        before, slash, tail = run_id.rpartition("/")
        by_prefix.setdefault(before + slash, {})[tail] = run
    by_unit = {unit: entry.pod.uid for entry in entries if entry.pod.uid in recorded for unit in entry.pod.units}
    for entry in entries:
        past = _past(entry, by_prefix)
        there = [_of_pod(entry, c.name, observed) for c in entry.containers]
        if not past and not any(there) and entry.pod.uid not in recorded:
            continue
        if any(by_unit.setdefault(unit, entry.pod.uid) != entry.pod.uid for unit in entry.pod.units):
            continue  # another one stands for it: this one was refused
        # What a unit has is kept as well as can be whether it is active or not: a pod that is refused gives nothing back.
        is_running = entry.is_of_systemd or any(group is not None and group.is_populated for group in there)
        known = _with_past(entry, past, observed, now_ms)
        held = _held(managers, known, observed, recorded.get(entry.pod.uid, NOTHING))
        pods.append(Found(known, Claim(entry.pod, held, is_running)))
    return tuple(sorted(pods, key=lambda pod: pod.entry.decided_at_ms))


def _of_pod(entry: PodEntry, name: str, observed: ObservedCgroups) -> ObservedCgroup | None:
    """Return a container's cgroup. Of a unit of systemd's, a record says that a pod has stood for it: the CPUs may be its own."""
    there = observed.get(entry.container_path(name))
    return None if entry.is_of_systemd and there is not None and there.unit_before is None else there


# What it did


def _past(entry: PodEntry, runs: Mapping[str, Mapping[str, Run]]) -> dict[str, tuple[int, int, Run]]:
    """Return the last run of each container in the pod's last life: (time of the decision, attempt, run)."""
    lives: dict[int, dict[str, tuple[int, int, Run]]] = {}
    for container in entry.pod.containers:
        for tail, run in runs.get(run_prefix(entry.pod.uid, container.name), {}).items():
            moment, attempt = _life(tail)
            last = lives.setdefault(moment, {})
            if attempt and (container.name not in last or last[container.name][1] < attempt):
                last[container.name] = (moment, attempt, run)
    running = [moment for moment, last in lives.items() if any(run.exit is None for _, _, run in last.values())]
    return lives[max(running or lives)] if lives else {}


def _life(text: str) -> tuple[int, int]:
    """Read the end of a run's id (core/model/state.py). Attempt 0: it is not one of ours."""
    moment, _, attempt = text.partition(".")
    try:
        return int(moment, 16), int(attempt)
    except ValueError:
        return 0, 0


def _with_past(
    entry: PodEntry, past: Mapping[str, tuple[int, int, Run]], observed: ObservedCgroups, now_ms: int
) -> PodEntry:
    if entry.is_of_systemd:
        return with_units_seen(entry, observed)
    if not past:
        return entry
    moment = next(iter(past.values()))[0]
    entry = replace(entry, decided_at_ms=moment)
    statuses = []
    for position, container in enumerate(entry.pod.containers):
        if container.name in past:
            _, attempt, run = past[container.name]
            group = observed.get(entry.container_path(container.name))
            oom_kills = 0 if group is None else group.oom_kills
            started = ContainerStatus(container.name, attempt, run.started_at_ms, oom_kills_seen=oom_kills)
            statuses.append(replace(started, exit=run.exit))
        elif container.is_launched and _is_passed(entry.pod, position, past):
            # Its end was read and forgotten. An init container was followed by others only if it succeeded; for any other the outcome is
            # unknown: that counts as a failure.
            code = 0 if container.kind is ContainerKind.INIT else None
            statuses.append(ContainerStatus(container.name, 1, moment, Exit(now_ms, code=code)))
        else:
            statuses.append(ContainerStatus(container.name))
    return replace(entry, containers=tuple(statuses))


def _is_passed(pod: Pod, position: int, past: Mapping[str, tuple[int, int, Run]]) -> bool:
    """Whether the container had its turn: apps have it together."""
    if pod.containers[position].kind is ContainerKind.APP:
        return any(c.kind is ContainerKind.APP and c.name in past for c in pod.containers)
    return any(c.name in past for c in pod.containers[position + 1 :])


# What it has


def _held(managers: Managers, entry: PodEntry, observed: ObservedCgroups, recorded: PodPromises) -> PodPromises:
    recorded = with_claims(recorded, entry.pod)
    groups = {c.name: _of_pod(entry, c.name, observed) for c in entry.containers}
    found = _found(managers, entry, groups, observed)
    online = managers.topology.online
    if any(_contradicts(recorded, container, groups[container.name], online) for container in entry.pod.containers):
        return with_record(found, recorded)
    # The hints are in no cgroup. Each of the two managers has a file, and one may be lost.
    parts = (
        recorded.of(kind) if recorded.of(kind) != kind() else found.of(kind) for kind in (CpuHoldings, MemoryHoldings)
    )
    return with_record(PodPromises(hints=recorded.hints).having(*parts), recorded)


def with_claims(recorded: PodPromises, pod: Pod) -> PodPromises:
    """Return what a pod has, each card of its claims for the containers that use it: no record says which these are."""
    known, devices = {claim.claim: claim for claim in recorded.of(ClaimHoldings).claims}, recorded.of(DeviceHoldings)
    cards, devices = devices.devices_of(""), devices.without("")
    claims: list[ClaimAllocation] = []
    for claim in pod.claims:
        found = known.get(f"{pod.namespace}/{claim.claim_name(pod.name)}")
        if found is None:
            continue
        claims.append(replace(found, name=claim.name, is_own=bool(claim.template)))
        requests = {one.device: one.request.partition("/")[0] for one in found.devices}
        for card in (card for card in cards if card.claim == found.claim):
            request = requests.get(card_name(card.id), "")
            for container in pod.containers:
                if any(one.uses(claim.name, request) for one in container.claims):
                    own = {*devices.devices_of(container.name), card}
                    devices = devices.with_devices(container.name, own)
    return recorded.having(devices, ClaimHoldings(tuple(claims)))


def _found(
    managers: Managers, entry: PodEntry, groups: Mapping[str, ObservedCgroup | None], observed: ObservedCgroups
) -> PodPromises:
    """Return what a pod has according to its cgroups."""
    demand = demand_of(managers.rules, entry.pod)
    cpus = {name: own for name, group in groups.items() if group is not None and (own := _cpus(group))}
    for container in entry.pod.containers:
        if container.is_mixed and container.name in cpus:
            cpus[container.name] -= _of_others(entry, container, observed)
    nodes = {name: mems for name, group in groups.items() if group is not None and (mems := _mems(group))}
    if demand.is_skipped:
        # Its exclusive CPUs, if it got any before its gate was turned off, look just like a small shared pool.
        return NOTHING
    if is_by_pod(managers.providers.topology, demand):
        return _held_by_pod(demand, cpus, nodes)
    # A set larger than what is asked for is not an exclusive one: the container is in the shared pool.
    sets = tuple(sorted((c.name, cpus[c.name]) for c in demand.containers if 0 < len(cpus.get(c.name, ())) <= c.cpus))
    return NOTHING.having(CpuHoldings(cpus=sets), MemoryHoldings(memory=tuple(sorted(_memory(entry, demand, nodes)))))


def _of_others(entry: PodEntry, mixed: Container, observed: ObservedCgroups) -> CpuSet:
    """CPUs that other containers have too, so the shared pool: not init containers of its pod, which may have had its exclusive ones."""
    apart = {entry.container_path(c.name) for c in entry.pod.containers if c is mixed or c.kind is ContainerKind.INIT}
    above = {path.rpartition("/")[0] for path in observed}
    cpus = CpuSet()
    for path, group in observed.items():
        if path not in above and path not in apart:
            cpus |= _cpus(group)
    return cpus


def _memory(entry: PodEntry, demand: PodDemand, nodes: Mapping[str, NumaSet]) -> Iterator[tuple[str, Blocks]]:
    """Return each container's blocks. What init containers have beyond what later ones took over counts once: for the first."""
    lasting: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in demand.containers:
        sums = peak if container.kind is ContainerKind.INIT else lasting
        for resource, size in container.memory or ():
            sums[resource] = max(sums.get(resource, 0), size) if sums is peak else sums.get(resource, 0) + size
    left = {resource: max(0, size - lasting.get(resource, 0)) for resource, size in peak.items()}
    for position, container in enumerate(demand.containers):
        if not container.memory or container.name not in nodes:
            continue
        amounts = container.memory
        if container.kind is ContainerKind.INIT:
            if any(status.attempt for status in entry.containers[position + 1 :]):
                continue  # released when the container after it was started
            amounts = tuple((resource, left.pop(resource, 0)) for resource, _ in amounts)
        yield container.name, _blocks(nodes[container.name], amounts)


def _held_by_pod(demand: PodDemand, cpus: Mapping[str, CpuSet], nodes: Mapping[str, NumaSet]) -> PodPromises:
    """Reassemble a pod's set from the slices and the pool that its containers are in."""
    whole = CpuSet()
    for each in cpus.values():
        whole |= each
    if len(whole) != demand.cpus or len(cpus) != len(demand.containers):
        return NOTHING
    groups = set(nodes.values())
    if len(groups) != 1 or not demand.memory or any(c.memory is None for c in demand.containers):
        return NOTHING.having(CpuHoldings(cpus=tuple(sorted(cpus.items())), pod_cpus=whole))
    group = groups.pop()
    left = dict(demand.memory)
    for container in demand.containers:
        for resource, size in container.memory or () if container.kind is not ContainerKind.INIT else ():
            left[resource] = max(0, left.get(resource, 0) - size)
    pool = tuple(sorted((resource, size) for resource, size in left.items() if size))
    parts = [(c.name, _blocks(group, c.memory or pool)) for c in demand.containers]
    return NOTHING.having(
        CpuHoldings(cpus=tuple(sorted(cpus.items())), pod_cpus=whole),
        MemoryHoldings(memory=tuple(sorted(parts)), pod_memory=_blocks(group, demand.memory)),
    )


def _contradicts(recorded: PodPromises, container: Container, group: ObservedCgroup | None, online: CpuSet) -> bool:
    """Whether a cgroup holds something that the record doesn't promise. Less is fine: CPUs may be offline. What a mixed one holds beside
    its exclusive CPUs may be the shared pool.
    """
    own = recorded.of(CpuHoldings).own_set(container.name)
    if group is None or own is None:
        return False
    return not own & online <= _cpus(group) if container.is_mixed else not _cpus(group) <= own


def _cpus(group: ObservedCgroup) -> CpuSet:
    value = group.get(Attribute.CPUSET_CPUS)
    return value if isinstance(value, CpuSet) else CpuSet()


def _mems(group: ObservedCgroup) -> NumaSet:
    value = group.get(Attribute.CPUSET_MEMS)
    return value if isinstance(value, NumaSet) else NumaSet()


def _blocks(nodes: NumaSet, amounts: Sequence[tuple[str, int]]) -> Blocks:
    return tuple(Block(nodes, resource, size) for resource, size in sorted(amounts))


def populated_pods(observed: ObservedCgroups) -> frozenset[str]:
    """Paths of the pods that have processes; without those whose containers are systemd's units, which have had theirs before."""
    return frozenset(
        path.rpartition("/")[0]
        for path, group in observed.items()
        if "/" in path and group.is_populated and not is_of_systemd(path)
    )


def on_record(devices: Mapping[str, PodPromises], claiming: Iterable[UnrecoveredPod]) -> dict[str, UnrecoveredPod]:
    """Return all pods that have what no cgroup shows, by UID in order.

    Args:
        devices: what pods have by kubelet's file, by UID.
        claiming: what pods have by the documents of claims.
    """
    found = {uid: UnrecoveredPod(uid, own) for uid, own in devices.items()}
    for pod in claiming:
        own = pod.held.of(DeviceHoldings)
        before = found[pod.uid].held.of(DeviceHoldings) if pod.uid in found else DeviceHoldings()
        both = (*own.devices, *(each for each in before.devices if each[0]))
        held = NOTHING.having(DeviceHoldings(both, before.answers), pod.held.of(ClaimHoldings))
        found[pod.uid] = replace(pod, held=held)
    return {uid: one for uid, one in sorted(found.items()) if not one.held.is_nothing}


def with_record(held: PodPromises, record: PodPromises) -> PodPromises:
    """Add what a pod has by records, and no cgroup shows, to what else it has."""
    return held.having(record.of(DeviceHoldings), record.of(ClaimHoldings))


def may_run(
    lost: Iterable[UnrecoveredPod],
    observed: ObservedCgroups,
    known: Collection[str],
    *,
    is_all_told: bool,
    made: Collection[tuple[str, str]] = (),
) -> tuple[UnrecoveredPod, ...]:
    """Return those lost pods that may have processes, with what those may use.

    Args:
        lost: the pods.
        observed: the current cgroups of ours.
        known: UIDs of pods that are told to be ours: in no other cgroups.
        is_all_told: whether every container runtime has told of its pods: others are in cgroups of ours, or nowhere.
        made: pods' UIDs and containers' names that there are in a runtime: of those that it has told of only these have anything.
    """
    running = populated_pods(observed)
    left = []
    for one in lost:
        if not (is_all_told or one.uid in known) or any(pod_path(qos, one.uid) in running for qos in QosClass):
            left.append(one)
            continue
        own = one.held.of(DeviceHoldings)
        for name in [name for name in own.holders if (one.uid, name) not in made]:
            own = own.without(name)
        if own.devices:
            left.append(replace(one, held=NOTHING.having(own)))
    return tuple(left)


def claims_of(records: Records) -> dict[str, PodPromises]:
    """Read what kubelet's files say that pods hold, whatever else they say: claims are judged one by one. Invalid sets count as missing."""
    cpus, memory = defaultdict[str, CpuHoldings](CpuHoldings), defaultdict[str, MemoryHoldings](MemoryHoldings)
    if isinstance(records.cpu, CpuRecord):
        for uid, containers in records.cpu.entries:
            cpus[uid] = CpuHoldings(tuple((name, own) for name, text in containers if (own := _parsed(text))))
        for uid, whole in records.cpu.pod_entries:
            cpus[uid] = replace(cpus[uid], pod_cpus=whole)
    if isinstance(records.memory, MemoryRecord):
        for uid, parts in records.memory.entries:
            memory[uid] = MemoryHoldings(parts)
        for uid, blocks in records.memory.pod_entries:
            memory[uid] = replace(memory[uid], pod_memory=blocks)
    pods = {uid: NOTHING.having(cpus[uid], memory[uid]) for uid in (*cpus, *memory)}
    return {uid: held for uid, held in pods.items() if not held.is_nothing}


def _parsed(text: str) -> CpuSet:
    try:
        return CpuSet.parse(text)
    except IdSetSyntaxError:
        return CpuSet()
