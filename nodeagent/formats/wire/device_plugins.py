"""Messages of kubelet's device plugin API v1beta1, as tables, and decoders of these messages.

Names and numbers are those of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto, without unused parts.
"""

import json
import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceMount
from nodeagent.core.model.device_pools import PoolDevice
from nodeagent.core.model.idset import MAX_ID, NumaMask
from nodeagent.formats.wire.protobuf import Field, Kind, MessageType, ProtobufError, decode, encode, fields

VERSION = "v1beta1"
REGISTER = "/v1beta1.Registration/Register"
GET_OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
GET_PREFERRED = "/v1beta1.DevicePlugin/GetPreferredAllocation"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
PRE_START = "/v1beta1.DevicePlugin/PreStartContainer"
HEALTHY = "Healthy"
MAX_DEVICES = 16_384
MAX_ID_LENGTH = 253
MAX_ANSWER_BYTES = 64 * 1024
"""Maximum size of an answer to Allocate, because answers become part of the state file, which has a limited size."""
_MAX_VALUES = 1 << 18
"""Maximum number of values in a message, 16 for each of a plugin's devices. A decoded value needs a hundred times the memory of its two
encoded bytes.
"""
_PRINTABLE = re.compile(r"[ -~]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,254}")
_RESERVED = "NODEAGENT_"
_MAX_VALUE = 32 * 1024
_MAX_VARIABLES_BYTES = 32 * 1024
"""Maximum size, as JSON, of the variables in an answer to Allocate, because a start request must fit into one packet to the launcher."""

_OPTIONS = MessageType(
    "DevicePluginOptions", fields(Kind.BOOL, pre_start_required=1, get_preferred_allocation_available=2)
)
_REGISTER = MessageType(
    "RegisterRequest",
    [*fields(Kind.STRING, version=1, endpoint=2, resource_name=3), Field(4, "options", _OPTIONS)],
)
_EMPTY = MessageType("Empty", [])
_NODE = MessageType("NUMANode", [Field(1, "ID", Kind.INT64)])
_TOPOLOGY = MessageType("TopologyInfo", [Field(1, "nodes", _NODE, repeated=True)])
_DEVICE = MessageType("Device", [*fields(Kind.STRING, ID=1, health=2), Field(3, "topology", _TOPOLOGY)])
_LIST = MessageType("ListAndWatchResponse", [Field(1, "devices", _DEVICE, repeated=True)])
_PREFERRED_OF_ONE = MessageType(
    "ContainerPreferredAllocationRequest",
    [
        Field(1, "available_deviceIDs", Kind.STRING, repeated=True),
        Field(2, "must_include_deviceIDs", Kind.STRING, repeated=True),
        Field(3, "allocation_size", Kind.INT32),
    ],
)
_PREFERRED = MessageType(
    "PreferredAllocationRequest", [Field(1, "container_requests", _PREFERRED_OF_ONE, repeated=True)]
)
_PREFERS_OF_ONE = MessageType(
    "ContainerPreferredAllocationResponse", [Field(1, "deviceIDs", Kind.STRING, repeated=True)]
)
_PREFERS = MessageType("PreferredAllocationResponse", [Field(1, "container_responses", _PREFERS_OF_ONE, repeated=True)])
_IDS = MessageType("ContainerAllocateRequest", [Field(1, "devices_ids", Kind.STRING, repeated=True)])
_ALLOCATE = MessageType("AllocateRequest", [Field(1, "container_requests", _IDS, repeated=True)])
_PRE_START = MessageType("PreStartContainerRequest", [Field(1, "devices_ids", Kind.STRING, repeated=True)])
_RAW_ALLOCATED = MessageType("AllocateResponse", [Field(1, "container_responses", Kind.BYTES, repeated=True)])
_ANSWER = MessageType("ContainerAllocateResponse", [Field(1, "envs", Kind.STRING_MAP)])
_MOUNT = MessageType("Mount", [*fields(Kind.STRING, container_path=1, host_path=2), Field(3, "read_only", Kind.BOOL)])
_DEVICE_SPEC = MessageType("DeviceSpec", fields(Kind.STRING, container_path=1, host_path=2))
_CDI_DEVICE = MessageType("CDIDevice", fields(Kind.STRING, name=1))
_WHOLE_ANSWER = MessageType(
    "ContainerAllocateResponse",
    [
        Field(2, "mounts", _MOUNT, repeated=True),
        Field(3, "devices", _DEVICE_SPEC, repeated=True),
        Field(4, "annotations", Kind.STRING_MAP),
        Field(5, "cdi_devices", _CDI_DEVICE, repeated=True),
    ],
)


