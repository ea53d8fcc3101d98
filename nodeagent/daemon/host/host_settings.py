"""Changes of host settings that keep interrupts, kernel threads and systemd units off exclusive CPUs. The original values are recorded, and
restored later (D28).
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
"""File name of the record of changed settings, in the state directory. The file exists only while settings are changed."""
PUT_BACK = "host_settings_put_back"
"""Name of an empty file next to the record.

`nodeagent release` creates it after restoring settings. A running agent then knows that no other program has changed them.
"""

_MOST_READS = 5
"""Maximum number of readings. A reading is repeated if a CPU went offline or online meanwhile, because the kernel then moves threads, and
the values that were read don't belong together.
"""
_INTERRUPTS = frozenset({SettingKind.IRQ, SettingKind.NEW_IRQS, SettingKind.QUEUE, SettingKind.IRQBALANCE})
_MAY_DO_LATER = OF_SERVICES | {SettingKind.THREAD}
"""Kinds of settings for which a refused value is tried again. For instance, the kernel refuses to move a thread to CPUs that are in a
partition, but accepts it after the partition has ended.
"""
_WORK = frozenset({SettingKind.WORKQUEUE, SettingKind.THREAD})


class HostPlaces(Protocol):
    """Interface for reading and writing host settings."""

    def read(
        self,
        kinds: AbstractSet[SettingKind],
        *,
        pinned: Mapping[str, CpuSet] = {},
        known: Collection[Setting] = (),
        rescan: bool = True,
    ) -> Reading:
        """Read the settings of these kinds, except those of pinned units.

        Args:
            kinds: kinds of settings.
            pinned: exclusive CPUs of the pinned units, by cgroup path. If a unit has any, the other units in its slices are read, too.
            known: settings that the agent has changed before. They are read as long as they exist.
            rescan: whether to check known kernel threads again.
        """
        ...

    def cpus(self, host: CpuSet) -> Cpus:
        """Return the CPUs of this machine. `host` contains the CPUs for a setting that has to avoid all of its CPUs."""
        ...

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device or network interface."""
        ...

    def write(self, values: Mapping[Setting, Value]) -> dict[Setting, str]:
        """Write settings. Return the settings that were refused, each with the reason."""
        ...


class WantedSettings(Struct, frozen=True):
    """Host settings that the agent should establish."""

    to_avoid: Mapping[SettingKind, CpuSet]
    """CPUs to avoid, by kind of setting. For all other kinds, the original values are restored."""
    host: CpuSet
    """CPUs for a setting that has to avoid all of its CPUs."""
    interrupts: tuple[InterruptRequest, ...] = ()
    """Containers' requests that a device's interrupts are handled on the container's own CPUs."""
    partitioned: CpuSet = CpuSet()
    """CPUs in existing and planned cpuset partitions. The kernel moves its own threads off these CPUs, so the agent needn't do so."""
    pinned: Mapping[str, CpuSet] = {}
    """Exclusive CPUs of the pinned units, by cgroup path. A slice around such a unit keeps these CPUs, and the other units in the slice
    must avoid them.

    A pinned unit without exclusive CPUs has an empty set. It is listed even while it is being restored, because only systemd's domain may
    change it.
    """
    values: Mapping[Setting, str] = {}
    """Requested values, as text, of settings that don't contain CPUs, such as a CPU's frequency."""


