"""Reader and converter of all versions of kubelet's checkpoint files and of nodeagent's state.

This module is stricter than kubelet, which accepts some files without checksums.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.config import CPU_MANAGER_POLICIES, MEMORY_MANAGER_POLICIES
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set, exclusive_sets
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import Blocks, MemoryBooks, MemoryHoldings, memory_accounts
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.cpu_checkpoint import (
    CpuContents,
    decode_cpu_state,
    encode_cpu_state,
    encode_cpu_state_1,
    read_cpu_contents,
)
from nodeagent.formats.checkpoint.memory_checkpoint import (
    decode_memory_state,
    encode_memory_state,
    read_memory_contents,
)
from nodeagent.formats.checkpoint.node_state import FORMAT, NodeStateError, SavedState, decode_state, public_document
from nodeagent.formats.syntax.go_json import GoJsonError, OldFormatError, decode_json, fields, keys_of
from nodeagent.formats.syntax.json_values import MisfitError, parse_json

WRITABLE = ("cpu-v1", "cpu-v2", "cpu-v3", "memory-v1", "memory-v2")
NEWER = ("cpu-v4", "memory-v3")
"""Versions that only kubelet 1.37 writes. nodeagent reads these versions, but doesn't write them."""
DEVICES = "devices-v2"
"""Version of the device manager's file since kubelet 1.20, with NUMA nodes. nodeagent reads this version, but doesn't write it."""
OWN = "nodeagent-v1"
_DOCUMENT_VERSION = 1

Document = dict[str, Any]
Containers = Mapping[str, tuple[str, str]]
"""Pod UID and container name by container ID."""

_OF_DEVICES = frozenset({"poddeviceentries", "registereddevices"})
_HINT = (
    "`nodeagent checkpoint --help` lists the supported files; a damaged state is rebuilt from running pods: "
    "`systemctl restart nodeagent`; if kubelet wrote the file, drain the node, delete the file and restart kubelet"
)


class CheckpointError(NodeAgentError):
    """A text is not a checkpoint, is damaged, or can't be expressed in the requested version."""


class Checkpoint(Struct, frozen=True):
    """Decoded content of a checkpoint file."""

    version: str
    checksum: str
    """Checksum as stored in the file."""
    policies: Mapping[str, str]
    """Names of the managers' policies by configuration field."""
    promises: Promises
    by_id: Mapping[str, CpuSet] = field(default_factory=dict)
    """CPU sets by container ID. Only version 1 of cpu_manager_state has them."""
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """IDs of healthy devices by resource. Only the device manager's file has them."""
    saved: SavedState | None = None
    """Content of `nodeagent_state`. None means that the file is kubelet's."""
    problem: str | None = None
    """Reason why the file must not be used, such as a wrong checksum. None means that the file is intact."""
    note: str | None = None


def read_checkpoint(content: bytes) -> Checkpoint:
    """Decode a checkpoint file of any version.

    Raises:
        CheckpointError: the content is not a checkpoint, or is too damaged to be read.
    """
    if not content.strip():
        raise CheckpointError("it is empty", hint=_HINT)
    if content.startswith(b"{") and f'"{FORMAT}"'.encode() in content.partition(b"\n")[0]:
        return _decode_node_state(content)
    try:
        text = content.decode()
        document = decode_json(text)
        names = keys_of(document)
        later = fields(document, ("data", "dataChecksum")) if names else {}
        if (names | keys_of(later.get("data"))) & _OF_DEVICES:
            return _decode_devices(document)
        if any(later.values()):
            return _decode_version_of_1_37(text, str(later["dataChecksum"]), is_memory="machinestate" in names)
        # In kubelet, a missing part counts as empty. If both parts are missing, only the name of the policy
        # identifies the manager that wrote the file.
        policy = fields(document, ("policyName",))["policyName"] if names else None
        if "machinestate" in names or ("defaultcpuset" not in names and policy in MEMORY_MANAGER_POLICIES):
            return _decode_memory(text)
        if "defaultcpuset" in names or policy in CPU_MANAGER_POLICIES:
            return _decode_cpus(read_cpu_contents(text))
    except UnicodeDecodeError as err:
        raise CheckpointError(f"it is not text: byte {err.start} is {content[err.start]:#04x}", hint=_HINT) from err
    except OldFormatError as err:
        raise CheckpointError(str(err), hint=err.hint) from err
    except GoJsonError as err:
        raise CheckpointError(f"kubelet cannot read it: {err}", hint=_HINT) from err
    raise CheckpointError(
        "defaultCpuSet, machineState, PodDeviceEntries and the name of a policy are all missing",
        hint="`nodeagent checkpoint --help` lists the supported files",
    )


