"""Interrupts, with their devices and CPUs, and whether the kernel allows moving them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nodeagent.core.model.host_processes import HostInterrupt
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_use import Interrupt
from nodeagent.formats.kernel.host_files import WRITABLE


def describe_interrupts(numbers: Iterable[int], root: Path = Path("/")) -> dict[int, Interrupt]:
    """Describe interrupts by their numbers. An interrupt that doesn't exist any more gets an empty name.

    Whether an interrupt is bound is shown by its affinity file, which newer kernels make read-only in this case. The timer's interrupt is
    always bound. If no affinity file at all is read-only, the kernel is therefore older, and it is unknown which interrupts are bound.
    """
    is_movable = {}
    for path in (root / "proc/irq").glob("*/smp_affinity"):
        with suppress(OSError):
            is_movable[path.parent.name] = bool(path.stat().st_mode & WRITABLE)
    if all(is_movable.values()):
        is_movable.clear()
    return {number: Interrupt(_read_name(root, number), is_movable.get(str(number))) for number in numbers}


def find_interrupts_on(cpus: CpuSet, root: Path = Path("/")) -> tuple[HostInterrupt, ...]:
    """Return the interrupts in use that the kernel may deliver to these CPUs, ordered by number. Interrupts that can't be read are left
    out.
    """
    found = []
    for directory in (root / "proc/irq").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            number = int(directory.name)
            bound = is_bound(number, root)
            # the kernel delivers a bound interrupt to only one CPU of its mask
            file = "effective_affinity_list" if bound else "smp_affinity_list"
            affected = CpuSet.parse((directory / file).read_text(encoding="ascii").strip()) & cpus
            name = _read_name(root, number) if affected else ""
            if name:
                found.append(HostInterrupt(number, name, affected, bound))
    return tuple(sorted(found, key=lambda interrupt: interrupt.number))


def _read_name(root: Path, number: int) -> str:
    with suppress(OSError):
        path = root / f"sys/kernel/irq/{number}/actions"
        return path.read_text(encoding="utf-8", errors="backslashreplace").strip()
    return ""


def read_interrupt_counters(root: Path = Path("/")) -> bytes | None:
    """Read /proc/interrupts. None means that the file can't be read."""
    with suppress(OSError):
        return (root / "proc/interrupts").read_bytes()
    return None


def read_softirq_counters(root: Path = Path("/")) -> bytes | None:
    """Read /proc/softirqs. None means that the file can't be read."""
    with suppress(OSError):
        return (root / "proc/softirqs").read_bytes()
    return None


def is_bound(number: int, root: Path = Path("/")) -> bool:
    """Return whether an interrupt is bound, so that it can't be moved to other CPUs. On older kernels, which don't show this, the result is
    False.
    """
    with suppress(OSError):
        return not (root / f"proc/irq/{number}/smp_affinity").stat().st_mode & WRITABLE
    return False
