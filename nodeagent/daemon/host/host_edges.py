"""Access to all host settings that contain CPUs or belong to a single CPU: kernel files, kernel threads, systemd units and irqbalance."""

import errno
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from nodeagent.core.host.settings import OF_SERVICES, Cpus, Facts, Setting, SettingKind, Value
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel import irqbalance, kernel_threads
from nodeagent.edge.kernel.host_settings import (
    HostSettingsFiles,
    count_uevents,
    read_host_cpus,
    read_online_cpus,
    read_possible_cpus,
)
from nodeagent.edge.kernel.kernel_threads import KernelThread, KernelThreads, ThreadKey
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.host_files import format_value, place_of
from nodeagent.formats.kernel.unit_names import slices_around, unit_in
from nodeagent.formats.kernel.unit_properties import LOADED

Write = Callable[[Sequence[tuple[str, str]]], tuple[str | None, ...]]
"""Function that writes values to files and kernel threads, and returns a result for each. None means success; a text is the reason for a
failure.
"""

SYSTEMD = "run/systemd/system"
"""Directory that exists only if systemd is process 1 (sd_booted(3))."""
_AT_ONCE = 8
_GONE = (os.strerror(errno.ESRCH), os.strerror(errno.ENOENT))
"""Errors when a thread has exited or a file was removed. They are ignored, because the setting doesn't exist any more."""
_IRQBALANCE = Setting(SettingKind.IRQBALANCE)
_ASKED = OF_SERVICES - {SettingKind.UNIT}
"""Kinds of settings that irqbalance keeps."""
_INTERRUPT_THREAD = re.compile(r"irq/(\d+)-")
"""Pattern of the name of a kernel thread that handles one interrupt. The group is the interrupt's number."""


class Reading(Struct, frozen=True):
    """Host settings as they were read, with the errors of the kinds that couldn't be read."""

    settings: Mapping[Setting, Value]
    facts: Mapping[Setting, Facts] = {}
    """Further facts about some of the settings, such as the device of an interrupt."""
    failed: Mapping[SettingKind, NodeAgentError] = {}
    """Errors by kind of setting. The settings of such a kind were not read."""
    released: frozenset[Setting] = frozenset()
    """Settings that must be restored because the agent now places the processes of these units itself."""


class _NodeCpus(Struct, frozen=True):
    """CPUs of each NUMA node as last read, and the number of uevents at that time. The number 0 means that it is unknown."""

    uevents: int = 0
    cpus: tuple[CpuSet, ...] = ()


