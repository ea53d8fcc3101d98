"""Tables of NRI's messages (nri.pkg.api.v1alpha1, 0.6.1 to 0.12), with the fields that the agent reads or writes.

Numbers and names are upstream's. The agent never sends other messages, above all not UpdateContainers of the Runtime
service, which deadlocks containerd (its #13733).
"""

from nodeagent.formats.wire.protobuf import Field, Kind, MessageType, fields

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"

EMPTY = MessageType("Empty", ())
_OPTIONAL_INT64 = MessageType("OptionalInt64", (Field(1, "value", Kind.INT64),))
"""Message OptionalInt64. Also used for OptionalInt, which has the same encoding."""
_OPTIONAL_UINT64 = MessageType("OptionalUInt64", (Field(1, "value", Kind.UINT64),))

LINUX_MEMORY = MessageType("LinuxMemory", (Field(1, "limit", _OPTIONAL_INT64),))
LINUX_CPU = MessageType(
    "LinuxCPU",
    (
        *fields(_OPTIONAL_UINT64, shares=1, period=3),
        Field(2, "quota", _OPTIONAL_INT64),
        *fields(Kind.STRING, cpus=6, mems=7),
    ),
)
HUGEPAGE_LIMIT = MessageType("HugepageLimit", (Field(1, "page_size", Kind.STRING), Field(2, "limit", Kind.UINT64)))
LINUX_RESOURCES = MessageType(
    "LinuxResources",
    (
        Field(1, "memory", LINUX_MEMORY),
        Field(2, "cpu", LINUX_CPU),
        Field(3, "hugepage_limits", HUGEPAGE_LIMIT, repeated=True),
    ),
)

LINUX_POD_SANDBOX = MessageType("LinuxPodSandbox", (Field(3, "cgroup_parent", Kind.STRING),))
POD_SANDBOX = MessageType(
    "PodSandbox",
    (
        *fields(Kind.STRING, id=1, name=2, uid=3, namespace=4),
        *fields(Kind.STRING_MAP, labels=5, annotations=6),
        Field(8, "linux", LINUX_POD_SANDBOX),
    ),
)
LINUX_CONTAINER = MessageType(
    "LinuxContainer",
    (
        Field(3, "resources", LINUX_RESOURCES),
        Field(4, "oom_score_adj", _OPTIONAL_INT64),
        Field(5, "cgroups_path", Kind.STRING),
    ),
)
CONTAINER = MessageType(
    "Container",
    (
        *fields(Kind.STRING, id=1, pod_sandbox_id=2, name=3),
        Field(4, "state", Kind.ENUM),
        *fields(Kind.STRING_MAP, labels=5, annotations=6),
        Field(8, "env", Kind.STRING, repeated=True),
        Field(11, "linux", LINUX_CONTAINER),
        Field(12, "pid", Kind.UINT32),
    ),
)

LINUX_DEVICE = MessageType("LinuxDevice", (*fields(Kind.STRING, path=1, type=2), *fields(Kind.INT64, major=3, minor=4)))
MOUNT = MessageType(
    "Mount", (*fields(Kind.STRING, destination=1, type=2, source=3), Field(4, "options", Kind.STRING, repeated=True))
)
KEY_VALUE = MessageType("KeyValue", fields(Kind.STRING, key=1, value=2))
CDI_DEVICE = MessageType("CDIDevice", fields(Kind.STRING, name=1))
LINUX_CONTAINER_ADJUSTMENT = MessageType(
    "LinuxContainerAdjustment",
    (Field(1, "devices", LINUX_DEVICE, repeated=True), Field(2, "resources", LINUX_RESOURCES)),
)
CONTAINER_ADJUSTMENT = MessageType(
    "ContainerAdjustment",
    (
        Field(2, "annotations", Kind.STRING_MAP),
        Field(3, "mounts", MOUNT, repeated=True),
        Field(4, "env", KEY_VALUE, repeated=True),
        Field(6, "linux", LINUX_CONTAINER_ADJUSTMENT),
        Field(8, "CDI_devices", CDI_DEVICE, repeated=True),
    ),
)
LINUX_CONTAINER_UPDATE = MessageType("LinuxContainerUpdate", (Field(1, "resources", LINUX_RESOURCES),))
CONTAINER_UPDATE = MessageType(
    "ContainerUpdate",
    (
        Field(1, "container_id", Kind.STRING),
        Field(2, "linux", LINUX_CONTAINER_UPDATE),
        Field(3, "ignore_failure", Kind.BOOL),
    ),
)

REGISTER_PLUGIN_REQUEST = MessageType("RegisterPluginRequest", fields(Kind.STRING, plugin_name=1, plugin_idx=2))
CONFIGURE_REQUEST = MessageType(
    "ConfigureRequest",
    (
        *fields(Kind.STRING, runtime_name=2, runtime_version=3, NRI_version=6),
        *fields(Kind.INT64, registration_timeout=4, request_timeout=5),
    ),
)
CONFIGURE_RESPONSE = MessageType("ConfigureResponse", (Field(2, "events", Kind.INT32),))
SYNCHRONIZE_REQUEST = MessageType(
    "SynchronizeRequest",
    (
        Field(1, "pods", Kind.BYTES, repeated=True),
        Field(2, "containers", Kind.BYTES, repeated=True),
        Field(3, "more", Kind.BOOL),
    ),
)
"""Pods and containers are undecoded messages, so that a request of 4 MiB doesn't become a million mappings at once."""
SYNCHRONIZE_RESPONSE = MessageType(
    "SynchronizeResponse", (Field(1, "update", CONTAINER_UPDATE, repeated=True), Field(2, "more", Kind.BOOL))
)
POD_REQUEST = MessageType("RunPodSandboxRequest", (Field(1, "pod", POD_SANDBOX),))
"""Request of each method about a pod. The resources of UpdatePodSandbox are left out, because kubelet's pods API has more
exact values.
"""
CONTAINER_REQUEST = MessageType(
    "CreateContainerRequest", (Field(1, "pod", POD_SANDBOX), Field(2, "container", CONTAINER))
)
"""Request of each method about a container, except UpdateContainer."""
CREATE_CONTAINER_RESPONSE = MessageType(
    "CreateContainerResponse",
    (Field(1, "adjust", CONTAINER_ADJUSTMENT), Field(2, "update", CONTAINER_UPDATE, repeated=True)),
)
UPDATE_CONTAINER_REQUEST = MessageType(
    "UpdateContainerRequest",
    (Field(1, "pod", POD_SANDBOX), Field(2, "container", CONTAINER), Field(3, "linux_resources", LINUX_RESOURCES)),
)
UPDATE_CONTAINER_RESPONSE = MessageType(
    "UpdateContainerResponse", (Field(1, "update", CONTAINER_UPDATE, repeated=True),)
)
STOP_CONTAINER_RESPONSE = MessageType("StopContainerResponse", (Field(1, "update", CONTAINER_UPDATE, repeated=True),))
STATE_CHANGE_EVENT = MessageType(
    "StateChangeEvent", (Field(1, "event", Kind.ENUM), Field(2, "pod", POD_SANDBOX), Field(3, "container", CONTAINER))
)
