"""NRI's data about pods and containers, and the answers of an NRI plugin, as values. Names follow NRI and OCI, but the units are the
agent's.

A field with the value None wasn't reported. In an answer, None changes nothing.
"""

from enum import IntEnum

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceAccess
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletPod

MARGIN_MS = 300
"""Safety margin before the runtime's timeout, in ms. A later answer is replaced by a denial, so that the runtime keeps the connection
open.
"""


class Event(IntEnum):
    """Event that a plugin can subscribe to."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    """Event: the container's first process is in its cgroup, and waits to start. A denial prevents the start."""
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14


class ContainerState(IntEnum):
    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


class HugepageLimit(Struct, frozen=True):
    page_size: str
    """Page size as in the names of cgroup files, such as 2MB or 1GB."""
    limit_bytes: int


class NriResources(Struct, frozen=True):
    """Current or desired values of a container's cgroup."""

    cpus: CpuSet | None = None
    """Allowed CPUs. In a report, None may also mean that the runtime used a notation which only the kernel parses (`0-7:1/2`)."""
    mems: NumaSet | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    """CPU quota per period, in microseconds. 0 and negative numbers mean no limit."""
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None
    """Memory limit in bytes. 0 and negative numbers mean no limit."""
    hugepage_limits: tuple[HugepageLimit, ...] = ()


class Sandbox(Struct, frozen=True):
    """A pod in the runtime."""

    id: str
    """ID in the runtime. A pod that is created again gets a new ID."""
    uid: str
    """UID in Kubernetes."""
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    cgroup_parent: str
    """Parent cgroup as named by kubelet: a slice, or a path if the cgroupfs driver is used. Empty means that the name is unknown."""


class NriContainer(Struct, frozen=True):
    id: str
    sandbox_id: str
    name: str
    """Name in Kubernetes, which stays the same when the container is created again. If the container has no name, this is its ID."""
    state: ContainerState
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    pid: int | None
    """PID of the container's first process. None means that the process doesn't exist yet."""
    cgroups_path: str
    """Cgroup path in OCI's notation: `SLICE:PREFIX:NAME`, or a path if the cgroupfs driver is used. Empty means unknown."""
    oom_score_adj: int | None
    resources: NriResources
    variables: tuple[str, ...] = ()
    """Names of the container's environment variables."""


class Runtime(Struct, frozen=True):
    """The calling runtime, as it describes itself when it configures a plugin."""

    name: str
    version: str
    nri_version: tuple[int, int, int]
    """Reported NRI version, or else the NRI version that belongs to this runtime version. If both are unknown, it is 0.6.0, which all
    later versions understand.
    """
    registration_timeout_ms: int
    request_timeout_ms: int


class Synchronized(Struct, frozen=True):
    """Existing pods and containers, as listed by the runtime at the start of a connection."""

    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    pods: tuple[KubeletPod, ...] = ()
    """kubelet's data about these pods. A pod is missing if kubelet wasn't asked about the pod or doesn't know it."""


class Call(Struct, frozen=True):
    """A call of the runtime about an event that has happened or is about to happen."""

    event: Event
    sandbox: Sandbox
    container: NriContainer | None = None
    """Container of the event. None means that the event concerns the pod."""
    resources: NriResources | None = None
    """Values that an update sets. Missing values stay unchanged. None means that the event isn't an update."""
    pod: KubeletPod | None = None
    """kubelet's data about the pod. None means that kubelet wasn't asked, or doesn't know the pod."""


class Update(Struct, frozen=True):
    """A change of an existing container."""

    container_id: str
    """ID of the container. The runtime ignores an unknown ID."""
    resources: NriResources
    ignore_failure: bool = False


class Answer(Struct, frozen=True):
    """Permission to continue, possibly with changes."""

    adjustment: NriResources | None = None
    """Values for the container that is about to be created. In answers to other calls, this is None."""
    updates: tuple[Update, ...] = ()
    """Changes of other containers. NRI allows them in answers to creations, updates and stops."""
    access: DeviceAccess | None = None
    """Device access for the container that is about to be created."""


class Denial(Struct, frozen=True):
    """Refusal of the runtime's operation. kubelet shows the reason in the container's status, and tries again."""

    reason: str
