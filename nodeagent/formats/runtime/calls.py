"""One call of the runtime's: the method and its payload to a value, and the plugin's answer to a payload. Keeps nothing between calls."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceAccess, DeviceMount
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
from nodeagent.formats.runtime.versions import event_mask, nri_version
from nodeagent.formats.wire.protobuf import Message, MessageType, ProtobufError, decode, encode

Ids = TypeVar("Ids", CpuSet, NumaSet)

REGISTRATION_TIMEOUT_MS = 5000
REQUEST_TIMEOUT_MS = 2000
"""Of runtimes that don't say (NRI 0.6), and of others by default."""
MAX_MICROSECONDS, MAX_BYTES = 2**40, 2**60
"""Amounts beyond these count as these, so that no sum of several is beyond what can be saved and answered."""
MAX_SYNCHRONIZED = 20_000
"""Pods and containers. Kubelet's default is 110 pods."""


class NriCallError(ValueError):
    """A payload can't be of its method. The text names the field."""


class Configure(Struct, frozen=True):
    """The runtime presents itself and asks for the subscription."""

    runtime: Runtime


class Synchronize(Struct, frozen=True):
    """What runs, or a part of it."""

    part: Synchronized
    has_more: bool
    """More parts follow. A runtime below NRI 0.8 has none, and fails where all doesn't fit into 4 MiB."""


class Shutdown(Struct, frozen=True):
    """The runtime is about to end."""


RuntimeCall = Configure | Synchronize | Shutdown | Call


def read_call(method: str, payload: bytes) -> RuntimeCall | None:
    """Return what the runtime calls for; None: a method that there isn't.

    Newer runtimes have a method for each event; called by a name that is unknown here, they go back to StateChange.

    Raises:
        NriCallError: the payload isn't the method's.
    """
    known = _METHODS.get(method)
    if known is None:
        return None
    request_type, read = known
    try:
        return read(decode(request_type, payload))
    except ProtobufError as err:
        raise NriCallError(str(err)) from err


def registration(name: str, index: int) -> bytes:
    """Return the payload of RegisterPlugin.

    Args:
        name: of the plugin.
        index: 0 to 99: its place among the runtime's plugins. Later ones see what earlier ones have changed.
    """
    assert 0 <= index <= 99
    return encode(messages.REGISTER_PLUGIN_REQUEST, {"plugin_name": name, "plugin_idx": f"{index:02}"})


def configured(events: Iterable[Event], runtime: Runtime) -> bytes:
    """Return the answer to Configure."""
    return encode(messages.CONFIGURE_RESPONSE, {"events": event_mask(events, runtime)})


def synchronized(updates: Iterable[Update]) -> bytes:
    """Return the answer to Synchronize's last part."""
    return encode(messages.SYNCHRONIZE_RESPONSE, {"update": _updates(updates)})


def go_on_synchronizing() -> bytes:
    """Return the answer to every other part of Synchronize."""
    return encode(messages.SYNCHRONIZE_RESPONSE, {"more": True})


def answered(event: Event, answer: Answer) -> bytes:
    """Return the answer to a call about an event."""
    updates = _updates(answer.updates)
    match event:
        case Event.CREATE_CONTAINER:
            return encode(messages.CREATE_CONTAINER_RESPONSE, {"adjust": _adjustment(answer), "update": updates})
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
        raise NriCallError(f"SynchronizeRequest: more than {MAX_SYNCHRONIZED} pods and containers")
    sandboxes = tuple(_sandbox(decode(messages.POD_SANDBOX, pod)) for pod in found["pods"])
    containers = tuple(_container(decode(messages.CONTAINER, container)) for container in found["containers"])
    return Synchronize(Synchronized(sandboxes, containers), found["more"])


def _read_shutdown(_: Message) -> Shutdown:
    return Shutdown()


def _read_create(found: Message) -> Call:
    return Call(Event.CREATE_CONTAINER, _sandbox(found["pod"]), _container(found["container"]))


def _read_update(found: Message) -> Call:
    resources = _resources(found["linux_resources"] or {})
    return Call(Event.UPDATE_CONTAINER, _sandbox(found["pod"]), _container(found["container"]), resources)


def _read_update_pod(found: Message) -> Call:
    return Call(Event.UPDATE_POD_SANDBOX, _sandbox(found["pod"]))


def _read_stop(found: Message) -> Call:
    return Call(Event.STOP_CONTAINER, _sandbox(found["pod"]), _container(found["container"]))


def _read_state_change(found: Message) -> Call:
    try:
        event = Event(found["event"])
    except ValueError as err:
        raise NriCallError(f"StateChangeEvent.event: there is no event {found['event']}") from err
    container = None if found["container"] is None else _container(found["container"])
    return Call(event, _sandbox(found["pod"]), container)


_METHODS: dict[str, tuple[MessageType, Callable[[Message], RuntimeCall]]] = {
    "Configure": (messages.CONFIGURE_REQUEST, _read_configure),
    "Synchronize": (messages.SYNCHRONIZE_REQUEST, _read_synchronize),
    "Shutdown": (messages.EMPTY, _read_shutdown),
    "CreateContainer": (messages.CREATE_CONTAINER_REQUEST, _read_create),
    "UpdateContainer": (messages.UPDATE_CONTAINER_REQUEST, _read_update),
    "UpdatePodSandbox": (messages.UPDATE_POD_SANDBOX_REQUEST, _read_update_pod),
    "StopContainer": (messages.STOP_CONTAINER_REQUEST, _read_stop),
    "StateChange": (messages.STATE_CHANGE_EVENT, _read_state_change),
}
METHODS = frozenset(_METHODS)


