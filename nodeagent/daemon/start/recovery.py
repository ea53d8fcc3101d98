"""Recovery of the state at a start: use the saved state, adapt it to a changed node, or rebuild it from the running pods.

No content of the state directory prevents a start. Unusable files are reported and renamed, and changed allocations are reported. Only with
`stateRecovery: strict` does the agent refuse to start in these cases, as kubelet does.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, initial, resume, shortfalls
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.records import Records
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import NOTHING, PodPromises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn.adoption import (
    add_record,
    decode_records,
    find_admitted,
    find_place,
    find_possibly_running,
    merge_records,
)
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.core.turn.machine_changes import list_machine_changes
from nodeagent.core.turn.pod_sources import Manifest, list_effective, new_entry
from nodeagent.core.turn.recovery import Deviation, PlacedPods, RecoveredPod, place_recovered
from nodeagent.core.turn.world import EventKind
from nodeagent.daemon.domains.systemd.unit_cgroups import UnitCgroups, read_cgroups
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.reports.logs import Log, pod_fields
from nodeagent.daemon.start.node_builder import begin_turn
from nodeagent.daemon.start.startup import (
    CPU_CHECKPOINT,
    DEVICE_CHECKPOINT,
    MAX_CHECKPOINT_BYTES,
    MEMORY_CHECKPOINT,
    STATE_FILE,
)
from nodeagent.daemon.start.strict_recovery import decode_checkpoints, decode_recorded_devices
from nodeagent.daemon.turn.claim_statuses import read_recorded_claims
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.runs import Runner
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.files import state_files
from nodeagent.formats.checkpoint.node_state import MAX_BYTES, NodeStateError, SavedState, decode_state, policies_of

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices

DeviceLook = Callable[[Topology], "PlacedDevices"] | None
"""Function that scans the machine's devices. None means that they aren't scanned."""

_LACKING = ("CPUs or memory allocated to pods are gone",)


class Evidence(Struct, frozen=True):
    """Evidence of running pods: their cgroups, and the launcher's runs."""

    observed: ObservedCgroups
    runs: Runs


def read_evidence(
    config: Config, tree: CgroupTree, runner: Runner, manifests: Sequence[Manifest]
) -> Evidence | tuple[Problem, ...]:
    """Read the cgroups and the launcher's runs. If one of them can't be read, return the problems, because a state rebuilt from incomplete
    evidence would lose pods.
    """
    runs, observed = runner.look(), dict[str, ObservedCgroup]()
    problems = [runs] if isinstance(runs, Problem) else []
    units = UnitCgroups(tree, recorded=UnitRecords(config).look)
    try:
        observed = dict(read_cgroups(tree, units, tuple(manifest.pod for manifest in manifests)))
    except CgroupError as err:
        problems.append(Problem.from_error(err))
    if units.last_read.unanswered:
        problems.append(Problem(units.last_read.unanswered))
    return tuple(problems) if problems or isinstance(runs, Problem) else Evidence(observed, runs)


class Recovery(Struct, frozen=True):
    """Report of a start for which the saved state was missing, unusable, or had to be changed."""

    problems: tuple[str, ...]
    """Reasons why saved files could not be used as they were."""
    unusable: tuple[str, ...] = ()
    """Names of the files to rename before new ones are written."""
    adopted: tuple[str, ...] = ()
    """Pods that were running but missing from the state, as namespace/name."""
    differences: tuple[Deviation, ...] = ()
    refused: tuple[PodEntry, ...] = ()
    """Pods that had been admitted and are refused now, because their allocations don't exist any more. They have no processes."""
    is_ordinary: bool = False
    """Whether the problems need no attention: each is only an amount that the kernel may report slightly differently after a boot."""


class Start(Struct, frozen=True):
    """State with which the agent starts, and the report of its recovery."""

    state: NodeState
    recovery: Recovery | None = None
    """Report of the recovery. None means that the saved state was used unchanged."""


def start_state(
    node: NodeSetup,
    manifests: tuple[Manifest, ...],
    now_ms: int,
    look: Callable[[], Evidence | None],
    alive: Callable[[], None] = lambda: None,
    devices: DeviceLook = None,
) -> Start | None:
    """Return the saved state, adapted to the node if necessary, or a state rebuilt from the running pods.

    Args:
        node: this node.
        manifests: the current manifests.
        now_ms: the time of the wall clock.
        look: function that reads the running pods, or returns None if the agent was asked to stop. It is called only if the files don't
            suffice.
        alive: function to call after each answer of a CPU plugin.
        devices: function that scans the devices. It is called only if a pod with claims may have to be decided again.

    Returns:
        The initial state. None means that the agent was asked to stop.
    """
    begin_turn(node, alive)
    problems: list[str] = []
    saved = _read_saved_state(str(Path(node.config.state_directory) / STATE_FILE), manifests, problems)
    if saved is not None:
        return _adapt_state(node, saved, look, now_ms, devices)
    evidence = look()
    return None if evidence is None else _rebuild_state(node, manifests, now_ms, evidence, problems, devices)


