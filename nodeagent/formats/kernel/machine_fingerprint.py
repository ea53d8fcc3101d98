"""Fingerprint of the machine. It changes when CPUs, NUMA nodes, memory or huge pages are added or removed."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.sysfs_sample import CPUS, HUGEPAGES, NODES, SysfsSample

FINGERPRINT_FILES = (
    f"{CPUS}/online",
    f"{NODES}/node#/cpulist",
    f"{NODES}/node#/meminfo",
    f"{NODES}/node#/hugepages/hugepages-#kB/nr_hugepages",
    f"{HUGEPAGES}/hugepages-#kB/nr_hugepages",
    "proc/meminfo",
)
"""Files of the fingerprint, in the notation of `WANTED`.  There are about ten for each NUMA node, but none for single CPUs."""


class MachineFingerprint(Struct, frozen=True):
    """Fingerprint of the machine. Two fingerprints are equal if the machine hasn't changed between them."""

    online: CpuSet | None
    nodes: tuple[tuple[int, CpuSet | None, int | None, tuple[tuple[int, int], ...]], ...]
    """(node ID, CPUs, bytes of memory, (page size, bytes) of huge pages) of each node."""
    memory_bytes: int | None
    hugepages: tuple[tuple[int, int], ...]


def fingerprint_of(sample: SysfsSample) -> MachineFingerprint:
    """Create the fingerprint. Values that change all the time, such as free memory, are left out.

    Raises:
        SysfsError: a file is malformed.
    """
    nodes = (
        (
            number,
            sample.cpu_list(f"{NODES}/{name}/cpulist"),
            sample.total_memory_bytes(f"{NODES}/{name}/meminfo"),
            sample.hugepage_bytes(f"{NODES}/{name}/hugepages"),
        )
        for name, number in sample.numbered(NODES, "node")
    )
    return MachineFingerprint(
        sample.cpu_list(f"{CPUS}/online"),
        tuple(sorted(nodes, key=lambda node: node[0])),
        sample.total_memory_bytes("proc/meminfo"),
        sample.hugepage_bytes(HUGEPAGES),
    )
