"""Content of kubelet's cpu_manager_state, decoded but not checked."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class CpuRecord(Struct, frozen=True):
    """Content of kubelet's file. CPU sets are still text, because kubelet checks the policy's name before it parses them."""

    policy_name: str
    default: str
    entries: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """Sorted entries, as (pod UID, (container name, CPU set as text))."""
    pod_entries: tuple[tuple[str, CpuSet], ...] = ()


InitialContainers = Mapping[str, tuple[str, str]]
"""Pod UID and container name by container ID, as the runtime reports them at startup. Only files of version 1 need this mapping."""
