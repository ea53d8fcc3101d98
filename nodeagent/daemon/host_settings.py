"""Keeps interrupts and the kernel's work off exclusive CPUs: reads the settings, records what they were, writes what differs (D28)."""

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from nodeagent.core.host.settings import HostPlan, Record, Setting, SettingKind, plan
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.logs import Log
from nodeagent.daemon.troubles import Trouble, trouble_of
from nodeagent.edge import state_files
from nodeagent.edge.launcher import LauncherError
from nodeagent.edge.state_files import StateFileError
from nodeagent.formats.checkpoint.host_record import MAX_BYTES, HostRecordError, decode_record, encode_record
from nodeagent.formats.kernel.host_files import HostFileError, described, spelled

HOST_SETTINGS = "host_settings"
"""The record, in the state directory; there is none while nothing is changed."""

Write = Callable[[Sequence[tuple[str, str]]], tuple[str | None, ...]]
"""Writes to files, each given with its value; returns for each None, or why it failed."""

_INTERRUPTS = frozenset({SettingKind.IRQ, SettingKind.NEW_IRQS, SettingKind.QUEUE})


class HostFiles(Protocol):
    """The settings as the kernel has them."""

    def read(self, kinds: AbstractSet[SettingKind]) -> dict[Setting, CpuSet]:
        """Return those of these kinds."""
        ...

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device or network interface."""
        ...

    def path(self, setting: Setting) -> str:
        """Return the absolute path of a setting's file."""
        ...


class Wanted(Struct, frozen=True):
    """What settings of the host are to be."""

    kinds: frozenset[SettingKind]
    """Those to change."""
    alone: CpuSet
    """CPUs to be left alone."""
    host: CpuSet
    """CPUs for what would have none left."""
    claims: tuple[tuple[str, CpuSet], ...] = ()
    """Devices whose interrupts a container wants on its own CPUs."""

    @property
    def changes_any(self) -> bool:
        return bool(self.kinds and self.alone)


def kinds_of(config: Config) -> frozenset[SettingKind]:
    """Return the settings that are to leave exclusive CPUs alone."""
    interrupts = _INTERRUPTS if config.interrupt_isolation != "none" else frozenset()
    work = {SettingKind.WORKQUEUE} if config.host_isolation != "none" else frozenset()
    return interrupts | work


def put_back(files: HostFiles, write: Write, directory: str, boot: str) -> tuple[int, tuple[str, ...]]:
    """Give each setting that is still as the agent made it what it was before.

    The record stays, and an agent that runs takes no harm: it knows both values as its own.

    Returns:
        How many there were, and what could not be written, in words.

    Raises:
        NodeAgentError: the record cannot be read.
    """
    record = read_record(str(Path(directory) / HOST_SETTINGS), boot)
    observed = files.read({setting.kind for setting in record})
    planned = plan(record, observed, alone={}, host=CpuSet())
    results = write([(files.path(s), spelled(s, value)) for s, value in planned.writes.items()])
    return len(results), tuple(
        f"{described(s)}: {why}" for s, why in zip(planned.writes, results, strict=True) if why is not None
    )


def read_record(path: str, boot: str, unreadable: Callable[[HostRecordError], None] = lambda _: None) -> Record:
    """Read the record of this boot. What was changed during an earlier one went with it.

    Raises:
        StateFileError: the file can't be read.
        HostRecordError: its content can't be used; `unreadable` was called.
    """
    content = state_files.read(path, max_bytes=MAX_BYTES)
    if content is None:
        return {}
    try:
        recorded_boot, record = decode_record(content)
    except HostRecordError as err:
        unreadable(err)
        raise
    return record if recorded_boot == boot else {}


