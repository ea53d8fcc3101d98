"""Pods that run but are missing from the state: what their cgroups and the launcher show, made into entries and claims.

Happens only when the state was lost or could not be used: pods keep their entry as long as they have processes. Knows no file; the caller
passes what was observed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.one_pod import is_by_pod
from nodeagent.core.admission.records import Records
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import is_of_systemd, pod_path
from nodeagent.core.model.claims import ClaimAllocation, card_name
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.model.pod import ContainerKind, Pod, QosClass
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises, UnrecoveredPod, with_pod
from nodeagent.core.model.state import ContainerStatus, Exit, PodEntry, run_prefix
from nodeagent.core.resources.claims.held import with_held_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.keep import kept_devices
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.turn.lifecycle import Run, Runs, with_units_seen
from nodeagent.core.turn.recovery import RecoveredPod


class Found(Struct, frozen=True):
    """A pod that is known to have been admitted."""

    entry: PodEntry
    recovered: RecoveredPod


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
        pods.append(Found(known, RecoveredPod(entry.pod, held, is_running)))
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
    demand = demand_of(managers.rules, entry.pod)
    by_pod = is_by_pod(managers.providers.topology, demand)
    resources = managers.providers.resources
    is_contradicted = any(
        group is not None and resource.is_contradicted(recorded, container.name, group, is_mixed=container.is_mixed)
        for container in entry.pod.containers
        for group in (groups[container.name],)
        for resource in resources
    )
    held = replace(recorded, hints=()) if is_contradicted else recorded
    for resource in resources:
        found = resource.found(entry, demand, groups, observed, by_pod=by_pod)
        if found is None:
            continue
        # The exclusive CPUs of a skipped pod, if it got any before its gate was turned off, look just like a small shared pool.
        found = resource.holdings() if demand.is_skipped else found
        # Each record is a file of its own, and one may be lost.
        if is_contradicted or recorded.of(resource.holdings) == resource.holdings():
            held = held.having(found)
    return held


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


def give_back(promises: Promises, pod: Pod, record: PodPromises) -> Promises:
    """Promise a pod what a record says that it has, except for devices that other pods have."""
    held = with_claims(with_record(promises.of_pod(pod.uid), record), pod)
    held = held.having(kept_devices(promises, pod, held.of(DeviceHoldings)))
    return with_pod(promises, pod.uid, with_held_claims(held))


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


def recorded_holdings(records: Records) -> dict[str, PodPromises]:
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
