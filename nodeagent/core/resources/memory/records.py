"""Content of kubelet's memory_manager_state, decoded but not checked."""

from msgspec import Struct

from nodeagent.core.resources.memory.holdings import Blocks, MemoryNode


class MemoryRecord(Struct, frozen=True):
    policy_name: str
    machine: tuple[MemoryNode, ...] = ()
    entries: tuple[tuple[str, tuple[tuple[str, Blocks], ...]], ...] = ()
    pod_entries: tuple[tuple[str, Blocks], ...] = ()
