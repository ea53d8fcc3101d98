"""A configuration on a machine, checked as kubelet does at startup. The agent and some commands base their decisions on it."""

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
"""Lower bound on a machine's memory in bytes, to check a percentage when the machine is unknown. Linux with cgroup v2 doesn't boot in 16
MiB.
"""


class NodeSetup(Struct, frozen=True):
    """A configuration on a machine with its managers. It is built again on reload and when the machine changes."""

    config: Config
    topology: Topology
    managers: Managers
    allocatable: Allocatable
    reserved: CpuSet
    """Reserved CPUs, including offline ones."""

    @property
    def rules(self) -> Managers:
        return self.managers


def with_plugins(node: NodeSetup, plugins: tuple[CpuPlugin, ...]) -> NodeSetup:
    """Return the node with the loaded code of its CPU plugins. Decisions need this code."""
    managers, config = node.managers, node.config
    cpu = with_cpu_plugins(managers.providers.of(CpuResource).manager, plugins)
    providers = managers.providers.having(CpuResource(cpu))
    managers = replace(managers, placement=replace(managers.placement, cpu_plugins=plugins), providers=providers)
    return replace(
        node, config=replace(config, placement=replace(config.placement, cpu_plugins=plugins)), managers=managers
    )


def with_managers(node: KnownNode) -> NodeSetup | tuple[StartRefused, ...]:
    """Return the node with managers for decisions, or every error of its configuration."""
    if isinstance(node, NodeSetup):
        return node
    found = on_machine(node.config, node.rules.topology, node.reserved)
    return replace(found, topology=node.topology) if isinstance(found, NodeSetup) else found


def on_machine(
    config: Config, topology: Topology, reserved: CpuSet | None = None
) -> NodeSetup | tuple[StartRefused, ...]:
    """Apply the configuration to a machine.

    Args:
        config: the configuration as read.
        topology: the current machine.
        reserved: CPUs that a running agent reserved at its start. None means that the agent is only starting. Only online CPUs stay
            reserved. Reserved CPUs that are offline aren't replaced, because pods may hold the other CPUs.

    Returns:
        The node, or every error of the configuration on this machine.
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
    """Return the errors that make a configuration invalid on every machine. A separate check finds the other errors in the placement
    settings.
    """
    placement = with_machine(config, _LEAST_MEMORY_BYTES).placement
    if placement.memory_manager_policy != "Static" or invalid_entries(placement) is not None:
        return ()
    return find_wrong_sums(placement, at_least=config.eviction_memory_percent is not None)


def _refuse_all_reserved(config: Config, topology: Topology) -> tuple[StartRefused, ...]:
    """Refuse a configuration that reserves every CPU of the machine, online or not. kubelet accepts such a configuration, but then refuses
    every pod that requests CPUs.
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
