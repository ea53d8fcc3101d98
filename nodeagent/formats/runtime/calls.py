"""Decoder of single calls of the container runtime from a method and its payload, and encoder of the plugin's answers."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceAccess
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet
from nodeagent.core.model.nri import (
    Answer,
    Call,
    ContainerState,
    Event,
    HugepageLimit,
    NriContainer,
    NriResources,
    Runtime,
    Sandbox,
    Synchronized,
    Update,
)
from nodeagent.formats.runtime import messages
from nodeagent.formats.wire.protobuf import Message, MessageType, ProtobufError, decode, encode

Ids = TypeVar("Ids", CpuSet, NumaSet)

REGISTRATION_TIMEOUT_MS = 5000
REQUEST_TIMEOUT_MS = 2000
"""Default timeouts for runtimes that don't report their timeouts, such as those with NRI 0.6."""
MAX_MICROSECONDS, MAX_BYTES = 2**40, 2**60
"""Largest times and amounts of memory. Larger values are reduced to these limits, so that a sum of several values can be saved and encoded.
"""
MAX_SYNCHRONIZED = 20_000
"""Maximum number of pods and containers together. kubelet's default is 110 pods."""
_OLDEST = (0, 6, 0)
_SHIPPED = {
    "containerd": (
        ((2, 3, 0), (0, 12, 0)),
        ((2, 2, 2), (0, 11, 0)),
        ((2, 2, 0), (0, 10, 0)),
        ((2, 0, 0), (0, 8, 0)),
    ),
    "cri-o": (((1, 35, 0), (0, 11, 0)), ((1, 34, 0), (0, 10, 0))),
}
"""Pairs of a runtime version and the NRI version that this runtime introduced, newest first, by runtime name."""
_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])")


class NriPayloadError(ValueError):
    """The payload of a call is malformed or doesn't belong to the method. The message names the field."""


class Configure(Struct, frozen=True):
    """First call of the runtime, which reports its name and version and asks for the plugin's subscription."""

    runtime: Runtime


class Synchronize(Struct, frozen=True):
    """The runtime's list of all its pods and containers, or a part of this list."""

    part: Synchronized
    has_more: bool
    """Whether more parts follow. Before NRI 0.8, a runtime sends a single part, and fails if this part exceeds 4 MiB."""


class Shutdown(Struct, frozen=True):
    """Call in which the runtime announces that it is shutting down."""


RuntimeCall = Configure | Synchronize | Shutdown | Call


def read_call(method: str, payload: bytes) -> RuntimeCall | None:
    """Decode a call of the runtime. None means that the method is unknown.

    Newer runtimes have a method for each event. Older ones call StateChange for the events that request no resources
    (containerd/nri #274).

    Raises:
        NriPayloadError: the payload doesn't match this method.
    """
    known = _METHODS.get(method)
    if known is None:
        return None
    request_type, read = known
    try:
        return read(decode(request_type, payload))
    except ProtobufError as err:
        raise NriPayloadError(str(err)) from err


def encode_registration(name: str, index: int) -> bytes:
    """Encode the payload of RegisterPlugin. The runtime calls its plugins in ascending order of `index` (0 to 99). Each plugin sees the
    changes of the plugins before it.
    """
    assert 0 <= index <= 99
    return encode(messages.REGISTER_PLUGIN_REQUEST, {"plugin_name": name, "plugin_idx": f"{index:02}"})


def encode_subscription(events: Iterable[Event], runtime: Runtime) -> bytes:
    """Encode the answer to Configure."""
    return encode(messages.CONFIGURE_RESPONSE, {"events": event_mask(events, runtime)})


def encode_synchronized(updates: Iterable[Update]) -> bytes:
    """Encode the answer to the last part of Synchronize."""
    return encode(messages.SYNCHRONIZE_RESPONSE, {"update": _encode_updates(updates)})


def encode_request_for_more() -> bytes:
    """Encode the answer to each part of Synchronize but the last, which requests the next part."""
    return encode(messages.SYNCHRONIZE_RESPONSE, {"more": True})


def encode_answer(event: Event, answer: Answer) -> bytes:
    """Encode the answer to a call about an event."""
    updates = _encode_updates(answer.updates)
    match event:
        case Event.CREATE_CONTAINER:
            adjustment = _encode_adjustment(answer)
            return encode(messages.CREATE_CONTAINER_RESPONSE, {"adjust": adjustment, "update": updates})
        case Event.UPDATE_CONTAINER:
            response_type = messages.UPDATE_CONTAINER_RESPONSE
        case Event.STOP_CONTAINER:
            response_type = messages.STOP_CONTAINER_RESPONSE
        case _:
            assert not updates, f"nothing can be changed at {event.name}"
            return encode(messages.EMPTY, {})
    assert (answer.adjustment, answer.access) == (None, None), f"nothing is created at {event.name}"
    return encode(response_type, {"update": updates})