# Functions for files of the CPU manager


def _decode_cpus(contents: CpuContents) -> Checkpoint:
    fitting = [version for version, checksum in contents.sums.items() if checksum == contents.checksum]
    shape = "1" if contents.containers else "3" if contents.pods else "2"
    name = fitting[0] if fitting else shape
    problem, note = _check_checksum(contents.checksum, contents.sums.get(shape), fitting, is_strict=shape == "3")
    pods: PodMap[PodPromises] = PodMap()
    for uid, sets in contents.entries.items():
        own = tuple(sorted((c, _parse_cpu_set(text, f"pod {uid}, container {c}")) for c, text in sets.items()))
        pods = pods.put(uid, NOTHING.having(CpuHoldings(own)))
    for uid, cpus in contents.pods.items():
        held = pods.get(uid) or NOTHING
        pods = pods.put(uid, held.having(replace(held.of(CpuHoldings), pod_cpus=cpus)))
    return Checkpoint(
        version=f"cpu-v{name[0]}",
        checksum=str(contents.checksum),
        policies={"cpuManagerPolicy": contents.policy},
        promises=Promises(pods=pods).having(CpuBooks(_parse_cpu_set(contents.default, "defaultCpuSet"))),
        by_id={
            container: _parse_cpu_set(text, f"container {container}") for container, text in contents.containers.items()
        },
        problem=problem,
        note=_describe_variant(name) or note,
    )


def _parse_cpu_set(text: str, where: str) -> CpuSet:
    try:
        return CpuSet.parse(text)
    except IdSetSyntaxError as err:
        raise CheckpointError(f"{where}: '{text}' is not a set of CPUs such as 0-3,8", hint=_HINT) from err


def _describe_variant(name: str) -> str | None:
    return f"its checksum belongs to version {name}" if name[1:] else None


def _check_checksum(
    stored: int, expected: int | None, fitting: list[str], *, is_strict: bool
) -> tuple[str | None, str | None]:
    if fitting:
        return None, None
    if stored == 0 and not is_strict:
        return None, "it has no checksum, so kubelet accepts it unchecked"
    return f"the checksum is {stored}, but its content has {expected}: the file was damaged or edited", None


# Functions for files of the memory manager


def _decode_memory(text: str) -> Checkpoint:
    contents = read_memory_contents(decode_json(text))
    record = contents.record()
    if isinstance(record, Unreadable):
        raise CheckpointError("a NUMA node in machineState or one of its resources is null", hint=_HINT)
    fitting = [version for version, checksum in contents.sums.items() if checksum == contents.checksum]
    shape = "2" if contents.pods else "1"
    name = fitting[0] if fitting else shape
    problem, note = _check_checksum(contents.checksum, contents.sums.get(shape), fitting, is_strict=shape == "2")
    return Checkpoint(
        version=f"memory-v{name[0]}",
        checksum=str(contents.checksum),
        policies={"memoryManagerPolicy": contents.policy},
        promises=_build_memory_promises(record),
        problem=problem,
        note=_describe_variant(name) or note,
    )


def _build_memory_promises(record: MemoryRecord) -> Promises:
    pods: PodMap[PodPromises] = PodMap()
    for uid, blocks in record.entries:
        pods = pods.put(uid, NOTHING.having(MemoryHoldings(memory=blocks)))
    for uid, whole in record.pod_entries:
        held = pods.get(uid) or NOTHING
        pods = pods.put(uid, held.having(replace(held.of(MemoryHoldings), pod_memory=whole)))
    return Promises(pods=pods).having(MemoryBooks(nodes=record.machine))


# Functions for files of the device manager


