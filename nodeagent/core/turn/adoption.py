"""Adoption of running pods that are missing in the state. Their entries and holdings are derived from cgroups, from the launcher's runs,
and from records in other files.

This is needed only if the state was lost or is unusable, because a pod otherwise keeps its entry as long as it has processes. This module
doesn't read files, so the caller passes all observations.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.one_pod import is_by_pod
from nodeagent.core.admission.records import Records
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import is_pinned, list_pod_paths
from nodeagent.core.model.claims import ClaimAllocation, format_card_name
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises, UnrecoveredPod, with_pod
from nodeagent.core.model.state import ContainerStatus, Exit, PodEntry, run_prefix
from nodeagent.core.resources.claims.held import drop_released_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.keep import kept_devices
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.turn.lifecycle import Run, Runs, record_unit_settings
from nodeagent.core.turn.recovery import RecoveredPod


class AdmittedPod(Struct, frozen=True):
    """Pod that is missing in the state, but was admitted before, according to its cgroups, runs or records."""

    entry: PodEntry
    recovered: RecoveredPod


def find_admitted(
    managers: Managers,
    entries: Sequence[PodEntry],
    *,
    observed: ObservedCgroups,
    runs: Runs,
    recorded: Mapping[str, PodPromises],
    now_ms: int,
) -> tuple[AdmittedPod, ...]:
    """Return the pods that were admitted before, according to their cgroups, runs or records, in the order of their admission.

    Args:
        managers: the managers of the present configuration.
        entries: the entries that the candidates would have if they were admitted now, in the order of their manifests.
        observed: the observed cgroups.
        runs: the runs that the launcher lists.
        recorded: the holdings recorded in other files, by UID. A record is ignored if a cgroup of the pod contradicts it. PCI cards of
            claims have an empty container name, as in `UnrecoveredPod`.
        now_ms: the wall-clock time.
    """
    pods = []
    by_prefix: dict[str, dict[str, Run]] = {}
    for run_id, run in runs.items():
        before, slash, tail = run_id.rpartition("/")
        by_prefix.setdefault(before + slash, {})[tail] = run
    by_unit = {unit: entry.pod.uid for entry in entries if entry.pod.uid in recorded for unit in entry.unit_keys}
    for entry in entries:
        past = _find_last_runs(entry, by_prefix)
        groups = [_observe_container(entry, c.name, observed) for c in entry.containers]
        if not past and not any(groups) and entry.pod.uid not in recorded:
            continue
        if any(by_unit.setdefault(unit, entry.pod.uid) != entry.pod.uid for unit in entry.unit_keys):
            continue  # this pod was refused, because another pod has the unit
        # Even an inactive unit keeps its settings if possible, because the unit's settings aren't restored when its pod is refused.
        is_running = entry.keeps_without_processes or any(group is not None and group.is_populated for group in groups)
        known = _restore_statuses(entry, past, observed, now_ms)
        held = _find_holdings(managers, known, observed, recorded.get(entry.pod.uid, NOTHING))
        pods.append(AdmittedPod(known, RecoveredPod(entry.pod, held, is_running)))
    return tuple(sorted(pods, key=lambda pod: pod.entry.decided_at_ms))


def _observe_container(entry: PodEntry, name: str, observed: ObservedCgroups) -> ObservedCgroup | None:
    """Return the observed cgroup of a container. A unit's cgroup is returned only if the unit's original settings are recorded, because the
    unit otherwise runs on CPUs that the pod never had.
    """
    cgroup = observed.get(entry.container_path(name))
    return None if entry.pins_units and cgroup is not None and cgroup.unit_before is None else cgroup


def _find_last_runs(entry: PodEntry, runs: Mapping[str, Mapping[str, Run]]) -> dict[str, tuple[int, int, Run]]:
    """Return the last run of each container since the pod's last admission, as (time of the admission, attempt, run)."""
    lives: dict[int, dict[str, tuple[int, int, Run]]] = {}
    for container in entry.pod.containers:
        for tail, run in runs.get(run_prefix(entry.pod.uid, container.name), {}).items():
            moment, attempt = _decode_run(tail)
            last = lives.setdefault(moment, {})
            if attempt and (container.name not in last or last[container.name][1] < attempt):
                last[container.name] = (moment, attempt, run)
    running = [moment for moment, last in lives.items() if any(run.exit is None for _, _, run in last.values())]
    return lives[max(running or lives)] if lives else {}


