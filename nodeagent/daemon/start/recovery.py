"""What a start does with the state that it finds: accept it, adapt it to what has changed, or rebuild it from running pods.

Nothing in the state directory can keep the agent from starting: unusable files are reported and set aside, and every promise that has
changed is reported. Only `stateRecovery: strict` refuses, like kubelet.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, initial, resume, shortfalls
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.records import Records
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import NOTHING, PodPromises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.turn.adoption import add_record, decode_records, find_admitted, find_possibly_running, merge_records
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.core.turn.pod_sources import Manifest, list_effective, new_entry
from nodeagent.core.turn.recovery import Deviation, PlacedPods, RecoveredPod, place_recovered
from nodeagent.core.turn.world import EventKind
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.reports.logs import Log, about
from nodeagent.daemon.start.startup import (
    CPU_CHECKPOINT,
    DEVICE_CHECKPOINT,
    MAX_CHECKPOINT_BYTES,
    MEMORY_CHECKPOINT,
    STATE_FILE,
    begin_turn,
)
from nodeagent.daemon.start.strict_recovery import decoded_devices, decoded_records
from nodeagent.daemon.turn.claim_statuses import recorded_claims
from nodeagent.edge.files import state_files
from nodeagent.formats.checkpoint.node_state import MAX_BYTES, NodeStateError, SavedState, decode_state, policies_of

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices

DeviceLook = Callable[[Topology], "PlacedDevices"] | None
"""Looks at a machine's devices. None: they are not looked at."""

_LACKING = ("CPUs or memory that pods were promised are gone",)


class Evidence(Struct, frozen=True):
    """What runs, as reported by cgroups and launcher."""

    observed: ObservedCgroups
    runs: Runs


class Recovery(Struct, frozen=True):
    """What a person is told about a start that did not find its state as expected."""

    problems: tuple[str, ...]
    """Why the files could not be used as they are."""
    unusable: tuple[str, ...] = ()
    """Names of the files to set aside before anything is written in their place."""
    adopted: tuple[str, ...] = ()
    """Pods that were missing from the state, by namespace/name."""
    differences: tuple[Deviation, ...] = ()
    refused: tuple[PodEntry, ...] = ()
    """Admitted pods without processes that can't have what they ask for any more, with the refusal."""


class Start(Struct, frozen=True):
    """What the agent begins with."""

    state: NodeState
    recovery: Recovery | None = None
    """None: the state on disk is up to date."""


def start_state(
    node: NodeSetup,
    manifests: tuple[Manifest, ...],
    now_ms: int,
    look: Callable[[], Evidence | None],
    alive: Callable[[], None] = lambda: None,
    devices: DeviceLook = None,
) -> Start | None:
    """Find the promises that were made, or rebuild them.

    Args:
        node: as discovered.
        manifests: the current pods.
        now_ms: wall clock.
        look: returns what runs; called only if the files don't suffice. It returns None if the agent was asked to stop meanwhile, and then
            this does, too.
        alive: called after each answer of a CPU plugin.
        devices: looks at the machine's devices; called only if a pod with claims may have to be decided on anew.
    """
    begin_turn(node, alive)
    problems: list[str] = []
    saved = _saved(str(Path(node.config.state_directory) / STATE_FILE), problems)
    if saved is not None:
        return _carried_over(node, saved, look, now_ms, devices)
    evidence = look()
    return None if evidence is None else _made_anew(node, manifests, now_ms, evidence, problems, devices)


def _saved(path: str, problems: list[str]) -> SavedState | None:
    try:
        content = state_files.read(path, max_bytes=MAX_BYTES)
    except state_files.StateFileError as err:
        problems.append(err.message)
        return None
    if content is None:
        return None
    try:
        return decode_state(content)
    except NodeStateError as err:
        problems.append(f"cannot use {path}: {err}")
        return None