class HostSettings:
    """The host's settings that name CPUs.

    Args:
        files: as the kernel has them.
        write: writes to these files.
        directory: for the record.
        boot: identity of this boot.
        log: gets each change by others, and what cannot be changed.
    """

    def __init__(self, files: HostFiles, write: Write, directory: str, boot: str, log: Log) -> None:
        self._files = files
        self._write = write
        self._path = str(Path(directory) / HOST_SETTINGS)
        self._boot = boot
        self._log = log
        self._record: Record | None = None
        """As saved. None: not read yet."""
        self._done_for: Wanted | None = None
        """What everything was last written for."""
        self._refused: dict[Setting, CpuSet] = {}
        """What the kernel has refused since then: it would again."""
        self._reported: frozenset[Setting] = frozenset()

    def keep(self, wanted: Wanted, *, rescan: bool) -> tuple[Trouble, ...]:
        """Make all settings leave exclusive CPUs alone, and those of other kinds what they were.

        Args:
            wanted: which, and what for.
            rescan: look whether something has changed.

        Returns:
            What could not be done. It is tried again in the next turn.
        """
        try:
            record = self._load()
            if self._done_for != wanted:
                self._refused = {}
            elif not rescan:
                return ()
            self._done_for = None
            if wanted.changes_any or record:
                self._settle(record, wanted)
        except (StateFileError, HostRecordError, HostFileError, LauncherError) as err:
            return (trouble_of(err),)
        self._done_for = wanted
        return ()

    def _settle(self, record: Record, wanted: Wanted) -> None:
        kinds = wanted.kinds if wanted.changes_any else frozenset()
        observed = self._files.read(kinds | {setting.kind for setting in record})
        planned = plan(
            record,
            observed,
            alone=dict.fromkeys(kinds, wanted.alone),
            host=wanted.host,
            claims={
                s: cpus for device, cpus in wanted.claims for s in self._files.interrupts_of(device) if s.kind in kinds
            },
        )
        self._report(planned)
        to_write = {s: value for s, value in planned.writes.items() if self._refused.get(s) != value}
        try:
            self._save(planned.record)
        except StateFileError:
            # Going back needs no record but the one that there is.
            self._put({s: value for s, value in to_write.items() if s in record and value == record[s].before})
            raise
        failed = self._put(to_write) | (planned.writes.keys() - to_write.keys())
        self._save(planned.after(failed))

    def _put(self, writes: Mapping[Setting, CpuSet]) -> frozenset[Setting]:
        """Write, and return what the kernel has refused."""
        if not writes:
            return frozenset()
        results = self._write([(self._files.path(s), spelled(s, value)) for s, value in writes.items()])
        refused = {s: why for s, why in zip(writes, results, strict=True) if why is not None}
        for setting in refused:
            self._refused[setting] = writes[setting]
        for why in sorted(set(refused.values())):
            stay = [described(setting) for setting, answer in refused.items() if answer == why]
            self._log.warning("host_settings_stay", settings=stay, problem=why)
        return frozenset(refused)

    def _report(self, planned: HostPlan) -> None:
        """Log what others have changed, each once while they do."""
        for setting, value in planned.changed_by_others.items():
            if setting not in self._reported:
                self._log.warning("host_setting_changed_by_others", setting=described(setting), found=str(value))
        self._reported = frozenset(planned.changed_by_others)

    def _load(self) -> Record:
        """Read the record, once. What was changed during an earlier boot went with it."""
        if self._record is None:
            self._record = read_record(self._path, self._boot, self._set_aside)
            if not self._record:
                state_files.remove(self._path)
        return self._record

    def _set_aside(self, err: HostRecordError) -> None:
        aside = state_files.set_aside(self._path)
        self._log.warning("state_set_aside", file=HOST_SETTINGS, aside=aside, problem=err.message, hint=err.hint)
        state_files.remove(self._path)

    def _save(self, record: Record) -> None:
        if record == self._record:
            return
        if record:
            state_files.write_atomically(self._path, encode_record(self._boot, record))
        else:
            state_files.remove(self._path)
        self._record = record
