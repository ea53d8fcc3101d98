"""Host settings that name CPUs, as the kernel has them now. A process with the right can also write them."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from nodeagent.core.host.settings import NEW_IRQS, Facts, Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.host_files import (
    CPUMASK,
    IRQS,
    QUEUES,
    REQUESTED,
    WRITABLE,
    HostFileError,
    path_of,
    read_cpus,
)
from nodeagent.formats.manifest.pod_schema import PCI_ADDRESS

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL})
"""Errors for a setting that is gone or absent, such as XPS with only one queue. EINVAL: a queue is in no traffic class, or another device
has its XPS (xps_cpus_show in net/core/net-sysfs.c).
"""


_NODES = "sys/devices/system/node"


class HostSettingsFiles:
    """Files below /proc and /sys."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def read(self, kinds: AbstractSet[SettingKind]) -> dict[Setting, CpuSet]:
        """Return the settings of these kinds that can be changed. A setting that goes away meanwhile is left out.

        Raises:
            HostFileError: a setting is not a set of CPUs, or can't be read.
        """
        found = {}
        for setting in self._settings(kinds):
            path = Path(self.path(setting))
            try:
                if path.stat().st_mode & WRITABLE:
                    found[setting] = read_cpus(setting, self._shown_in(path).read_text("ascii", "replace"))
            except OSError as err:
                if err.errno not in _ABSENT:
                    raise _unreadable(path, err) from err
        return found

    def facts(self, settings: Iterable[Setting]) -> dict[Setting, Facts]:
        """Return further facts of settings that are interrupts or network queues.

        The directory of an interrupt in /sys comes and goes with it, and its inode number is never reused. A renamed interface keeps its
        index.
        """
        near = dict(self._nodes())
        indices: dict[str, int | None] = {}
        found = {}
        for setting in settings:
            if setting.kind is SettingKind.IRQ:
                found[setting] = self._of_interrupt(setting.name, near)
            elif setting.kind is SettingKind.QUEUE:
                interface = setting.name.partition("/")[0]
                if interface not in indices:
                    indices[interface] = self._index(interface)
                found[setting] = Facts(indices[interface])
        return found

    def _of_interrupt(self, number: str, near: Mapping[str, CpuSet]) -> Facts:
        instance, node = None, ""
        with suppress(OSError):
            node = Path(f"{self._root}/{IRQS}/{number}/node").read_text(encoding="ascii").strip()
            instance = Path(f"{self._root}/sys/kernel/irq/{number}").stat().st_ino
        return Facts(instance, near.get(node, CpuSet()))

    def comes_to(self, interrupt: Setting) -> CpuSet:
        """Return the CPUs that the kernel delivers an interrupt to, or nothing if they are unknown or the interrupt is gone."""
        for name in ("effective_affinity_list", "smp_affinity_list"):
            with suppress(OSError, ValueError):
                return CpuSet.parse(Path(f"{self._root}/{IRQS}/{interrupt.name}/{name}").read_text("ascii").strip())
        return CpuSet()

    def _index(self, interface: str) -> int | None:
        with suppress(OSError, ValueError):
            return int(Path(f"{self._root}/{QUEUES}/{interface}/ifindex").read_text(encoding="ascii"))
        return None

    def _nodes(self) -> Iterator[tuple[str, CpuSet]]:
        """Return the online CPUs of each NUMA node, by its number."""
        for number in _numbers(self._names(_NODES), "node"):
            yield str(number), _cpus(Path(f"{self._root}/{_NODES}/node{number}/cpulist"))

    def nodes(self) -> tuple[CpuSet, ...]:
        """Return the CPUs of each NUMA node that has any, including offline ones.

        Raises:
            HostFileError: they can't be listed.
        """
        found = (CpuSet.from_ids(_numbers(self._names(f"{_NODES}/{node}"), "cpu")) for node in self._names(_NODES))
        return tuple(cpus for cpus in found if cpus)

    def interrupt_numbers(self) -> tuple[int, ...]:
        """Return the numbers of all interrupts.

        Raises:
            HostFileError: they can't be listed.
        """
        return tuple(int(name) for name in self._names(IRQS) if name.isdigit())

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device, by its address (`0000:3b:00.0`), or of a network interface. An absent device has none."""
        for start in (f"sys/bus/pci/devices/{device}", f"{QUEUES}/{device}/device"):
            place = Path(self._root or "/", start)
            if place.exists():
                break
        else:
            return frozenset()
        place = place.resolve()
        for at in (place, *place.parents):  # the interrupts of a virtio device are those of the PCI device above it
            names = self._names(str((at / "msi_irqs").relative_to(self._root or "/"))) or _line_interrupt(at / "irq")
            if names:
                return frozenset(Setting(SettingKind.IRQ, name) for name in names)
            if PCI_ADDRESS.fullmatch(at.name) or at.name == "devices":
                break
        return frozenset()

    def interrupt_numbers_of(self, device: str) -> frozenset[int]:
        """Return the numbers of a device's interrupts for display. Empty also if they can't be listed."""
        try:
            return frozenset(int(interrupt.name) for interrupt in self.interrupts_of(device))
        except HostFileError:
            return frozenset()

    def path(self, setting: Setting) -> str:
        return f"{self._root}/{path_of(setting)}"

    def _shown_in(self, path: Path) -> Path:
        requested = path.with_name(REQUESTED)
        return requested if path.name == CPUMASK and requested.exists() else path

    def write(self, writes: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
        """Write to these files. Returns for each None, or the reason of the failure."""
        return tuple(self._write(path, value) for path, value in writes)

    def _write(self, path: str, value: str) -> str | None:
        try:
            Path(path).write_text(value, encoding="ascii")
        except OSError as err:
            return os.strerror(err.errno or 0)
        return None

    def _settings(self, kinds: AbstractSet[SettingKind]) -> Iterator[Setting]:
        if SettingKind.IRQ in kinds:
            yield from (Setting(SettingKind.IRQ, str(number)) for number in self.interrupt_numbers())
        if SettingKind.NEW_IRQS in kinds:
            yield NEW_IRQS
        if SettingKind.QUEUE in kinds:
            for interface in self._names(QUEUES):
                for queue in self._names(f"{QUEUES}/{interface}/queues"):
                    file = "rps_cpus" if queue.startswith("rx-") else "xps_cpus"
                    yield Setting(SettingKind.QUEUE, f"{interface}/queues/{queue}/{file}")
        if SettingKind.WORKQUEUE in kinds:
            yield Setting(SettingKind.WORKQUEUE)

    def _names(self, directory: str) -> list[str]:
        path = Path(f"{self._root}/{directory}")
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError as err:
            if err.errno not in _ABSENT:
                raise _unreadable(path, err) from err
            return []


def _numbers(names: Iterable[str], kind: str) -> list[int]:
    """Return the numbers in names of a kind, such as `node0`."""
    numbers = (name.removeprefix(kind) for name in names if name.startswith(kind))
    return [int(number) for number in numbers if number.isdigit()]


def _line_interrupt(file: Path) -> list[str]:
    """Return the interrupt of a device without message-signalled interrupts."""
    with suppress(OSError):
        name = file.read_text(encoding="ascii").strip()
        return [name] if name.isdigit() and name != "0" else []
    return []


def possible_cpus(root: str = "/") -> CpuSet:
    """Return all CPUs that the machine can have.

    Raises:
        HostFileError: the kernel doesn't show them.
    """
    return _cpus(Path(root, "sys/devices/system/cpu/possible"))


def online_cpus(root: str = "/") -> CpuSet:
    """Return the online CPUs.

    Raises:
        HostFileError: the kernel doesn't show them.
    """
    return _cpus(Path(root, "sys/devices/system/cpu/online"))


def host_cpus(root: str = "/") -> CpuSet:
    """Return the CPUs of the root cgroup, which are online and in no partition.

    Raises:
        HostFileError: the kernel doesn't show them.
    """
    return _cpus(Path(root, "sys/fs/cgroup/cpuset.cpus.effective"))


def uevents_sent(root: str = "/") -> int:
    """Return the number of device events that the kernel has sent since boot, or 0 if it doesn't count them."""
    with suppress(OSError, ValueError):
        return int(Path(root, "sys/kernel/uevent_seqnum").read_text(encoding="ascii"))
    return 0


def _cpus(file: Path) -> CpuSet:
    try:
        return CpuSet.parse(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as err:
        raise _unreadable(file, err) from err


def _unreadable(path: Path, err: Exception) -> HostFileError:
    why = err.strerror if isinstance(err, OSError) else str(err)
    return HostFileError(f"cannot read {path}: {why}", hint="see `nodeagent check`; it is tried again")


def boot_id(root: str = "/") -> str:
    """Return the id of this boot, beyond which no setting lasts. Empty means unknown."""
    with suppress(OSError):
        return Path(root, "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