def _carried_over(
    node: NodeSetup, saved: SavedState, look: Callable[[], Evidence | None], now_ms: int, devices: DeviceLook
) -> Start | None:
    """Use an intact state on a node that may have changed."""
    policies = policies_of(node.config.placement)
    problems = [
        f'it was written under {field} "{saved.policies.get(field)}", the configuration says "{policy}"'
        for field, policy in policies.items()
        if saved.policies.get(field) != policy
    ]
    promises = None if problems else resume(node.managers, saved.state.promises)
    if isinstance(promises, StartRefused):
        problems = [promises.message]
    elif promises is not None:
        problems = [v.text for v in violations(node.managers, replace(saved.state, promises=promises))]
        if not problems and not shortfalls(node.managers, promises):
            return _taken_as_it_is(saved.state, replace(saved.state, promises=promises))
    evidence = look()
    if evidence is None:
        return None
    pods = tuple(
        _recovered(entry, saved.state.promises.of_pod(entry.pod.uid), evidence.observed)
        for entry in saved.state.entries
        if entry.holds
    )
    managers = _knowing(node, (one.pod for one in pods), devices)
    placed = place_recovered(managers, pods, initial(node.managers, saved.state.promises.unrecovered))
    state = replace(saved.state, promises=placed.promises)
    for entry in saved.state.entries:
        state = state.with_entry(_judged(entry, placed, now_ms))
    if not problems and not placed.differences and not placed.refused:
        return _taken_as_it_is(saved.state, state)
    problems = [f"{STATE_FILE} does not fit this node: {p}" for p in problems or _LACKING]
    return Start(state, _recovery(problems, (STATE_FILE,), placed, state))


def _knowing(node: NodeSetup, pods: Iterable[Pod], devices: DeviceLook) -> Managers:
    """Return the managers that decide on these pods, with the cards that claims may be for."""
    if devices is None or not any(pod.claims for pod in pods):
        return node.managers
    return node.managers.knowing(devices(node.topology))


def _taken_as_it_is(before: NodeState, after: NodeState) -> Start:
    if before == after:
        return Start(after)
    # Pods keep all they have, but those that end: only what is left for others is another.
    return Start(after, Recovery((f"the machine or its reservation differs from {STATE_FILE}: accepted",)))


def _recovered(entry: PodEntry, held: PodPromises, observed: ObservedCgroups) -> RecoveredPod:
    groups = [observed.get(entry.container_path(status.name)) for status in entry.containers]
    runs = entry.is_requested_per_container or any(group is not None and group.is_populated for group in groups)
    ends = not runs and entry.deleting_since_ms is not None
    # A unit that isn't active has what systemd was told, and a pod that is refused gives nothing back.
    return RecoveredPod(entry.pod, held, stays=runs or entry.pins_units, ends=ends)


def _judged(entry: PodEntry, placed: PlacedPods, now_ms: int) -> PodEntry:
    rejected = dict(placed.refused).get(entry.pod.uid)
    if rejected is None:
        return entry
    return replace(entry, refusal=Waiting(rejected.reason, rejected.message, now_ms), containers=())


def _made_anew(
    node: NodeSetup,
    manifests: tuple[Manifest, ...],
    now_ms: int,
    evidence: Evidence,
    problems: list[str],
    devices: DeviceLook,
) -> Start:
    """Recognize pods by their cgroups, their processes and kubelet's files."""
    unusable = [STATE_FILE] if problems else []
    recorded = _recorded(node, problems, unusable)
    devices_of = recorded_devices(Path(node.config.state_directory), problems, unusable)
    records = merge_records(devices_of, recorded_claims(node.config))
    recorded |= {uid: add_record(recorded.get(uid, NOTHING), one.held) for uid, one in records.items()}
    gate = node.config.placement.gate("PodLevelResources")
    entries = [new_entry(m, now_ms, pod_level_resources=gate) for m in list_effective(manifests)]
    pods = find_admitted(
        node.managers, entries, observed=evidence.observed, runs=evidence.runs, recorded=recorded, now_ms=now_ms
    )
    adopted = {pod.entry.pod.uid for pod in pods}
    unknown = (one for uid, one in records.items() if uid not in adopted)
    known = {entry.pod.uid for entry in entries}
    is_all_told = not node.config.nri_socket and not UnitRecords(node.config).look()
    lost = find_possibly_running(unknown, evidence.observed, known, is_all_told=is_all_told)
    managers = _knowing(node, (pod.entry.pod for pod in pods), devices)
    placed = place_recovered(managers, tuple(pod.recovered for pod in pods), initial(node.managers, lost))
    state = NodeState(placed.promises, tuple(_judged(pod.entry, placed, now_ms) for pod in pods))
    if not problems and not pods and not lost:
        return Start(state)
    if not problems:
        problems = [f"there is no {STATE_FILE}"]
    return Start(state, _recovery(problems, tuple(unusable), placed, state, adopted=state.entries))


