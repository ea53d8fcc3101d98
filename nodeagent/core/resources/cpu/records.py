"""Decoded content of kubelet's file cpu_manager_state. It is checked in restore.py."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class CpuRecord(Struct, frozen=True):
    """Content of cpu_manager_state. CPU sets are still text, because kubelet checks the policy's name before it parses the sets."""

    policy_name: str
    default: str
    entries: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """CPU sets of containers as text, sorted: (pod UID, pairs of container name and text)."""
    pod_entries: tuple[tuple[str, CpuSet], ...] = ()


InitialContainers = Mapping[str, tuple[str, str]]
"""Pod UID and container name by container ID, as listed by the container runtime when kubelet starts. Only version 1 of the file, which
names containers by ID, needs this mapping.
"""
