"""Keeps settings of the host off exclusive CPUs: reads them, records what they were, writes what differs, puts them back (D28)."""

from collections.abc import Collection, Mapping, Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.host.irq_owners import InterruptOwners, InterruptRequest, assign_interrupts
from nodeagent.core.host.settings import OF_SERVICES, Cpus, HostPlan, Record, Setting, SettingKind, maybe_put_back, plan
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.host.host_edges import Reading
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import StateFileError
from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.formats.checkpoint.host_record import MAX_BYTES, HostRecordError, decode_record, encode_record
from nodeagent.formats.kernel.host_files import HostFileError, described
from nodeagent.formats.kernel.unit_names import slices_around

HOST_SETTINGS = "host_settings"
"""The record, in the state directory; there is none while nothing is changed."""
PUT_BACK = "host_settings_put_back"
"""An empty file beside it, left by who has put settings back without the agent: a running one takes it for its own doing."""

_MOST_LOOKS = 5
"""While a CPU goes and comes, the kernel gives some of its threads others: what they have then is nobody's wish."""
_INTERRUPTS = frozenset({SettingKind.IRQ, SettingKind.NEW_IRQS, SettingKind.QUEUE, SettingKind.IRQBALANCE})
_MAY_DO_LATER = OF_SERVICES | {SettingKind.THREAD}
"""A thread is refused CPUs that are just in a partition, or offline."""
_WORK = frozenset({SettingKind.WORKQUEUE, SettingKind.THREAD})


class HostPlaces(Protocol):
    """Where the settings are."""

    def read(
        self, kinds: AbstractSet[SettingKind], *, beside: Collection[str] = (), known: Collection[Setting] = ()
    ) -> Reading:
        """Return those of these kinds that can be changed; of units also those in the slices around some, and those known before."""
        ...

    def cpus(self, host: CpuSet) -> Cpus:
        """Return the machine's CPUs, of which these are for what would have none left."""
        ...

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        """Return the interrupts of a PCI device or network interface."""
        ...

    def write(self, values: Mapping[Setting, CpuSet]) -> dict[Setting, str]:
        """Write settings; return why some were refused."""
        ...


class Wanted(Struct, frozen=True):
    """What settings of the host are to be."""

    alone: Mapping[SettingKind, CpuSet]
    """CPUs to be left alone, by kind; never none. Other kinds go back to what they were."""
    host: CpuSet
    """CPUs for what would have none left."""
    claims: tuple[InterruptRequest, ...] = ()
    """Devices whose interrupts a container wants on its own CPUs."""
    partitioned: CpuSet = CpuSet()
    """CPUs of these that are in partitions or about to be: the kernel itself drives its threads off."""
    pinned: Mapping[str, CpuSet] = {}
    """The exclusive CPUs of systemd's units that pods stand for, by the paths of their cgroups: the slices around them keep these, and all
    else in these slices leaves.
    """


def alone_of(config: Config, topology: Topology, exclusive: CpuSet, partitioned: CpuSet) -> dict[SettingKind, CpuSet]:
    """Return which CPUs each kind of setting has to leave alone.

    Args:
        config: of the agent.
        topology: the machine as it is now.
        exclusive: all that containers have for themselves.
        partitioned: those that are in partitions of the cpuset: the kernel keeps systemd's units off by itself (D27).
    """
    alone: dict[SettingKind, CpuSet] = {}
    if config.interrupt_isolation != "none":
        alone |= dict.fromkeys(_INTERRUPTS, exclusive)
    if config.host_isolation != "none":
        of_class = topology.core_classes.get(config.host_core_class)
        elsewhere = exclusive if of_class is None else exclusive | topology.online - of_class
        alone |= dict.fromkeys(_WORK, elsewhere) | {SettingKind.UNIT: elsewhere - partitioned}
    return {kind: cpus for kind, cpus in alone.items() if cpus}


