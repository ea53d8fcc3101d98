"""NRI's data of pods and containers, and a plugin's answers, as values. Names are those of NRI and OCI, units are the agent's.

A field of None wasn't reported. In an answer, None changes nothing.
"""

from enum import IntEnum

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceAccess
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletPod

MARGIN_MS = 300
"""Reserve of the time that the runtime waits for an answer. A denial in time keeps the connection."""


class Event(IntEnum):
    """Event that a plugin can subscribe to."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    """The container's first process is in its cgroup and has not started. A denial prevents the start."""
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
    """Size as in the names of cgroup files, such as 2MB or 1GB."""
    limit_bytes: int


class NriResources(Struct, frozen=True):
    """Values of a container's cgroup, current or desired."""

    cpus: CpuSet | None = None
    """In a report also None for a notation that only the kernel reads (`0-7:1/2`)."""
    mems: NumaSet | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    """0 and negative numbers mean no limit."""
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None
    """0 and negative numbers mean no limit."""
    hugepage_limits: tuple[HugepageLimit, ...] = ()


class Sandbox(Struct, frozen=True):
    """A pod in the runtime."""

    id: str
    """The runtime's ID. A pod that is created again gets a new one."""
    uid: str
    """UID in Kubernetes."""
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    cgroup_parent: str
    """kubelet's name for the parent cgroup: a slice, or a path with the cgroupfs driver. Empty means unknown."""


class NriContainer(Struct, frozen=True):
    id: str
    sandbox_id: str
    name: str
    """Name in Kubernetes, which stays when the container is created again. A container without a name has its ID here."""
    state: ContainerState
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    pid: int | None
    """Pid of its first process. None means that there is none yet."""
    cgroups_path: str
    """OCI's notation of its cgroup: `SLICE:PREFIX:NAME`, or a path with the cgroupfs driver. Empty means unknown."""
    oom_score_adj: int | None
    resources: NriResources
    variables: tuple[str, ...] = ()
    """Names of its environment variables."""


class Runtime(Struct, frozen=True):
    """The calling runtime, as reported when it configures a plugin."""

    name: str
    version: str
    nri_version: tuple[int, int, int]
    """Reported version, or that of this version of the runtime. If both are unknown, 0.6.0, which all later versions understand."""
    registration_timeout_ms: int
    request_timeout_ms: int


class Synchronized(Struct, frozen=True):
    """Existing pods and containers, as listed by the runtime at the start of a connection."""

    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    pods: tuple[KubeletPod, ...] = ()
    """kubelet's data of these pods, as far as kubelet was asked and has it."""


class Call(Struct, frozen=True):
    """A call of the runtime about an event that has happened, or is about to."""

    event: Event
    sandbox: Sandbox
    container: NriContainer | None = None
    """None means that the event concerns the pod."""
    resources: NriResources | None = None
    """Values that an update will set. Missing values stay. None means that the event is no update."""
    pod: KubeletPod | None = None
    """kubelet's data of the pod. None means that kubelet wasn't asked, or doesn't know the pod."""


class Update(Struct, frozen=True):
    """A change of an existing container."""

    container_id: str
    """The runtime ignores an unknown ID."""
    resources: NriResources
    ignore_failure: bool = False


class Answer(Struct, frozen=True):
    """Permission to go on, with changes."""

    adjustment: NriResources | None = None
    """Values of the container that is about to be created. Other calls have none."""
    updates: tuple[Update, ...] = ()
    """Changes of other containers, allowed when a container is created, updated or stopped."""
    access: DeviceAccess | None = None
    """Access to its devices for the container that is about to be created."""


class Denial(Struct, frozen=True):
    """Refusal of the operation. kubelet shows the reason as the container's, and tries again."""

    reason: str