def cpus_to_avoid(
    config: Config, topology: Topology, exclusive: CpuSet, partitioned: CpuSet
) -> dict[SettingKind, CpuSet]:
    """Return the CPUs that each kind of setting must avoid.

    Units don't have to avoid `partitioned` CPUs, because the kernel keeps them off CPUs in cpuset partitions (D27).
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

    The record is kept. The file PUT_BACK is created, so that a running agent doesn't log the restored values as changes by another program.

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
    """Read the record of changed settings. A record from an earlier boot is ignored, because the reboot has reset the settings.

    Raises:
        StateFileError: the file can't be read.
        HostRecordError: the content is invalid.
    """
    content = state_files.read(path, max_bytes=MAX_BYTES)
    # after a loss of power, the file may consist of zeros; the settings in it are from an earlier boot
    if content is None or not content.strip(b"\0"):
        return {}
    recorded_boot, record = decode_record(content)
    return record if recorded_boot == boot else {}


class _RecordFile:
    """File that records the changed settings and their original values. `boot` is the ID of the current boot."""

    def __init__(self, directory: str, boot: str, log: Log) -> None:
        self._path = str(Path(directory) / HOST_SETTINGS)
        self._put_back_path = str(Path(directory) / PUT_BACK)
        self._boot = boot
        self._log = log
        self._record: Record | None = None
        """Content of the file. None means that the file hasn't been read yet."""
        self.problem: str | None = None
        """Reason why the file of an earlier agent process couldn't be used, with the new name of that file."""

    def load(self) -> Record:
        """Return the record, which the first call reads from the file."""
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
        """Return whether `nodeagent release` has restored settings since the agent last wrote them."""
        return Path(self._put_back_path).exists()

    def forget_put_back(self) -> None:
        state_files.remove(self._put_back_path)


class _Partitions(Struct, frozen=True):
    """State of the cpuset partitions, as far as kernel threads depend on it."""

    hidden: CpuSet = CpuSet()
    """CPUs that kernel threads can't use because they are in partitions, existing or planned."""
    closed: CpuSet = CpuSet()
    """CPUs in the agent's partitions, including partitions that are still to be removed."""
    is_ending: bool = False
    """Whether a partition still exists although its CPUs aren't allocated. The kernel doesn't report the partition's removal, so the agent
    has to check.
    """


class _Applied(Struct, frozen=True):
    wanted: WantedSettings
    problems: tuple[Problem, ...]


class _Refusals(Struct, frozen=True):
    """Values that the kernel has refused. They aren't tried again as long as the agent wants the same settings."""

    wanted: WantedSettings | None = None
    values: Mapping[Setting, Value] = {}


class HostSettings:
    """Manager of the host settings that contain CPUs or belong to a single CPU. It changes and restores them, and logs refusals and changes
    by other programs.
    """

    def __init__(self, places: HostPlaces, directory: str, boot: str, log: Log) -> None:
        self.boot_id = boot
        self._places = places
        self._log = log
        self._record = _RecordFile(directory, boot, log)
        self._applied: _Applied | None = None
        """Settings that the last call of `keep` applied, with the problems. None means that the call failed."""
        self._waiting: dict[Setting, str] = {}
        """Settings that systemd or irqbalance has refused, each with the reason.

        Only a rescan tries them again, because an answer may take seconds.
        """
        self._refusals = _Refusals()
        self._reported: frozenset[tuple[Setting, Value]] = frozenset()
        """Values that other programs have written, and that are already logged."""
        self._partitions = _Partitions()
        self.interrupt_owners = InterruptOwners({})
        """Containers that own interrupts: the interrupts of a device are handled on its container's CPUs."""
        self.unavailable: Mapping[Setting, str] = {}
        """Requested settings that don't have the requested value, each with the reason."""
        self.in_effect: Mapping[Setting, str] = {}
        """Requested settings that are in effect, with the values that the kernel reports."""

    @property
    def is_settling(self) -> bool:
        """Return whether a partition still has to be removed. Afterwards, the CPUs of kernel threads may need changes."""
        return self._partitions.is_ending

    @property
    def lost_record(self) -> str | None:
        """Return why the record of an earlier agent process couldn't be used. None means that there was no problem."""
        return self._record.problem

    @property
    def waits(self) -> bool:
        """Return whether refused settings are tried again only at the next rescan."""
        return self._applied is not None

    def keep(self, wanted: WantedSettings, *, rescan: bool) -> tuple[Problem, ...]:
        """Make the settings avoid the CPUs in `wanted`. Restore the original values of each kind that has no CPUs to avoid.

        Args:
            wanted: the wanted settings.
            rescan: whether to read all settings, even if `wanted` hasn't changed.

        Returns:
            The problems. A failed setting is tried again at the next rescan, or earlier.
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
        """Write settings, and log those that the kernel refuses. Return the refused settings, each with the reason."""
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
