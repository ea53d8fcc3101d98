"""`nodeagent_state`, the single source of truth: NodeState ↔ bytes.

A sealed file (`sealed.py`) with the state as JSON with sorted keys. Equal states are equal bytes. Knows no file system.
A reader of version N reads all lower versions and refuses higher ones by name.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Placement
from nodeagent.core.model.pod import OWN, Pod, QosClass
from nodeagent.core.model.podmap import Fold, PodMap
from nodeagent.core.model.promises import Hint, PodPromises, Promises, UnrecoveredPod
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.model.state import (
    MANIFEST_DIRECTORY,
    ContainerStatus,
    Exit,
    Idle,
    NodeState,
    Origin,
    Phase,
    PodEntry,
    RefusedChange,
)
from nodeagent.core.model.waiting import Waiting
from nodeagent.formats.checkpoint.sealed import SealError, sealed, unsealed
from nodeagent.formats.holdings.by_resource import decode_books, decode_holdings, encode_books, encode_holdings
from nodeagent.formats.manifest.pod_fields import pod_to_document
from nodeagent.formats.manifest.pod_manifest import named_pod_from_document
from nodeagent.formats.syntax.findings import DocumentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

VERSION = 1
FORMAT = "nodeagent_state"
MAX_BYTES = 256 * 2**20
_WAY_OUT = "`systemctl restart nodeagent` rebuilds it from running pods (stateRecovery: recover); or drain the node, move it away"

Document = dict[str, Any]


class NodeStateError(SealError):
    """The bytes are not a state that this version can read. `is_newer` means that a later version wrote them."""

    def __init__(self, message: str, *, is_newer: bool = False) -> None:
        super().__init__(message, way_out=_WAY_OUT, is_newer=is_newer)


class SavedState(Struct, frozen=True):
    state: NodeState
    policies: Mapping[str, str]
    """Policies at the time of the allocations, by configuration field."""


def policies_of(placement: Placement) -> dict[str, str]:
    """Return the policies that a saved state depends on."""
    return {"cpuManagerPolicy": placement.cpu_manager_policy, "memoryManagerPolicy": placement.memory_manager_policy}


class StateEncoder:
    """Encoder of consecutive states. Entries that did not change since the previous state are not encoded again."""

    def __init__(self) -> None:
        self._spelt: dict[int, tuple[PodEntry, str]] = {}
        """Entries of the last state, by identity, with their texts."""

    def encode(self, state: NodeState, policies: Mapping[str, str]) -> bytes:
        spelt = {}
        for entry in state.entries:
            known = self._spelt.get(id(entry))
            spelt[id(entry)] = (entry, _text(_entry_document(entry))) if known is None else known
        self._spelt = spelt
        entries = ",".join([spelt[id(entry)][1] for entry in state.entries])
        rest = _text({"generation": state.generation, "policies": dict(policies)})
        promises = _text(_books_document(state.promises))
        pod_texts: tuple[str, ...] = state.promises.pods.fold(_POD_TEXTS)
        # The keys are sorted: entries, generation, policies, promises, runtime. In the promises, the pods come last.
        pods = f'{promises[:-1]},"pods":{{{",".join(pod_texts)}}}}}'
        found = _runtime_document(state.runtime)
        runtime = "" if found is None else f',"runtime":{_text(found)}'
        body = f'{{"entries":[{entries}],{rest[1:-1]},"promises":{pods}{runtime}}}'
        return sealed(body.encode(), FORMAT, VERSION)


def encode_state(state: NodeState, policies: Mapping[str, str]) -> bytes:
    return StateEncoder().encode(state, policies)


def state_document(state: NodeState, policies: Mapping[str, str]) -> Document:
    """Return the state as JSON values, including secrets. It is the second line of the file."""
    return {
        "generation": state.generation,
        "policies": dict(policies),
        "promises": _promises_document(state.promises),
        "entries": [_entry_document(entry) for entry in state.entries],
        **({} if (found := _runtime_document(state.runtime)) is None else {"runtime": found}),
    }


def public_document(state: NodeState, policies: Mapping[str, str]) -> Document:
    """Return the state without the containers' variables, which may be secret, for the local API and for output."""
    document = state_document(state, policies)
    entries = document["entries"]
    for spec in (each["pod"]["spec"] for entry in entries for each in (entry, entry.get("refusedChange")) if each):
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            container.pop("env", None)
    return document


def decode_state(content: bytes, *, judge: bool = True) -> SavedState:
    """Decode a state file.

    Args:
        content: the whole file.
        judge: check the checksum. False accepts a damaged file.

    Raises:
        NodeStateError: the content is truncated, damaged, from a later version, or not a state.
    """
    try:
        document = unsealed(content, FORMAT, VERSION, _WAY_OUT, judge=judge)
    except SealError as err:
        raise NodeStateError(err.message, is_newer=err.is_newer) from err
    return _saved_state(document)