def _recorded(node: NodeSetup, problems: list[str], unusable: list[str]) -> dict[str, PodPromises]:
    """Return what CPUs and memory pods have by kubelet's files, by UID."""
    directory = Path(node.config.state_directory)
    texts: dict[str, bytes | None] = {}
    for name in (CPU_CHECKPOINT, MEMORY_CHECKPOINT):
        try:
            texts[name] = state_files.read(str(directory / name), max_bytes=MAX_CHECKPOINT_BYTES)
        except state_files.StateFileError as err:
            texts[name] = None
            problems.append(err.message)
            unusable.append(name)
    records = decoded_records(node, texts[CPU_CHECKPOINT], texts[MEMORY_CHECKPOINT])
    for name, record in ((CPU_CHECKPOINT, records.cpu), (MEMORY_CHECKPOINT, records.memory)):
        if isinstance(record, Unreadable):
            problems.append(f"cannot use {directory / name}: {record.message}")
            unusable.append(name)
    return decode_records(
        Records(
            cpu=records.cpu if isinstance(records.cpu, CpuRecord) else None,
            memory=records.memory if isinstance(records.memory, MemoryRecord) else None,
        )
    )


def recorded_devices(directory: Path, problems: list[str], unusable: list[str]) -> dict[str, PodPromises]:
    """Return who has which devices by kubelet's file; why it can't be used is added to the problems."""
    path = str(directory / DEVICE_CHECKPOINT)
    try:
        found = decoded_devices(state_files.read(path, max_bytes=MAX_CHECKPOINT_BYTES))
    except state_files.StateFileError as err:
        problems.append(err.message)
        unusable.append(DEVICE_CHECKPOINT)
        return {}
    if isinstance(found, Unreadable):
        problems.append(f"cannot use {path}: {found.message}")
        unusable.append(DEVICE_CHECKPOINT)
        return {}
    return found


def _recovery(
    problems: list[str],
    unusable: tuple[str, ...],
    placed: PlacedPods,
    state: NodeState,
    adopted: tuple[PodEntry, ...] = (),
) -> Recovery:
    rejected = {uid for uid, _ in placed.refused}
    refused = tuple(entry for entry in state.entries if entry.pod.uid in rejected)
    return Recovery(tuple(problems), unusable, tuple(e.pod.full_name for e in adopted), placed.differences, refused)


def recovery_document(recovery: Recovery, set_aside: tuple[str, ...]) -> dict[str, object]:
    """Spell it for the local API."""
    return {
        "adopted": list(recovery.adopted),
        "differences": [
            {"pod": d.pod.full_name, "container": d.container, **dict(d.fields)} for d in recovery.differences
        ],
        "problems": list(recovery.problems),
        "refused": [
            {"pod": entry.pod.full_name, "message": entry.refusal.message}
            for entry in recovery.refused
            if entry.refusal is not None
        ],
        "setAside": list(set_aside),
    }


def report_recovery(recovery: Recovery, log: Log) -> None:
    """Log it, one line per thing that a person may want to check."""
    log.warning("state_recovered", problems=list(recovery.problems), adopted=list(recovery.adopted))
    for difference in recovery.differences:
        log.warning(EventKind.PROMISE_CHANGED, **about(difference.pod, difference.container), **dict(difference.fields))
    for entry in recovery.refused:
        report_refused(entry, log)


def report_refused(entry: PodEntry, log: Log) -> None:
    """Log a refusal that no turn has decided on."""
    if entry.refusal is not None:
        fields = {"source": entry.origin.name, "reason": entry.refusal.reason, "message": entry.refusal.message}
        log.warning(EventKind.POD_REFUSED, **about(entry.pod), **fields)