def _decode_devices(document: Any) -> Checkpoint:
    from nodeagent.formats.checkpoint.device_checkpoint import (  # noqa: PLC0415 - few nodes have devices
        read_device_contents,
    )

    contents = read_device_contents(document)
    pods: PodMap[PodPromises] = PodMap()
    for uid, held in contents.pods().items():
        pods = pods.put(uid, held)
    fitting = [DEVICES] if contents.checksum == contents.sum else []
    problem, _ = _check_checksum(contents.checksum, contents.sum, fitting, is_strict=True)
    return Checkpoint(
        version=DEVICES,
        checksum=str(contents.checksum),
        policies={},
        promises=Promises(pods=pods),
        registered=contents.registered,
        problem=problem,
    )


# Functions for files of kubelet 1.37 and of nodeagent


def _decode_version_of_1_37(text: str, checksum: str, *, is_memory: bool) -> Checkpoint:
    if is_memory:
        record = decode_memory_state(text, pod_level=True, newer=True)
        if isinstance(record, Unreadable):
            raise CheckpointError(record.message, hint=_HINT)
        policies = {"memoryManagerPolicy": record.policy_name}
        return Checkpoint("memory-v3", checksum, policies, _build_memory_promises(record))
    cpu = decode_cpu_state(text, pod_level=True, initial={}, newer=True)
    if isinstance(cpu, Unreadable):
        raise CheckpointError(cpu.message, hint=_HINT)
    entries = {uid: dict(sets) for uid, sets in cpu.entries}
    contents = CpuContents(cpu.policy_name, cpu.default, entries, {}, dict(cpu.pod_entries), 0)
    return replace(_decode_cpus(contents), version="cpu-v4", checksum=checksum, problem=None, note=None)


def _decode_node_state(content: bytes) -> Checkpoint:
    problem = None
    try:
        saved = decode_state(content)
    except NodeStateError as err:
        problem = str(err)
        try:
            saved = decode_state(content, judge=False)
        except NodeStateError:
            raise CheckpointError(problem, hint=err.hint) from err
    try:
        digest = parse_json(content.partition(b"\n")[0]).field("sha256").text()
    except MisfitError:
        digest = ""
    return Checkpoint(OWN, digest, dict(saved.policies), saved.state.promises, saved=saved, problem=problem)


# Functions that convert a file to another version


def convert_checkpoint(checkpoint: Checkpoint, to: str, containers: Containers, *, lossy: bool) -> bytes:
    """Convert a checkpoint to another version, which must be in WRITABLE. `containers` maps container IDs to pod and container, and is
    needed only for conversions from or to version 1 of the CPU file. With `lossy`, values that the new version can't express are left out.

    Raises:
        CheckpointError: the checkpoint is damaged, or the version can't express it.
    """
    if checkpoint.problem is not None:
        raise CheckpointError(
            checkpoint.problem,
            hint="only an intact file can be converted; `nodeagent checkpoint show` prints this one's content",
        )
    about, _ = to.split("-v")
    policy = checkpoint.policies.get(f"{about}ManagerPolicy")
    if policy is None:
        raise CheckpointError(
            f"a file of version {checkpoint.version} has no content for {to}",
            hint=f"give {about}_manager_state or nodeagent_state, as in `nodeagent checkpoint convert nodeagent_state --to {to}`",
        )
    promises = _assign_owners(checkpoint, containers) if to != "cpu-v1" else checkpoint.promises
    is_memory = about == "memory"
    pods = [
        uid
        for uid, pod in promises.pods
        if (pod.of(MemoryHoldings).pod_memory if is_memory else pod.of(CpuHoldings).pod_cpus) is not None
    ]
    pod_level = to in {"cpu-v3", "memory-v2"}
    if pods and not pod_level and not lossy:
        more = f" and {len(pods) - 1} more" if pods[1:] else ""
        raise CheckpointError(
            f"{to} can't express the pod-level resources of pod {pods[0]}{more}, as {checkpoint.version} does",
            hint="use --lossy to leave them out, or convert to cpu-v3 or memory-v2",
        )
    if is_memory:
        if any(table.free < 0 for node in memory_accounts(promises) for _, table in node.tables) and not lossy:
            raise CheckpointError(
                "more memory is allocated than a NUMA node has, which kubelet's file can't express",
                hint="with --lossy, the free memory is written as 0",
            )
        return encode_memory_state(policy, promises, pod_level=pod_level).encode()
    if to == "cpu-v1":
        by_id = checkpoint.by_id or _find_sets_by_id(promises, containers)
        sets = {container: str(cpus) for container, cpus in by_id.items()}
        return encode_cpu_state_1(policy, str(default_set(promises)), sets).encode()
    return encode_cpu_state(policy, promises, pod_level=pod_level).encode()