def _sandbox(pod: Message | None) -> Sandbox:
    if pod is None or not pod["id"]:
        raise NriCallError("PodSandbox.id: a call about no pod")
    return Sandbox(
        id=pod["id"],
        uid=pod["uid"],
        name=pod["name"],
        namespace=pod["namespace"],
        labels=_pairs(pod["labels"]),
        annotations=_pairs(pod["annotations"]),
        cgroup_parent="" if pod["linux"] is None else pod["linux"]["cgroup_parent"],
    )


def _container(container: Message | None) -> NriContainer:
    if container is None or not container["id"]:
        raise NriCallError("Container.id: a call about no container")
    linux = container["linux"] or {}
    return NriContainer(
        id=container["id"],
        sandbox_id=container["pod_sandbox_id"],
        name=container["name"] or container["id"],
        state=_state(container["state"]),
        labels=_pairs(container["labels"]),
        annotations=_pairs(container["annotations"]),
        pid=container["pid"] or None,
        variables=tuple(sorted(one.partition("=")[0] for one in container["env"])),
        cgroups_path=linux.get("cgroups_path", ""),
        oom_score_adj=_optional(linux.get("oom_score_adj")),
        resources=_resources(linux.get("resources") or {}),
    )


def _pairs(found: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(found.items()))


def _state(number: int) -> ContainerState:
    try:
        return ContainerState(number)
    except ValueError:
        return ContainerState.UNKNOWN


def _resources(found: Message) -> NriResources:
    cpu, memory = found.get("cpu") or {}, found.get("memory") or {}
    return NriResources(
        cpus=_ids(CpuSet, cpu.get("cpus", "")),
        mems=_ids(NumaSet, cpu.get("mems", "")),
        cpu_shares=_bounded(cpu.get("shares"), MAX_MICROSECONDS),
        cpu_quota_us=_bounded(cpu.get("quota"), MAX_MICROSECONDS),
        cpu_period_us=_bounded(cpu.get("period"), MAX_MICROSECONDS),
        memory_limit_bytes=_bounded(memory.get("limit"), MAX_BYTES),
        hugepage_limits=tuple(
            HugepageLimit(limit["page_size"], min(limit["limit"], MAX_BYTES))
            for limit in found.get("hugepage_limits", ())
        ),
    )


def _ids(kind: type[Ids], text: str) -> Ids | None:
    """One container's odd spelling must not keep all others from being known; the truth is in its cgroup anyway."""
    try:
        return kind.parse(text) if text else None
    except IdSetSyntaxError:
        return None


def _bounded(found: Message | None, most: int) -> int | None:
    return None if found is None else max(-1, min(found["value"], most))


def _optional(found: Message | None) -> int | None:
    return None if found is None else found["value"]


def _updates(updates: Iterable[Update]) -> list[dict[str, Any]]:
    return [
        {
            "container_id": update.container_id,
            "linux": {"resources": _from_resources(update.resources)},
            "ignore_failure": update.ignore_failure,
        }
        for update in updates
    ]


def _adjustment(answer: Answer) -> dict[str, Any] | None:
    if answer.adjustment is None and answer.access is None:
        return None
    resources = None if answer.adjustment is None else _from_resources(answer.adjustment)
    access = answer.access or DeviceAccess()
    # A file's mode and owner are runc's: everybody's in the container. (Those that kubelet names have the host's, which others have on it.)
    files = [
        {"path": file.path, "type": "b" if file.is_block else "c", "major": file.major, "minor": file.minor}
        for file in access.files
    ]
    return {
        "annotations": dict(access.annotations),
        "mounts": [_mount(mount) for mount in access.mounts],
        "env": [{"key": name, "value": value} for name, value in access.variables],
        "linux": {"devices": files, "resources": resources},
        "CDI_devices": [{"name": name} for name in access.cdi_devices],
    }


def _mount(mount: DeviceMount) -> dict[str, Any]:
    """As containerd has those that kubelet names: recursive, and private."""
    options = ["rbind", "rprivate", "ro" if mount.is_read_only else "rw"]
    return {"destination": mount.path, "type": "bind", "source": mount.source, "options": options}


def _from_resources(resources: NriResources) -> dict[str, Any]:
    """Spell what is to be set. An empty set can't be: to the runtime it is as if nothing were said."""
    assert resources.cpus != CpuSet()
    assert resources.mems != NumaSet()
    cpu = {
        "shares": _said(resources.cpu_shares),
        "quota": _said(resources.cpu_quota_us),
        "period": _said(resources.cpu_period_us),
        "cpus": "" if resources.cpus is None else str(resources.cpus),
        "mems": "" if resources.mems is None else str(resources.mems),
    }
    return {
        "cpu": cpu,
        "memory": None if resources.memory_limit_bytes is None else {"limit": {"value": resources.memory_limit_bytes}},
        "hugepage_limits": [
            {"page_size": limit.page_size, "limit": limit.limit_bytes} for limit in resources.hugepage_limits
        ],
    }


def _said(value: int | None) -> dict[str, int] | None:
    return None if value is None else {"value": value}
