"""Quiet cores: the settings that the cores of a pod have while it runs, because its annotation requests them."""

from collections.abc import Mapping

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import own_set_of

IDLE_LATENCY_US = 5
"""Longest time in microseconds that a quiet CPU may take to leave an idle state. Only the lightest idle states are as fast."""


def list_quiet_settings(topology: Topology, exclusive: CpuSet) -> dict[Setting, str]:
    """Return the settings of a quiet pod with these exclusive CPUs. Sibling threads have the same, as they share the core's idle state."""
    cores = {topology.cpu[cpu].core for cpu in exclusive if cpu in topology.cpu}
    return {
        Setting(SettingKind.IDLE_LATENCY, str(cpu)): str(IDLE_LATENCY_US)
        for core in cores
        for cpu in topology.cores[core]
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