def _decode_run(text: str) -> tuple[int, int]:
    """Decode the last part of a run ID (core/model/state.py) into the time of the admission and the attempt. The attempt is 0 if the agent
    hasn't made the ID.
    """
    moment, _, attempt = text.partition(".")
    try:
        return int(moment, 16), int(attempt)
    except ValueError:
        return 0, 0


def _restore_statuses(
    entry: PodEntry, past: Mapping[str, tuple[int, int, Run]], observed: ObservedCgroups, now_ms: int
) -> PodEntry:
    if entry.pins_units:
        return record_unit_settings(entry, observed)
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
        elif container.is_launched and _has_started(entry.pod, position, past):
            # The launcher has already forgotten the exit. If other containers were started after an init container, the init container has
            # succeeded. Any other exit counts as a failure.
            code = 0 if container.kind is ContainerKind.INIT else None
            statuses.append(ContainerStatus(container.name, 1, moment, Exit(now_ms, code=code)))
        else:
            statuses.append(ContainerStatus(container.name))
    return replace(entry, containers=tuple(statuses))


def _has_started(pod: Pod, position: int, past: Mapping[str, tuple[int, int, Run]]) -> bool:
    """Return whether a container was started at least once. The runs of later containers show this or, for an app container, the run of any
    app container, because app containers start together.
    """
    if pod.containers[position].kind is ContainerKind.APP:
        return any(c.kind is ContainerKind.APP and c.name in past for c in pod.containers)
    return any(c.name in past for c in pod.containers[position + 1 :])


def _find_holdings(
    managers: Managers, entry: PodEntry, observed: ObservedCgroups, recorded: PodPromises
) -> PodPromises:
    recorded = assign_claim_devices(recorded, entry.pod)
    groups = {c.name: _observe_container(entry, c.name, observed) for c in entry.containers}
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
        found = resource.find_in_cgroups(entry, demand, groups, observed, by_pod=by_pod)
        if found is None:
            continue
        # If the pod's feature gate was turned off, the pod may still have exclusive CPUs from before. In its cgroups, these CPUs look like
        # a small shared pool, so the cgroups aren't used here.
        found = resource.holdings() if demand.is_skipped else found
        # Each record is a separate file, so a single record may be lost.
        if is_contradicted or recorded.of(resource.holdings) == resource.holdings():
            held = held.having(found)
    return held


def assign_claim_devices(recorded: PodPromises, pod: Pod) -> PodPromises:
    """Move each PCI card of a claim from the empty container name to the containers that use the claim, because the records don't contain
    their names.
    """
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
            request = requests.get(format_card_name(card.id), "")
            for container in pod.containers:
                if any(one.uses(claim.name, request) for one in container.claims):
                    own = {*devices.devices_of(container.name), card}
                    devices = devices.with_devices(container.name, own)
    return recorded.having(devices, ClaimHoldings(tuple(claims)))


def give_back(promises: Promises, pod: Pod, record: PodPromises) -> Promises:
    """Allocate a pod's recorded devices and claims to the pod, without devices that other pods hold."""
    held = assign_claim_devices(add_record(promises.of_pod(pod.uid), record), pod)
    held = held.having(kept_devices(promises, pod, held.of(DeviceHoldings)))
    return with_pod(promises, pod.uid, drop_released_claims(held))


def find_place(entry: PodEntry, observed: ObservedCgroups) -> PodEntry:
    """Return the entry of a pod with the cgroup path at which its processes run. An older version of the agent, which had no pooled pods,
    may have started them in another cgroup.
    """
    former = replace(entry, is_pooled=False)
    there = observed.get(former.pod_path)
    return former if there is not None and there.is_populated else entry


