"""Encoder and decoder of a NodeState in the file `nodeagent_state`. As long as this file is intact, the agent restores its state from no
other file.

The file is sealed (`sealed.py`) and contains the state as JSON with sorted keys. Equal states have equal bytes. A reader of version N
reads all lower versions, and refuses higher versions with an error that names the version.
"""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Placement
from nodeagent.core.model.derived import find_replaced
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
from nodeagent.formats.checkpoint.sealed import SealError, seal, unseal
from nodeagent.formats.holdings.by_resource import decode_books, decode_holdings, encode_books, encode_holdings
from nodeagent.formats.manifest.pod_fields import pod_to_document
from nodeagent.formats.manifest.pod_manifest import named_pod_from_document
from nodeagent.formats.manifest.pod_rules import find_invalid_identity
from nodeagent.formats.syntax.findings import DocumentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

VERSION = 2
"""Latest version of the format. A state that nodeagent 0.1 understands is written as version 1, because release 0.1 refuses version 2."""
FORMAT = "nodeagent_state"
MAX_BYTES = 256 * 2**20
_WAY_OUT = "`systemctl restart nodeagent` rebuilds it from running pods (stateRecovery: recover); or drain the node, move it away"

Document = dict[str, Any]


class NodeStateError(SealError):
    """The content is not a state that this version can read. `is_newer` tells whether a later version wrote the state."""

    def __init__(self, message: str, *, is_newer: bool = False) -> None:
        super().__init__(message, way_out=_WAY_OUT, is_newer=is_newer)


class SavedState(Struct, frozen=True):
    state: NodeState
    policies: Mapping[str, str]
    """Policies under which the allocations were made, by configuration field."""


def policies_of(placement: Placement) -> dict[str, str]:
    """Return the policies to save with the state, by configuration field."""
    return {"cpuManagerPolicy": placement.cpu_manager_policy, "memoryManagerPolicy": placement.memory_manager_policy}


class StateEncoder:
    """Encoder of consecutive states. Entries of pods are encoded again only if they have changed since the previous state."""

    def __init__(self) -> None:
        self._entries: tuple[PodEntry, ...] = ()
        """Entries of the last state."""
        self._texts: list[str] = []
        """JSON texts of the entries in `_entries`, in the same order."""

    def encode(self, state: NodeState, policies: Mapping[str, str]) -> bytes:
        gone, came = find_replaced(self._entries, state.entries)
        self._texts[gone] = [_format_json(_encode_entry(entry)) for entry in state.entries[came]]
        self._entries = state.entries
        entries = ",".join(self._texts)
        rest = _format_json({"generation": state.generation, "policies": dict(policies)})
        promises = _format_json(_encode_books(state.promises))
        pod_texts: tuple[str, ...] = state.promises.pods.fold(_POD_TEXTS)
        # The keys are sorted: entries, generation, policies, promises, runtime, unitsBootID. Within `promises`, the pods come last.
        pods = f'{promises[:-1]},"pods":{{{",".join(pod_texts)}}}}}'
        found = _encode_runtime(state.runtime)
        runtime = "" if found is None else f',"runtime":{_format_json(found)}'
        boot = f',"unitsBootID":{_format_json(state.units_boot_id)}' if state.units_boot_id else ""
        body = f'{{"entries":[{entries}],{rest[1:-1]},"promises":{pods}{runtime}{boot}}}'
        version = 2 if any(entry.is_pooled or _has_new_domain(entry) for entry in state.entries) else 1
        return seal(body.encode(), FORMAT, version)


def encode_state(state: NodeState, policies: Mapping[str, str]) -> bytes:
    """Encode a state file."""
    return StateEncoder().encode(state, policies)


