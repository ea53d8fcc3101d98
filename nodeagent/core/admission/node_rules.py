"""Rules for admitted pods: which containers share CPUs, and how many CPUs a container lacks.

Code that only reads a node needs only these rules. The managers, which decide on new pods, are in modules that commands such as `inspect`
don't import.
"""

from typing import Protocol

from msgspec import Struct

from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.demand import DemandRules, WhyShared, demand_of, qualifies_alone, why_shared
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings, grantable_cpus, own_set_of


class NodeRules(Protocol):
    """The rules on a machine, either with managers (`Managers`) or without them (`ReadRules`)."""

    @property
    def topology(self) -> Topology: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def reserved(self) -> CpuSet:
        """Return the CPUs that are never allocated exclusively. The set is empty under policy `none`."""

    @property
    def grantable(self) -> CpuMask:
        """Return the CPUs that may be allocated exclusively. The set is empty under policy `none`."""

    @property
    def rules(self) -> DemandRules: ...


class ReadRules(Struct, frozen=True):
    """The rules of a node that is only read, without managers."""

    topology: Topology
    placement: Placement
    reserved: CpuSet
    grantable: CpuMask
    rules: DemandRules


class KnownNode(Protocol):
    """A configuration on a machine, used either for decisions (`NodeSetup`) or only for reading (`ReadNode`)."""

    @property
    def config(self) -> Config: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def reserved(self) -> CpuSet:
        """Reserved CPUs, including offline ones."""

    @property
    def rules(self) -> NodeRules: ...


class ReadNode(Struct, frozen=True):
    """A node as the agent has described it. Its configuration isn't checked again, because the agent has already checked it."""

    config: Config
    topology: Topology
    reserved: CpuSet
    rules: ReadRules


def read_node_of(config: Config, topology: Topology, decided_on: Topology, reserved: CpuSet) -> ReadNode:
    """Return a node from the agent's description.

    Args:
        config: the agent's configuration.
        topology: the current machine.
        decided_on: the machine at the agent's last decisions.
        reserved: reserved CPUs, including offline ones.
    """
    online = reserved - decided_on.offline if config.placement.has_static_cpus else CpuSet()
    grantable = grantable_cpus(decided_on, config.placement, online)
    rules = ReadRules(decided_on, config.placement, online, grantable, DemandRules.of(config.placement))
    return ReadNode(config, topology, reserved, rules)


def isolation(node: NodeRules, promises: Promises, pod: Pod, name: str) -> Isolation:
    """Return the degree to which a container's CPUs are isolated, which depends on the containers that may share these CPUs."""
    held = promises.of_pod(pod.uid).of(CpuHoldings)
    if held.own_set(name) is None:
        return Isolation.HOST
    container = pod.container(name)
    has_pod_set = held.pod_cpus is not None or node.rules.gates.is_managed_pod(pod)
    if has_pod_set and not qualifies_alone(container):
        return Isolation.POD
    return Isolation.MIXED if container.is_mixed else Isolation.CONTAINER


def count_lacking_cpus(node: NodeRules, promises: Promises, pod: Pod, name: str) -> int:
    """Return the number of exclusive CPUs that an admitted container lacks. CPUs may be missing if the recovery of a lost state didn't
    find all of them.
    """
    demand, placement = demand_of(node.rules, pod), node.placement
    wanted = next(c for c in demand.containers if c.name == name)
    # An init container may have passed its CPUs on to later containers.
    if wanted.kind is ContainerKind.INIT or not placement.has_static_cpus:
        return 0
    due = demand.due_cpus(wanted, by_pod=demand.is_managed and placement.decides_by_pod)
    return max(0, due - len(own_set_of(promises, pod.uid, name) or ()))


class ContainerReport(Struct, frozen=True):
    name: str
    cpus: CpuSet | None
    """CPU set of the container. None means that the container runs in the node's shared pool."""
    why_shared: WhyShared | None
    """Reason why the container shares its CPUs. None means that its CPUs are exclusive."""


def container_reports(node: NodeRules, promises: Promises, pod: Pod) -> tuple[ContainerReport, ...]:
    """Report the CPUs of each container of a pod."""
    held = promises.of_pod(pod.uid).of(CpuHoldings)
    containers = []
    for container in pod.containers:
        level = isolation(node, promises, pod, container.name)
        why = None if level.has_own_cpus else why_shared(node.placement, pod, container)
        containers.append(ContainerReport(container.name, held.own_set(container.name), why))
    return tuple(containers)
