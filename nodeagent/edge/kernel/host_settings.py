"""Host settings in files below /proc and /sys that contain CPUs or belong to a single CPU. The agent reads them, and a privileged process
writes them.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from nodeagent.core.host.quiet import BOOST_FILES
from nodeagent.core.host.settings import NEW_IRQS, OF_POLICY, Facts, Setting, SettingKind, Value
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.host_files import (
    CPUMASK,
    CPUS,
    IRQS,
    QUEUES,
    REQUESTED,
    WRITABLE,
    HostFileError,
    path_of,
    read_value,
)
from nodeagent.formats.manifest.pod_schema import PCI_ADDRESS

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL})
"""Errors for a setting that doesn't exist, such as XPS of an interface with one queue. EINVAL is returned if a queue belongs to no traffic
class, or if another device has its XPS (xps_cpus_show in net/core/net-sysfs.c).
"""
_NODES = "sys/devices/system/node"
_MOST_BYTES = 65536
"""Maximum number of bytes read at once. The longest file is a mask of 8,192 CPUs."""


class HostSettingsFiles:
    """Reader and writer of the settings in files below /proc and /sys."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._nodes: dict[str, tuple[int, str]] = {}
        """NUMA node of each interrupt's device, by interrupt number. The inode number with it tells whether the interrupt was freed and
        allocated anew.
        """

    def read(self, kinds: AbstractSet[SettingKind]) -> dict[Setting, Value]:
        """Read the settings of these kinds that can be changed. Settings that disappear during the reading are left out.

        Raises:
            HostFileError: a setting can't be read or parsed.
        """
        found: dict[Setting, Value] = {}
        for setting in self._list_settings(kinds):
            path = self.path(setting)
            try:
                mode, text = _read_with_mode(path)
                if mode & WRITABLE:
                    if setting.kind is SettingKind.WORKQUEUE:
                        with suppress(FileNotFoundError):
                            _, text = _read_with_mode(f"{path.removesuffix(CPUMASK)}{REQUESTED}")
                    found[setting] = read_value(setting, text)
            except OSError as err:
                if err.errno not in _ABSENT:
                    raise _make_error(path, err) from err
        return found

    def read_facts(self, settings: Iterable[Setting]) -> dict[Setting, Facts]:
        """Return facts about interrupts and network queues: what identifies each of them, and the CPUs near an interrupt's device.

        The identity shows whether the same name still means the same thing. For an interrupt, it is the inode of its directory in /sys,
        which changes if the interrupt is created anew. For a queue, it is the index of the network interface, which a rename doesn't
        change.
        """
        numbers = _parse_numbers(self._list_names(_NODES), "node")
        cpus_near = {str(number): _read_cpus(f"{self._root}/{_NODES}/node{number}/cpulist") for number in numbers}
        instances: dict[str, int] = {}
        with suppress(OSError), os.scandir(f"{self._root}/sys/kernel/irq") as entries:
            instances = {entry.name: entry.inode() for entry in entries}
        self._nodes = {name: node for name, node in self._nodes.items() if node[0] == instances.get(name)}
        indices: dict[str, int | None] = {}
        found = {}
        for setting in settings:
            if setting.kind is SettingKind.IRQ:
                instance = instances.get(setting.name)
                if instance is not None and setting.name not in self._nodes:
                    with suppress(OSError):
                        node = _read_text(f"{self._root}/{IRQS}/{setting.name}/node").strip()
                        self._nodes[setting.name] = (instance, node)
                found[setting] = Facts(instance, cpus_near.get(self._nodes.get(setting.name, (None, ""))[1], CpuSet()))
            elif setting.kind is SettingKind.QUEUE:
                interface = setting.name.partition("/")[0]
                if interface not in indices:
                    indices[interface] = None
                    with suppress(OSError, ValueError):
                        indices[interface] = int(_read_text(f"{self._root}/{QUEUES}/{interface}/ifindex"))
                found[setting] = Facts(indices[interface])
        return found

    def read_effective_cpus(self, interrupt: Setting) -> CpuSet:
        """Return the CPUs to which the kernel delivers an interrupt.

        Empty means that they are unknown, or that the interrupt has been removed.
        """
        for name in ("effective_affinity_list", "smp_affinity_list"):
            with suppress(OSError, ValueError):
                return CpuSet.parse(_read_text(f"{self._root}/{IRQS}/{interrupt.name}/{name}").strip())
        return CpuSet()

    def read_node_cpus(self) -> tuple[CpuSet, ...]:
        """Return the CPUs of each NUMA node that has any, including offline CPUs.

        Raises:
            HostFileError: a directory can't be listed.
        """
        names = (self._list_names(f"{_NODES}/{node}") for node in self._list_names(_NODES))
        found = (CpuSet.from_ids(_parse_numbers(of_node, "cpu")) for of_node in names)
        return tuple(cpus for cpus in found if cpus)

    def list_interrupt_numbers(self) -> tuple[int, ...]:
        """Return the numbers of all interrupts.

        Raises:
            HostFileError: /proc/irq can't be listed.
        """
        return tuple(int(name) for name in self._list_names(IRQS) if name.isdigit())

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device, given by its address (such as `0000:3b:00.0`), or of a network interface, given by its
        name.

        The interrupts of a virtio device are those of its PCI device. The result is empty if the device doesn't exist.

        Raises:
            HostFileError: a directory can't be listed.
        """
        for start in (f"sys/bus/pci/devices/{device}", f"{QUEUES}/{device}/device"):
            place = Path(self._root or "/", start)
            if place.exists():
                break
        else:
            return frozenset()
        place = place.resolve()
        for at in (place, *place.parents):
            names = self._list_names(str((at / "msi_irqs").relative_to(self._root or "/")))
            if not names:
                with suppress(OSError):  # a device may have no message-signalled interrupts
                    line = (at / "irq").read_text(encoding="ascii").strip()
                    names = [line] if line.isdigit() and line != "0" else []
            if names:
                return frozenset(Setting(SettingKind.IRQ, name) for name in names)
            if PCI_ADDRESS.fullmatch(at.name) or at.name == "devices":
                break
        return frozenset()

    def find_interrupt_numbers(self, device: str) -> frozenset[int]:
        """Return the numbers of a device's interrupts. Unlike `interrupts_of`, return an empty set if they can't be listed."""
        try:
            return frozenset(int(interrupt.name) for interrupt in self.interrupts_of(device))
        except HostFileError:
            return frozenset()

    def path(self, setting: Setting) -> str:
        return f"{self._root}/{path_of(setting)}"

    def write(self, writes: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
        """Write to files, given as pairs of path and content. Return a result for each: None after success, otherwise the error's text."""
        results: list[str | None] = []
        for path, value in writes:
            try:
                Path(path).write_text(value, encoding="ascii")
                results.append(None)
            except OSError as err:
                results.append(os.strerror(err.errno or 0))
        return tuple(results)

    def _list_settings(self, kinds: AbstractSet[SettingKind]) -> Iterator[Setting]:
        if SettingKind.IRQ in kinds:
            yield from (Setting(SettingKind.IRQ, str(number)) for number in self.list_interrupt_numbers())
        if SettingKind.NEW_IRQS in kinds:
            yield NEW_IRQS
        if SettingKind.QUEUE in kinds:
            for interface in self._list_names(QUEUES):
                for queue in self._list_names(f"{QUEUES}/{interface}/queues"):
                    file = "rps_cpus" if queue.startswith("rx-") else "xps_cpus"
                    yield Setting(SettingKind.QUEUE, f"{interface}/queues/{queue}/{file}")
        if SettingKind.WORKQUEUE in kinds:
            yield Setting(SettingKind.WORKQUEUE)
        if SettingKind.IDLE_LATENCY in kinds:
            for cpu in _parse_numbers(self._list_names(CPUS), "cpu"):
                yield Setting(SettingKind.IDLE_LATENCY, str(cpu))
        if of_policy := sorted(kinds & OF_POLICY):
            for cpu in _parse_numbers(self._list_names(CPUS), "cpu"):
                if self._has_own_frequency(cpu):
                    yield from (Setting(kind, str(cpu)) for kind in of_policy)
        if SettingKind.MACHINE_BOOST in kinds:
            yield from (Setting(SettingKind.MACHINE_BOOST, file) for file in BOOST_FILES)

    def _has_own_frequency(self, cpu: int) -> bool:
        """Return whether a CPU has a frequency governor of its own, which no other CPU shares."""
        with suppress(OSError):
            path = Path(f"{self._root}/{CPUS}/cpu{cpu}/cpufreq/related_cpus")
            return path.read_text(encoding="ascii").split() == [str(cpu)]
        return False

    def _list_names(self, directory: str) -> list[str]:
        path = f"{self._root}/{directory}"
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - thousands of names in each look, which need no paths
        except OSError as err:
            if err.errno not in _ABSENT:
                raise _make_error(path, err) from err
            return []


