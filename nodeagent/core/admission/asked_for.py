"""Requirements that pods can't state to kubelet: a certain NUMA node, a class of cores, or nearness to devices. The managers decide on
such a pod as if the machine had only the CPUs and memory that the pod may use.

All rules of kubelet stay unchanged. CPUs on forbidden NUMA nodes count as allocated, and cores of other classes as absent. If a pod should
be placed near certain devices, these devices provide hints, as in kubelet's device manager (near.py).
"""

from operator import is_

from msgspec.structs import replace

from nodeagent.core.admission.one_pod import Providers
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.refusals import Reason, Refusal, wrap_unexpected
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.devices.holdings import DeviceHoldings


def limit_to_pod(providers: Providers, pod: PodDemand) -> Providers:
    """Return a copy of the managers that knows only the CPUs, memory and devices that this pod may use."""
    limited = tuple(resource.limited_to(pod) for resource in providers.resources)
    if not all(map(is_, limited, providers.resources)):
        providers = replace(providers, resources=limited)
    if pod.near:
        from nodeagent.core.admission.near import hints_near  # noqa: PLC0415 - few pods name devices

        near = hints_near(providers.devices, pod.near, providers.topology.rules.default_mask)
        providers = replace(providers, near=near)
    if pod.numa_node is None:
        return providers
    topology, only = providers.topology, NumaMask(1 << pod.numa_node)
    return replace(providers, topology=replace(topology, rules=replace(topology.rules, default_mask=only)))


def unfit(providers: Providers, machine: Topology, pod: PodDemand, *, has_static_cpus: bool) -> Refusal | None:
    """Return a refusal if the machine couldn't meet the pod's requirements even without other pods. None means that it could.

    Args:
        providers: the managers.
        machine: the machine.
        pod: the pod's demand.
        has_static_cpus: whether the CPU manager's policy is `static`.
    """
    if pod.core_class is not None or pod.numa_node is not None:
        has_own = has_static_cpus and pod.asks_for_cpus
        refusal = _refuse_missing_cores(machine, pod, has_own=has_own) or _refuse_missing_node(
            machine, pod, has_own=has_own
        )
        if refusal is not None:
            return refusal
    return _refuse_missing_devices(providers, pod) or _refuse_missing_resources(providers, pod)


def _refuse_missing_devices(providers: Providers, pod: PodDemand) -> Refusal | None:
    if not pod.near:
        return None
    from nodeagent.core.admission.near import without_such_devices  # noqa: PLC0415 - few pods name devices

    return without_such_devices(providers.devices, pod.near)


def _refuse_missing_resources(providers: Providers, pod: PodDemand) -> Refusal | None:
    """Refuse a pod that requests extended resources that the node doesn't have. kubelet would run a static pod without them
    (removeMissingExtendedResources).
    """
    is_ignored = Erratum.MISSING_DEVICES_LEFT_OUT in providers.quirks
    if is_ignored or not any(container.devices for container in pod.containers):
        return None
    resources = providers.resources
    if any(resource.holdings is DeviceHoldings for resource in resources):
        return None  # the device manager refuses a pod that requests such a resource
    managed = frozenset[str]().union(*(resource.managed for resource in resources))
    unknown = [name for name, _ in pod.devices if name not in managed]
    return wrap_unexpected(f"cannot allocate unregistered device {unknown[0]}") if unknown else None


def _refuse_missing_cores(machine: Topology, pod: PodDemand, *, has_own: bool) -> Refusal | None:
    name, classes = pod.core_class, machine.core_classes
    if name is None:
        return None
    wanted = f"it requires {name} cores"
    if not classes:
        return Refusal(Reason.CORE_CLASS, f"{wanted}, but all cores of this machine are of one kind")
    if name not in classes:
        names = ", ".join(classes)
        return Refusal(Reason.CORE_CLASS, f"{wanted}, but this machine has only {names} cores")
    if not has_own:
        reason = "but requests no exclusive CPUs: the shared pool is on cores of any class"
        return Refusal(Reason.CORE_CLASS, f"{wanted}, {reason}")
    return None


def _refuse_missing_node(machine: Topology, pod: PodDemand, *, has_own: bool) -> Refusal | None:
    node = pod.numa_node
    if node is None:
        return None
    present = machine.node_ids
    if node not in present:
        return _refuse_affinity(f"it requires NUMA node {node}, but the NUMA nodes of this machine are {present}")
    if node not in (machine.memory_nodes or present):
        return _refuse_affinity(f"it requires NUMA node {node}, which has no memory")
    if not has_own:
        return _refuse_affinity(
            f"it requires NUMA node {node}, but requests no exclusive CPUs: the shared pool is on every node"
        )
    return None


def _refuse_affinity(message: str) -> Refusal:
    return Refusal(Reason.TOPOLOGY_AFFINITY, message)
