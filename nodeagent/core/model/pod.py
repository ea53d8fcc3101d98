"""Pods and their containers as values, their QoS class, and which containers count as what. Knows no manifest syntax and no policy."""

import enum
from collections.abc import Iterator, Mapping

from msgspec import Struct

from nodeagent.core.model.claims import ContainerClaim, PodClaim
from nodeagent.core.model.quantity import Quantity

CPU = "cpu"
MEMORY = "memory"
HUGEPAGES_PREFIX = "hugepages-"
ANNOTATION_DOMAIN = "nodeagent.io"
"""Keys of the form `KIND.nodeagent.io/CONTAINER` or `nodeagent.io/KIND` are the agent's; annotations of others are ignored."""
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


class Domain(enum.StrEnum):
    """Who makes a pod's cgroups, and starts and ends its processes (D30)."""

    OWN = "own"
    """The agent."""
    SYSTEMD = "systemd"
    """systemd, for its units: the agent asks it to set their CPUs and memory nodes."""
    CONTAINERD = "containerd"
    """A container runtime, which asks the agent by NRI."""


class Container(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    command: tuple[str, ...] = ()
    """Empty: the container is an empty cgroup that other processes enter."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    restart_policy: RestartPolicy | None = None
    """The container's own policy, if it has one; None: the pod's."""
    restarts_for: tuple[str, ...] = ()
    """Resources of which another amount takes a restart of the container (`resizePolicy`), sorted."""
    exclusive_cpus: int | None = None
    """By annotation: so many CPUs of its request are exclusive, whatever its pod's QoS class; the rest is of the shared pool. None: all
    of them or none, as in kubelet.
    """

    interrupts: tuple[str, ...] = ()
    """By annotation: PCI devices and network interfaces whose interrupts it wants on its exclusive CPUs."""
    near: tuple[str, ...] = ()
    """By annotation: PCI devices, by any of their names, or kinds of them, whose NUMA node is hinted at for its CPUs and memory."""
    claims: tuple[ContainerClaim, ...] = ()
    """The pod's claims that it uses (`resources.claims`)."""
    unit: str = ""
    """By annotation: the systemd unit that it stands for, whose processes systemd starts and ends. Empty: it is a cgroup of the agent's."""

    @property
    def is_mixed(self) -> bool:
        """Whether it asks for exclusive CPUs and for some of the shared pool beside them."""
        request = self.resources.requests.get(CPU)
        return self.exclusive_cpus is not None and request is not None and request.nano > self.exclusive_cpus * 10**9

    @property
    def devices(self) -> tuple[tuple[str, Quantity], ...]:
        """The devices that it asks for, to have them alone, by resource: Kubernetes' extended resources, with a domain in their names."""
        limits = self.resources.limits.items
        return tuple(
            [each for each in limits if "/" in each[0] and each[1].nano and not each[0].startswith(HUGEPAGES_PREFIX)]
        )

    @property
    def is_launched(self) -> bool:
        """Whether the launcher starts its processes and reports their end; otherwise other processes enter its cgroup at any time."""
        return bool(self.command)


class Pod(Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]
    """In the order in which everything iterates over them: init containers and sidecars as written, then app containers."""
    resources: ResourceRequirements | None = None
    """The pod's own `spec.resources`."""
    overhead: Resources = Resources()
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    termination_grace_seconds: int = 30
    is_isolated: bool = False
    """By annotation: no load is balanced over its exclusive CPUs, where they are closed to the host."""
    gives_back: bool = False
    """By annotation: while none of its systemd units is active, others may have what it was promised."""
    numa_node: int | None = None
    """By annotation: its exclusive CPUs and its memory are on this NUMA node, or it is refused. None: wherever they fit."""
    core_class: str | None = None
    """By annotation: its exclusive CPUs are of this class of cores, or it is refused. None: of any."""
    preferred_core_class: str | None = None
    """By annotation: they are of this class if that is possible, and otherwise of any. None: as the node's configuration says."""
    claims: tuple[PodClaim, ...] = ()
    """Devices that it claims (`spec.resourceClaims`)."""
    given_qos: QosClass | None = None
    """`status.qosClass`, if the manifest has it: it takes precedence over the computed class, as in kubelet."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def units(self) -> tuple[str, ...]:
        """The systemd units that its containers stand for: all of them, or none."""
        return tuple(container.unit for container in self.containers if container.unit)

    @property
    def near(self) -> tuple[str, ...]:
        """The devices, or kinds of them, that its containers ask to be near, each once."""
        return tuple(dict.fromkeys([name for container in self.containers for name in container.near]))

    @property
    def asks_for_devices(self) -> bool:
        """Whether a container asks for devices of its own."""
        return any(container.devices for container in self.containers)

    def container(self, name: str) -> Container:
        return next(c for c in self.containers if c.name == name)

    def apps(self) -> Iterator[Container]:
        return (c for c in self.containers if c.kind is ContainerKind.APP)

    def inits(self) -> Iterator[Container]:
        """Init containers and sidecars."""
        return (c for c in self.containers if c.kind is not ContainerKind.APP)


def is_own_annotation(key: str) -> bool:
    """Whether an annotation is this agent's, by its domain."""
    kind, slash, _ = key.partition("/")
    return bool(slash) and f".{kind}".endswith(f".{ANNOTATION_DOMAIN}")


def has_pod_level_resources(pod: Pod) -> bool:
    """Whether `spec.resources` names cpu, memory or a huge page size (KEP-2837)."""
    if pod.resources is None:
        return False
    names = [name for part in (pod.resources.requests, pod.resources.limits) for name, _ in part]
    return any(name in _QOS_RESOURCES or name.startswith(HUGEPAGES_PREFIX) for name in names)


def qos_class(pod: Pod, *, pod_level_resources: bool) -> QosClass:
    """Compute the class as Kubernetes does (component-helpers, ComputePodQOS).

    Args:
        pod: with defaults applied (limits stand for missing requests).
        pod_level_resources: the gate PodLevelResources.
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
    """Sum what counts for the class; return how many such resources there are."""
    found = 0
    for name, quantity in resources.items:
        if name in _QOS_RESOURCES and quantity.nano > 0:
            total[name] = total.get(name, 0) + quantity.nano
            found += 1
    return found
