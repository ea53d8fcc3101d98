"""NRI's messages as tables: of nri.pkg.api.v1alpha1 (0.6.1 to 0.12) what the agent reads and answers; other fields are skipped.

Numbers and names are upstream's. What is not here is not sent: UpdateContainers of the Runtime service above all, which deadlocks
containerd (its #13733).
"""

from nodeagent.formats.wire.protobuf import Field, Kind, MessageType

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"

EMPTY = MessageType("Empty", ())
_OPTIONAL_INT64 = MessageType("OptionalInt64", (Field(1, "value", Kind.INT64),))
"""OptionalInt, too."""
_OPTIONAL_UINT64 = MessageType("OptionalUInt64", (Field(1, "value", Kind.UINT64),))

LINUX_MEMORY = MessageType("LinuxMemory", (Field(1, "limit", _OPTIONAL_INT64),))
LINUX_CPU = MessageType(
    "LinuxCPU",
    (
        Field(1, "shares", _OPTIONAL_UINT64),
        Field(2, "quota", _OPTIONAL_INT64),
        Field(3, "period", _OPTIONAL_UINT64),
        Field(6, "cpus", Kind.STRING),
        Field(7, "mems", Kind.STRING),
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
        Field(1, "id", Kind.STRING),
        Field(2, "name", Kind.STRING),
        Field(3, "uid", Kind.STRING),
        Field(4, "namespace", Kind.STRING),
        Field(5, "labels", Kind.STRING_MAP),
        Field(6, "annotations", Kind.STRING_MAP),
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
        Field(1, "id", Kind.STRING),
        Field(2, "pod_sandbox_id", Kind.STRING),
        Field(3, "name", Kind.STRING),
        Field(4, "state", Kind.ENUM),
        Field(5, "labels", Kind.STRING_MAP),
        Field(6, "annotations", Kind.STRING_MAP),
        Field(8, "env", Kind.STRING, repeated=True),
        Field(11, "linux", LINUX_CONTAINER),
        Field(12, "pid", Kind.UINT32),
    ),
)

LINUX_DEVICE = MessageType(
    "LinuxDevice",
    (
        Field(1, "path", Kind.STRING),
        Field(2, "type", Kind.STRING),
        Field(3, "major", Kind.INT64),
        Field(4, "minor", Kind.INT64),
    ),
)
MOUNT = MessageType(
    "Mount",
    (
        Field(1, "destination", Kind.STRING),
        Field(2, "type", Kind.STRING),
        Field(3, "source", Kind.STRING),
        Field(4, "options", Kind.STRING, repeated=True),
    ),
)
KEY_VALUE = MessageType("KeyValue", (Field(1, "key", Kind.STRING), Field(2, "value", Kind.STRING)))
CDI_DEVICE = MessageType("CDIDevice", (Field(1, "name", Kind.STRING),))
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

REGISTER_PLUGIN_REQUEST = MessageType(
    "RegisterPluginRequest", (Field(1, "plugin_name", Kind.STRING), Field(2, "plugin_idx", Kind.STRING))
)
CONFIGURE_REQUEST = MessageType(
    "ConfigureRequest",
    (
        Field(2, "runtime_name", Kind.STRING),
        Field(3, "runtime_version", Kind.STRING),
        Field(4, "registration_timeout", Kind.INT64),
        Field(5, "request_timeout", Kind.INT64),
        Field(6, "NRI_version", Kind.STRING),
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
"""Each a message, which is the same on the wire: so no 4 MiB become a million mappings at once."""
SYNCHRONIZE_RESPONSE = MessageType(
    "SynchronizeResponse", (Field(1, "update", CONTAINER_UPDATE, repeated=True), Field(2, "more", Kind.BOOL))
)
CREATE_CONTAINER_REQUEST = MessageType(
    "CreateContainerRequest", (Field(1, "pod", POD_SANDBOX), Field(2, "container", CONTAINER))
)
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
UPDATE_POD_SANDBOX_REQUEST = MessageType("UpdatePodSandboxRequest", (Field(1, "pod", POD_SANDBOX),))
"""What else it has, kubelet's pods API says exactly."""
STOP_CONTAINER_REQUEST = MessageType(
    "StopContainerRequest", (Field(1, "pod", POD_SANDBOX), Field(2, "container", CONTAINER))
)
STOP_CONTAINER_RESPONSE = MessageType("StopContainerResponse", (Field(1, "update", CONTAINER_UPDATE, repeated=True),))
STATE_CHANGE_EVENT = MessageType(
    "StateChangeEvent", (Field(1, "event", Kind.ENUM), Field(2, "pod", POD_SANDBOX), Field(3, "container", CONTAINER))
)
