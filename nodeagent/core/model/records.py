"""Contents of checkpoint files, decoded but not yet judged by the managers. Knows no JSON and no checksum."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.promises import Blocks, MemoryNode


class Unreadable(Struct, frozen=True):
    """Checkpoint that no version's rules accept. The text is kubelet's."""

    message: str


class CpuRecord(Struct, frozen=True):
    """Contents of cpu_manager_state. Sets are still texts, because kubelet judges them after the policy's name."""

    policy_name: str
    default: str
    entries: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """Pairs of pod UID and (container name, set text) pairs, sorted."""
    pod_entries: tuple[tuple[str, CpuSet], ...] = ()


class MemoryRecord(Struct, frozen=True):
    """Contents of memory_manager_state."""

    policy_name: str
    machine: tuple[MemoryNode, ...] = ()
    entries: tuple[tuple[str, tuple[tuple[str, Blocks], ...]], ...] = ()
    pod_entries: tuple[tuple[str, Blocks], ...] = ()


InitialContainers = Mapping[str, tuple[str, str]]
"""Map from container id to (pod UID, container name), as the runtime knows them at startup, for files of version 1."""


class Records(Struct, frozen=True):
    """Both files as found. None means that a file doesn't exist."""

    cpu: CpuRecord | Unreadable | None = None
    memory: MemoryRecord | Unreadable | None = None
