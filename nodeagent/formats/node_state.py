"""`nodeagent_state`, the one file that is the truth: NodeState ↔ bytes.

Two lines: a header with version and SHA-256 of the second line, and the state as JSON with sorted keys. Equal states are equal bytes.
Knows no file system. A reader of version N refuses higher versions by name and reads all lower ones.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.core.config import Placement
from nodeagent.core.idset import CpuSet, NumaSet
from nodeagent.core.pod import QosClass
from nodeagent.core.podmap import PodMap
from nodeagent.core.promises import (
    Block,
    Blocks,
    CpuReuse,
    Hint,
    MemoryNode,
    MemoryReuse,
    MemoryTable,
    PodPromises,
    Promises,
)
from nodeagent.core.state import ContainerStatus, Exit, NodeState, Phase, PodEntry, Refusal
from nodeagent.formats.pod_fields import pod_to_document
from nodeagent.formats.pod_manifest import pod_from_document

VERSION = 1
FORMAT = "nodeagent_state"
MAX_BYTES = 256 * 2**20

Document = dict[str, Any]


class NodeStateError(ValueError):
    """The bytes are no state that this version can read. `is_newer`: a later version wrote them."""

    def __init__(self, message: str, *, is_newer: bool = False) -> None:
        super().__init__(message)
        self.is_newer = is_newer


@dataclass(frozen=True, slots=True)
class SavedState:
    state: NodeState
    policies: Mapping[str, str]
    """The policies under which the promises were made, by configuration field."""


def policies_of(placement: Placement) -> dict[str, str]:
    """Name the policies that a saved state depends on."""
    return {"cpuManagerPolicy": placement.cpu_manager_policy, "memoryManagerPolicy": placement.memory_manager_policy}


def encode_state(state: NodeState, policies: Mapping[str, str]) -> bytes:
    body = _json(state_document(state, policies))
    header = _json({"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(body).hexdigest()})
    return header + b"\n" + body + b"\n"


def state_document(state: NodeState, policies: Mapping[str, str]) -> Document:
    """Give the state as JSON values: the file's second line, and what the local API answers."""
    return {
        "generation": state.generation,
        "policies": dict(policies),
        "promises": _promises_document(state.promises),
        "entries": [_entry_document(entry) for entry in state.entries],
    }


