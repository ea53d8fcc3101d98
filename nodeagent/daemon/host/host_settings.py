"""Writer of host settings that keep interrupts, kernel threads and systemd units off exclusive CPUs. The original values are restored later
(D28).
"""

from collections.abc import Collection, Mapping, Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.host.irq_owners import InterruptOwners, InterruptRequest, assign_interrupts
from nodeagent.core.host.quiet import select_boost_file
from nodeagent.core.host.settings import (
    OF_FREQUENCY,
    OF_ONE_CPU,
    OF_SERVICES,
    WITH_TEXT,
    Cpus,
    Record,
    Setting,
    SettingKind,
    Value,
    assume_restored,
    plan_settings,
)
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.host.host_edges import Reading
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import StateFileError, Sync
from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.formats.checkpoint.host_record import MAX_BYTES, HostRecordError, decode_record, encode_record
from nodeagent.formats.kernel.host_files import HostFileError, describe_setting
from nodeagent.formats.kernel.unit_names import slices_around

HOST_SETTINGS = "host_settings"
"""File name of the record in the state directory. The file exists only while host settings are changed."""
PUT_BACK = "host_settings_put_back"
"""Name of an empty file next to the record.

`nodeagent release` creates it after restoring settings, so that a running agent expects the change.
"""

_MOST_READS = 5
"""Maximum number of readings while CPUs go offline or online. A reading during such a change isn't consistent, because the kernel moves
threads.
"""
_INTERRUPTS = frozenset({SettingKind.IRQ, SettingKind.NEW_IRQS, SettingKind.QUEUE, SettingKind.IRQBALANCE})
_MAY_DO_LATER = OF_SERVICES | {SettingKind.THREAD}
"""Kinds of settings that may accept a refused value later. For instance, the kernel refuses CPUs for a thread while they are in a
partition.
"""
_WORK = frozenset({SettingKind.WORKQUEUE, SettingKind.THREAD})


class HostPlaces(Protocol):
    """Interface that reads and writes host settings."""

    def read(
        self,
        kinds: AbstractSet[SettingKind],
        *,
        pinned: Mapping[str, CpuSet] = {},
        known: Collection[Setting] = (),
        rescan: bool = True,
    ) -> Reading:
        """Return the settings of these kinds, except the settings of `pinned` units.

        The settings in `known` and the units in the slices around pinned units with exclusive CPUs are included. With `rescan`, known
        kernel threads are checked again.
        """
        ...

    def cpus(self, host: CpuSet) -> Cpus:
        """Return the machine's CPUs. `host` contains the CPUs for settings that would otherwise have no CPU left."""
        ...

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device or network interface."""
        ...

    def write(self, values: Mapping[Setting, Value]) -> dict[Setting, str]:
        """Write settings. Return the refused settings, each with the reason."""
        ...


class WantedSettings(Struct, frozen=True):
    """Wanted state of the host settings."""

    to_avoid: Mapping[SettingKind, CpuSet]
    """CPUs that settings must avoid, by kind. Settings of a kind without an entry get their original values again."""
    host: CpuSet
    """CPUs for settings that would otherwise have no CPU left."""
    interrupts: tuple[InterruptRequest, ...] = ()
    """Requests of containers to have a device's interrupts handled on the container's own CPUs."""
    partitioned: CpuSet = CpuSet()
    """CPUs in existing and planned partitions. The kernel itself moves its threads off these CPUs."""
    pinned: Mapping[str, CpuSet] = {}
    """Exclusive CPUs of pinned units by cgroup path. The enclosing slices keep these CPUs, and the other units in the slices avoid them.

    A pinned unit without exclusive CPUs has an empty set, even while its settings are being restored, because only the unit's domain
    changes them.
    """
    values: Mapping[Setting, str] = {}
    """Requested values of settings that aren't CPU lists, as text."""