def put_back(places: HostPlaces, directory: str, boot: str) -> tuple[int, tuple[str, ...]]:
    """Give each setting that is still as the agent made it what it was before.

    The record stays, and an agent that runs is told, so that it takes nobody else to have done it.

    Returns:
        How many there were that looked otherwise, and what could not be written, in words.

    Raises:
        NodeAgentError: the record cannot be read.
    """
    record = read_record(str(Path(directory) / HOST_SETTINGS), boot)
    if not record:
        return 0, ()
    reading = places.read({setting.kind for setting in record}, known=record.keys())
    planned = plan(
        record,
        reading.settings,
        alone={},
        cpus=places.cpus(CpuSet()),
        facts=reading.facts,
        unread=reading.failed.keys(),
    )
    refused = places.write(planned.writes)
    with suppress(StateFileError):  # then it is in the agent's log as somebody else's change
        state_files.write_atomically(str(Path(directory) / PUT_BACK), b"")
    count = sum(reading.settings[setting] != value for setting, value in planned.writes.items())
    return count, (
        *(f"{described(setting)}: {why}" for setting, why in refused.items()),
        *(err.message for err in reading.failed.values()),
    )


def _spared(pinned: Mapping[str, CpuSet]) -> dict[Setting, CpuSet]:
    spared: dict[Setting, CpuSet] = {}
    for path, cpus in pinned.items():
        for around in slices_around(path):
            setting = Setting(SettingKind.UNIT, around)
            spared[setting] = spared.get(setting, CpuSet()) | cpus
    return spared


def read_record(path: str, boot: str) -> Record:
    """Read the record of this boot. What was changed during an earlier one went with it.

    Raises:
        StateFileError: the file can't be read.
        HostRecordError: its content can't be used.
    """
    content = state_files.read(path, max_bytes=MAX_BYTES)
    if content is None:
        return {}
    recorded_boot, record = decode_record(content)
    return record if recorded_boot == boot else {}