_IDS_HINT = 'give --containers FILE with {"CONTAINER_ID": ["POD_UID", "CONTAINER"], …}: version 1 identifies containers only by ID'


def _assign_owners(checkpoint: Checkpoint, containers: Containers) -> Promises:
    """Return the allocations by pod and container. CPU sets that are stored by container ID are assigned to their containers."""
    pods = checkpoint.promises.pods
    for each, cpus in checkpoint.by_id.items():
        if each not in containers:
            raise CheckpointError(f"the pod and container of {each} are unknown", hint=_IDS_HINT)
        uid, name = containers[each]
        held = pods.get(uid) or NOTHING
        own = held.of(CpuHoldings)
        if any(name == other for other, _ in own.cpus):
            raise CheckpointError(f"container {name} of pod {uid} has two IDs", hint=_IDS_HINT)
        pods = pods.put(uid, held.having(replace(own, cpus=tuple(sorted((*own.cpus, (name, cpus)))))))
    return replace(checkpoint.promises, pods=pods)


def _find_sets_by_id(promises: Promises, containers: Containers) -> dict[str, CpuSet]:
    ids = {owner: each for each, owner in containers.items()}
    found = {}
    for uid, name, cpus in exclusive_sets(promises):
        if (uid, name) not in ids:
            raise CheckpointError(f"the ID of container {name} of pod {uid} is unknown", hint=_IDS_HINT)
        found[ids[uid, name]] = cpus
    return found


# Functions that make documents of files


def checkpoint_document(checkpoint: Checkpoint) -> Document:
    """Convert a checkpoint to JSON values, with field names that stay the same in later releases."""
    promises = checkpoint.promises
    document: Document = {
        "kind": "Checkpoint",
        "version": _DOCUMENT_VERSION,
        "format": checkpoint.version,
        "checksum": checkpoint.checksum,
        "note": checkpoint.note,
        "policies": dict(checkpoint.policies),
        "problem": checkpoint.problem,
        "whole": checkpoint.problem is None,
    }
    if checkpoint.saved is not None:
        return document | {"state": public_document(checkpoint.saved.state, checkpoint.saved.policies)}
    if checkpoint.version == DEVICES:
        document["registeredDevices"] = {resource: list(ids) for resource, ids in sorted(checkpoint.registered.items())}
    elif checkpoint.version.startswith("cpu"):
        document["defaultCpuSet"] = str(default_set(promises))
        document["containerIds"] = {each: str(cpus) for each, cpus in sorted(checkpoint.by_id.items())}
    else:
        document["machineState"] = [
            {
                "assignments": node.assignments,
                "cells": str(node.cells),
                "id": node.id,
                "resources": {
                    name: {
                        "allocatable": t.allocatable,
                        "free": t.free,
                        "reserved": t.reserved,
                        "systemReserved": t.system_reserved,
                        "total": t.total,
                    }
                    for name, t in node.tables
                },
            }
            for node in memory_accounts(promises)
        ]
    document["pods"] = {uid: _format_pod(pod) for uid, pod in promises.pods}
    return document


def _format_pod(pod: PodPromises) -> Document:
    cpus, memory, devices = pod.of(CpuHoldings), pod.of(MemoryHoldings), pod.of(DeviceHoldings)
    containers: dict[str, Document] = {}
    for name in pod.holders:
        container = containers[name] = {}
        if (own := cpus.own_set(name)) is not None:
            container["cpus"] = str(own)
        if (blocks := memory.blocks(name)) is not None:
            container["memory"] = _format_blocks(blocks)
        if held := devices.devices_of(name):
            container["devices"] = [{"id": d.id, "nodes": str(d.nodes), "resource": d.resource} for d in held]
    document: Document = {"containers": containers}
    if cpus.pod_cpus is not None:
        document["podCpus"] = str(cpus.pod_cpus)
    if memory.pod_memory is not None:
        document["podMemory"] = _format_blocks(memory.pod_memory)
    return document


def _format_blocks(blocks: Blocks) -> list[Document]:
    return [{"bytes": b.size_bytes, "nodes": str(b.nodes), "resource": b.resource} for b in blocks]