def cpus_to_avoid(
    config: Config, topology: Topology, exclusive: CpuSet, partitioned: CpuSet
) -> dict[SettingKind, CpuSet]:
    """Return the CPUs that each kind of setting must avoid.

    The kernel itself keeps systemd's units off `partitioned` CPUs, which are in cpuset partitions (D27).
    """
    to_avoid: dict[SettingKind, CpuSet] = {}
    if config.interrupt_isolation != "none":
        to_avoid |= dict.fromkeys(_INTERRUPTS, exclusive)
    if config.host_isolation != "none":
        of_class = topology.core_classes.get(config.host_core_class)
        elsewhere = exclusive if of_class is None else exclusive | topology.online - of_class
        to_avoid |= dict.fromkeys(_WORK, elsewhere) | {SettingKind.UNIT: elsewhere - partitioned}
    return {kind: cpus for kind, cpus in to_avoid.items() if cpus}


def put_back(places: HostPlaces, directory: str, boot: str) -> tuple[int, tuple[str, ...]]:
    """Restore the original value of each setting that still has the agent's value.

    The record is kept. The file PUT_BACK tells a running agent about the change, which the agent would otherwise log as foreign.

    Returns:
        The number of changed settings, and the problems.

    Raises:
        NodeAgentError: the record can't be read.
    """
    record = read_record(str(Path(directory) / HOST_SETTINGS), boot)
    if not record:
        return 0, ()
    reading = places.read({setting.kind for setting in record}, known=record.keys())
    planned = plan_settings(
        record,
        reading.settings,
        to_avoid={},
        cpus=places.cpus(CpuSet()),
        facts=reading.facts,
        unread=reading.failed.keys(),
    )
    refused = places.write(planned.writes)
    # without this file, a running agent would log the restored values as changes by other programs
    with suppress(StateFileError):
        state_files.write_atomically(str(Path(directory) / PUT_BACK), b"", sync=Sync.NONE)
    count = sum(reading.settings[setting] != value for setting, value in planned.writes.items())
    return count, (
        *(f"{describe_setting(setting)}: {why}" for setting, why in refused.items()),
        *(err.message for err in reading.failed.values()),
    )


def _describe_missing(setting: Setting) -> str:
    return f"this machine or kernel doesn't have it{' per CPU' if setting.kind in OF_ONE_CPU else ''}"


def _cpus_to_spare(pinned: Mapping[str, CpuSet]) -> dict[Setting, CpuSet]:
    spared: dict[Setting, CpuSet] = {}
    for path, cpus in pinned.items():
        for around in slices_around(path):
            setting = Setting(SettingKind.UNIT, around)
            spared[setting] = spared.get(setting, CpuSet()) | cpus
    return spared


def read_record(path: str, boot: str) -> Record:
    """Read the record of this boot. Changes from an earlier boot are no longer in effect.

    Raises:
        StateFileError: the file can't be read.
        HostRecordError: the file's content can't be used.
    """
    content = state_files.read(path, max_bytes=MAX_BYTES)
    # after a loss of power, the file may consist of zeros; the settings in it are from an earlier boot
    if content is None or not content.strip(b"\0"):
        return {}
    recorded_boot, record = decode_record(content)
    return record if recorded_boot == boot else {}


class _RecordFile:
    """Record of changed settings and their original values. `boot` is the ID of this boot."""

    def __init__(self, directory: str, boot: str, log: Log) -> None:
        self._path = str(Path(directory) / HOST_SETTINGS)
        self._put_back_path = str(Path(directory) / PUT_BACK)
        self._boot = boot
        self._log = log
        self._record: Record | None = None
        """Saved record. None means that the record hasn't been read yet."""
        self.problem: str | None = None
        """Reason why an earlier record could not be used, with the new name of its file."""

    def load(self) -> Record:
        """Return the record. The first call reads it."""
        if self._record is None:
            try:
                self._record = read_record(self._path, self._boot)
            except HostRecordError as err:
                aside = state_files.set_aside(self._path)
                self.problem = f"{err.message}; it is now {aside} ({err.hint})"
                self._log.warning(
                    "state_set_aside", file=HOST_SETTINGS, aside=aside, problem=err.message, hint=err.hint
                )
                self._record = {}
            if not self._record:
                state_files.remove(self._path)
        return self._record

    def save(self, record: Record) -> None:
        if record == self._record:
            return
        if record:
            # a boot resets the settings, so the record needn't survive a loss of power
            state_files.write_atomically(self._path, encode_record(self._boot, record), sync=Sync.NONE)
        else:
            state_files.remove(self._path)
        self._record = record

    def was_put_back(self) -> bool:
        """Return whether another process, not the agent, has restored settings."""
        return Path(self._put_back_path).exists()

    def forget_put_back(self) -> None:
        state_files.remove(self._put_back_path)