class HostEdges:
    """Reader and writer of this machine's host settings.

    Args:
        write: function that may write protected files and the CPUs of kernel threads.
        pods_root: the pods' cgroup. The top-level cgroup that contains it is never restricted.
        root: root of the host's file system.
        beside: other top-level units whose processes the agent places. They are left out, unless an earlier agent process changed their
            settings.
    """

    def __init__(
        self, write: Write, pods_root: str = "", root: str = "/", *, beside: frozenset[str] = frozenset()
    ) -> None:
        self._write = write
        self._root = root
        self._ours = pods_root.removeprefix("/sys/fs/cgroup/").partition("/")[0]
        self._beside = beside
        self._files = HostSettingsFiles(root)
        self._threads = KernelThreads()
        self._nodes = _NodeCpus()
        self._irqbalance = Path(root, irqbalance.DIRECTORY.relative_to("/"))

    def read(
        self,
        kinds: AbstractSet[SettingKind],
        *,
        pinned: Mapping[str, CpuSet] = {},
        known: Collection[Setting] = (),
        rescan: bool = True,
    ) -> Reading:
        """Read the settings of these kinds, as far as they can be changed.

        Args:
            kinds: kinds of settings.
            pinned: exclusive CPUs of the pinned units, by cgroup path. These units are left out. If one has exclusive CPUs, the other units
                in its slices are read, too.
            known: settings that the agent has changed before. They are read as long as they exist.
            rescan: whether to check known kernel threads again (see `KernelThreads.find`).
        """
        found: dict[Setting, Value] = {}
        failed: dict[SettingKind, NodeAgentError] = {}
        threads: dict[Setting, KernelThread] = {}
        for kind in sorted(kinds - _ASKED):
            try:
                if kind is SettingKind.THREAD:
                    threads = {
                        Setting(SettingKind.THREAD, f"{key.pid}@{key.start_ticks}"): thread
                        for key, thread in self._threads.find(rescan=rescan).items()
                    }
                elif kind is SettingKind.UNIT:
                    found |= self._read_units(pinned, known)
                else:
                    found |= self._files.read({kind})
            except NodeAgentError as err:
                failed[kind] = err
        asked = kinds & _ASKED
        try:
            found |= self._read_irqbalance(asked) if asked else {}
        except NodeAgentError as err:
            failed |= dict.fromkeys(asked, err)
        facts = dict(self._files.read_facts(found))
        for setting, thread in threads.items():
            if handled := _INTERRUPT_THREAD.match(thread.name):
                interrupt = Setting(SettingKind.IRQ, handled[1])
                facts[setting] = Facts(interrupt=interrupt, follows=self._files.read_effective_cpus(interrupt))
        released = frozenset(Setting(SettingKind.UNIT, name) for name in self._beside)
        settings = found | {setting: thread.cpus for setting, thread in threads.items()}
        return Reading(settings, facts, failed, released & settings.keys())

    def _read_units(self, pinned: Mapping[str, CpuSet], known: Collection[Setting]) -> dict[Setting, CpuSet]:
        """Return the allowed CPUs of systemd units, except for units of pods. If a known unit has no cgroup, return its property, which
        applies from its next start.
        """
        if not Path(self._root, SYSTEMD).is_dir():
            raise UnitsError(
                "nothing keeps the host's processes off exclusive CPUs that are in no partition: systemd doesn't run as process 1",
                hint="use kernel 6.7 or later, which has partitions, or set `hostIsolation: none`",
            )
        cgroups = Path(self._root, units.CGROUPS.relative_to("/"))
        nested = (setting.name for setting in known if setting.kind is SettingKind.UNIT)
        exclusive = (path for path, cpus in pinned.items() if cpus)
        within = {slice_ for path in (*exclusive, *nested) for slice_ in slices_around(path)}
        possible = read_possible_cpus(self._root)
        there = units.read_units(possible, ours=self._ours, cgroups=cgroups, within=within, without=pinned)
        found = {Setting(SettingKind.UNIT, name): cpus for name, cpus in there.items()}
        found |= _read_inactive({s for s in known if s.kind is SettingKind.UNIT} - found.keys(), pinned, possible)
        return {unit: cpus for unit, cpus in found.items() if unit.name not in self._beside or unit in known}

    def _read_irqbalance(self, kinds: AbstractSet[SettingKind]) -> dict[Setting, CpuSet]:
        there, possible = irqbalance.read(self._irqbalance), read_possible_cpus(self._root)
        if there is None:
            return {}
        found = {_IRQBALANCE: possible - there.banned} if SettingKind.IRQBALANCE in kinds else {}
        if SettingKind.BALANCING in kinds:
            for number in self._files.list_interrupt_numbers():
                name = Setting(SettingKind.BALANCING, str(number))
                found[name] = CpuSet() if number in there.left_alone else possible
        return found

    def cpus(self, host: CpuSet) -> Cpus:
        """Return the CPUs of this machine.

        Args:
            host: CPUs for a setting that has to avoid all of its CPUs.

        Raises:
            HostFileError: the kernel's files can't be read.
        """
        possible, root = read_possible_cpus(self._root), self._root
        hidden, offline = possible - read_host_cpus(root), possible - read_online_cpus(root)
        uevents = count_uevents(root)
        if not uevents or self._nodes.uevents != uevents:  # the kernel reports each change of a node's CPUs by a uevent
            self._nodes = _NodeCpus(uevents, self._files.read_node_cpus())
        return Cpus(possible, host, hidden, offline, nodes=self._nodes.cpus, uevents=uevents)

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device or network interface."""
        return self._files.interrupts_of(device)

    def write(self, values: Mapping[Setting, Value]) -> dict[Setting, str]:
        """Write settings. Return the settings that were refused, each with the reason.

        Raises:
            LauncherError: the launcher can't be reached.
        """
        of_services = {s: cpus for s, cpus in values.items() if s.kind in OF_SERVICES and isinstance(cpus, CpuSet)}
        systems = {setting: cpus for setting, cpus in of_services.items() if setting.kind is SettingKind.UNIT}
        direct = {s: value for s, value in values.items() if s.kind not in OF_SERVICES}
        results = self._write([(place_of(setting), format_value(setting, value)) for setting, value in direct.items()])
        refused = {
            setting: why for setting, why in zip(direct, results, strict=True) if why is not None and why not in _GONE
        }
        possible = read_possible_cpus(self._root)
        if systems:
            # all calls share one deadline, so a hanging systemd delays the agent only once
            until = units.start_deadline()
            with ThreadPoolExecutor(min(len(systems), _AT_ONCE)) as pool:
                answers = pool.map(
                    lambda item: _set_allowed(unit_in(item[0].name), item[1], possible, until), systems.items()
                )
                refused |= {setting: why for setting, why in zip(systems, answers, strict=True) if why is not None}
        if _IRQBALANCE in of_services and (why := self._set_banned(possible - of_services[_IRQBALANCE])) is not None:
            refused[_IRQBALANCE] = why
        moved = {s: bool(cpus) for s, cpus in of_services.items() if s.kind is SettingKind.BALANCING}
        # if irqbalance has failed to answer, it isn't asked again
        if moved and (why := refused.get(_IRQBALANCE) or self._set_left_alone(moved)) is not None:
            refused |= dict.fromkeys(moved, why)
        return refused

    def _set_banned(self, cpus: CpuSet) -> str | None:
        try:
            if cpus:
                irqbalance.ban(cpus, self._irqbalance)
            else:
                irqbalance.unban(self._irqbalance)
        except NodeAgentError as err:
            return err.message
        return None

    def _set_left_alone(self, moved: Mapping[Setting, bool]) -> str | None:
        """Change which interrupts irqbalance may move: none of those with the value False, all of those with True. Other interrupts stay as
        they are. Return the problem, or None.
        """
        try:
            there = irqbalance.read(self._irqbalance)
            left = there.left_alone if there is not None else frozenset()
            left |= {int(setting.name) for setting, is_moved in moved.items() if not is_moved}
            moved_again = {int(setting.name) for setting, is_moved in moved.items() if is_moved}
            irqbalance.leave(left - moved_again, self._irqbalance)
        except NodeAgentError as err:
            return err.message
        return None


def write_directly(writes: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
    """Write settings without the launcher. The calling process needs root privileges outside of a sandbox."""
    answers: list[str | None] = []
    for place, value in writes:
        if place.startswith("thread "):
            pid, _, start_ticks = place.removeprefix("thread ").partition("@")
            answers.append(kernel_threads.move_thread(ThreadKey(int(pid), int(start_ticks)), CpuSet.parse(value)))
        else:
            answers += HostSettingsFiles().write([(place, value)])
    return tuple(answers)


def _read_inactive(missing: AbstractSet[Setting], pinned: Collection[str], possible: CpuSet) -> dict[Setting, CpuSet]:
    """Return `AllowedCPUs=` of the units without a cgroup. Units that aren't loaded are left out, because systemd has dropped their
    properties.
    """
    names = {setting: unit_in(setting.name) for setting in missing if setting.name not in pinned}
    there = units.show_units(names.values()) if names else {}
    return {
        setting: there[unit].settings.allowed_cpus or possible
        for setting, unit in names.items()
        if there[unit].load_state == LOADED
    }


def _set_allowed(unit: str, cpus: CpuSet, possible: CpuSet, until: float) -> str | None:
    try:
        if cpus == possible:
            units.clear_allowed_cpus(unit, possible, until=until)
        else:
            units.set_allowed_cpus(unit, cpus, until=until)
    except NodeAgentError as err:
        return err.message
    return None
