"""Demand of a pod: the exclusive CPUs, memory and devices that it requests from the resource managers, per container and in total.

The agent computes the demand once per admission, from the pod and the configuration. The machine and the state don't matter.
"""

import enum

from msgspec import Struct

from nodeagent.core.model.config import Placement
from nodeagent.core.model.errata import Erratum, list_reproduced
from nodeagent.core.model.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    QosClass,
    ResourceRequirements,
    has_pod_level_resources,
    qos_class,
)
from nodeagent.core.model.quantity import Quantity

Amounts = tuple[tuple[str, int], ...]
"""Pairs of resource and amount, sorted by resource. Memory is in bytes, devices are counted."""


class WhyShared(enum.StrEnum):
    """Reason why a container gets no exclusive CPUs (D16)."""

    POLICY_NONE = "the CPU manager's policy is none"
    NO_CPU_REQUEST = "it requests no CPU"
    NO_CPU_LIMIT = "it has no CPU limit; for exclusive CPUs, the limit must equal the request"
    NO_MEMORY_LIMIT = "it has no memory limit; for exclusive CPUs, the limit must equal the request"
    CPU_LIMIT_0 = "its CPU limit is 0, which counts as none; for exclusive CPUs, the limit must equal the request"
    MEMORY_LIMIT_0 = "its memory limit is 0, which counts as none; for exclusive CPUs, the limit must equal the request"
    LIMIT_DIFFERS = "its CPU or memory limit differs from its request"
    NOT_GUARANTEED = "its pod is not Guaranteed"
    FRACTIONAL = "its CPU request is not a whole number"
    FRACTIONAL_POD = "the CPU request of its pod as a whole is not a whole number"
    GATE_OFF = "its pod has pod-level resources, and the gate PodLevelResourceManagers is off"
    POD_SHARED = "it runs in its pod's shared pool"


class Gates(Struct, frozen=True):
    pod_level_resources: bool
    pod_level_managers: bool

    def is_managed_pod(self, pod: Pod) -> bool:
        """Return whether the managers allocate to the pod as a whole, and then divide this allocation among its containers (KEP-5526)."""
        return self.pod_level_managers and has_pod_level_resources(pod)

    def is_skipped_pod(self, pod: Pod) -> bool:
        """Return whether the managers allocate nothing to the pod, because it has pod-level resources and the gate for managing them is
        off.
        """
        return has_pod_level_resources(pod) and not self.pod_level_managers


class DemandRules(Struct, frozen=True):
    gates: Gates
    with_memory: bool
    """Whether the memory manager's policy is Static."""
    exact_bytes: bool
    """Whether every memory amount that is a whole number of bytes is accepted, such as 1.5Gi. False reproduces
    Erratum.DECIMAL_FORM_REFUSED.
    """
    with_zero_devices: bool
    """Whether a container that requests 0 devices counts as requesting the resource. True reproduces Erratum.ZERO_DEVICES_ALIGNED."""

    @classmethod
    def of(cls, placement: Placement) -> "DemandRules":
        reproduced = list_reproduced(placement.errata)
        return cls(
            gates=Gates(
                pod_level_resources=placement.gate("PodLevelResources"),
                pod_level_managers=placement.gate("PodLevelResourceManagers"),
            ),
            with_memory=placement.memory_manager_policy == "Static",
            exact_bytes=Erratum.DECIMAL_FORM_REFUSED not in reproduced,
            with_zero_devices=Erratum.ZERO_DEVICES_ALIGNED in reproduced,
        )


class ContainerDemand(Struct, frozen=True):
    name: str
    kind: ContainerKind
    cpus: int
    """Number of exclusive CPUs. 0 means that the container runs in the shared pool."""
    memory: Amounts | None = ()
    """Memory to allocate to the container, by resource. None means that the container requests an amount that isn't a whole number of
    bytes.
    """
    near: tuple[str, ...] = ()
    """Devices, or kinds of devices. The container's CPUs and memory should be on the NUMA nodes of these devices."""
    devices: Amounts = ()
    """Number of devices to allocate to the container, by extended resource."""
    spread: tuple[tuple[int, int], ...] = ()
    """NUMA nodes over which the container's memory should be spread, each with a number of CPUs. The memory is divided in proportion to
    these numbers. Empty means that the memory isn't spread.
    """