class _Partitions(Struct, frozen=True):
    """CPU partitions, as far as they affect kernel threads."""

    hidden: CpuSet = CpuSet()
    """CPUs that kernel threads can't use because of partitions, both the partitions of the last reading and planned partitions."""
    closed: CpuSet = CpuSet()
    """CPUs of the agent's partitions, including partitions that may not be removed yet."""
    is_ending: bool = False
    """Whether a partition without allocated CPUs still exists. The kernel doesn't notify the agent when the partition is removed."""


class _Applied(Struct, frozen=True):
    wanted: WantedSettings
    problems: tuple[Problem, ...]


class _Refusals(Struct, frozen=True):
    """Values that the kernel has refused. They aren't tried again until the wanted settings change."""

    wanted: WantedSettings | None = None
    values: Mapping[Setting, Value] = {}


class HostSettings:
    """Writer of the host settings that name CPUs or are specific to a CPU. Changes by other programs and refused settings are logged."""

    def __init__(self, places: HostPlaces, directory: str, boot: str, log: Log) -> None:
        self.boot_id = boot
        self._places = places
        self._log = log
        self._record = _RecordFile(directory, boot, log)
        self._applied: _Applied | None = None
        """Last applied settings, with the failures. None means that the last call of `keep` failed."""
        self._waiting: dict[Setting, str] = {}
        """Settings that services have refused, each with the reason.

        A service may take seconds to answer, so only a rescan tries them again.
        """
        self._refusals = _Refusals()
        self._reported: frozenset[tuple[Setting, Value]] = frozenset()
        """Values written by other programs that have been logged already."""
        self._partitions = _Partitions()
        self.interrupt_owners = InterruptOwners({})
        """Owners of interrupts: the containers on whose CPUs a device's interrupts are handled."""
        self.unavailable: Mapping[Setting, str] = {}
        """Reasons why requested settings don't have the requested value, by setting."""
        self.in_effect: Mapping[Setting, str] = {}
        """Values of the requested settings that are in effect, as read from the kernel."""

    @property
    def is_settling(self) -> bool:
        """Return whether a partition is still to be removed. After the removal, kernel threads may need changes."""
        return self._partitions.is_ending

    @property
    def lost_record(self) -> str | None:
        """Return the problem with an earlier process's record. None means that there was no problem."""
        return self._record.problem

    @property
    def waits(self) -> bool:
        """Return whether failed settings wait for the next rescan before they are tried again."""
        return self._applied is not None

    def keep(self, wanted: WantedSettings, *, rescan: bool) -> tuple[Problem, ...]:
        """Make the settings avoid the CPUs in `wanted`. Settings of a kind with no CPUs to avoid get their original values again. With
        `rescan`, read all settings again.

        Returns:
            The problems. Failed settings are tried again, at the latest at the next rescan.
        """
        try:
            record, before = self._record.load(), self._applied
            if before is not None and before.wanted == wanted and not rescan and not self.is_settling:
                return before.problems
            self._applied, self.interrupt_owners = None, InterruptOwners({})
            if rescan:
                self._waiting = {}
            if self._refusals.wanted != wanted:
                self._refusals = _Refusals(wanted)
            problems = self._apply(record, wanted, rescan=rescan) if wanted.to_avoid or wanted.values or record else ()
        except (StateFileError, HostFileError, LauncherError) as err:
            self.unavailable, self.in_effect = dict.fromkeys(wanted.values, err.message), {}
            return (Problem.from_error(err),)
        self._applied = _Applied(wanted, problems)
        return problems

    def _apply(self, record: Record, wanted: WantedSettings, *, rescan: bool) -> tuple[Problem, ...]:
        requests = wanted.interrupts if SettingKind.IRQ in wanted.to_avoid else ()
        self.interrupt_owners = assign_interrupts(requests, self._places.interrupts_of)
        holders = self.interrupt_owners.holders
        claims = {interrupt: owner.cpus for interrupt, owner in holders.items()}
        claims |= {Setting(SettingKind.BALANCING, interrupt.name): CpuSet() for interrupt in holders}
        kinds = wanted.to_avoid.keys() | {setting.kind for setting in (*record, *claims, *wanted.values)}
        deferred = {setting.kind for setting in self._waiting if setting.kind is not SettingKind.UNIT}
        for _ in range(_MOST_READS):
            seen = self._places.cpus(wanted.host)
            reading = self._places.read(kinds - deferred, pinned=wanted.pinned, known=record.keys(), rescan=rescan)
            cpus = self._places.cpus(wanted.host)
            if seen.uevents == cpus.uevents:
                break
        values = select_boost_file(wanted.values, reading.settings)
        was_put_back, before = self._record.was_put_back(), self._partitions
        cpus = replace(cpus, partitioned=wanted.partitioned, was_hidden=before.hidden | seen.hidden)
        ending = (before.closed - wanted.partitioned) & (cpus.hidden - cpus.offline)
        self._partitions = _Partitions(
            cpus.hidden | wanted.partitioned, ending | wanted.partitioned, is_ending=bool(ending)
        )
        planned = plan_settings(
            assume_restored(record) if was_put_back else record,
            {setting: value for setting, value in reading.settings.items() if setting not in self._waiting},
            to_avoid=wanted.to_avoid,
            cpus=cpus,
            requested=claims,
            values=values,
            spared=_cpus_to_spare(wanted.pinned) | dict.fromkeys(reading.released, cpus.possible),
            facts=reading.facts,
            unread=reading.failed.keys() | deferred,
        )
        for setting, value in planned.changed_by_others.items():
            if (setting, value) not in self._reported:
                self._log.warning("host_setting_changed_by_others", setting=describe_setting(setting), found=str(value))
        known = frozenset((setting, value) for setting, value in self._reported if setting in planned.record)
        self._reported = known | planned.changed_by_others.items()
        refused_before = self._refusals.values
        again = {s for s, value in planned.writes.items() if refused_before.get(s) == value != planned.record[s].before}
        planned = planned.without(again)
        try:
            self._record.save(planned.record)
        except StateFileError:
            # Original values can be restored without a new record, because the saved record contains them.
            restored = {s: value for s, value in planned.writes.items() if s in record and value == record[s].before}
            self._write(restored)
            # otherwise, the next turn would report the restored values as changes by another program
            self._reported |= restored.items()
            raise
        if was_put_back:
            self._record.forget_put_back()
        refused = self._write(planned.writes)
        self._record.save(planned.after(refused.keys()))
        missing = {setting for setting in values if setting not in reading.settings}
        self.unavailable = {
            **{s: _describe_missing(s) for s in missing},
            **dict.fromkeys(again & values.keys(), "the kernel has refused it"),
            **{setting: why for setting, why in refused.items() if setting in values},
            **{s: reading.failed[s.kind].message for s in missing if s.kind in reading.failed},
        }
        shown = {**reading.settings, **planned.writes}
        if written := {setting.kind for setting in planned.writes} & OF_FREQUENCY:
            shown |= self._places.read(written).settings
        self.in_effect = {s: str(shown[s]) for s in values if s not in self.unavailable}
        self._waiting |= {setting: why for setting, why in refused.items() if setting.kind in OF_SERVICES}
        waiting = [f"{describe_setting(setting)}: {why}" for setting, why in self._waiting.items()]
        problems = [Problem.from_error(err) for err in reading.failed.values()]
        if waiting:
            problems.append(Problem(f"can't be kept off exclusive CPUs: {'; '.join(waiting)} (the agent tries again)"))
        return tuple(problems)

    def _write(self, writes: Mapping[Setting, Value]) -> dict[Setting, str]:
        """Write settings. Return the refused settings, each with the reason."""
        if not writes:
            return {}
        refused = self._places.write(writes)
        final = {setting: writes[setting] for setting in refused if setting.kind not in _MAY_DO_LATER}
        self._refusals = replace(self._refusals, values={**self._refusals.values, **final})
        stay = {
            setting: why for setting, why in refused.items() if setting.kind in (_INTERRUPTS | WITH_TEXT) - OF_SERVICES
        }
        for why in sorted(set(stay.values())):
            names = [describe_setting(setting) for setting, answer in stay.items() if answer == why]
            self._log.warning("host_settings_stay", settings=names, problem=why)
        return refused
