"""Host processes and interrupts that may run on exclusive CPUs, as observed. Knows nothing of /proc."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class HostProcess(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """Exclusive CPUs that it may run on."""


class HostInterrupt(Struct, frozen=True):
    number: int
    name: str
    """Name of the devices that raise it."""
    cpus: CpuSet
    """Exclusive CPUs that it may be delivered to."""
    is_bound: bool
    """Whether the kernel forbids to move it. Always False on older kernels, which don't tell."""


class HostProcesses(Struct, frozen=True):
    """Host processes and interrupts that may run on exclusive CPUs (D12). Kernel threads are only counted, because most are bound to a
    CPU.
    """

    processes: tuple[HostProcess, ...] = ()
    kernel_threads: int = 0
    kernel_thread_cpus: CpuSet = CpuSet()
    hidden: int = 0
    """Number of processes that could not be read for lack of permission."""
    interrupts: tuple[HostInterrupt, ...] = ()
    """Interrupts, without those that a container wants on its own CPUs."""


class HostThread(Struct, frozen=True):
    """Thread of a process or of the kernel."""

    pid: int
    """Id of its process."""
    name: str
    cgroup: str | None
    """Path below the cgroup v2 root, with its leading slash. None means that it is in no cgroup."""
    is_kernel_thread: bool
    is_bound: bool
    """Whether the kernel keeps it on one CPU and forbids to move it."""