def _read_saved_state(path: str, manifests: tuple[Manifest, ...], problems: list[str]) -> SavedState | None:
    try:
        content = state_files.read(path, max_bytes=MAX_BYTES)
    except state_files.StateFileError as err:
        problems.append(err.message)
        return None
    if content is None:
        return None
    try:
        return decode_state(content, pods=(manifest.pod for manifest in manifests))
    except NodeStateError as err:
        problems.append(f"cannot use {path}: {err}")
        return None


def _adapt_state(
    node: NodeSetup, saved: SavedState, look: Callable[[], Evidence | None], now_ms: int, devices: DeviceLook
) -> Start | None:
    """Adapt an undamaged state to a node whose machine or configuration may have changed. None means that the agent was asked to stop."""
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
            return _accept_state(node.managers, saved.state, replace(saved.state, promises=promises))
    evidence = look()
    if evidence is None:
        return None
    pods = tuple(
        _recover_pod(entry, saved.state.promises.of_pod(entry.pod.uid), evidence.observed)
        for entry in saved.state.entries
        if entry.holds
    )
    managers = _managers_with_devices(node, (recovered.pod for recovered in pods), devices)
    placed = place_recovered(managers, pods, initial(node.managers, saved.state.promises.unrecovered))
    state = replace(saved.state, promises=placed.promises)
    for entry in saved.state.entries:
        state = state.with_entry(_refuse_if_rejected(entry, placed, now_ms))
    if not problems and not placed.differences and not placed.refused:
        return _accept_state(node.managers, saved.state, state)
    problems = [f"{STATE_FILE} does not fit this node: {p}" for p in problems or _LACKING]
    return Start(state, _report_changes(problems, (STATE_FILE,), placed, state))


def _managers_with_devices(node: NodeSetup, pods: Iterable[Pod], devices: DeviceLook) -> Managers:
    """Return the managers for deciding on these pods. They include the machine's devices only if a pod has claims."""
    if devices is None or not any(pod.claims for pod in pods):
        return node.managers
    return node.managers.knowing(devices(node.topology))


def _accept_state(managers: Managers, before: NodeState, after: NodeState) -> Start:
    if before == after:
        return Start(after)
    # Only free amounts of the machine have changed, so running pods keep all their allocations.
    changes = list_machine_changes(managers, before.promises, after.promises)
    texts = tuple(f"{change}: the machine differs from {STATE_FILE}: accepted" for change in changes)
    return Start(after, Recovery(texts, is_ordinary=all(change.is_ordinary for change in changes)))


def _recover_pod(entry: PodEntry, held: PodPromises, observed: ObservedCgroups) -> RecoveredPod:
    groups = [observed.get(entry.container_path(status.name)) for status in entry.containers]
    runs = any(group is not None and group.is_populated for group in groups)
    ends = not runs and entry.deleting_since_ms is not None
    # The pod of an inactive unit stays, too. If it were refused, the unit's former settings would not be restored.
    return RecoveredPod(entry.pod, held, stays=runs or entry.keeps_without_processes, ends=ends)


def _refuse_if_rejected(entry: PodEntry, placed: PlacedPods, now_ms: int) -> PodEntry:
    rejected = dict(placed.refused).get(entry.pod.uid)
    if rejected is None:
        return entry
    return replace(entry, refusal=Waiting(rejected.reason, rejected.message, now_ms), containers=())


