"""Decoded content of kubelet's file memory_manager_state. It is checked in restore.py."""

from msgspec import Struct

from nodeagent.core.resources.memory.holdings import Blocks, MemoryNode


class MemoryRecord(Struct, frozen=True):
    policy_name: str
    machine: tuple[MemoryNode, ...] = ()
    entries: tuple[tuple[str, tuple[tuple[str, Blocks], ...]], ...] = ()
    pod_entries: tuple[tuple[str, Blocks], ...] = ()