class PodDemand(Struct, frozen=True):
    uid: str
    is_guaranteed: bool
    is_managed: bool
    is_skipped: bool
    containers: tuple[ContainerDemand, ...]
    cpus: int
    """Number of exclusive CPUs that the pod needs: its pod-level amount, or else the largest number that its containers need at the same
    time.
    """
    memory: Amounts | None = ()
    numa_node: int | None = None
    """NUMA node on which all CPUs and memory of the pod must be. None means any node."""
    core_class: str | None = None
    """Core class that all exclusive CPUs of the pod must have. None means any class."""
    has_whole_cores: bool = False
    """Whether the pod's exclusive CPUs must be whole cores. A pod that requests settings of its cores must not share a core with another
    pod.
    """
    pins_units: bool = False
    """Whether the pod pins systemd units. When a unit is pinned again with fewer CPUs, it may lose any of its CPUs, even those that it had
    at the pod's admission.
    """

    @property
    def near(self) -> tuple[str, ...]:
        """Return the devices, or kinds of devices, near which the pod's containers should be placed, without duplicates."""
        names = [name for container in self.containers for name in container.near]
        return tuple(dict.fromkeys(names)) if names else ()

    @property
    def devices(self) -> Amounts:
        """Return, for each resource, the largest number of devices that the pod's containers need at the same time."""
        resources = sorted({name for container in self.containers for name, _ in container.devices})
        return tuple(
            (name, _find_peak(self.containers, [dict(container.devices).get(name, 0) for container in self.containers]))
            for name in resources
        )

    @property
    def asks_for_cpus(self) -> bool:
        """Whether the pod requests exclusive CPUs, as a whole or for one of its containers."""
        return not self.is_skipped and bool(self.cpus or any(container.cpus for container in self.containers))

    def due_cpus(self, container: ContainerDemand, *, by_pod: bool) -> int:
        """Return the number of exclusive CPUs that a container gets under policy `static` if enough are available.

        Args:
            container: the demand of the container.
            by_pod: whether the topology manager allocates one set of CPUs to the whole pod, which the containers divide.
        """
        return 0 if self.is_skipped or (by_pod and not self.cpus) else container.cpus


def demand_of(rules: DemandRules, pod: Pod) -> PodDemand:
    gates = rules.gates
    guaranteed = qos_class(pod, pod_level_resources=gates.pod_level_resources) is QosClass.GUARANTEED
    managed = pod.resources is not None and gates.is_managed_pod(pod)
    containers = tuple(
        [
            _make_container_demand(rules, pod, container, guaranteed=guaranteed, managed=managed)
            for container in pod.containers
        ]
    )
    if managed:
        assert pod.resources is not None
        cpus = _count_whole_cpus(pod.resources) if guaranteed else 0
        amounts = _list_memory_amounts(rules, pod.resources) if guaranteed else ()
        memory = None if amounts is None else tuple((name, size) for name, size in amounts if size > 0)
    else:
        cpus = _find_peak(containers, [container.cpus for container in containers])
        memory = _find_peak_memory(containers) if guaranteed and rules.with_memory else ()
    skipped = pod.resources is not None and gates.is_skipped_pod(pod)
    return PodDemand(
        pod.uid,
        guaranteed,
        managed,
        skipped,
        containers,
        cpus,
        memory,
        pod.numa_node,
        pod.core_class,
        has_whole_cores=pod.quiet is not None,
        pins_units=bool(pod.units),
    )


def why_shared(placement: Placement, pod: Pod, container: Container) -> WhyShared | None:
    """Return the reason why a container gets no exclusive CPUs. None means that the container gets them if enough are available."""
    if placement.cpu_manager_policy != "static":
        return WhyShared.POLICY_NONE
    if _count_annotated_cpus(pod, container) is not None:
        return None
    gates = DemandRules.of(placement).gates
    resources = container.resources
    guaranteed = qos_class(pod, pod_level_resources=gates.pod_level_resources) is QosClass.GUARANTEED
    managed = gates.is_managed_pod(pod)
    by_pod = managed and placement.topology_manager_scope == "pod" and placement.topology_manager_policy != "none"
    has_pod_set = by_pod and guaranteed and bool(_count_whole_cpus(pod.resources or resources))
    if not (resources.requests.get(CPU) or Quantity(0)).nano:
        return WhyShared.POD_SHARED if has_pod_set else WhyShared.NO_CPU_REQUEST
    if not guaranteed:
        return WhyShared.NOT_GUARANTEED if is_guaranteed_alone(resources) else _explain_unequal_limits(resources)
    if gates.is_skipped_pod(pod):
        return WhyShared.GATE_OFF
    if managed and not is_guaranteed_alone(resources):
        return _explain_unequal_limits(resources)
    if not _count_whole_cpus(resources):
        return WhyShared.FRACTIONAL
    return WhyShared.FRACTIONAL_POD if by_pod and not has_pod_set else None


def _explain_unequal_limits(resources: ResourceRequirements) -> WhyShared:
    """Return the reason why a container's limits don't equal its requests, as exclusive CPUs require."""
    for name, without, with_zero in (
        (CPU, WhyShared.NO_CPU_LIMIT, WhyShared.CPU_LIMIT_0),
        (MEMORY, WhyShared.NO_MEMORY_LIMIT, WhyShared.MEMORY_LIMIT_0),
    ):
        limit = resources.limits.get(name)
        if limit is None:
            return without
        if not limit.nano:
            return with_zero
    return WhyShared.LIMIT_DIFFERS