def _read_configure(found: Message) -> Configure:
    name, version = found["runtime_name"], found["runtime_version"]
    return Configure(
        Runtime(
            name,
            version,
            nri_version(name, version, found["NRI_version"]),
            found["registration_timeout"] if found["registration_timeout"] > 0 else REGISTRATION_TIMEOUT_MS,
            found["request_timeout"] if found["request_timeout"] > 0 else REQUEST_TIMEOUT_MS,
        )
    )


def _read_synchronize(found: Message) -> Synchronize:
    if len(found["pods"]) + len(found["containers"]) > MAX_SYNCHRONIZED:
        raise NriPayloadError(f"SynchronizeRequest: lists more than {MAX_SYNCHRONIZED} pods and containers")
    sandboxes = tuple(_decode_sandbox(decode(messages.POD_SANDBOX, pod)) for pod in found["pods"])
    containers = tuple(_decode_container(decode(messages.CONTAINER, container)) for container in found["containers"])
    return Synchronize(Synchronized(sandboxes, containers), found["more"])


def _read_container_call(event: Event, found: Message) -> Call:
    resources = _decode_resources(found["linux_resources"] or {}) if event is Event.UPDATE_CONTAINER else None
    return Call(event, _decode_sandbox(found["pod"]), _decode_container(found["container"]), resources)


def _read_pod_call(event: Event, found: Message) -> Call:
    return Call(event, _decode_sandbox(found["pod"]))


def _read_state_change(found: Message) -> Call:
    try:
        event = Event(found["event"])
    except ValueError as err:
        raise NriPayloadError(f"StateChangeEvent.event: there is no event {found['event']}") from err
    container = None if found["container"] is None else _decode_container(found["container"])
    return Call(event, _decode_sandbox(found["pod"]), container)


_METHODS: dict[str, tuple[MessageType, Callable[[Message], RuntimeCall]]] = {
    "Configure": (messages.CONFIGURE_REQUEST, _read_configure),
    "Synchronize": (messages.SYNCHRONIZE_REQUEST, _read_synchronize),
    "Shutdown": (messages.EMPTY, lambda _: Shutdown()),
    "RunPodSandbox": (messages.POD_REQUEST, partial(_read_pod_call, Event.RUN_POD_SANDBOX)),
    "UpdatePodSandbox": (messages.POD_REQUEST, partial(_read_pod_call, Event.UPDATE_POD_SANDBOX)),
    "PostUpdatePodSandbox": (messages.POD_REQUEST, partial(_read_pod_call, Event.POST_UPDATE_POD_SANDBOX)),
    "StopPodSandbox": (messages.POD_REQUEST, partial(_read_pod_call, Event.STOP_POD_SANDBOX)),
    "RemovePodSandbox": (messages.POD_REQUEST, partial(_read_pod_call, Event.REMOVE_POD_SANDBOX)),
    "CreateContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.CREATE_CONTAINER)),
    "PostCreateContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.POST_CREATE_CONTAINER)),
    "StartContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.START_CONTAINER)),
    "PostStartContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.POST_START_CONTAINER)),
    "UpdateContainer": (messages.UPDATE_CONTAINER_REQUEST, partial(_read_container_call, Event.UPDATE_CONTAINER)),
    "PostUpdateContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.POST_UPDATE_CONTAINER)),
    "StopContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.STOP_CONTAINER)),
    "RemoveContainer": (messages.CONTAINER_REQUEST, partial(_read_container_call, Event.REMOVE_CONTAINER)),
    "StateChange": (messages.STATE_CHANGE_EVENT, _read_state_change),
}
METHODS = frozenset(_METHODS)


def _decode_sandbox(pod: Message | None) -> Sandbox:
    if pod is None or not pod["id"]:
        raise NriPayloadError("PodSandbox.id is missing, so the call is about no pod")
    return Sandbox(
        id=pod["id"],
        uid=pod["uid"],
        name=pod["name"],
        namespace=pod["namespace"],
        labels=_sort_pairs(pod["labels"]),
        annotations=_sort_pairs(pod["annotations"]),
        cgroup_parent="" if pod["linux"] is None else pod["linux"]["cgroup_parent"],
    )


def _decode_container(container: Message | None) -> NriContainer:
    if container is None or not container["id"]:
        raise NriPayloadError("Container.id is missing, so the call is about no container")
    linux = container["linux"] or {}
    score = linux.get("oom_score_adj")
    is_known = container["state"] in {*ContainerState}
    return NriContainer(
        id=container["id"],
        sandbox_id=container["pod_sandbox_id"],
        name=container["name"] or container["id"],
        state=ContainerState(container["state"]) if is_known else ContainerState.UNKNOWN,
        labels=_sort_pairs(container["labels"]),
        annotations=_sort_pairs(container["annotations"]),
        pid=container["pid"] or None,
        variables=tuple(sorted(variable.partition("=")[0] for variable in container["env"])),
        cgroups_path=linux.get("cgroups_path", ""),
        oom_score_adj=None if score is None else score["value"],
        resources=_decode_resources(linux.get("resources") or {}),
    )