def _parse_numbers(names: Iterable[str], kind: str) -> list[int]:
    """Return the numbers from names such as `node0`, where `kind` is the part before the number. Other names are left out."""
    numbers = (name.removeprefix(kind) for name in names if name.startswith(kind))
    return [int(number) for number in numbers if number.isdigit()]


def read_possible_cpus(root: str = "/") -> CpuSet:
    """Read the possible CPUs, which include CPUs that can be added later.

    Raises:
        HostFileError: the kernel's file can't be read.
    """
    return _read_cpus(f"{root}/sys/devices/system/cpu/possible")


def read_online_cpus(root: str = "/") -> CpuSet:
    """Read the online CPUs.

    Raises:
        HostFileError: the kernel's file can't be read.
    """
    return _read_cpus(f"{root}/sys/devices/system/cpu/online")


def read_host_cpus(root: str = "/") -> CpuSet:
    """Read the effective CPUs of the root cgroup: the online CPUs that are in no partition.

    Raises:
        HostFileError: the kernel's file can't be read.
    """
    return _read_cpus(f"{root}/sys/fs/cgroup/cpuset.cpus.effective")


def count_uevents(root: str = "/") -> int:
    """Return the number of uevents since boot. 0 means that it is unknown."""
    with suppress(OSError, ValueError):
        return int(_read_text(f"{root}/sys/kernel/uevent_seqnum"))
    return 0


def _read_cpus(file: str) -> CpuSet:
    try:
        return CpuSet.parse(_read_text(file).strip())
    except (OSError, ValueError) as err:
        raise _make_error(file, err) from err


def _read_text(path: str) -> str:
    return _read_with_mode(path)[1]


def _read_with_mode(path: str) -> tuple[int, str]:
    """Return the mode and text of a file that contains one line. Several reads may be needed, because the kernel returns at most a page of
    a long CPU list at once.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mode, text = os.fstat(descriptor).st_mode, b""
        while not text.endswith(b"\n") and (piece := os.read(descriptor, _MOST_BYTES)):
            text += piece
        return mode, text.decode("ascii", "replace")
    finally:
        os.close(descriptor)


def _make_error(path: str, err: Exception) -> HostFileError:
    reason = err.strerror if isinstance(err, OSError) else str(err)
    hint = "see `nodeagent check`; the agent reads the file again at the next sync"
    return HostFileError(f"cannot read {path}: {reason}", hint=hint)


def read_boot_id(root: str = "/") -> str:
    """Return the ID of the current boot. Empty means that it is unknown."""
    with suppress(OSError):
        return Path(root, "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