def state_document(state: NodeState, policies: Mapping[str, str]) -> Document:
    """Convert the state to JSON values, including secrets. The second line of the state file contains these values."""
    pods = {uid: _encode_pod(pod) for uid, pod in state.promises.pods}
    return {
        "generation": state.generation,
        "policies": dict(policies),
        "promises": {**_encode_books(state.promises), "pods": pods},
        "entries": [_encode_entry(entry) for entry in state.entries],
        **({} if (found := _encode_runtime(state.runtime)) is None else {"runtime": found}),
        **({"unitsBootID": state.units_boot_id} if state.units_boot_id else {}),
    }


def public_document(state: NodeState, policies: Mapping[str, str]) -> Document:
    """Convert the state to JSON values for the local API and for commands. The containers' environment variables are left out, because they
    may be secret.
    """
    document = state_document(state, policies)
    entries = document["entries"]
    for spec in (each["pod"]["spec"] for entry in entries for each in (entry, entry.get("refusedChange")) if each):
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            container.pop("env", None)
    return document


def decode_state(content: bytes, *, judge: bool = True, pods: Iterable[Pod] = ()) -> SavedState:
    """Decode a state file. Without `judge`, a wrong checksum is accepted. A pod of the state that equals one of the given `pods` is
    replaced by the given object.

    Raises:
        NodeStateError: the content is truncated, damaged, from a later version, or not a state.
    """
    try:
        document = unseal(content, FORMAT, VERSION, _WAY_OUT, judge=judge)
    except SealError as err:
        raise NodeStateError(err.message, is_newer=err.is_newer) from err
    return _decode_saved_state(document, pods)


