"""Value types for NRI, the plugin interface of container runtimes: reported pods and containers, and a plugin's answers. Names follow NRI
and OCI. Units are those of nodeagent, and are part of the field names.

In a report, a field is None if the runtime didn't report it. In an answer, None means no change.
"""

from enum import IntEnum

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceAccess
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletPod

MARGIN_MS = 300
"""Time between the agent's last possible answer and the runtime's timeout, in milliseconds. If the agent isn't ready by then, it sends a
denial, because the runtime closes the connection after a timeout.
"""


class Event(IntEnum):
    """NRI event to which a plugin can subscribe."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    """Event before the start of a container's command. The container's first process already waits in its cgroup. If the plugin denies the
    call, the command isn't started.
    """
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
    """Huge page size in the notation of cgroup file names, such as 2MB or 1GB."""
    limit_bytes: int


class NriResources(Struct, frozen=True):
    """Reported or requested values of a container's cgroup."""

    cpus: CpuSet | None = None
    """CPUs on which the container may run. In a report, None can also mean that the runtime uses a notation that only the kernel parses
    (`0-7:1/2`).
    """
    mems: NumaSet | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    """CPU time per period, in microseconds. Zero and negative values mean no limit."""
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None
    """Memory limit in bytes. Zero and negative values mean no limit."""
    hugepage_limits: tuple[HugepageLimit, ...] = ()


class Sandbox(Struct, frozen=True):
    """A pod in the container runtime (in CRI's terms: a pod sandbox)."""

    id: str
    """Sandbox ID. The runtime assigns a new one whenever it creates the pod's sandbox again."""
    uid: str
    """Pod UID in Kubernetes."""
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    cgroup_parent: str
    """Cgroup of the pod, as kubelet passes it to the runtime: a slice name, or a path with the cgroupfs driver. Empty means unknown."""


class NriContainer(Struct, frozen=True):
    id: str
    sandbox_id: str
    name: str
    """Container name in Kubernetes, which stays the same when the runtime creates the container again. For a container without a name, this
    is the ID.
    """
    state: ContainerState
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    pid: int | None
    """Process ID of the container's first process. None means that this process doesn't exist yet."""
    cgroups_path: str
    """Cgroup of the container in OCI's notation: `SLICE:PREFIX:NAME`, or a path with the cgroupfs driver. Empty means unknown."""
    oom_score_adj: int | None
    resources: NriResources
    variables: tuple[str, ...] = ()
    """Names of the container's environment variables."""


class Runtime(Struct, frozen=True):
    """Container runtime that calls the plugin, as it describes itself when it connects."""

    name: str
    version: str
    nri_version: tuple[int, int, int]
    """NRI version that the runtime reports, or else the version that belongs to the runtime's own version. If both are unknown, this is
    0.6.0, which later versions understand.
    """
    registration_timeout_ms: int
    request_timeout_ms: int


class Synchronized(Struct, frozen=True):
    """Pods and containers that exist when the runtime connects to the plugin (NRI's call Synchronize)."""

    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    pods: tuple[KubeletPod, ...] = ()
    """kubelet's data about these pods. A pod is missing if kubelet wasn't asked about it or doesn't know it."""


class Call(Struct, frozen=True):
    """A call of the container runtime about an event of a pod or container. The runtime waits for the answer."""

    event: Event
    sandbox: Sandbox
    container: NriContainer | None = None
    """Container to which the event applies. None means that it applies to the pod."""
    resources: NriResources | None = None
    """Values that the runtime is about to change in a container's or pod's cgroup. None means that the event isn't an update."""
    pod: KubeletPod | None = None
    """kubelet's data about the pod. None means that kubelet wasn't asked about it or doesn't know it."""


class Update(Struct, frozen=True):
    """Change of an existing container's cgroup, requested from the runtime."""

    container_id: str
    """Container ID. The runtime ignores the change if it doesn't know this ID."""
    resources: NriResources
    ignore_failure: bool = False


class Answer(Struct, frozen=True):
    """Answer that lets the runtime continue, possibly with changed values."""

    adjustment: NriResources | None = None
    """Values for the container that the runtime is about to create. None in the answers to all other events."""
    updates: tuple[Update, ...] = ()
    """Changes of other, existing containers. NRI permits them in the answers to creations, updates and stops of containers."""
    access: DeviceAccess | None = None
    """Device files, mounts and variables for the container that the runtime is about to create."""


class Denial(Struct, frozen=True):
    """Answer that forbids the runtime's operation. kubelet shows the reason in the container's status, and tries again later."""

    reason: str
