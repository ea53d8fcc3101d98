"""Pods and containers as values, with their QoS class and the kinds of containers. This module depends neither on the syntax of manifests
nor on a policy.
"""

import enum
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.claims import ContainerClaim, PodClaim
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import ProcessSettings, Profile, QuietRequest

CPU = "cpu"
MEMORY = "memory"
HUGEPAGES_PREFIX = "hugepages-"
ANNOTATION_DOMAIN = "nodeagent.io"
"""Domain of the annotations that the agent reads. Their form is `KIND.nodeagent.io/CONTAINER` or `nodeagent.io/KIND`. The agent ignores
annotations of other domains.
"""
_QOS_RESOURCES = (CPU, MEMORY)


class Resources(Struct, frozen=True):
    """Immutable list of resources, as pairs of name and quantity, sorted by name."""

    items: tuple[tuple[str, Quantity], ...] = ()

    @classmethod
    def of(cls, amounts: Mapping[str, Quantity]) -> "Resources":
        return cls(tuple(sorted(amounts.items())))

    def get(self, name: str) -> Quantity | None:
        for key, quantity in self.items:
            if key == name:
                return quantity
        return None

    def __iter__(self) -> Iterator[tuple[str, Quantity]]:
        return iter(self.items)

    def __bool__(self) -> bool:
        return bool(self.items)


class ResourceRequirements(Struct, frozen=True):
    requests: Resources = Resources()
    limits: Resources = Resources()


class ContainerKind(enum.Enum):
    INIT = "init"
    """Container that must run to completion before the next container starts."""
    SIDECAR = "sidecar"
    """Init container with `restartPolicy: Always`. It keeps running, and the next container starts without waiting for its end."""
    APP = "app"


