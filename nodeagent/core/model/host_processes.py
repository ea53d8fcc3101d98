"""Host processes and interrupts that were observed on exclusive CPUs. The module contains only the values; other modules read /proc."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class HostProcess(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """Exclusive CPUs on which the host process may run."""


class HostInterrupt(Struct, frozen=True):
    number: int
    name: str
    """Names of the devices that raise the interrupt, as in /proc/interrupts."""
    cpus: CpuSet
    """Exclusive CPUs that may receive the interrupt."""
    is_bound: bool
    """Whether the kernel forbids moving the interrupt to other CPUs. It is False on older kernels, which don't report this."""


class HostProcesses(Struct, frozen=True):
    """Host processes and interrupts that may disturb pods, because they may use exclusive CPUs (D12). Kernel threads are only counted,
    since most of them are bound to one CPU and can't be moved.
    """

    processes: tuple[HostProcess, ...] = ()
    kernel_threads: int = 0
    kernel_thread_cpus: CpuSet = CpuSet()
    hidden: int = 0
    """Number of processes whose allowed CPUs couldn't be read, because the caller lacks permission."""
    interrupts: tuple[HostInterrupt, ...] = ()
    """Interrupts that exclusive CPUs may receive. An interrupt is left out if a container has requested it on its own CPUs."""


class HostThread(Struct, frozen=True):
    """Thread of a user process, or of the kernel."""

    pid: int
    """ID of the process to which the thread belongs."""
    name: str
    cgroup: str | None
    """Absolute path of the thread's cgroup, seen from the cgroup v2 root. None means that the thread is in no cgroup."""
    is_kernel_thread: bool
    is_bound: bool
    """Whether the kernel binds the thread to one CPU and forbids other CPUs."""
