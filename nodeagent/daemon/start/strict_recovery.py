"""What was promised before a start, with `stateRecovery: strict`: the saved state, or kubelet's own files; what doesn't fit is refused.

Apart from daemon/start/startup.py, because commands that only read a node don't need it.
"""

from pathlib import Path

from msgspec.structs import replace

from nodeagent.core.admission.managers import start, sweep
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.records import Records
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
from nodeagent.daemon.turn.claim_statuses import recorded_claims
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state
from nodeagent.formats.checkpoint.node_state import MAX_BYTES, NodeStateError, decode_state, policies_of


def load_state(node: NodeSetup, manifests: tuple[Manifest, ...], now_ms: int) -> NodeState:
    """Find the promises that were made: in the truth file, else in kubelet's files (a node taken over), else none yet.

    This is `stateRecovery: strict`, kubelet's way: what does not fit is refused. The other way is daemon/start/recovery.py.

    Args:
        node: as discovered.
        manifests: the current pods; kubelet's promises to other pods are released.
        now_ms: wall clock.

    Raises:
        StartError: the file is damaged, or has promises that this machine and configuration cannot keep.
    """
    path = str(Path(node.config.state_directory) / STATE_FILE)
    way_out = (
        "set stateRecovery to recover, which rebuilds promises from running pods; "
        f"or drain the node: `systemctl stop nodeagent-pods`, move {path} away, `systemctl start nodeagent`"
    )
    content = read_file(path, MAX_BYTES)
    if content is None:
        return _imported(node, manifests, now_ms)
    try:
        saved = decode_state(content)
    except NodeStateError as err:
        hint = "install the nodeagent that wrote it, or " + way_out if err.is_newer else way_out
        raise StartError(f"cannot use {path}: {err}", hint=hint) from err
    for field, policy in policies_of(node.config.placement).items():
        before = saved.policies.get(field)
        if before != policy:
            raise StartError(
                f'{path} was written under {field} "{before}", the configuration says "{policy}"',
                hint=f"set {field} back to {before} (`nodeagent config show` prints every field), or {way_out}",
            )
    broken = "; ".join(violation.text for violation in violations(node.managers, saved.state))
    if broken:
        raise StartError(f"{path} does not fit this machine and configuration: {broken}", hint=way_out)
    return saved.state


def _imported(node: NodeSetup, manifests: tuple[Manifest, ...], now_ms: int) -> NodeState:
    """Take over what kubelet promised on this node (D3), or start with nothing."""
    directory = Path(node.config.state_directory)
    cpu = read_file(str(directory / CPU_CHECKPOINT), MAX_CHECKPOINT_BYTES)
    memory = read_file(str(directory / MEMORY_CHECKPOINT), MAX_CHECKPOINT_BYTES)
    promises = start(node.managers, decoded_records(node, cpu, memory))
    if isinstance(promises, StartRefused):
        raise StartError(
            promises.message,
            hint=f"{directory / promises.about} does not fit this node and configuration: move it away, then `systemctl start nodeagent`",
        )
    kept = tuple(m for m in manifests if not promises.of_pod(m.pod.uid).is_nothing)
    promises, _ = sweep(node.managers, promises, tuple(m.pod for m in kept))
    promises = _with_devices(promises, kept, merge_records(_recorded_devices(directory), recorded_claims(node.config)))
    gate = node.config.placement.gate("PodLevelResources")
    return NodeState(promises, tuple(new_entry(m, now_ms, pod_level_resources=gate) for m in kept))


def _recorded_devices(directory: Path) -> dict[str, PodPromises]:
    path = str(directory / DEVICE_CHECKPOINT)
    found = decoded_devices(read_file(path, MAX_CHECKPOINT_BYTES))
    if isinstance(found, Unreadable):
        raise StartError(f"cannot use {path}: {found.message}", hint="move it away, then `systemctl start nodeagent`")
    return found


def _with_devices(promises: Promises, kept: tuple[Manifest, ...], records: dict[str, UnrecoveredPod]) -> Promises:
    """Give back to each pod what it has by records; what others have stays theirs until it is known whether they run."""
    for manifest in kept:
        pod = manifest.pod
        if pod.uid in records:
            promises = give_back(promises, pod, records.pop(pod.uid).held)
    return replace(promises, unrecovered=tuple(records.values()))


def decoded_devices(content: bytes | None) -> dict[str, PodPromises] | Unreadable:
    """Read kubelet's file of devices: who has which, neither their kinds nor their names."""
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


def decoded_records(node: NodeSetup, cpu: bytes | None, memory: bytes | None) -> Records:
    """Read kubelet's two files, of whatever version."""
    pod_level = node.config.placement.gate("PodLevelResourceManagers")
    return Records(
        cpu=None
        if cpu is None
        else decode_cpu_state(cpu.decode(errors="replace"), pod_level=pod_level, initial={}, newer=True),
        memory=None
        if memory is None
        else decode_memory_state(memory.decode(errors="replace"), pod_level=pod_level, newer=True),
    )
