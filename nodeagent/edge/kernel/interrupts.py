"""Facts of interrupts that the kernel shows: their devices, and whether they can be moved to other CPUs. Read-only."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nodeagent.core.model.host_processes import HostInterrupt
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_use import Interrupt
from nodeagent.formats.kernel.host_files import WRITABLE


def interrupts(numbers: Iterable[int], root: Path = Path("/")) -> dict[int, Interrupt]:
    """Describe interrupts by their numbers. Of an interrupt that has gone only the number is known.

    Newer kernels show the affinity of an interrupt that can't be moved as read-only. If no file is read-only, the kernel is older, and
    movability
    is unknown. The timer's interrupt (0, or that of the virtual CPU) can't be moved on any kernel.
    """
    affinities = {}
    for path in (root / "proc/irq").glob("*/smp_affinity"):
        with suppress(OSError):
            affinities[path.parent.name] = bool(path.stat().st_mode & WRITABLE)
    shows = not all(affinities.values())
    return {
        number: Interrupt(_name(root, number), affinities.get(str(number)) if shows else None) for number in numbers
    }


def may_come_to(cpus: CpuSet, root: Path = Path("/")) -> tuple[HostInterrupt, ...]:
    """Return the interrupts in use that may be delivered to some of these CPUs, by number. Unreadable ones are left out.

    A bound interrupt has a mask as well, and the kernel has chosen a CPU of it.
    """
    found = []
    for directory in (root / "proc/irq").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            number = int(directory.name)
            bound = is_bound(number, root)
            file = "effective_affinity_list" if bound else "smp_affinity_list"
            may = CpuSet.parse((directory / file).read_text(encoding="ascii").strip()) & cpus
            name = _name(root, number) if may else ""
            if name:
                found.append(HostInterrupt(number, name, may, bound))
    return tuple(sorted(found, key=lambda one: one.number))


def _name(root: Path, number: int) -> str:
    try:
        return (
            (root / f"sys/kernel/irq/{number}/actions").read_text(encoding="utf-8", errors="backslashreplace").strip()
        )
    except OSError:
        return ""


def interrupts_text(root: Path = Path("/")) -> bytes | None:
    """Return /proc/interrupts, or None if it can't be read."""
    return _bytes(root / "proc/interrupts")


def softirqs_text(root: Path = Path("/")) -> bytes | None:
    """Return /proc/softirqs, or None if it can't be read."""
    return _bytes(root / "proc/softirqs")


def is_bound(number: int, root: Path = Path("/")) -> bool:
    """Whether the kernel forbids to move an interrupt. Older kernels don't show it, so none is bound there."""
    try:
        return not (root / f"proc/irq/{number}/smp_affinity").stat().st_mode & WRITABLE
    except OSError:
        return False


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
