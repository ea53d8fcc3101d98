"""A configuration applied to a machine, checked as kubelet does at its start. It contains the managers with which the agent and some
commands make decisions.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, judged
from nodeagent.core.admission.node_capacity import Allocatable, allocatable_of, with_machine
from nodeagent.core.admission.node_rules import KnownNode
from nodeagent.core.model.config import Config, CpuPlugin, Errata
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import CPU
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.resource import CpuResource, with_cpu_plugins
from nodeagent.core.resources.memory.reservation import find_wrong_sums, invalid_entries

_LEAST_MEMORY_BYTES = 2**24
"""Lower bound for a machine's memory, used to check a percentage of the memory when the machine is unknown. Linux with cgroup v2 doesn't
boot with 16 MiB.
"""


class NodeSetup(Struct, frozen=True):
    """A configuration applied to a machine, with the managers. It is built again when the configuration is reloaded or the machine
    changes.
    """

    config: Config
    topology: Topology
    managers: Managers
    allocatable: Allocatable
    reserved: CpuSet
    """Reserved CPUs, including CPUs that are offline."""

    @property
    def rules(self) -> Managers:
        return self.managers


def with_plugins(node: NodeSetup, plugins: tuple[CpuPlugin, ...]) -> NodeSetup:
    """Return a copy of the node with CPU plugins whose code is loaded, as decisions require."""
    managers, config = node.managers, node.config
    cpu = with_cpu_plugins(managers.providers.of(CpuResource).manager, plugins)
    providers = managers.providers.having(CpuResource(cpu))
    managers = replace(managers, placement=replace(managers.placement, cpu_plugins=plugins), providers=providers)
    return replace(
        node, config=replace(config, placement=replace(config.placement, cpu_plugins=plugins)), managers=managers
    )


def with_managers(node: KnownNode) -> NodeSetup | tuple[StartRefused, ...]:
    """Return a copy of the node with managers for decisions. If the configuration can't be used on the machine, return all errors."""
    if isinstance(node, NodeSetup):
        return node
    found = on_machine(node.config, node.rules.topology, node.reserved)
    return replace(found, topology=node.topology) if isinstance(found, NodeSetup) else found


def on_machine(
    config: Config, topology: Topology, reserved: CpuSet | None = None
) -> NodeSetup | tuple[StartRefused, ...]:
    """Apply a configuration to a machine, and build the managers.

    Args:
        config: the configuration as read.
        topology: the machine as it is now.
        reserved: CPUs that the running agent reserved when it started; those that are online stay reserved. Offline ones aren't replaced by
            other CPUs, because pods may hold those. None means that the agent is just starting.

    Returns:
        The node, or all errors of the configuration on this machine.
    """
    config = with_machine(config, topology.memory_bytes)
    wanted = config.placement.reserved_system_cpus if reserved is None else reserved
    present = wanted - topology.offline
    if wanted and not present:
        others = judged(topology, replace(config.placement, reserved_system_cpus=wanted))
        further = others if isinstance(others, tuple) else ()
        return (
            StartRefused(f"all reserved CPUs ({wanted}) are offline", "reservedSystemCPUs"),
            *(other for other in further if other.about != "reservedSystemCPUs"),
        )
    placement = replace(config.placement, reserved_system_cpus=present)
    managers = judged(topology, placement)
    nothing_left = _refuse_all_reserved(config, topology) if reserved is None else ()
    if isinstance(managers, tuple) or nothing_left:
        return (*(managers if isinstance(managers, tuple) else ()), *nothing_left)
    allocatable = allocatable_of(
        config, cpu_count=len(topology.online), memory_bytes=topology.memory_bytes, hugepages=topology.hugepages
    )
    return NodeSetup(config, topology, managers, allocatable, reserved or managers.reserved or wanted)


def find_impossible(config: Config) -> tuple[StartRefused, ...]:
    """Return those errors in the memory reservation that make a configuration invalid on every machine. `find_misconfigurations` finds the
    other errors.
    """
    placement = with_machine(config, _LEAST_MEMORY_BYTES).placement
    if placement.memory_manager_policy != "Static" or invalid_entries(placement) is not None:
        return ()
    return find_wrong_sums(placement, at_least=config.eviction_memory_percent is not None)


def _refuse_all_reserved(config: Config, topology: Topology) -> tuple[StartRefused, ...]:
    """Refuse a configuration that reserves all CPUs of the machine, online and offline. kubelet accepts it, and then refuses every pod that
    requests CPUs.
    """
    placement, cpus = config.placement, topology.online | topology.offline
    if placement.errata is not Errata.FIXED:
        return ()
    if placement.reserved_system_cpus == cpus:
        why = f"{cpus} are all CPUs that this machine has: leave some to the pods"
        return (StartRefused(why, "reservedSystemCPUs"),)
    by_amount = not placement.reserved_system_cpus and placement.cpu_manager_policy == "static"
    if by_amount and -(-(placement.reserved_cpu_milli or 0) // 1000) == len(cpus):
        why = f"cannot reserve {len(cpus)} CPUs, all that this machine has: leave some to the pods"
        about = "systemReserved" if dict(config.system_reserved).get(CPU) else "kubeReserved"
        return (StartRefused(why, about, rests_on=("systemReserved", "kubeReserved")),)
    return ()