class PluginOptions(Struct, frozen=True):
    pre_start_required: bool = False
    has_preferences: bool = False


class Registration(Struct, frozen=True):
    version: str
    endpoint: str
    """File name of the plugin's socket, in the directory of the registration socket."""
    resource: str


def decode_registration(message: bytes) -> Registration:
    """Decode a request to Register.

    Raises:
        ProtobufError: the message is malformed.
    """
    asked = decode(_REGISTER, message, max_values=_MAX_VALUES)
    return Registration(asked["version"], asked["endpoint"], asked["resource_name"])


def encode_empty() -> bytes:
    return encode(_EMPTY, {})


def decode_options(message: bytes) -> PluginOptions:
    """Decode the answer to GetDevicePluginOptions.

    Raises:
        ProtobufError: the message is malformed.
    """
    options = decode(_OPTIONS, message, max_values=_MAX_VALUES)
    return PluginOptions(options["pre_start_required"], options["get_preferred_allocation_available"])


def decode_devices(message: bytes) -> tuple[PoolDevice, ...]:
    """Decode the devices in a ListAndWatch message, sorted by ID. If an ID occurs more than once, its last device counts,
    as in kubelet.

    Raises:
        ProtobufError: the message is malformed or has impossible values.
    """
    listed = decode(_LIST, message, max_values=_MAX_VALUES)["devices"]
    if len(listed) > MAX_DEVICES:
        raise ProtobufError(f"{len(listed)} devices exceed the limit of {MAX_DEVICES}")
    found = {}
    for device in listed:
        id_, topology = device["ID"], device["topology"]
        if len(id_) > MAX_ID_LENGTH or not _PRINTABLE.fullmatch(id_):
            raise ProtobufError(f"a device's ID must be 1 to {MAX_ID_LENGTH} printable characters")
        # Some plugins send a topology without nodes, or with node -1. As in kubelet, no CPUs are near a node that the machine doesn't have.
        ids = None if topology is None else {node["ID"] for node in topology["nodes"]}
        nodes = None if ids is None else NumaMask(sum(1 << node for node in ids if 0 <= node <= MAX_ID))
        is_nowhere = ids is not None and any(not 0 <= node <= MAX_ID for node in ids)
        found[id_] = PoolDevice(id_, nodes, is_healthy=device["health"] == HEALTHY, lists_minus_one=is_nowhere)
    return tuple(device for _, device in sorted(found.items()))


def encode_answer(variables: Mapping[str, str]) -> bytes:
    """Encode the part of an answer to Allocate with a container's environment variables (ContainerAllocateResponse)."""
    return encode(_ANSWER, {"envs": variables})


def encode_preferred_request(available: tuple[str, ...], must: tuple[str, ...], size: int) -> bytes:
    request = {"available_deviceIDs": list(available), "must_include_deviceIDs": list(must), "allocation_size": size}
    return encode(_PREFERRED, {"container_requests": [request]})


def decode_preferred(message: bytes) -> tuple[str, ...]:
    """Decode the answer to GetPreferredAllocation for one container.

    Raises:
        ProtobufError: the message is malformed, or lists more devices than a plugin may have.
    """
    responses = decode(_PREFERS, message, max_values=_MAX_VALUES)["container_responses"]
    ids = responses[0]["deviceIDs"] if responses else []
    if len(ids) > MAX_DEVICES:
        raise ProtobufError(f"it prefers {len(ids)} devices, more than the limit of {MAX_DEVICES}")
    return tuple(ids)