def find_populated_pods(observed: ObservedCgroups) -> frozenset[str]:
    """Return the cgroup paths of the pods that have processes. Pods that pin units are left out, because systemd starts their processes."""
    populated = [path for path, group in observed.items() if group.is_populated and "/" in path]
    pods = {path.rpartition("/")[0] for path in populated}
    return frozenset([pod for pod in pods if not is_pinned(pod)])


def merge_records(devices: Mapping[str, PodPromises], claiming: Iterable[UnrecoveredPod]) -> dict[str, UnrecoveredPod]:
    """Merge the records of devices and claims, which cgroups don't show. Return them by pod UID, in sorted order.

    Args:
        devices: the recorded devices by UID, from kubelet's file.
        claiming: the pods with recorded claims, from the status of the claims' documents.
    """
    found = {uid: UnrecoveredPod(uid, own) for uid, own in devices.items()}
    for pod in claiming:
        own = pod.held.of(DeviceHoldings)
        before = found[pod.uid].held.of(DeviceHoldings) if pod.uid in found else DeviceHoldings()
        both = (*own.devices, *(each for each in before.devices if each[0]))
        held = NOTHING.having(DeviceHoldings(both, before.answers), pod.held.of(ClaimHoldings))
        found[pod.uid] = replace(pod, held=held)
    return {uid: one for uid, one in sorted(found.items()) if not one.held.is_nothing}


def add_record(held: PodPromises, record: PodPromises) -> PodPromises:
    """Add a pod's recorded devices and claims to its other holdings."""
    return held.having(record.of(DeviceHoldings), record.of(ClaimHoldings))


def find_possibly_running(
    lost: Iterable[UnrecoveredPod],
    observed: ObservedCgroups,
    known: Collection[str],
    *,
    has_reported_all: bool,
    made: Collection[tuple[str, str]] = (),
) -> tuple[UnrecoveredPod, ...]:
    """Return the lost pods that may have processes, each with the devices and claims that these may use.

    Args:
        lost: the lost pods.
        observed: the observed cgroups, all of which are the agent's.
        known: the UIDs of pods with a manifest. Their processes can only be in the agent's cgroups.
        has_reported_all: whether every container runtime has listed its containers. The processes of all other pods can then only be in the
            agent's cgroups.
        made: the pod UID and the name of each container that a runtime has listed. A lost pod without processes in the agent's cgroups
            keeps only the devices of these containers.
    """
    running = find_populated_pods(observed)
    left = []
    for one in lost:
        if not (has_reported_all or one.uid in known) or not running.isdisjoint(list_pod_paths(one.uid)):
            left.append(one)
            continue
        own = one.held.of(DeviceHoldings)
        for name in [name for name in own.holders if (one.uid, name) not in made]:
            own = own.without(name)
        if own.devices:
            left.append(replace(one, held=NOTHING.having(own)))
    return tuple(left)


def decode_records(records: Records) -> dict[str, PodPromises]:
    """Decode the CPUs and memory of each pod in kubelet's files. CPU sets that can't be parsed are ignored."""
    cpus, memory = defaultdict[str, CpuHoldings](CpuHoldings), defaultdict[str, MemoryHoldings](MemoryHoldings)
    if isinstance(records.cpu, CpuRecord):
        for uid, containers in records.cpu.entries:
            cpus[uid] = CpuHoldings(tuple((name, own) for name, text in containers if (own := _decode_cpus(text))))
        for uid, whole in records.cpu.pod_entries:
            cpus[uid] = replace(cpus[uid], pod_cpus=whole)
    if isinstance(records.memory, MemoryRecord):
        for uid, parts in records.memory.entries:
            memory[uid] = MemoryHoldings(parts)
        for uid, blocks in records.memory.pod_entries:
            memory[uid] = replace(memory[uid], pod_memory=blocks)
    pods = {uid: NOTHING.having(cpus[uid], memory[uid]) for uid in (*cpus, *memory)}
    return {uid: held for uid, held in pods.items() if not held.is_nothing}


def _decode_cpus(text: str) -> CpuSet:
    try:
        return CpuSet.parse(text)
    except IdSetSyntaxError:
        return CpuSet()
