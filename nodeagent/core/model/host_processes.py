"""Processes of the host that may run on exclusive CPUs, as they were seen. Knows nothing of /proc."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class HostProcess(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """The exclusive ones among those it may run on."""


class HostProcesses(Struct, frozen=True):
    """Who else may run on exclusive CPUs (D12). Kernel threads are many and mostly bound to their CPU: counted only."""

    processes: tuple[HostProcess, ...] = ()
    kernel_threads: int = 0
    kernel_thread_cpus: CpuSet = CpuSet()
    hidden: int = 0
    """Processes that one was not allowed to look at."""