def _text(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def state_from_document(document: object) -> SavedState:
    """Decode the result of `state_document` or `public_document`.

    Raises:
        NodeStateError: a value is missing or has the wrong type.
    """
    return _saved_state(JsonValue(document))


def _saved_state(document: JsonValue) -> SavedState:
    try:
        runtime = document.optional("runtime")
        state = NodeState(
            promises=_promises(document.field("promises")),
            entries=document.field("entries").each(_entry),
            generation=document.field("generation").whole(),
            runtime=Registry() if runtime is None else _runtime(runtime),
        )
        return SavedState(state, dict(document.field("policies").by_name(JsonValue.text)))
    except MisfitError as err:
        raise NodeStateError(f"the content does not fit: {err}") from err


def _runtime_document(registry: Registry) -> Document | None:
    if registry == Registry():
        return None
    from nodeagent.formats.checkpoint.runtime_registry import registry_document  # noqa: PLC0415 - most states have none

    return registry_document(registry)


def _runtime(document: JsonValue) -> Registry:
    from nodeagent.formats.checkpoint.runtime_registry import registry_from_document  # noqa: PLC0415 - most states have none

    return registry_from_document(document)


def _promises_document(promises: Promises) -> Document:
    return {**_books_document(promises), "pods": {uid: _pod_document(pod) for uid, pod in promises.pods}}


def _books_document(promises: Promises) -> Document:
    """Return everything except the pods."""
    document = encode_books(promises)
    if promises.unrecovered:
        document["lostPods"] = [
            {"uid": one.uid, "name": one.name, "held": _pod_document(one.held)} for one in promises.unrecovered
        ]
    return document


def _promises(document: JsonValue) -> Promises:
    unrecovered = document.optional("lostPods")
    pods: PodMap[PodPromises] = PodMap()
    for uid, pod in document.field("pods").by_name(_pod):
        pods = pods.put(uid, pod)
    found = Promises(pods, () if unrecovered is None else unrecovered.each(_unrecovered_pod))
    return decode_books(document, found)


def _unrecovered_pod(item: JsonValue) -> UnrecoveredPod:
    return UnrecoveredPod(item.field("uid").text(), _pod(item.field("held")), item.field("name").text())


def _pod_document(pod: PodPromises) -> Document:
    document = encode_holdings(pod)
    if pod.hints:
        document["hints"] = {name: [None if h.mask is None else str(h.mask), h.preferred] for name, h in pod.hints}
    return document


_POD_TEXTS: Fold[PodPromises, tuple[str, ...]] = Fold(
    (), lambda uid, pod: (f"{_text(uid)}:{_text(_pod_document(pod))}",), tuple.__add__
)


def _pod(document: JsonValue) -> PodPromises:
    hints = document.optional("hints")
    return replace(decode_holdings(document), hints=() if hints is None else hints.by_name(_hint))


def _hint(item: JsonValue) -> Hint:
    mask, preferred = item.row(2)
    return Hint(mask.or_none(JsonValue.nodes), preferred.flag())


def _entry_document(entry: PodEntry) -> Document:
    document: Document = {
        "pod": pod_to_document(entry.pod),
        "qos": entry.qos.value,
        "source": entry.origin.name,
        "podSource": None if entry.origin.source == MANIFEST_DIRECTORY else entry.origin.source,
        "domain": None if entry.origin.domain == _domain_of_source(entry.origin.source) else entry.origin.domain,
        "decidedAtMs": entry.decided_at_ms,
        "containers": [_status_document(status) for status in entry.containers],
        "deletingSinceMs": entry.deleting_since_ms,
        "released": entry.is_released or None,
        "outcome": entry.outcome.value if entry.outcome else None,
    }
    if entry.refusal is not None:
        document["refusal"] = _refusal_document(entry.refusal)
    if entry.refused_change is not None:
        change = entry.refused_change
        document["refusedChange"] = {"pod": pod_to_document(change.pod), "refusal": _refusal_document(change.refusal)}
    if entry.idle is not None:
        refusal = entry.idle.refusal
        document["idle"] = {} if refusal is None else {"refusal": _refusal_document(refusal)}
    return {key: value for key, value in document.items() if value is not None}


def _entry(document: JsonValue) -> PodEntry:
    refusal, outcome, deleting = (document.optional(name) for name in ("refusal", "outcome", "deletingSinceMs"))
    released, change, idle = (document.optional(name) for name in ("released", "refusedChange", "idle"))
    pod, containers = _manifest_pod(document.field("pod")), document.field("containers")
    entry = PodEntry(
        pod=pod,
        qos=document.field("qos").one_of(QosClass),
        origin=_origin(document),
        decided_at_ms=document.field("decidedAtMs").whole(),
        refusal=None if refusal is None else _refusal(refusal),
        containers=containers.each(_status),
        deleting_since_ms=None if deleting is None else deleting.whole(),
        is_released=released is not None and released.flag(),
        refused_change=None if change is None else _refused_change(change),
        outcome=None if outcome is None else outcome.one_of(Phase),
        idle=None if idle is None else _idle(idle),
    )
    expected = [] if entry.refusal else [container.name for container in pod.containers]
    if [status.name for status in entry.containers] != expected:
        raise MisfitError(f"{containers.path}: must be those of the pod's containers {expected}")
    return entry


def _origin(entry: JsonValue) -> Origin:
    name, source, domain = entry.field("source").text(), entry.optional("podSource"), entry.optional("domain")
    known = MANIFEST_DIRECTORY if source is None else source.text()
    return Origin(name, known, _domain_of_source(known) if domain is None else domain.text())


def _domain_of_source(source: str) -> str:
    """Return the domain of a pod that states none, as those of 0.1."""
    return source if source == "containerd" else OWN


def _manifest_pod(document: JsonValue) -> Pod:
    try:
        return named_pod_from_document(document.object())
    except DocumentError as err:
        raise MisfitError(f"{document.path}: {err}") from err


def _refusal_document(refusal: Waiting) -> list[Any]:
    return [refusal.reason, refusal.message, refusal.at_ms]


def _refused_change(document: JsonValue) -> RefusedChange:
    return RefusedChange(_manifest_pod(document.field("pod")), _refusal(document.field("refusal")))


def _idle(document: JsonValue) -> Idle:
    refusal = document.optional("refusal")
    return Idle(None if refusal is None else _refusal(refusal))


def _refusal(item: JsonValue) -> Waiting:
    reason, message, at_ms = item.row(3)
    return Waiting(reason.text(), message.text(), at_ms.whole())


def _status_document(status: ContainerStatus) -> Document:
    counts = {
        "attempt": status.attempt,
        "backoffStep": status.backoff_step,
        "oomKillsSeen": status.oom_kills_seen,
    }
    rest: Document = {
        "name": status.name,
        "startedAtMs": status.started_at_ms,
        "exit": _exit_document(status.exit),
        "lastExit": _exit_document(status.last_exit),
        "stopByMs": status.stop_by_ms,
        "toRestart": status.is_to_restart or None,
        "hadCPUs": None if status.had_cpus is None else str(status.had_cpus),
        "unitBefore": None if status.unit_before is None else _unit_document(status.unit_before),
        "cgroup": status.cgroup,
    }
    return {key: value for key, value in rest.items() if value is not None} | {
        key: count for key, count in counts.items() if count
    }


def _status(document: JsonValue) -> ContainerStatus:
    started, stop_by = document.optional("startedAtMs"), document.optional("stopByMs")
    ended, last = document.optional("exit"), document.optional("lastExit")
    to_restart = document.optional("toRestart")
    had, unit, cgroup = (document.optional(name) for name in ("hadCPUs", "unitBefore", "cgroup"))
    return ContainerStatus(
        name=document.field("name").text(),
        attempt=_count(document, "attempt"),
        started_at_ms=None if started is None else started.whole(),
        exit=None if ended is None else _exit(ended),
        last_exit=None if last is None else _exit(last),
        backoff_step=_count(document, "backoffStep"),
        stop_by_ms=None if stop_by is None else stop_by.whole(),
        is_to_restart=to_restart is not None and to_restart.flag(),
        oom_kills_seen=_count(document, "oomKillsSeen"),
        had_cpus=None if had is None else had.cpus(),
        unit_before=None if unit is None else UnitSettings(unit.field("cpus").cpus(), unit.field("mems").nodes()),
        cgroup=None if cgroup is None else cgroup.text(),
    )


def _unit_document(settings: UnitSettings) -> Document:
    return {"cpus": str(settings.allowed_cpus), "mems": str(settings.allowed_memory_nodes)}


def _count(document: JsonValue, name: str) -> int:
    found = document.optional(name)
    return 0 if found is None else found.whole()


def _exit_document(ended: Exit | None) -> list[Any] | None:
    return (
        None
        if ended is None
        else [ended.finished_at_ms, ended.code, ended.signal, ended.is_oom_kill, ended.start_error]
    )


def _exit(item: JsonValue) -> Exit:
    finished, code, signal, is_oom_kill, start_error = item.row(5)
    return Exit(
        finished_at_ms=finished.whole(),
        code=code.or_none(JsonValue.whole),
        signal=signal.or_none(JsonValue.whole),
        is_oom_kill=is_oom_kill.flag(),
        start_error=start_error.or_none(JsonValue.text),
    )