def decode_state(content: bytes) -> SavedState:
    """Read a state file.

    Raises:
        NodeStateError: truncated, damaged, of a later version, or not a state file.

    """
    head, _, rest = content.partition(b"\n")
    try:
        header = json.loads(head)
        version, digest = header["version"], header["sha256"]
        is_ours = header["format"] == FORMAT and isinstance(version, int)
    except (ValueError, TypeError, KeyError) as err:
        raise NodeStateError(f"the first line is no {FORMAT} header") from err
    if not is_ours:
        raise NodeStateError(f"the first line is no {FORMAT} header")
    if version > VERSION:
        raise NodeStateError(
            f"version {version} was written by a later nodeagent; this one reads up to {VERSION}", is_newer=True
        )
    body = rest.removesuffix(b"\n")
    if hashlib.sha256(body).hexdigest() != digest:
        raise NodeStateError("the checksum does not match: the file is truncated or damaged")
    try:
        return state_from_document(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as err:
        raise NodeStateError(f"the checksum matches but the content does not fit: {type(err).__name__}: {err}") from err


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def state_from_document(document: Document) -> SavedState:
    """Read what `state_document` gave; raises what a document of another shape makes it raise."""
    state = NodeState(
        promises=_promises(document["promises"]),
        entries=tuple(_entry(e) for e in document["entries"]),
        generation=document["generation"],
    )
    return SavedState(state, document["policies"])


def _promises_document(promises: Promises) -> Document:
    document: Document = {
        "default": str(promises.default),
        "pods": {uid: _pod_document(pod) for uid, pod in promises.pods},
    }
    if promises.memory:
        document["memory"] = [_memory_node_document(node) for node in promises.memory]
    if promises.cpu_reuse is not None:
        document["cpuReuse"] = {"pod": promises.cpu_reuse.pod_uid, "cpus": str(promises.cpu_reuse.cpus)}
    if promises.memory_reuse is not None:
        amounts = [[str(nodes), resource, size] for (nodes, resource), size in promises.memory_reuse.amounts]
        document["memoryReuse"] = {"pod": promises.memory_reuse.pod_uid, "amounts": amounts}
    return document


def _promises(document: Document) -> Promises:
    cpu, memory = document.get("cpuReuse"), document.get("memoryReuse")
    pods: PodMap[PodPromises] = PodMap()
    for uid, pod in document["pods"].items():
        pods = pods.put(uid, _pod(pod))
    return Promises(
        default=CpuSet.parse(document["default"]),
        pods=pods,
        memory=tuple(_memory_node(node) for node in document.get("memory", ())),
        cpu_reuse=CpuReuse(cpu["pod"], CpuSet.parse(cpu["cpus"])) if cpu else None,
        memory_reuse=MemoryReuse(memory["pod"], tuple(((NumaSet.parse(n), r), s) for n, r, s in memory["amounts"]))
        if memory
        else None,
    )


def _pod_document(pod: PodPromises) -> Document:
    document: Document = {
        "cpus": {name: str(cpus) for name, cpus in pod.cpus},
        "memory": {name: _blocks_document(blocks) for name, blocks in pod.memory},
        "hints": {name: [None if h.mask is None else str(h.mask), h.preferred] for name, h in pod.hints},
    }
    if pod.pod_cpus is not None:
        document["podCpus"] = str(pod.pod_cpus)
    if pod.pod_memory is not None:
        document["podMemory"] = _blocks_document(pod.pod_memory)
    return {key: value for key, value in document.items() if value != {}}


def _pod(document: Document) -> PodPromises:
    pod_cpus, pod_memory = document.get("podCpus"), document.get("podMemory")
    return PodPromises(
        cpus=tuple((name, CpuSet.parse(cpus)) for name, cpus in document.get("cpus", {}).items()),
        pod_cpus=None if pod_cpus is None else CpuSet.parse(pod_cpus),
        memory=tuple((name, _blocks(blocks)) for name, blocks in document.get("memory", {}).items()),
        pod_memory=None if pod_memory is None else _blocks(pod_memory),
        hints=tuple(
            (name, Hint(None if m is None else NumaSet.parse(m), p))
            for name, (m, p) in document.get("hints", {}).items()
        ),
    )


def _blocks_document(blocks: Blocks) -> list[list[str | int]]:
    return [[str(b.nodes), b.resource, b.size_bytes] for b in blocks]


def _blocks(items: list[list[Any]]) -> Blocks:
    return tuple(Block(NumaSet.parse(nodes), resource, size) for nodes, resource, size in items)


def _memory_node_document(node: MemoryNode) -> Document:
    tables = {r: [t.total, t.system_reserved, t.allocatable, t.reserved, t.free] for r, t in node.tables}
    return {"id": node.id, "assignments": node.assignments, "cells": str(node.cells), "tables": tables}


def _memory_node(document: Document) -> MemoryNode:
    tables = tuple((resource, MemoryTable(*amounts)) for resource, amounts in document["tables"].items())
    return MemoryNode(document["id"], document["assignments"], NumaSet.parse(document["cells"]), tables)


def _entry_document(entry: PodEntry) -> Document:
    document: Document = {
        "pod": pod_to_document(entry.pod),
        "qos": entry.qos.value,
        "source": entry.source,
        "decidedAtMs": entry.decided_at_ms,
        "containers": [_status_document(status) for status in entry.containers],
        "deletingSinceMs": entry.deleting_since_ms,
        "outcome": entry.outcome.value if entry.outcome else None,
    }
    if entry.refusal is not None:
        document["refusal"] = [entry.refusal.reason, entry.refusal.message, entry.refusal.at_ms]
    return {key: value for key, value in document.items() if value is not None}


def _entry(document: Document) -> PodEntry:
    refusal, outcome = document.get("refusal"), document.get("outcome")
    return PodEntry(
        pod=pod_from_document(document["pod"]),
        qos=QosClass(document["qos"]),
        source=document["source"],
        decided_at_ms=document["decidedAtMs"],
        refusal=None if refusal is None else Refusal(*refusal),
        containers=tuple(_status(c) for c in document["containers"]),
        deleting_since_ms=document.get("deletingSinceMs"),
        outcome=None if outcome is None else Phase(outcome),
    )


def _status_document(status: ContainerStatus) -> Document:
    document: Document = {
        "name": status.name,
        "attempt": status.attempt,
        "startedAtMs": status.started_at_ms,
        "exit": _exit_document(status.exit),
        "lastExit": _exit_document(status.last_exit),
        "backoffStep": status.backoff_step,
        "stopByMs": status.stop_by_ms,
        "oomKillsSeen": status.oom_kills_seen,
    }
    return {key: value for key, value in document.items() if value or key == "name"}


def _status(document: Document) -> ContainerStatus:
    return ContainerStatus(
        name=document["name"],
        attempt=document.get("attempt", 0),
        started_at_ms=document.get("startedAtMs"),
        exit=_exit(document.get("exit")),
        last_exit=_exit(document.get("lastExit")),
        backoff_step=document.get("backoffStep", 0),
        stop_by_ms=document.get("stopByMs"),
        oom_kills_seen=document.get("oomKillsSeen", 0),
    )


def _exit_document(ended: Exit | None) -> list[Any] | None:
    return (
        None
        if ended is None
        else [ended.finished_at_ms, ended.code, ended.signal, ended.is_oom_kill, ended.start_error]
    )


def _exit(items: list[Any] | None) -> Exit | None:
    return None if items is None else Exit(*items)
