"""Pods and their containers as values, their QoS class, and the roles of containers. This module depends neither on the manifest's syntax
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
"""Domain of the agent's annotations, which have the form `KIND.nodeagent.io/CONTAINER` or `nodeagent.io/KIND`. Others are ignored."""
_QOS_RESOURCES = (CPU, MEMORY)


class Resources(Struct, frozen=True):
    """An immutable resource list: pairs of name and quantity, sorted by name."""

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
    """Container that runs to completion before the next container starts."""
    SIDECAR = "sidecar"
    """Init container with `restartPolicy: Always`. Sidecars start in order and keep running."""
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
"""Name of the domain for cgroups and processes that the agent itself owns (D30)."""
SYSTEMD = "systemd"
"""Name of the domain of systemd units. On the agent's request, systemd sets the CPUs and memory nodes of these units."""


class Container(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    command: tuple[str, ...] = ()
    """Command and arguments. If there are none, the container starts as an empty cgroup, which other processes may enter."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    restart_policy: RestartPolicy | None = None
    """Restart policy of the container itself. None means that the pod's policy applies."""
    restarts_for: tuple[str, ...] = ()
    """Resources (sorted) whose change restarts the container (`resizePolicy`)."""
    exclusive_cpus: int | None = None
    """Annotation: number of exclusive CPUs within the CPU request, regardless of the QoS class. The rest of the request comes from the
    shared pool. None means that the annotation is missing. As in kubelet, either all requested CPUs are then exclusive, or none.
    """

    interrupts: tuple[str, ...] = ()
    """Annotation: PCI devices and network interfaces whose interrupts are moved to the container's exclusive CPUs."""
    near: tuple[str, ...] = ()
    """Annotation: PCI devices (by any of their names) or kinds of devices. The container's CPUs and memory should be on the NUMA node of
    these devices.
    """
    claims: tuple[ContainerClaim, ...] = ()
    """Claims of the pod that the container uses (`resources.claims`)."""
    unit: str = ""
    """Annotation: the systemd unit that the container pins. systemd starts and ends the unit's processes. Empty means that the container
    doesn't pin a unit, and has a cgroup of the agent.
    """

    @property
    def is_mixed(self) -> bool:
        """Whether the container requests both exclusive CPUs and CPUs of the shared pool."""
        request = self.resources.requests.get(CPU)
        return self.exclusive_cpus is not None and request is not None and request.nano > self.exclusive_cpus * 10**9

    @property
    def devices(self) -> tuple[tuple[str, Quantity], ...]:
        """Return the extended resources that the container requests, with their numbers. A resource with the number 0 is left out."""
        return tuple([each for each in self.extended_resources if each[1].nano])

    @property
    def extended_resources(self) -> tuple[tuple[str, Quantity], ...]:
        """Return the extended resources in the container's limits, with their numbers. Names of extended resources contain a domain."""
        limits = self.resources.limits.items
        return tuple([each for each in limits if "/" in each[0] and not each[0].startswith(HUGEPAGES_PREFIX)])

    @property
    def is_launched(self) -> bool:
        """Whether the launcher starts the container's processes and reports their end. Otherwise other processes may enter the
        container's cgroup at any time.
        """
        return bool(self.command)


class Pod(Struct, frozen=True, dict=True):
    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]
    """Init containers and sidecars in manifest order, then app containers."""
    resources: ResourceRequirements | None = None
    """Pod-level `spec.resources`."""
    overhead: Resources = Resources()
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    termination_grace_seconds: int = 30
    is_isolated: bool = False
    """Annotation: the kernel balances no load across the pod's exclusive CPUs. The node must isolate these CPUs from the host."""
    quiet: QuietRequest | None = None
    """Annotation: settings for the cores of the pod's exclusive CPUs. They are in effect while the pod runs."""
    process: ProcessSettings = ProcessSettings()
    """Annotation: settings of the containers' processes. These settings take precedence over the profile's settings."""
    gives_back: bool = False
    """Annotation: other pods may get the pod's CPUs and memory while none of the pod's systemd units is active."""
    numa_node: int | None = None
    """Annotation: NUMA node on which the pod's exclusive CPUs and memory must be. None means any node."""
    core_class: str | None = None
    """Annotation: core class that the pod's exclusive CPUs must have. None means any class."""
    preferred_core_class: str | None = None
    """Annotation: core class that the pod's exclusive CPUs should have if possible. None means the class in the node's configuration."""
    claims: tuple[PodClaim, ...] = ()
    """Resource claims of the pod (`spec.resourceClaims`)."""
    given_qos: QosClass | None = None
    """QoS class in the manifest's `status.qosClass`. As in kubelet, it takes precedence over the computed class."""

    @cached_property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Return the systemd units that the pod's containers pin. Either all containers of a pod pin a unit, or none do."""
        return tuple(container.unit for container in self.containers if container.unit)

    @cached_property
    def near(self) -> tuple[str, ...]:
        """Return the devices, or kinds of devices, near which the pod's containers ask to be, without duplicates."""
        return tuple(dict.fromkeys([name for container in self.containers for name in container.near]))

    @cached_property
    def asks_for_devices(self) -> bool:
        """Whether a container of the pod requests devices by count."""
        return any(container.devices for container in self.containers)

    @cached_property
    def derived(self) -> dict[tuple[str, bool], object]:
        """Cache of values that were computed from this pod's fields except name, namespace and UID, by function and by the value of the
        gate PodLevelResources.
        """
        return {}

    def renamed(self, name: str, namespace: str, uid: str) -> "Pod":
        """Return a pod with another identity. Both pods share the cache of derived values."""
        pod = replace(self, name=name, namespace=namespace, uid=uid)
        pod.__dict__["derived"] = self.derived
        return pod

    def resolve_process(self, profiles: tuple[tuple[str, Profile], ...]) -> ProcessSettings:
        """Return the settings of the containers' processes. The settings of the named profile are included if the node has this profile."""
        profile = None if self.quiet is None else dict(profiles).get(self.quiet.profile)
        return self.process if profile is None else profile.process.overridden_by(self.process)

    def container(self, name: str) -> Container:
        return next(c for c in self.containers if c.name == name)

    def sum_limits(self, *prefixes: str, besides: Collection[str] = ()) -> int:
        """Sum the containers' limits of all resources whose names have one of these prefixes, in billionths. Resources in `besides` are
        left out.
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
        """Return the init containers and sidecars."""
        return (c for c in self.containers if c.kind is not ContainerKind.APP)


def is_own_annotation(key: str) -> bool:
    """Whether the annotation belongs to the agent's domain."""
    kind, slash, _ = key.partition("/")
    return bool(slash) and f".{kind}".endswith(f".{ANNOTATION_DOMAIN}")


def has_pod_level_resources(pod: Pod) -> bool:
    """Whether the pod's `spec.resources` contains cpu, memory or a huge page size (KEP-2837)."""
    if pod.resources is None:
        return False
    names = [name for part in (pod.resources.requests, pod.resources.limits) for name, _ in part]
    return any(name in _QOS_RESOURCES or name.startswith(HUGEPAGES_PREFIX) for name in names)


def qos_class(pod: Pod, *, pod_level_resources: bool) -> QosClass:
    """Compute the QoS class as Kubernetes does (component-helpers, ComputePodQOS).

    Args:
        pod: the pod with defaults applied, so that limits replace missing requests.
        pod_level_resources: value of the gate PodLevelResources.
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
    """Add the amounts that count for the QoS class to `total`. Return the number of resources that were added."""
    found = 0
    for name, quantity in resources.items:
        if name in _QOS_RESOURCES and quantity.nano > 0:
            total[name] = total.get(name, 0) + quantity.nano
            found += 1
    return found