class HostSettings:
    """The host's settings that name CPUs.

    Args:
        places: where they are.
        directory: for the record.
        boot: identity of this boot.
        log: gets each change by others, and what cannot be changed.
    """

    def __init__(self, places: HostPlaces, directory: str, boot: str, log: Log) -> None:
        self._places = places
        self._path = str(Path(directory) / HOST_SETTINGS)
        self._put_back_path = str(Path(directory) / PUT_BACK)
        self._boot = boot
        self._log = log
        self._record: Record | None = None
        """As saved. None: not read yet."""
        self._done_for: Wanted | None = None
        """What everything was last written for. None: not all of it."""
        self._problems: tuple[Problem, ...] = ()
        """What could not be done then."""
        self._waiting: dict[Setting, str] = {}
        """What services would not do, and why. They are asked again at the next rescan, as each may take seconds to answer."""
        self._refused: dict[Setting, CpuSet] = {}
        """What the kernel has refused: it would again."""
        self._refused_for: Wanted | None = None
        self._reported: frozenset[tuple[Setting, CpuSet]] = frozenset()
        """Values of others that are in the log."""
        self._hidden = CpuSet()
        """From kernel threads, when they were last looked at, or after that by partitions that began then."""
        self._closed = CpuSet()
        """CPUs of partitions of ours that may not have ended."""
        self.is_settling = False
        """A partition has not ended yet whose CPUs are nobody's any more: kernel threads may then have to be looked at. Nothing tells."""
        self.claimed = InterruptOwners({})
        """Interrupts that containers have on their own CPUs."""
        self.lost_record: str | None = None
        """Why the record that an earlier process left could not be used, and where it is now."""

    @property
    def waits(self) -> bool:
        """What could not be done is not tried again before the next rescan."""
        return self._done_for is not None

    def keep(self, wanted: Wanted, *, rescan: bool) -> tuple[Problem, ...]:
        """Make all settings leave exclusive CPUs alone, and those of other kinds what they were.

        Args:
            wanted: which, and what for.
            rescan: look whether something has changed.

        Returns:
            What could not be done. It is tried again, at the latest with the next rescan.
        """
        try:
            record = self._load()
            if self._done_for == wanted and not rescan and not self.is_settling:
                return self._problems
            self._done_for, self.claimed = None, InterruptOwners({})
            if rescan:
                self._waiting = {}
            if self._refused_for != wanted:
                self._refused, self._refused_for = {}, wanted
            self._problems = self._settle(record, wanted) if wanted.alone or record else ()
        except (StateFileError, HostFileError, LauncherError) as err:
            return (Problem.from_error(err),)
        self._done_for = wanted
        return self._problems

    def _settle(self, record: Record, wanted: Wanted) -> tuple[Problem, ...]:
        asked = wanted.claims if SettingKind.IRQ in wanted.alone else ()
        self.claimed = assign_interrupts(asked, self._places.interrupts_of)
        claims = {interrupt: claim.cpus for interrupt, claim in self.claimed.holders.items()}
        claims |= {Setting(SettingKind.BALANCING, interrupt.name): CpuSet() for interrupt in self.claimed.holders}
        kinds = wanted.alone.keys() | {setting.kind for setting in (*record, *claims)}
        put_off = {setting.kind for setting in self._waiting if setting.kind is not SettingKind.UNIT}
        for _ in range(_MOST_LOOKS):
            seen = self._places.cpus(wanted.host)
            reading = self._places.read(kinds - put_off, beside=wanted.pinned.keys(), known=record.keys())
            cpus = self._places.cpus(wanted.host)
            if seen.uevents == cpus.uevents:
                break
        was_put_back = Path(self._put_back_path).exists()
        cpus = replace(cpus, partitioned=wanted.partitioned, was_hidden=self._hidden | seen.hidden)
        ending = (self._closed - wanted.partitioned) & (cpus.hidden - cpus.offline)
        self.is_settling = bool(ending)
        self._hidden, self._closed = cpus.hidden | wanted.partitioned, ending | wanted.partitioned
        planned = plan(
            maybe_put_back(record) if was_put_back else record,
            {setting: value for setting, value in reading.settings.items() if setting not in self._waiting},
            alone=wanted.alone,
            cpus=cpus,
            claims=claims,
            spared=_spared(wanted.pinned) | dict.fromkeys(reading.released, cpus.possible),
            facts=reading.facts,
            unread=reading.failed.keys() | put_off,
        )
        self._report(planned)
        again = {s for s, value in planned.writes.items() if self._refused.get(s) == value != planned.record[s].before}
        planned = planned.without(again)
        try:
            self._save(planned.record)
        except StateFileError:
            # Going back needs no record but the one that there is.
            back = {s: value for s, value in planned.writes.items() if s in record and value == record[s].before}
            self._put(back)
            self._reported |= back.items()  # what is not recorded as ours is not another's
            raise
        if was_put_back:
            state_files.remove(self._put_back_path)
        refused = self._put(planned.writes)
        self._save(planned.after(refused.keys()))
        self._waiting |= {setting: why for setting, why in refused.items() if setting.kind in OF_SERVICES}
        later = [f"{described(setting)}: {why}" for setting, why in self._waiting.items()]
        problems = [Problem.from_error(err) for err in reading.failed.values()]
        if later:
            problems.append(Problem(f"not kept off exclusive CPUs: {'; '.join(later)} (it is tried again)"))
        return tuple(problems)

    def _put(self, writes: Mapping[Setting, CpuSet]) -> dict[Setting, str]:
        """Write, and return what was refused."""
        if not writes:
            return {}
        refused = self._places.write(writes)
        self._refused |= {setting: writes[setting] for setting in refused if setting.kind not in _MAY_DO_LATER}
        stay = {setting: why for setting, why in refused.items() if setting.kind in _INTERRUPTS - OF_SERVICES}
        for why in sorted(set(stay.values())):
            names = [described(setting) for setting, answer in stay.items() if answer == why]
            self._log.warning("host_settings_stay", settings=names, problem=why)
        return refused

    def _report(self, planned: HostPlan) -> None:
        """Log what others change, each of their values once."""
        for setting, value in planned.changed_by_others.items():
            if (setting, value) not in self._reported:
                self._log.warning("host_setting_changed_by_others", setting=described(setting), found=str(value))
        known = frozenset((setting, value) for setting, value in self._reported if setting in planned.record)
        self._reported = known | planned.changed_by_others.items()

    def _load(self) -> Record:
        """Read the record, once. What was changed during an earlier boot went with it."""
        if self._record is None:
            try:
                self._record = read_record(self._path, self._boot)
            except HostRecordError as err:
                aside = state_files.set_aside(self._path)
                self.lost_record = f"{err.message}; it is now {aside} ({err.hint})"
                self._log.warning(
                    "state_set_aside", file=HOST_SETTINGS, aside=aside, problem=err.message, hint=err.hint
                )
                self._record = {}
            if not self._record:
                state_files.remove(self._path)
        return self._record

    def _save(self, record: Record) -> None:
        if record == self._record:
            return
        if record:
            state_files.write_atomically(self._path, encode_record(self._boot, record))
        else:
            state_files.remove(self._path)
        self._record = record