def _sort_pairs(found: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(found.items()))


def _decode_resources(found: Message) -> NriResources:
    cpu, memory = found.get("cpu") or {}, found.get("memory") or {}
    return NriResources(
        cpus=_parse_ids(CpuSet, cpu.get("cpus", "")),
        mems=_parse_ids(NumaSet, cpu.get("mems", "")),
        cpu_shares=_clamp(cpu.get("shares"), MAX_MICROSECONDS),
        cpu_quota_us=_clamp(cpu.get("quota"), MAX_MICROSECONDS),
        cpu_period_us=_clamp(cpu.get("period"), MAX_MICROSECONDS),
        memory_limit_bytes=_clamp(memory.get("limit"), MAX_BYTES),
        hugepage_limits=tuple(
            HugepageLimit(limit["page_size"], min(limit["limit"], MAX_BYTES))
            for limit in found.get("hugepage_limits", ())
        ),
    )


def _parse_ids(kind: type[Ids], text: str) -> Ids | None:
    """Parse a set of IDs. None means that the set is empty or malformed. In that case, the container's cgroup tells the
    actual set.
    """
    try:
        return kind.parse(text) if text else None
    except IdSetSyntaxError:
        return None


def _clamp(found: Message | None, maximum: int) -> int | None:
    return None if found is None else max(-1, min(found["value"], maximum))


def _encode_updates(updates: Iterable[Update]) -> list[dict[str, Any]]:
    return [
        {
            "container_id": update.container_id,
            "linux": {"resources": _encode_resources(update.resources)},
            "ignore_failure": update.ignore_failure,
        }
        for update in updates
    ]


def _encode_adjustment(answer: Answer) -> dict[str, Any] | None:
    if answer.adjustment is None and answer.access is None:
        return None
    resources = None if answer.adjustment is None else _encode_resources(answer.adjustment)
    access = answer.access or DeviceAccess()
    # If mode and owner are missing, runc lets every user of the container open the file. For kubelet's pods, device files keep the host's
    # mode and owner.
    files = [
        {"path": file.path, "type": "b" if file.is_block else "c", "major": file.major, "minor": file.minor}
        for file in access.files
    ]
    # Mounts are recursive and private, like those that containerd makes for kubelet's pods.
    mounts = [
        {
            "destination": mount.path,
            "type": "bind",
            "source": mount.source,
            "options": ["rbind", "rprivate", "ro" if mount.is_read_only else "rw"],
        }
        for mount in access.mounts
    ]
    return {
        "annotations": dict(access.annotations),
        "mounts": mounts,
        "env": [{"key": name, "value": value} for name, value in access.variables],
        "linux": {"devices": files, "resources": resources},
        "CDI_devices": [{"name": name} for name in access.cdi_devices],
    }


def _encode_resources(resources: NriResources) -> dict[str, Any]:
    """Format the resources for an answer to the runtime. A set of CPUs or nodes must not be empty, because the runtime would ignore an
    empty set.
    """
    assert resources.cpus != CpuSet()
    assert resources.mems != NumaSet()
    cpu = {
        "shares": _wrap(resources.cpu_shares),
        "quota": _wrap(resources.cpu_quota_us),
        "period": _wrap(resources.cpu_period_us),
        "cpus": "" if resources.cpus is None else str(resources.cpus),
        "mems": "" if resources.mems is None else str(resources.mems),
    }
    limits = [{"page_size": limit.page_size, "limit": limit.limit_bytes} for limit in resources.hugepage_limits]
    limit = _wrap(resources.memory_limit_bytes)
    return {"cpu": cpu, "memory": None if limit is None else {"limit": limit}, "hugepage_limits": limits}


def _wrap(value: int | None) -> dict[str, int] | None:
    return None if value is None else {"value": value}


def nri_version(runtime_name: str, runtime_version: str, reported: str) -> tuple[int, int, int]:
    """Return the runtime's version of NRI. `runtime_version` may have a distribution's suffix. `reported` is the NRI
    version that the runtime reports, or empty.
    """
    if (found := _parse_version(reported)) is not None:
        return found
    shipped = _SHIPPED.get(runtime_name.lower(), ())
    version = _parse_version(runtime_version)
    return next((nri for since, nri in shipped if version is not None and version >= since), _OLDEST)


def event_mask(events: Iterable[Event], runtime: Runtime) -> int:
    """Return the subscription, with bit n - 1 for event n. Events that this runtime doesn't know are left out, because
    the runtime would close the connection.

    A plugin must subscribe to at least one event that every version knows, because 0 would mean all events.
    """
    last = Event.VALIDATE_CONTAINER_ADJUSTMENT if runtime.nri_version >= (0, 10, 0) else Event.REMOVE_CONTAINER
    mask = sum(1 << (event - 1) for event in {*events} if event <= last)
    assert mask, "0 subscribes to everything"
    return mask


def _parse_version(text: str) -> tuple[int, int, int] | None:
    if (found := _VERSION.match(text)) is None:
        return None
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)