def _rebuild_state(
    node: NodeSetup,
    manifests: tuple[Manifest, ...],
    now_ms: int,
    evidence: Evidence,
    problems: list[str],
    devices: DeviceLook,
) -> Start:
    """Rebuild the state from the pods' cgroups and processes, kubelet's checkpoints, and the recorded claims."""
    unusable = [STATE_FILE] if problems else []
    recorded = _read_recorded_holdings(node, problems, unusable)
    devices_by_pod = read_recorded_devices(Path(node.config.state_directory), problems, unusable)
    records = merge_records(devices_by_pod, read_recorded_claims(node.config))
    recorded |= {uid: add_record(recorded.get(uid, NOTHING), record.held) for uid, record in records.items()}
    gate = node.config.placement.gate("PodLevelResources")
    entries = [
        find_place(new_entry(m, now_ms, pod_level_resources=gate), evidence.observed) for m in list_effective(manifests)
    ]
    pods = find_admitted(
        node.managers, entries, observed=evidence.observed, runs=evidence.runs, recorded=recorded, now_ms=now_ms
    )
    adopted = {pod.entry.pod.uid for pod in pods}
    unknown = (record for uid, record in records.items() if uid not in adopted)
    known = {entry.pod.uid for entry in entries}
    has_reported_all = not node.config.nri_socket and not UnitRecords(node.config).look()
    lost = find_possibly_running(unknown, evidence.observed, known, has_reported_all=has_reported_all)
    managers = _managers_with_devices(node, (pod.entry.pod for pod in pods), devices)
    placed = place_recovered(managers, tuple(pod.recovered for pod in pods), initial(node.managers, lost))
    state = NodeState(placed.promises, tuple(_refuse_if_rejected(pod.entry, placed, now_ms) for pod in pods))
    if not problems and not pods and not lost:
        return Start(state)
    if not problems:
        problems = [f"there is no {STATE_FILE}"]
    return Start(state, _report_changes(problems, tuple(unusable), placed, state, adopted=state.entries))


def _read_recorded_holdings(node: NodeSetup, problems: list[str], unusable: list[str]) -> dict[str, PodPromises]:
    """Read the CPUs and memory of each pod from the checkpoints in kubelet's format, by pod UID. Add unusable files to `problems` and
    `unusable`.
    """
    directory = Path(node.config.state_directory)
    cpu, memory = (_read_checkpoint(directory / n, problems, unusable) for n in (CPU_CHECKPOINT, MEMORY_CHECKPOINT))
    records = decode_checkpoints(node, cpu, memory)
    for name, record in ((CPU_CHECKPOINT, records.cpu), (MEMORY_CHECKPOINT, records.memory)):
        if isinstance(record, Unreadable):
            problems.append(f"cannot use {directory / name}: {record.message}")
            unusable.append(name)
    return decode_records(
        Records(
            cpu=None if isinstance(records.cpu, Unreadable) else records.cpu,
            memory=None if isinstance(records.memory, Unreadable) else records.memory,
        )
    )


def read_recorded_devices(directory: Path, problems: list[str], unusable: list[str]) -> dict[str, PodPromises]:
    """Read the devices of each pod from the checkpoint in kubelet's format, by pod UID. If the file is unusable, add it to `problems` and
    `unusable`.
    """
    path = directory / DEVICE_CHECKPOINT
    devices = decode_recorded_devices(_read_checkpoint(path, problems, unusable))
    if isinstance(devices, Unreadable):
        problems.append(f"cannot use {path}: {devices.message}")
        unusable.append(DEVICE_CHECKPOINT)
        return {}
    return devices


def _read_checkpoint(path: Path, problems: list[str], unusable: list[str]) -> bytes | None:
    try:
        return state_files.read(str(path), max_bytes=MAX_CHECKPOINT_BYTES)
    except state_files.StateFileError as err:
        problems.append(err.message)
        unusable.append(path.name)
        return None


def _report_changes(
    problems: list[str],
    unusable: tuple[str, ...],
    placed: PlacedPods,
    state: NodeState,
    adopted: tuple[PodEntry, ...] = (),
) -> Recovery:
    rejected = {uid for uid, _ in placed.refused}
    refused = tuple(entry for entry in state.entries if entry.pod.uid in rejected)
    return Recovery(tuple(problems), unusable, tuple(e.pod.full_name for e in adopted), placed.differences, refused)


def encode_recovery(recovery: Recovery, set_aside: tuple[str, ...]) -> dict[str, object]:
    """Encode the report of a recovery as a document for the local API."""
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


def log_recovery(recovery: Recovery, log: Log) -> None:
    """Log the report of a recovery, with one line for each changed allocation and each refused pod."""
    write = log.info if recovery.is_ordinary else log.warning
    write("state_recovered", problems=list(recovery.problems), adopted=list(recovery.adopted))
    for difference in recovery.differences:
        log.warning(
            EventKind.PROMISE_CHANGED, **pod_fields(difference.pod, difference.container), **dict(difference.fields)
        )
    for entry in recovery.refused:
        log_refusal(entry, log)


def log_refusal(entry: PodEntry, log: Log) -> None:
    """Log the refusal of a pod at the agent's start. A turn logs its own refusals."""
    if entry.refusal is not None:
        fields = {"source": entry.origin.name, "reason": entry.refusal.reason, "message": entry.refusal.message}
        log.warning(EventKind.POD_REFUSED, **pod_fields(entry.pod), **fields)