class RestartPolicy(enum.Enum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class QosClass(enum.Enum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


OWN = "own"
"""Name of the domain of all cgroups and processes that the agent itself manages (D30)."""
SYSTEMD = "systemd"
"""Name of the domain of systemd units. systemd sets their CPUs and memory nodes at the agent's request."""


class Container(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    command: tuple[str, ...] = ()
    """Command of the container, followed by its arguments in `args`. Without a command, the container is an empty cgroup, into which other
    processes can be moved.
    """
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    restart_policy: RestartPolicy | None = None
    """Restart policy of this container alone. None means that the pod's policy applies."""
    restarts_for: tuple[str, ...] = ()
    """Sorted resources whose change requires a restart of the container (`resizePolicy`)."""
    exclusive_cpus: int | None = None
    """Number of exclusive CPUs in the container's CPU request, from an annotation that works in every QoS class. The container uses the
    shared pool for the rest of its request.

    None means that there is no annotation. Then either all requested CPUs are exclusive or none, by kubelet's rules.
    """

    interrupts: tuple[str, ...] = ()
    """PCI devices and network interfaces in the annotation for interrupts. The agent moves their interrupts to the container's exclusive
    CPUs.
    """
    near: tuple[str, ...] = ()
    """PCI devices (by any of their names) or kinds of devices, from an annotation. The container's CPUs and memory should be on the NUMA
    node of these devices.
    """
    claims: tuple[ContainerClaim, ...] = ()
    """Resource claims of the pod that the container uses (`resources.claims`)."""
    unit: str = ""
    """Systemd unit that the container pins, from an annotation. systemd starts and stops the unit's processes. Empty means that the
    container pins no unit, and has a cgroup made by the agent.
    """

    @property
    def is_mixed(self) -> bool:
        """Whether the container requests exclusive CPUs and, in addition, CPUs of the shared pool."""
        request = self.resources.requests.get(CPU)
        return self.exclusive_cpus is not None and request is not None and request.nano > self.exclusive_cpus * 10**9

    @property
    def devices(self) -> tuple[tuple[str, Quantity], ...]:
        """Return the container's extended resources with their requested numbers. Resources with the number 0 are left out."""
        return tuple([each for each in self.extended_resources if each[1].nano])

    @property
    def extended_resources(self) -> tuple[tuple[str, Quantity], ...]:
        """Return the extended resources in the container's limits, with their numbers, including 0. An extended resource is recognized by
        the domain in its name.
        """
        limits = self.resources.limits.items
        return tuple([each for each in limits if "/" in each[0] and not each[0].startswith(HUGEPAGES_PREFIX)])

    @property
    def is_launched(self) -> bool:
        """Whether the launcher starts the container's processes and reports when they end. Otherwise, other programs may move processes
        into the container's cgroup at any time.
        """
        return bool(self.command)


class Pod(Struct, frozen=True, dict=True):
    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]
    """Init containers and sidecars in the manifest's order, followed by the app containers."""
    resources: ResourceRequirements | None = None
    """Resources of the pod as a whole (`spec.resources`)."""
    overhead: Resources = Resources()
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    termination_grace_seconds: int = 30
    is_isolated: bool = False
    """Whether an annotation asks the kernel not to balance load among the pod's exclusive CPUs. This is possible only on a node with
    `hostIsolation`.
    """
    quiet: QuietRequest | None = None
    """Settings of the cores of the pod's exclusive CPUs, from an annotation. They apply as long as the pod runs."""
    process: ProcessSettings = ProcessSettings()
    """Settings of the containers' processes, from annotations. They take precedence over the process settings of the pod's profile."""
    gives_back: bool = False
    """Whether an annotation lets other pods get this pod's CPUs and memory while all systemd units of this pod are inactive."""
    numa_node: int | None = None
    """NUMA node on which all exclusive CPUs and memory of the pod must be, from an annotation. None means any node."""
    core_class: str | None = None
    """Core class that all exclusive CPUs of the pod must have, from an annotation. None means any class."""
    preferred_core_class: str | None = None
    """Core class that the pod's exclusive CPUs should have if possible, from an annotation. None means the class in the node's
    configuration.
    """
    claims: tuple[PodClaim, ...] = ()
    """Resource claims of the pod (`spec.resourceClaims`)."""
    given_qos: QosClass | None = None
    """QoS class from the manifest's `status.qosClass`. As in kubelet, it takes precedence over the class that follows from the requests and
    limits.
    """

    @cached_property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Return the systemd units that the pod's containers pin. If one container of a pod pins a unit, all its containers do."""
        return tuple(container.unit for container in self.containers if container.unit)

    @cached_property
    def near(self) -> tuple[str, ...]:
        """Return the devices, or kinds of devices, near which the pod's containers should be placed, without duplicates."""
        return tuple(dict.fromkeys([name for container in self.containers for name in container.near]))

    @cached_property
    def asks_for_devices(self) -> bool:
        """Whether a container of the pod requests an extended resource."""
        return any(container.devices for container in self.containers)

    @cached_property
    def derived(self) -> dict[tuple[str, bool], object]:
        """Cache of values that functions have computed from this pod. The key consists of the function's name and the value of the gate
        PodLevelResources. The values don't depend on the pod's name, namespace and UID.
        """
        return {}

    def renamed(self, name: str, namespace: str, uid: str) -> "Pod":
        """Return a copy of the pod with another name, namespace and UID. The copy shares the cache of derived values with the original."""
        pod = replace(self, name=name, namespace=namespace, uid=uid)
        pod.__dict__["derived"] = self.derived
        return pod

    def resolve_process(self, profiles: tuple[tuple[str, Profile], ...]) -> ProcessSettings:
        """Return the effective settings of the containers' processes: those of the pod's profile, if the node has this profile, overridden
        by the pod's own.
        """
        profile = None if self.quiet is None else dict(profiles).get(self.quiet.profile)
        return self.process if profile is None else profile.process.overridden_by(self.process)

    def container(self, name: str) -> Container:
        return next(c for c in self.containers if c.name == name)

    def sum_limits(self, *prefixes: str, besides: Collection[str] = ()) -> int:
        """Return the sum of the containers' limits, in billionths, of all resources whose names begin with one of the prefixes. Resources
        in `besides` don't count.
        """
        return sum(
            amount.nano
            for container in self.containers
            for name, amount in container.resources.limits
            if name.startswith(prefixes) and name not in besides
        )

    def apps(self) -> Iterator[Container]:
        return (c for c in self.containers if c.kind is ContainerKind.APP)

    def inits(self) -> Iterator[Container]:
        """Return the init containers, including sidecars."""
        return (c for c in self.containers if c.kind is not ContainerKind.APP)


def is_own_annotation(key: str) -> bool:
    """Return whether an annotation's key belongs to the agent's annotation domain."""
    kind, slash, _ = key.partition("/")
    return bool(slash) and f".{kind}".endswith(f".{ANNOTATION_DOMAIN}")


def has_pod_level_resources(pod: Pod) -> bool:
    """Return whether `spec.resources` of the pod contains cpu, memory or huge pages (KEP-2837)."""
    if pod.resources is None:
        return False
    names = [name for part in (pod.resources.requests, pod.resources.limits) for name, _ in part]
    return any(name in _QOS_RESOURCES or name.startswith(HUGEPAGES_PREFIX) for name in names)


def qos_class(pod: Pod, *, pod_level_resources: bool) -> QosClass:
    """Compute the QoS class by the rules of Kubernetes (component-helpers, ComputePodQOS).

    Args:
        pod: the pod with defaults applied, so that limits replace missing requests.
        pod_level_resources: whether the gate PodLevelResources is on.
    """
    if pod.given_qos is not None:
        return pod.given_qos
    parts = [c.resources for c in pod.containers]
    if pod_level_resources and pod.resources is not None:
        parts = [pod.resources]
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    limited = True
    for part in parts:
        _add_nonzero(requests, part.requests)
        limited = _add_nonzero(limits, part.limits) == len(_QOS_RESOURCES) and limited
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if limited and requests == limits else QosClass.BURSTABLE


def _add_nonzero(total: dict[str, int], resources: Resources) -> int:
    """Add all CPU and memory amounts above zero to `total`. Return how many of these two resources have such an amount."""
    found = 0
    for name, quantity in resources.items:
        if name in _QOS_RESOURCES and quantity.nano > 0:
            total[name] = total.get(name, 0) + quantity.nano
            found += 1
    return found
