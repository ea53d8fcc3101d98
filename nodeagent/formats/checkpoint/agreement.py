"""Comparison of one of kubelet's files with nodeagent's state, limited to the values that the version of the file can express."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.resources.devices.holdings import pods_with_devices
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.formats.checkpoint.checkpoint_versions import DEVICES, OWN, Checkpoint, CheckpointError

_POD_LEVEL = frozenset({"cpu-v3", "cpu-v4", "memory-v2", "memory-v3"})
"""File versions that contain pod-level resources."""


class Disagreement(Struct, frozen=True, order=True):
    """A value that differs between kubelet's file and nodeagent's state. An empty text means that the value is missing from the file or the
    state.
    """

    pod: str
    """UID of the pod. Empty if the value belongs to the node."""
    container: str
    """Name of the container. Empty if the value belongs to the whole pod or to the node."""
    what: str
    file: str
    state: str


_Key = tuple[str, str, str]
_Value = tuple[str, Any]
"""A value in two forms: as text for users, and as the object to compare."""


def check_state(state: Checkpoint) -> None:
    """Check that a checkpoint is an undamaged state of a node.

    Raises:
        CheckpointError: the file is damaged or not a node's state.
    """
    if state.version != OWN or state.problem is not None:
        why = state.problem or f"it is a file of version {state.version}, not the node's state"
        raise CheckpointError(why, hint="give --state the file nodeagent_state of the same directory")


def find_disagreements(file: Checkpoint, state: Checkpoint) -> tuple[Disagreement, ...]:
    """Compare a file of kubelet with the node's state. For different answers of device plugins, the result contains the lengths, not the
    contents.

    Raises:
        CheckpointError: the file can't be compared.
    """
    if file.version == OWN:
        raise CheckpointError(
            "this file is the node's own state",
            hint="compare another file with the state: `nodeagent checkpoint verify cpu_manager_state --state nodeagent_state`",
        )
    if file.version == "cpu-v1":
        raise CheckpointError(
            "version cpu-v1 identifies containers only by ID",
            hint="convert it first: `nodeagent checkpoint convert FILE --to cpu-v2 --containers IDS`",
        )
    in_file, in_state = (dict(_list_values(each, [*file.policies], file.version)) for each in (file, state))
    nothing: _Value = ("", None)
    return tuple(
        Disagreement(*key, in_file.get(key, nothing)[0], in_state.get(key, nothing)[0])
        for key in sorted(in_file.keys() | in_state.keys())
        if in_file.get(key) != in_state.get(key)
    )


def _list_values(checkpoint: Checkpoint, policies: list[str], version: str) -> Iterator[tuple[_Key, _Value]]:
    for name in policies:
        yield ("", "", name), _plain_value(checkpoint.policies.get(name, ""))
    if version == DEVICES:
        yield from _list_device_values(checkpoint.promises)
    elif version.startswith("cpu"):
        yield from _list_cpu_values(checkpoint.promises, pod_level=version in _POD_LEVEL)
    else:
        yield from _list_memory_values(checkpoint.promises, pod_level=version in _POD_LEVEL)


def _plain_value(text: str) -> _Value:
    return text, text


def _list_cpu_values(promises: Promises, *, pod_level: bool) -> Iterator[tuple[_Key, _Value]]:
    yield ("", "", "defaultCpuSet"), _plain_value(str(default_set(promises)))
    for uid, pod in promises.pods:
        held = pod.of(CpuHoldings)
        for name, cpus in held.cpus:
            yield (uid, name, "cpus"), _plain_value(str(cpus))
        if pod_level and held.pod_cpus is not None:
            yield (uid, "", "cpus"), _plain_value(str(held.pod_cpus))


def _list_memory_values(promises: Promises, *, pod_level: bool) -> Iterator[tuple[_Key, _Value]]:
    for node in memory_accounts(promises):
        yield ("", "", f"NUMA node {node.id}"), _plain_value(f"{node.assignments} assignments, with {node.cells}")
        for resource, t in node.tables:
            amounts = f"total {t.total}, reserved for the system {t.system_reserved}, allocated {t.reserved}"
            yield ("", "", f"NUMA node {node.id}, {resource}"), _plain_value(f"{amounts}, free {max(t.free, 0)}")
    for uid, pod in promises.pods:
        own = pod.of(MemoryHoldings)
        for name, blocks in own.memory:
            yield (uid, name, "memory"), _plain_value(_format_blocks(blocks))
        if pod_level and own.pod_memory is not None:
            yield (uid, "", "memory"), _plain_value(_format_blocks(own.pod_memory))


def _format_blocks(blocks: Blocks) -> str:
    return ", ".join(f"{b.resource} {b.size_bytes} on {b.nodes}" for b in blocks)


def _list_device_values(promises: Promises) -> Iterator[tuple[_Key, _Value]]:
    for uid, pod in pods_with_devices(promises):
        for name, devices in pod.devices:
            # kubelet's file doesn't contain the devices of claims.
            of_the_manager = [device for device in devices if not device.claim]
            for resource in sorted({device.resource for device in of_the_manager}):
                own = [device for device in of_the_manager if device.resource == resource]
                ids = sorted(f"{device.id} on {device.nodes}" if device.nodes else device.id for device in own)
                yield (uid, name, resource), _plain_value(", ".join(ids))
                if answer := pod.answer_of(name, resource):
                    yield (uid, name, f"answer of {resource}'s plugin"), (f"{len(answer)} bytes", answer)
