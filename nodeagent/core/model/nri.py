"""What NRI says of pods and containers, and what a plugin answers, as values. Names are NRI's and OCI's, units are ours.

A field that is None wasn't said; in an answer it changes nothing.
"""

from enum import IntEnum

from msgspec import Struct

from nodeagent.core.model.device_access import DeviceAccess
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletPod

MARGIN_MS = 300
"""Kept of the time that the runtime waits for an answer: a denial in time keeps the connection."""


class Event(IntEnum):
    """What a plugin can subscribe to."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    """The container's first process is in its cgroup and has not begun: a denial keeps it from it."""
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
    """As in the cgroup file's name: 2MB, 1GB."""
    limit_bytes: int


class NriResources(Struct, frozen=True):
    """Of a container's cgroup, as its runtime has them or should have them."""

    cpus: CpuSet | None = None
    """Told: None, too, where it is spelt as only the kernel reads it (`0-7:1/2`)."""
    mems: NumaSet | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    """Not above 0: no limit."""
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None
    """Not above 0: no limit."""
    hugepage_limits: tuple[HugepageLimit, ...] = ()


class Sandbox(Struct, frozen=True):
    """A pod."""

    id: str
    """The runtime's; a pod that is made again gets a new one."""
    uid: str
    """Kubernetes'."""
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    cgroup_parent: str
    """As kubelet named it: a slice, or a path with the cgroupfs driver. "": unknown."""


class NriContainer(Struct, frozen=True):
    id: str
    sandbox_id: str
    name: str
    """Kubernetes': what stays the same when the container is made again. Never empty: one without a name has its id."""
    state: ContainerState
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    pid: int | None
    """Of its first process; None: none yet."""
    cgroups_path: str
    """As OCI spells it: `SLICE:PREFIX:NAME`, or a path with the cgroupfs driver. "": unknown."""
    oom_score_adj: int | None
    resources: NriResources
    variables: tuple[str, ...] = ()
    """Names of those in its environment."""


class Runtime(Struct, frozen=True):
    """Who calls, as it says when it configures a plugin."""

    name: str
    version: str
    nri_version: tuple[int, int, int]
    """As told, or what that version of the runtime has; 0.6.0, which all later ones understand, where neither is known."""
    registration_timeout_ms: int
    request_timeout_ms: int


class Synchronized(Struct, frozen=True):
    """What runs, as the runtime lists it at the beginning."""

    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    pods: tuple[KubeletPod, ...] = ()
    """What kubelet says of them beside, of those that it was asked about and has."""


class Call(Struct, frozen=True):
    """What happens, or is about to."""

    event: Event
    sandbox: Sandbox
    container: NriContainer | None = None
    """None: it happens to the pod."""
    resources: NriResources | None = None
    """What an update is going to set; what it doesn't say stays. None: it is no update."""
    pod: KubeletPod | None = None
    """What kubelet says of the pod beside. None: it wasn't asked, or doesn't know."""


class Update(Struct, frozen=True):
    """A change of a container that exists."""

    container_id: str
    """The runtime takes an unknown one for done."""
    resources: NriResources
    ignore_failure: bool = False


class Answer(Struct, frozen=True):
    """Go on."""

    adjustment: NriResources | None = None
    """Of the container that is about to be created; of no other call."""
    updates: tuple[Update, ...] = ()
    """Of other containers; where one is created, updated or stopped."""
    access: DeviceAccess | None = None
    """What the container that is about to be created needs for devices of its own."""


class Denial(Struct, frozen=True):
    """Don't. Kubelet shows the reason as the container's, and tries again."""

    reason: str