def encode_allocate_request(ids: tuple[str, ...]) -> bytes:
    return encode(_ALLOCATE, {"container_requests": [{"devices_ids": list(ids)}]})


def decode_allocated(message: bytes) -> bytes | None:
    """Return the part of an answer to Allocate for one container, still encoded, to be saved in the state file. None means that the message
    contains no such part.

    Raises:
        ProtobufError: the message is malformed, or the answer is too large.
    """
    responses: list[bytes] = decode(_RAW_ALLOCATED, message, max_values=_MAX_VALUES)["container_responses"]
    if not responses:
        return None
    if len(responses[0]) > MAX_ANSWER_BYTES:
        raise ProtobufError(f"its answer has {len(responses[0])} bytes, more than the limit of {MAX_ANSWER_BYTES}")
    size = len(json.dumps(decode_variables(responses[0])))
    if size > _MAX_VARIABLES_BYTES:
        raise ProtobufError(f"its variables have {size} bytes as JSON, more than the limit of {_MAX_VARIABLES_BYTES}")
    return responses[0]


def encode_pre_start_request(ids: tuple[str, ...]) -> bytes:
    return encode(_PRE_START, {"devices_ids": list(ids)})


def decode_variables(answer: bytes) -> tuple[tuple[str, str], ...]:
    """Return the environment variables in an answer to Allocate, sorted. Variables that can't exist in a process's
    environment are left out.

    Raises:
        ProtobufError: the message is not such an answer.
    """
    envs: dict[str, str] = decode(_ANSWER, answer)["envs"]
    return tuple(
        (name, value)
        for name, value in sorted(envs.items())
        if _VARIABLE.fullmatch(name)
        and not name.startswith(_RESERVED)
        and "\0" not in value
        and len(value) <= _MAX_VALUE
    )


def container_variables(answers: tuple[tuple[str, bytes], ...], own: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the environment variables set by device plugins in their answers to Allocate. As in kubelet, variables
    that the container sets itself (`own`) are left out.
    """
    found: dict[str, str] = {}
    for _, answer in answers:
        found = dict(decode_variables(answer)) | found  # if two resources set the same variable, the first value counts
    return tuple((name, value) for name, value in sorted(found.items()) if name not in own)


class PluginFile(Struct, frozen=True):
    """A device file of the node that a plugin's answer makes available in a container."""

    path: str
    """Path in the container."""
    source: str
    """Path on the node."""


class PluginAccess(Struct, frozen=True):
    """Device files, mounts, annotations and CDI devices in an answer to Allocate. The agent passes them to the container runtime, and
    doesn't apply them to containers that it starts itself.
    """

    files: tuple[PluginFile, ...]
    mounts: tuple[DeviceMount, ...]
    annotations: tuple[tuple[str, str], ...]
    cdi_devices: tuple[str, ...]


def decode_access(answer: bytes) -> PluginAccess:
    """Decode the device files, mounts, annotations and CDI devices in an answer to Allocate.

    Raises:
        ProtobufError: the message is not such an answer, or contains a path that isn't absolute.
    """
    response = decode(_WHOLE_ANSWER, answer)
    for entry in (*response["mounts"], *response["devices"]):
        for part in ("container_path", "host_path"):
            if not entry[part].startswith("/") or "\0" in entry[part]:
                raise ProtobufError(f"{part} {entry[part][:80]!r} is not an absolute path")
    return PluginAccess(
        tuple(PluginFile(file["container_path"], file["host_path"]) for file in response["devices"]),
        tuple(
            DeviceMount(mount["container_path"], mount["host_path"], mount["read_only"]) for mount in response["mounts"]
        ),
        tuple(sorted(response["annotations"].items())),
        tuple(device["name"] for device in response["cdi_devices"]),
    )
