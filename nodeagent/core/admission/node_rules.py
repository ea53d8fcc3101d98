"""Rules about containers of admitted pods: with which containers they share CPUs, and how many CPUs they lack.

Commands such as `inspect`, which only read a node, import these rules without the managers. Managers are needed only to decide on pods.
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
    """Machine, configuration and rules of a node, for code that works both with managers (`Managers`) and without (`ReadRules`)."""

    @property
    def topology(self) -> Topology: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def reserved(self) -> CpuSet:
        """Return the CPUs that are reserved and therefore never allocated exclusively. The result is empty under policy `none`."""

    @property
    def grantable(self) -> CpuMask:
        """Return the CPUs that can be allocated exclusively. The result is empty under policy `none`."""

    @property
    def rules(self) -> DemandRules: ...


class ReadRules(Struct, frozen=True):
    """Machine, configuration and rules of a node for which no decisions are made, so that no managers are needed."""

    topology: Topology
    placement: Placement
    reserved: CpuSet
    grantable: CpuMask
    rules: DemandRules


class KnownNode(Protocol):
    """A configuration together with a machine, for code that works both with a node for decisions (`NodeSetup`) and with one only for
    reading (`ReadNode`).
    """

    @property
    def config(self) -> Config: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def reserved(self) -> CpuSet:
        """Return the reserved CPUs, including CPUs that are offline."""

    @property
    def rules(self) -> NodeRules: ...


class ReadNode(Struct, frozen=True):
    """A node as the agent has described it to a command. The command doesn't check the configuration again."""

    config: Config
    topology: Topology
    reserved: CpuSet
    rules: ReadRules


def read_node_of(config: Config, topology: Topology, decided_on: Topology, reserved: CpuSet) -> ReadNode:
    """Build a node from the description that the agent has given to a command.

    Args:
        config: the agent's configuration.
        topology: the machine as it is now.
        decided_on: the machine as it was at the agent's last decision.
        reserved: the reserved CPUs, including CPUs that are offline.
    """
    online = reserved - decided_on.offline if config.placement.has_static_cpus else CpuSet()
    grantable = grantable_cpus(decided_on, config.placement, online)
    rules = ReadRules(decided_on, config.placement, online, grantable, DemandRules.of(config.placement))
    return ReadNode(config, topology, reserved, rules)


def isolation(node: NodeRules, promises: Promises, pod: Pod, name: str) -> Isolation:
    """Return the kind of CPUs on which a container runs: exclusive CPUs, its pod's CPUs, the shared pool, or a mix."""
    held = promises.of_pod(pod.uid).of(CpuHoldings)
    if held.own_set(name) is None:
        return Isolation.HOST
    container = pod.container(name)
    has_pod_set = held.pod_cpus is not None or node.rules.gates.is_managed_pod(pod)
    if has_pod_set and not qualifies_alone(container):
        return Isolation.POD
    return Isolation.MIXED if container.is_mixed else Isolation.CONTAINER


def count_lacking_cpus(node: NodeRules, promises: Promises, pod: Pod, name: str) -> int:
    """Return the number of exclusive CPUs by which an admitted container falls short of its request. This happens if the recovery of a lost
    state didn't find all its CPUs.
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
    """CPUs that are allocated to the container. None means that the container runs on the node's shared pool."""
    why_shared: WhyShared | None
    """Reason why the container has no exclusive CPUs. None means that it has exclusive CPUs."""


def container_reports(node: NodeRules, promises: Promises, pod: Pod) -> tuple[ContainerReport, ...]:
    """Return, for each container of a pod, its CPUs and the reason if they aren't exclusive."""
    held = promises.of_pod(pod.uid).of(CpuHoldings)
    containers = []
    for container in pod.containers:
        level = isolation(node, promises, pod, container.name)
        why = None if level.has_own_cpus else why_shared(node.placement, pod, container)
        containers.append(ContainerReport(container.name, held.own_set(container.name), why))
    return tuple(containers)
