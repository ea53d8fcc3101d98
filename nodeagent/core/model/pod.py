"""Pods and their containers as values, their QoS class, and the roles of containers. Knows no manifest syntax and no policy."""

import enum
from collections.abc import Iterator, Mapping

from msgspec import Struct

from nodeagent.core.model.claims import ContainerClaim, PodClaim
from nodeagent.core.model.quantity import Quantity

CPU = "cpu"
MEMORY = "memory"
HUGEPAGES_PREFIX = "hugepages-"
ANNOTATION_DOMAIN = "nodeagent.io"
"""Domain of the agent's annotations, `KIND.nodeagent.io/CONTAINER` or `nodeagent.io/KIND`. Other annotations are ignored."""
_QOS_RESOURCES = (CPU, MEMORY)


class Resources(Struct, frozen=True):
    """An immutable resource list: name to quantity, sorted by name."""

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
    """Runs to completion before the next container starts."""
    SIDECAR = "sidecar"
    """Init container with `restartPolicy: Always`: starts in order, and stays."""
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
"""Name of the domain whose cgroups and processes the agent owns (D30)."""
SYSTEMD = "systemd"
"""Name of the domain of systemd's units. systemd sets their CPUs and memory nodes for the agent."""


class Container(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    command: tuple[str, ...] = ()
    """Command and arguments. Empty means that the container is an empty cgroup that other processes enter."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    restart_policy: RestartPolicy | None = None
    """The container's own policy. None means the pod's."""
    restarts_for: tuple[str, ...] = ()
    """Resources whose change restarts the container (`resizePolicy`), sorted."""
    exclusive_cpus: int | None = None
    """Annotation: number of CPUs of the request that are exclusive, whatever the QoS class; the rest comes from the shared pool. None
    means all of them or none, as in kubelet.
    """

    interrupts: tuple[str, ...] = ()
    """Annotation: PCI devices and network interfaces whose interrupts it wants on its exclusive CPUs."""
    near: tuple[str, ...] = ()
    """Annotation: PCI devices by any of their names, or kinds of devices, whose NUMA node is hinted at for its CPUs and memory."""
    claims: tuple[ContainerClaim, ...] = ()
    """Claims of the pod that the container uses (`resources.claims`)."""
    unit: str = ""
    """Annotation: the systemd unit that the container pins; systemd starts and ends its processes. Empty means a cgroup of the agent."""

    @property
    def is_mixed(self) -> bool:
        """Whether the container asks for exclusive CPUs and for CPUs of the shared pool."""
        request = self.resources.requests.get(CPU)
        return self.exclusive_cpus is not None and request is not None and request.nano > self.exclusive_cpus * 10**9

    @property
    def devices(self) -> tuple[tuple[str, Quantity], ...]:
        """Return the extended resources that the container asks for, with their numbers. Their names have a domain."""
        limits = self.resources.limits.items
        return tuple(
            [each for each in limits if "/" in each[0] and each[1].nano and not each[0].startswith(HUGEPAGES_PREFIX)]
        )

    @property
    def is_launched(self) -> bool:
        """Whether the launcher starts its processes and reports their end. Otherwise other processes enter its cgroup at any time."""
        return bool(self.command)


class Pod(Struct, frozen=True):
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
    """Annotation: no load is balanced over its exclusive CPUs, if they are isolated from the host."""
    gives_back: bool = False
    """Annotation: while none of its systemd units is active, others may have its CPUs and memory."""
    numa_node: int | None = None
    """Annotation: NUMA node that its exclusive CPUs and memory must be on. None means any."""
    core_class: str | None = None
    """Annotation: class of cores that its exclusive CPUs must be of. None means any."""
    preferred_core_class: str | None = None
    """Annotation: class of cores that its exclusive CPUs are of if possible. None means the node's configuration."""
    claims: tuple[PodClaim, ...] = ()
    """Resource claims of the pod (`spec.resourceClaims`)."""
    given_qos: QosClass | None = None
    """`status.qosClass` of the manifest, which takes precedence over the computed class, as in kubelet."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def units(self) -> tuple[str, ...]:
        """Return the systemd units that its containers pin. Either all containers pin one, or none."""
        return tuple(container.unit for container in self.containers if container.unit)

    @property
    def near(self) -> tuple[str, ...]:
        """Return the devices, or kinds of devices, that its containers ask to be near, each once."""
        return tuple(dict.fromkeys([name for container in self.containers for name in container.near]))

    @property
    def asks_for_devices(self) -> bool:
        """Whether a container asks for devices by number."""
        return any(container.devices for container in self.containers)

    def container(self, name: str) -> Container:
        return next(c for c in self.containers if c.name == name)

    def apps(self) -> Iterator[Container]:
        return (c for c in self.containers if c.kind is ContainerKind.APP)

    def inits(self) -> Iterator[Container]:
        """Return init containers and sidecars."""
        return (c for c in self.containers if c.kind is not ContainerKind.APP)


def is_own_annotation(key: str) -> bool:
    """Whether an annotation has this agent's domain."""
    kind, slash, _ = key.partition("/")
    return bool(slash) and f".{kind}".endswith(f".{ANNOTATION_DOMAIN}")


def has_pod_level_resources(pod: Pod) -> bool:
    """Whether `spec.resources` names cpu, memory or a huge page size (KEP-2837)."""
    if pod.resources is None:
        return False
    names = [name for part in (pod.resources.requests, pod.resources.limits) for name, _ in part]
    return any(name in _QOS_RESOURCES or name.startswith(HUGEPAGES_PREFIX) for name in names)


def qos_class(pod: Pod, *, pod_level_resources: bool) -> QosClass:
    """Compute the QoS class as Kubernetes does (component-helpers, ComputePodQOS).

    Args:
        pod: the pod with defaults applied (limits as missing requests).
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
    """Add the amounts that count for the class, and return how many resources have one."""
    found = 0
    for name, quantity in resources.items:
        if name in _QOS_RESOURCES and quantity.nano > 0:
            total[name] = total.get(name, 0) + quantity.nano
            found += 1
    return found
