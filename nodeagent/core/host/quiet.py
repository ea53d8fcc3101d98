"""Quiet cores: the settings that the cores of a pod have while it runs, because its annotation requests them."""

from collections.abc import Mapping
from types import MappingProxyType

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import own_set_of

QUIET: Mapping[SettingKind, str] = MappingProxyType(
    {SettingKind.IDLE_LATENCY: "5", SettingKind.GOVERNOR: "performance"}
)
"""Settings of each CPU of a quiet core. Only the lightest idle states can be left within 5 microseconds."""


def list_quiet_settings(topology: Topology, exclusive: CpuSet) -> dict[Setting, str]:
    """Return the settings of a quiet pod with these exclusive CPUs. Sibling threads have the same, as they share the core's idle state."""
    cores = {topology.cpu[cpu].core for cpu in exclusive if cpu in topology.cpu}
    return {
        Setting(kind, str(cpu)): value
        for core in cores
        for cpu in topology.cores[core]
        for kind, value in QUIET.items()
    }


def list_requested_settings(state: NodeState, topology: Topology) -> Mapping[Setting, str]:
    """Return the settings of all quiet pods. Owners of one core request the same values, so they can't conflict."""
    found: dict[Setting, str] = {}
    for entry in state.entries:
        if entry.pod.is_quiet and entry.is_active:
            for container in entry.pod.containers:
                cpus = own_set_of(state.promises, entry.pod.uid, container.name) or CpuSet()
                found |= list_quiet_settings(topology, cpus)
    return found
