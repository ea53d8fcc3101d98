"""Observed host processes and interrupts that may run on exclusive CPUs. This module doesn't read /proc."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class HostProcess(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """Exclusive CPUs on which the process may run."""


class HostInterrupt(Struct, frozen=True):
    number: int
    name: str
    """Name of the devices that raise the interrupt."""
    cpus: CpuSet
    """Exclusive CPUs to which the interrupt may be delivered."""
    is_bound: bool
    """Whether the kernel forbids moving the interrupt. On older kernels, which don't report this, the value is False."""


class HostProcesses(Struct, frozen=True):
    """Host processes and interrupts that may run on exclusive CPUs (D12). Kernel threads are only counted, because most are bound to a
    CPU.
    """

    processes: tuple[HostProcess, ...] = ()
    kernel_threads: int = 0
    kernel_thread_cpus: CpuSet = CpuSet()
    hidden: int = 0
    """Number of processes that couldn't be read because of missing permissions."""
    interrupts: tuple[HostInterrupt, ...] = ()
    """Interrupts on exclusive CPUs. Interrupts that a container requests on its own CPUs are left out."""


class HostThread(Struct, frozen=True):
    """Thread of a user process, or of the kernel."""

    pid: int
    """ID of the process."""
    name: str
    cgroup: str | None
    """Path below the cgroup v2 root, with a leading slash. None means that the thread is in no cgroup."""
    is_kernel_thread: bool
    is_bound: bool
    """Whether the kernel binds the thread to one CPU and forbids moving it."""
