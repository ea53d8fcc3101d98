"""Whether one of kubelet's files says what nodeagent's own state says, as far as that version of the file can say it."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.resources.devices.holdings import HeldDevice, pods_with_devices
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.formats.checkpoint.checkpoint_versions import DEVICES, OWN, Checkpoint, CheckpointError

_POD_LEVEL = frozenset({"cpu-v3", "cpu-v4", "memory-v2", "memory-v3"})
"""The versions that know what pods have as a whole."""


class Disagreement(Struct, frozen=True, order=True):
    """Something that is not the same in both. Empty: that one says nothing of it."""

    pod: str
    """UID. Empty: it is about the node."""
    container: str
    """Empty: it is about the pod as a whole, or about the node."""
    what: str
    file: str
    state: str


_Key = tuple[str, str, str]
_Said = tuple[str, Any]
"""What is printed, and what is compared."""


def check_state(state: Checkpoint) -> None:
    """Raises CheckpointError if it isn't an intact state of a node."""
    if state.version != OWN or state.problem is not None:
        why = state.problem or f"it is a file of version {state.version}, and not the node's state"
        raise CheckpointError(why, hint="give `--state` nodeagent_state of the same directory")


def disagreements(file: Checkpoint, state: Checkpoint) -> tuple[Disagreement, ...]:
    """Compare a file with the node's state. What plugins have answered is compared, too, but not printed.

    Raises:
        CheckpointError: it can't be compared.
    """
    if file.version == OWN:
        raise CheckpointError(
            "it is the node's state itself",
            hint="compare another file with it: `nodeagent checkpoint verify cpu_manager_state --state nodeagent_state`",
        )
    if file.version == "cpu-v1":
        raise CheckpointError(
            "version cpu-v1 knows containers by their ids only",
            hint="convert it first: `nodeagent checkpoint convert FILE --to cpu-v2 --containers IDS`",
        )
    in_file, in_state = (dict(_said(one, [*file.policies], file.version)) for one in (file, state))
    nothing: _Said = ("", None)
    return tuple(
        Disagreement(*key, in_file.get(key, nothing)[0], in_state.get(key, nothing)[0])
        for key in sorted(in_file.keys() | in_state.keys())
        if in_file.get(key) != in_state.get(key)
    )


def _said(of: Checkpoint, policies: list[str], version: str) -> Iterator[tuple[_Key, _Said]]:
    for name in policies:
        yield ("", "", name), _text(of.policies.get(name, ""))
    if version == DEVICES:
        yield from _devices(of.promises)
    elif version.startswith("cpu"):
        yield from _cpus(of.promises, pod_level=version in _POD_LEVEL)
    else:
        yield from _memory(of.promises, pod_level=version in _POD_LEVEL)


def _text(text: str) -> _Said:
    return text, text


def _cpus(promises: Promises, *, pod_level: bool) -> Iterator[tuple[_Key, _Said]]:
    yield ("", "", "defaultCpuSet"), _text(str(default_set(promises)))
    for uid, pod in promises.pods:
        held = pod.of(CpuHoldings)
        for name, cpus in held.cpus:
            yield (uid, name, "cpus"), _text(str(cpus))
        if pod_level and held.pod_cpus is not None:
            yield (uid, "", "cpus"), _text(str(held.pod_cpus))


def _memory(promises: Promises, *, pod_level: bool) -> Iterator[tuple[_Key, _Said]]:
    for node in memory_accounts(promises):
        yield ("", "", f"NUMA node {node.id}"), _text(f"{node.assignments} assignments, with {node.cells}")
        for resource, t in node.tables:
            said = f"total {t.total}, reserved for the system {t.system_reserved}, promised {t.reserved}"
            yield ("", "", f"NUMA node {node.id}, {resource}"), _text(f"{said}, free {max(t.free, 0)}")
    for uid, pod in promises.pods:
        own = pod.of(MemoryHoldings)
        for name, blocks in own.memory:
            yield (uid, name, "memory"), _text(_blocks(blocks))
        if pod_level and own.pod_memory is not None:
            yield (uid, "", "memory"), _text(_blocks(own.pod_memory))


def _blocks(blocks: Blocks) -> str:
    return ", ".join(f"{b.resource} {b.size_bytes} on {b.nodes}" for b in blocks)


def _devices(promises: Promises) -> Iterator[tuple[_Key, _Said]]:
    for uid, pod in pods_with_devices(promises):
        for name, devices in pod.devices:
            of_the_manager = [device for device in devices if not device.claim]  # as encode_devices writes them
            for resource in sorted({device.resource for device in of_the_manager}):
                own = [device for device in of_the_manager if device.resource == resource]
                yield (uid, name, resource), _text(", ".join(sorted(map(_device, own))))
                if answer := pod.answer_of(name, resource):
                    yield (uid, name, f"answer of {resource}'s plugin"), (f"{len(answer)} bytes", answer)


def _device(device: HeldDevice) -> str:
    return f"{device.id} on {device.nodes}" if device.nodes else device.id
