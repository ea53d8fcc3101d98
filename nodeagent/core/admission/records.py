"""kubelet's state files on a node that kubelet managed before."""

from msgspec import Struct

from nodeagent.core.model.records import Unreadable
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.memory.records import MemoryRecord


class Records(Struct, frozen=True):
    """Both state files as found. None means that the file doesn't exist."""

    cpu: CpuRecord | Unreadable | None = None
    memory: MemoryRecord | Unreadable | None = None
