"""Recovery of the state with `stateRecovery: strict`: use the saved state or kubelet's checkpoints, and refuse to start if they don't fit.

Commands that only read a node import daemon/start/startup.py instead of this module.
"""

from pathlib import Path

from msgspec.structs import replace

from nodeagent.core.admission.managers import sweep
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.records import Records, start
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.promises import PodPromises, Promises, UnrecoveredPod
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.adoption import give_back, merge_records
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.daemon.start.startup import (
    CPU_CHECKPOINT,
    DEVICE_CHECKPOINT,
    MAX_CHECKPOINT_BYTES,
    MEMORY_CHECKPOINT,
    STATE_FILE,
    StartError,
    read_file,
)
from nodeagent.daemon.turn.claim_statuses import read_recorded_claims
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state
from nodeagent.formats.checkpoint.node_state import MAX_BYTES, NodeStateError, decode_state, policies_of


def load_state(node: NodeSetup, manifests: tuple[Manifest, ...], now_ms: int) -> NodeState:
    """Return the saved state. If there is none, import kubelet's allocations from its checkpoints; without these, return an empty state.

    The agent refuses a state that doesn't fit, as kubelet does. (Without `strict`, daemon/start/recovery.py adapts such a state.)
    Allocations of kubelet's pods that are not in `manifests` are released.

    Raises:
        StartError: a file is damaged, or its allocations don't fit this machine and configuration.
    """
    path = str(Path(node.config.state_directory) / STATE_FILE)
    way_out = (
        "set stateRecovery to recover, which rebuilds the allocations from running pods; "
        f"or drain the node: `systemctl stop nodeagent-pods`, move {path} away, `systemctl start nodeagent`"
    )
    content = read_file(path, MAX_BYTES)
    if content is None:
        return _import_kubelet_state(node, manifests, now_ms)
    try:
        saved = decode_state(content, pods=(manifest.pod for manifest in manifests))
    except NodeStateError as err:
        hint = "install the nodeagent that wrote it, or " + way_out if err.is_newer else way_out
        raise StartError(f"cannot use {path}: {err}", hint=hint) from err
    for field, policy in policies_of(node.config.placement).items():
        before = saved.policies.get(field)
        if before != policy:
            raise StartError(
                f'{path} was written under {field} "{before}", but the configuration says "{policy}"',
                hint=f"set {field} back to {before} (`nodeagent config show` prints every field), or {way_out}",
            )
    broken = "; ".join(violation.text for violation in violations(node.managers, saved.state))
    if broken:
        raise StartError(f"{path} does not fit this machine and configuration: {broken}", hint=way_out)
    return saved.state


def _import_kubelet_state(node: NodeSetup, manifests: tuple[Manifest, ...], now_ms: int) -> NodeState:
    """Return a state with the allocations from kubelet's checkpoints (D3). Without checkpoints, the state is empty."""
    directory = Path(node.config.state_directory)
    cpu = read_file(str(directory / CPU_CHECKPOINT), MAX_CHECKPOINT_BYTES)
    memory = read_file(str(directory / MEMORY_CHECKPOINT), MAX_CHECKPOINT_BYTES)
    promises = start(node.managers, decode_checkpoints(node, cpu, memory))
    if isinstance(promises, StartRefused):
        raise StartError(
            promises.message,
            hint=f"{directory / promises.about} does not fit this node and configuration: move it away, then `systemctl start nodeagent`",
        )
    kept = tuple(m for m in manifests if not promises.of_pod(m.pod.uid).is_nothing)
    promises, _ = sweep(node.managers, promises, tuple(m.pod for m in kept))
    path = str(directory / DEVICE_CHECKPOINT)
    devices = decode_recorded_devices(read_file(path, MAX_CHECKPOINT_BYTES))
    if isinstance(devices, Unreadable):
        raise StartError(f"cannot use {path}: {devices.message}", hint="move it away, then `systemctl start nodeagent`")
    promises = _restore_records(promises, kept, merge_records(devices, read_recorded_claims(node.config)))
    gate = node.config.placement.gate("PodLevelResources")
    return NodeState(promises, tuple(new_entry(m, now_ms, pod_level_resources=gate) for m in kept))


def _restore_records(promises: Promises, kept: tuple[Manifest, ...], records: dict[str, UnrecoveredPod]) -> Promises:
    """Restore the recorded devices and claims of each pod.

    Those of unknown pods stay reserved, until the pods are known again.
    """
    for manifest in kept:
        pod = manifest.pod
        if pod.uid in records:
            promises = give_back(promises, pod, records.pop(pod.uid).held)
    return replace(promises, unrecovered=tuple(records.values()))


def decode_recorded_devices(content: bytes | None) -> dict[str, PodPromises] | Unreadable:
    """Decode kubelet's device checkpoint. It contains the device IDs of each pod, but no PCI addresses and no names of pods."""
    if content is None:
        return {}
    from nodeagent.formats.checkpoint.device_checkpoint import (  # noqa: PLC0415 - few nodes give devices
        DeviceCheckpointError,
        decode_devices,
    )

    try:
        return decode_devices(content.decode(errors="replace"))
    except DeviceCheckpointError as err:
        return Unreadable(str(err))


def decode_checkpoints(node: NodeSetup, cpu: bytes | None, memory: bytes | None) -> Records:
    """Decode kubelet's CPU and memory checkpoints, of any version of their formats."""
    pod_level = node.config.placement.gate("PodLevelResourceManagers")
    return Records(
        cpu=None
        if cpu is None
        else decode_cpu_state(cpu.decode(errors="replace"), pod_level=pod_level, initial={}, newer=True),
        memory=None
        if memory is None
        else decode_memory_state(memory.decode(errors="replace"), pod_level=pod_level, newer=True),
    )
