"""The contents of kubelet's cpu_manager_state, decoded but not yet trusted. Knows no JSON and no checksum."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class CpuRecord(Struct, frozen=True):
    """Sets are still texts: kubelet judges them after the policy's name."""

    policy_name: str
    default: str
    entries: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """(pod UID, (container name, set text)), sorted."""
    pod_entries: tuple[tuple[str, CpuSet], ...] = ()


InitialContainers = Mapping[str, tuple[str, str]]
"""Container id → (pod UID, container name), as the runtime knows them at startup: for files of version 1."""
