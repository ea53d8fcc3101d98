"""Restoration of promises from kubelet's state files, on a node that kubelet managed before."""

from msgspec import Struct

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.cpu.restore import restore_cpus
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.resources.memory.restore import restore_memory


class Records(Struct, frozen=True):
    """Contents of the state files of kubelet's CPU manager and memory manager. None means that the file doesn't exist."""

    cpu: CpuRecord | Unreadable | None = None
    memory: MemoryRecord | Unreadable | None = None


def start(managers: Managers, records: Records) -> Promises | StartRefused:
    """Restore the promises from kubelet's state files. A missing file counts as empty."""
    promises = start_cpus(managers, records)
    return promises if isinstance(promises, StartRefused) else start_memory(managers, promises, records)


def start_cpus(managers: Managers, records: Records) -> Promises | StartRefused:
    """Restore the allocations of CPUs from the state file of kubelet's CPU manager. It is a separate step, because kubelet's start can fail
    after it and before `start_memory`.
    """
    return restore_cpus(managers.providers.of(CpuResource).manager, records.cpu)


def start_memory(managers: Managers, promises: Promises, records: Records) -> Promises | StartRefused:
    """Restore the allocations of memory from the state file of kubelet's memory manager, in addition to the CPUs that `start_cpus`
    restored.
    """
    return restore_memory(managers.providers.of(MemoryResource).manager, promises, records.memory)
