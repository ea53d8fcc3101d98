"""What the kernel knows of an interrupt: which device's it is, and whether it may be moved to other CPUs. Read-only."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nodeagent.core.model.host_processes import HostInterrupt
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_use import Interrupt
from nodeagent.formats.kernel.host_files import WRITABLE


def interrupts(numbers: Iterable[int], root: Path = Path("/")) -> dict[int, Interrupt]:
    """Describe interrupts by their numbers; of one that has gone only the number is known.

    Newer kernels let nobody write the affinity of one that can't be moved, and show it as read-only. Where none is, the kernel is older,
    and it is unknown: the timer's (0, or that of the virtual CPU) can be moved on no kernel.
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
    """Return the interrupts in use that may come to some of these CPUs, by number. One that can't be read is left out.

    One that is bound has a mask, too, of which the kernel has chosen.
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
    """Return /proc/interrupts; None: it can't be read."""
    return _bytes(root / "proc/interrupts")


def softirqs_text(root: Path = Path("/")) -> bytes | None:
    """Return /proc/softirqs; None: it can't be read."""
    return _bytes(root / "proc/softirqs")


def is_bound(number: int, root: Path = Path("/")) -> bool:
    """Whether the kernel lets nobody move an interrupt. Older kernels don't tell: nothing is bound there."""
    try:
        return not (root / f"proc/irq/{number}/smp_affinity").stat().st_mode & WRITABLE
    except OSError:
        return False


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