def _format_json(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def state_from_document(document: object) -> SavedState:
    """Decode the result of `state_document` or `public_document`.

    Raises:
        NodeStateError: a value is missing or has the wrong type.
    """
    return _decode_saved_state(JsonValue(document))


def _decode_saved_state(document: JsonValue, given: Iterable[Pod] = ()) -> SavedState:
    try:
        runtime = document.optional("runtime")
        registry = Registry()
        if runtime is not None:
            from nodeagent.formats.checkpoint.runtime_registry import (  # noqa: PLC0415 - most states have none
                registry_from_document,
            )

            registry = registry_from_document(runtime)
        promised = document.field("promises")
        pods: PodMap[PodPromises] = PodMap()
        for uid, pod in promised.field("pods").by_name(_decode_pod):
            pods = pods.put(uid, pod)
        unrecovered = promised.read_optional(
            "lostPods",
            lambda listed: listed.each(
                lambda item: UnrecoveredPod(
                    item.field("uid").text(), _decode_pod(item.field("held")), item.field("name").text()
                )
            ),
            (),
        )
        state = NodeState(
            promises=decode_books(promised, Promises(pods, unrecovered)),
            entries=document.field("entries").each(partial(_decode_entry, pods=_PodDecoder(given))),
            generation=document.field("generation").whole(),
            runtime=registry,
            units_boot_id=document.read_optional("unitsBootID", JsonValue.text, ""),
        )
        return SavedState(state, dict(document.field("policies").by_name(JsonValue.text)))
    except MisfitError as err:
        raise NodeStateError(f"the content is invalid: {err}") from err


def _encode_runtime(registry: Registry) -> Document | None:
    if registry == Registry():
        return None
    from nodeagent.formats.checkpoint.runtime_registry import registry_document  # noqa: PLC0415 - most states have none

    return registry_document(registry)


def _encode_books(promises: Promises) -> Document:
    """Encode each resource's node-wide record, and the allocations of lost pods, which have no pod entry. Pods with an entry are encoded
    separately.
    """
    document = encode_books(promises)
    if promises.unrecovered:
        document["lostPods"] = [
            {"uid": lost.uid, "name": lost.name, "held": _encode_pod(lost.held)} for lost in promises.unrecovered
        ]
    return document


def _encode_pod(pod: PodPromises) -> Document:
    document = encode_holdings(pod)
    if pod.hints:
        document["hints"] = {name: [None if h.mask is None else str(h.mask), h.preferred] for name, h in pod.hints}
    return document


_POD_TEXTS: Fold[PodPromises, tuple[str, ...]] = Fold(
    (), lambda uid, pod: (f"{_format_json(uid)}:{_format_json(_encode_pod(pod))}",), tuple.__add__
)


def _decode_pod(document: JsonValue) -> PodPromises:
    rows = document.read_optional("hints", lambda hints: hints.by_name(lambda hint: hint.row(2)), ())
    hints = tuple((name, Hint(mask.or_none(JsonValue.nodes), preferred.flag())) for name, (mask, preferred) in rows)
    return replace(decode_holdings(document), hints=hints)


def _encode_entry(entry: PodEntry) -> Document:
    document: Document = {
        "pod": pod_to_document(entry.pod),
        "qos": entry.qos.value,
        "source": entry.origin.name,
        "podSource": None if entry.origin.source == MANIFEST_DIRECTORY else entry.origin.source,
        "domain": entry.origin.domain if _has_new_domain(entry) else None,
        "decidedAtMs": entry.decided_at_ms,
        "containers": [_encode_status(status) for status in entry.containers],
        "deletingSinceMs": entry.deleting_since_ms,
        "released": entry.is_released or None,
        "outcome": entry.outcome.value if entry.outcome else None,
        "pooled": entry.is_pooled or None,
    }
    if entry.refusal is not None:
        document["refusal"] = _encode_refusal(entry.refusal)
    if entry.refused_change is not None:
        change = entry.refused_change
        document["refusedChange"] = {"pod": pod_to_document(change.pod), "refusal": _encode_refusal(change.refusal)}
    if entry.idle is not None:
        refusal = entry.idle.refusal
        document["idle"] = {} if refusal is None else {"refusal": _encode_refusal(refusal)}
    return {key: value for key, value in document.items() if value is not None}


def _decode_entry(document: JsonValue, pods: "_PodDecoder") -> PodEntry:
    pod, containers = pods.decode(document.field("pod")), document.field("containers")
    source = document.read_optional("podSource", JsonValue.text, MANIFEST_DIRECTORY)
    domain = document.read_optional("domain", JsonValue.text, _domain_of_source(source))
    entry = PodEntry(
        pod=pod,
        qos=document.field("qos").one_of(QosClass),
        origin=Origin(document.field("source").text(), source, domain),
        decided_at_ms=document.field("decidedAtMs").whole(),
        refusal=document.read_optional("refusal", _decode_refusal, None),
        containers=containers.each(_decode_status),
        deleting_since_ms=document.read_optional("deletingSinceMs", JsonValue.whole, None),
        is_released=document.read_optional("released", JsonValue.flag, default=False),
        refused_change=document.read_optional(
            "refusedChange",
            lambda change: RefusedChange(pods.decode(change.field("pod")), _decode_refusal(change.field("refusal"))),
            None,
        ),
        outcome=document.read_optional("outcome", lambda outcome: outcome.one_of(Phase), None),
        idle=document.read_optional(
            "idle", lambda idle: Idle(idle.read_optional("refusal", _decode_refusal, None)), None
        ),
        is_pooled=document.read_optional("pooled", JsonValue.flag, default=False),
    )
    expected = [] if entry.refusal else [container.name for container in pod.containers]
    if [status.name for status in entry.containers] != expected:
        raise MisfitError(f"{containers.path}: must be the statuses of the pod's containers {expected}")
    return entry


def _has_new_domain(entry: PodEntry) -> bool:
    """Tell whether nodeagent 0.1 doesn't know the domain of a pod's entry. Release 0.1 would treat such a pod as the agent's own."""
    return entry.origin.domain != _domain_of_source(entry.origin.source)


def _domain_of_source(source: str) -> str:
    """Return the domain for an entry that nodeagent 0.1 wrote without a domain."""
    return source if source == "containerd" else OWN


class _PodDecoder:
    """Decoder of a state's pods. Of pods that differ only in name, namespace and UID, the decoder decodes the first and copies it for the
    others, because copying is faster.

    Args:
        given: already decoded pods. They are returned for equal documents.
    """

    def __init__(self, given: Iterable[Pod]) -> None:
        self._given = {pod.uid: pod for pod in given}
        self._decoded: dict[str, Pod] = {}
        """Pods by the text of their documents without the identity."""

    def decode(self, document: JsonValue) -> Pod:
        found, text = document.object(), ""
        match found:
            case {"metadata": {"name": str(name), "namespace": str(namespace), "uid": str(uid)} as metadata}:
                if uid in self._given and found == pod_to_document(self._given[uid]):
                    return self._given[uid]
                text = repr({**found, "metadata": {**metadata, "name": "", "namespace": "", "uid": ""}})
                if text in self._decoded:
                    pod = self._decoded[text].renamed(name, namespace, uid)
                    if not any(find_invalid_identity(pod)):
                        return pod
        try:
            self._decoded[text] = pod = named_pod_from_document(found)
        except DocumentError as err:
            raise MisfitError(f"{document.path}: {err}") from err
        return pod


def _encode_refusal(refusal: Waiting) -> list[Any]:
    return [refusal.reason, refusal.message, refusal.at_ms]


def _decode_refusal(item: JsonValue) -> Waiting:
    reason, message, at_ms = item.row(3)
    return Waiting(reason.text(), message.text(), at_ms.whole())


def _encode_status(status: ContainerStatus) -> Document:
    before = status.unit_before
    counts = {
        "attempt": status.attempt,
        "backoffStep": status.backoff_step,
        "oomKillsSeen": status.oom_kills_seen,
    }
    rest: Document = {
        "name": status.name,
        "startedAtMs": status.started_at_ms,
        "exit": _encode_exit(status.exit),
        "lastExit": _encode_exit(status.last_exit),
        "stopByMs": status.stop_by_ms,
        "toRestart": status.is_to_restart or None,
        "hadCPUs": None if status.had_cpus is None else str(status.had_cpus),
        "unitBefore": before and {"cpus": str(before.allowed_cpus), "mems": str(before.allowed_memory_nodes)},
        "cgroup": status.cgroup,
    }
    return {key: value for key, value in rest.items() if value is not None} | {
        key: count for key, count in counts.items() if count
    }


def _decode_status(document: JsonValue) -> ContainerStatus:
    return ContainerStatus(
        name=document.field("name").text(),
        attempt=document.read_optional("attempt", JsonValue.whole, 0),
        started_at_ms=document.read_optional("startedAtMs", JsonValue.whole, None),
        exit=document.read_optional("exit", _decode_exit, None),
        last_exit=document.read_optional("lastExit", _decode_exit, None),
        backoff_step=document.read_optional("backoffStep", JsonValue.whole, 0),
        stop_by_ms=document.read_optional("stopByMs", JsonValue.whole, None),
        is_to_restart=document.read_optional("toRestart", JsonValue.flag, default=False),
        oom_kills_seen=document.read_optional("oomKillsSeen", JsonValue.whole, 0),
        had_cpus=document.read_optional("hadCPUs", JsonValue.cpus, None),
        unit_before=document.read_optional(
            "unitBefore", lambda unit: UnitSettings(unit.field("cpus").cpus(), unit.field("mems").nodes()), None
        ),
        cgroup=document.read_optional("cgroup", JsonValue.text, None),
    )


def _encode_exit(ended: Exit | None) -> list[Any] | None:
    if ended is None:
        return None
    return [ended.finished_at_ms, ended.code, ended.signal, ended.is_oom_kill, ended.start_error]


def _decode_exit(item: JsonValue) -> Exit:
    finished, code, signal, is_oom_kill, start_error = item.row(5)
    return Exit(
        finished_at_ms=finished.whole(),
        code=code.or_none(JsonValue.whole),
        signal=signal.or_none(JsonValue.whole),
        is_oom_kill=is_oom_kill.flag(),
        start_error=start_error.or_none(JsonValue.text),
    )
