"""Content of kubelet's cpu_manager_state, decoded but not judged."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class CpuRecord(Struct, frozen=True):
    """Content of the file. Sets are still texts, because kubelet judges them after the policy's name."""

    policy_name: str
    default: str
    entries: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """(pod UID, (container name, set text)), sorted."""
    pod_entries: tuple[tuple[str, CpuSet], ...] = ()


InitialContainers = Mapping[str, tuple[str, str]]
"""(pod UID, container name) by container ID, as the runtime knows them at startup. Files of version 1 need them."""