def is_guaranteed_alone(resources: ResourceRequirements) -> bool:
    """Return whether the container would be Guaranteed by itself, because its CPU and memory requests aren't zero and equal its limits."""
    for name in (CPU, MEMORY):
        request, limit = resources.requests.get(name), resources.limits.get(name)
        if request is None or limit is None or request.nano == 0 or request.nano != limit.nano:
            return False
    return True


def never_holds_cpuset(pod: Pod, qos: QosClass) -> bool:
    """Return whether the pod can never get exclusive CPUs or memory nodes during its life, whatever the policies and gates are, and
    whatever resizes follow.
    """
    return (
        qos is not QosClass.GUARANTEED
        and pod.resources is None
        and pod.numa_node is None
        and not any(container.exclusive_cpus for container in pod.containers)
    )


def qualifies_alone(container: Container) -> bool:
    """Return whether a container of a pod with pod-level resources gets exclusive CPUs. For that, it must be Guaranteed by itself and
    request whole CPUs.
    """
    limit = container.resources.limits.get(CPU)
    return is_guaranteed_alone(container.resources) and limit is not None and limit.is_whole()


def _make_container_demand(
    rules: DemandRules, pod: Pod, container: Container, *, guaranteed: bool, managed: bool
) -> ContainerDemand:
    annotated = _count_annotated_cpus(pod, container)
    requested = container.extended_resources if rules.with_zero_devices else container.devices
    devices = tuple((name, amount.value()) for name, amount in requested) if requested else ()
    if not guaranteed or (managed and not is_guaranteed_alone(container.resources)):
        return ContainerDemand(container.name, container.kind, annotated or 0, (), container.near, devices)
    cpus = _count_whole_cpus(container.resources) if annotated is None else annotated
    amounts = _list_memory_amounts(rules, container.resources)
    return ContainerDemand(container.name, container.kind, cpus, amounts, container.near, devices)


def _count_annotated_cpus(pod: Pod, container: Container) -> int | None:
    """Return the number of exclusive CPUs in the container's annotation. None means that the annotation is missing, or is ignored because
    the pod has pod-level resources.
    """
    return None if has_pod_level_resources(pod) else container.exclusive_cpus


def _count_whole_cpus(resources: ResourceRequirements) -> int:
    request = resources.requests.get(CPU)
    if request is None:
        return 0
    whole, rest = divmod(request.nano, 10**9)
    if rest:
        # An amount that is less than a thousandth below a whole number counts as whole.
        return request.value() if request.is_whole() else 0
    return whole


def _list_memory_amounts(rules: DemandRules, resources: ResourceRequirements) -> Amounts | None:
    if not rules.with_memory:
        return ()
    amounts = [
        (name, _count_bytes(rules, amount))
        for name, amount in resources.requests
        if name == MEMORY or name.startswith(HUGEPAGES_PREFIX)
    ]
    return None if any(size is None for _, size in amounts) else tuple((name, size or 0) for name, size in amounts)


def _count_bytes(rules: DemandRules, amount: Quantity) -> int | None:
    if rules.exact_bytes:
        whole, rest = divmod(amount.nano, 10**9)
        return None if rest else whole
    return amount.as_int64()


def _find_peak(containers: tuple[ContainerDemand, ...], amounts: list[int]) -> int:
    """Return the largest sum of the amounts that containers need at the same time.

    App containers run together with all sidecars. An init container runs with the sidecars that precede it.
    """
    apps = sidecars = peak = 0
    for container, amount in zip(containers, amounts, strict=True):
        match container.kind:
            case ContainerKind.SIDECAR:
                sidecars += amount
            case ContainerKind.INIT:
                peak = max(peak, sidecars + amount)
            case ContainerKind.APP:
                apps += amount
    return max(peak, sidecars + apps)


def _find_peak_memory(containers: tuple[ContainerDemand, ...]) -> Amounts | None:
    """Return, for each memory resource, the largest sum that containers need at the same time. As in kubelet, resources that no app
    container requests are left out.
    """
    apps: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in containers:
        if container.memory is None:
            return None
        for resource, size in container.memory:
            match container.kind:
                case ContainerKind.SIDECAR:
                    sidecars[resource] = sidecars.get(resource, 0) + size
                case ContainerKind.INIT:
                    peak[resource] = max(peak.get(resource, 0), sidecars.get(resource, 0) + size)
                case ContainerKind.APP:
                    apps[resource] = apps.get(resource, 0) + size
    return tuple((r, max(size + sidecars.get(r, 0), peak.get(r, 0))) for r, size in sorted(apps.items()))
