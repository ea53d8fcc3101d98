"""The host's processes and interrupts that may come to exclusive CPUs, as observed. Knows nothing of /proc."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class HostProcess(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """The exclusive CPUs among those that it may run on."""


class HostInterrupt(Struct, frozen=True):
    number: int
    name: str
    """Of the devices that it is for."""
    cpus: CpuSet
    """The exclusive CPUs among those that it may come to."""
    is_bound: bool
    """The kernel lets nobody move it; older kernels don't tell, and it is False there."""


class HostProcesses(Struct, frozen=True):
    """Host processes and interrupts that may come to exclusive CPUs (D12). Kernel threads are many and mostly bound to their CPU: they are
    only counted.
    """

    processes: tuple[HostProcess, ...] = ()
    kernel_threads: int = 0
    kernel_thread_cpus: CpuSet = CpuSet()
    hidden: int = 0
    """Processes that could not be read for lack of permission."""
    interrupts: tuple[HostInterrupt, ...] = ()
    """Without those that a container wants on its own CPUs."""


class HostThread(Struct, frozen=True):
    """A task of the kernel's scheduler: a thread of a process, or of the kernel."""

    pid: int
    """Of its process."""
    name: str
    cgroup: str | None
    """Path below the cgroup v2 root, with its leading slash; None: it is in none."""
    is_kernel_thread: bool
    is_bound: bool
    """The kernel keeps it on one CPU, and lets nobody move it."""
