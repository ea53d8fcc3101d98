"""Lets systemd's units use the devices that are their own, where they may use certain devices only. Loaded where a unit has some.

A unit that nothing restricts (`DevicePolicy=auto` without `DeviceAllow=`) may use every device already, and is left alone: a rule would
take all others from it. What was added is recorded in the runtime directory, so that it, and nothing else, is taken away again.
"""

import json
from collections.abc import Callable, Mapping
from typing import Protocol

from nodeagent.core.model.config import Config
from nodeagent.core.model.device_access import DeviceFile
from nodeagent.core.model.pod import SYSTEMD
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.daemon.domains.systemd.unit_records import UNIT_DEVICES
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.edge.kernel.device_files import files_of
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.kernel.unit_properties import LOADED, NOT_FOUND, DeviceRules
from nodeagent.formats.syntax.json_values import MisfitError, parsed

Rules = tuple[str, ...]
"""As `DeviceAllow=` has them: `/dev/nvme1 rw`."""
_FILE = "allowed"


def unit_device_directory(config: Config) -> str:
    """Return where is recorded what was added: `UNIT/allowed` below it."""
    return f"{config.runtime_directory}/{UNIT_DEVICES}"


class RuleKeeper(Protocol):
    """What is asked of systemd."""

    def show(self, unit: str, until: float, /) -> DeviceRules:
        """Return what a unit may use, if it says so by then; raises UnitsError."""
        ...

    def set(self, unit: str, rules: Rules, until: float, /) -> None:
        """Let a unit use what these rules name, and nothing else; raises UnitsError."""
        ...

    def keeps(self, unit: str, /) -> bool:
        """Whether what was set counts once there is such a unit again."""
        ...


class SystemctlRules:
    """By its command."""

    def show(self, unit: str, until: float) -> DeviceRules:
        return units.show_device_rules(unit, until=until)

    def set(self, unit: str, rules: Rules, until: float) -> None:
        units.set_device_rules(unit, rules, until=until)

    def keeps(self, unit: str) -> bool:
        return units.keeps_device_rules(unit)


class UnitDevices:
    """Used by the deciding thread.

    Args:
        config: the agent's.
        systemd: who has the units.
        files: returns the files of a PCI function.
    """

    def __init__(
        self,
        config: Config,
        systemd: RuleKeeper | None = None,
        files: Callable[[str], tuple[DeviceFile, ...]] = files_of,
    ) -> None:
        self._records = PlacementFiles(unit_device_directory(config))
        self._systemd = systemd or SystemctlRules()
        self._files = files
        self._added: dict[str, Rules] | None = None
        """By unit, what was added to its rules. None: not read yet."""
        self._settled: dict[str, tuple[str, ...]] = {}
        """By unit, the devices that it may use, as last seen."""
        self._numbered: dict[str, frozenset[DeviceFile]] = {}
        """By unit, the files as they were when it was allowed them: systemd looks up their numbers then."""
        self.overdue: Mapping[str, str] = {}
        """Paths of files that systemd could not take from a unit that has no devices any more, and the unit of each."""

    def keep(self, state: NodeState, *, rescan: bool, unclear: frozenset[str] = frozenset()) -> tuple[Problem, ...]:
        """Have each unit be allowed what it has, and no other what it had. Returns what could not be done: it is tried again.

        Args:
            state: saved.
            rescan: look again at what systemd has.
            unclear: units whose pods aren't known now: they keep what they are allowed.
        """
        if self._added is None:
            try:
                self._added = self._read()
            except PlacementFileError as err:
                return (Problem.from_error(err),)
        wanted = _devices_of_units(state)
        self.overdue = overdue = dict[str, str]()
        problems, until = [], units.deadline()
        concerned = wanted.keys() | (self._added.keys() - unclear)
        for unit in sorted(concerned, key=lambda unit: (unit in wanted, unit)):
            devices = wanted.get(unit, ())
            if not rescan and self._settled.get(unit) == devices:
                continue
            try:
                self._settle(unit, devices, until)
            except (UnitsError, SysfsError, PlacementFileError) as err:
                self._settled.pop(unit, None)
                problems.append(Problem.from_error(err))
                if not devices and isinstance(err, UnitsError):
                    overdue |= {rule.partition(" ")[0]: unit for rule in self._added.get(unit, ())}
        return tuple(problems)

    def _settle(self, unit: str, devices: tuple[str, ...], until: float) -> None:
        assert self._added is not None
        there, added = self._systemd.show(unit, until), self._added.get(unit, ())
        if there.load_state != LOADED and (there.load_state != NOT_FOUND or self._systemd.keeps(unit)):
            self._settled[unit] = devices  # what was added counts again as soon as it is loaded
            return
        own = tuple(rule for rule in there.allowed if rule not in added)
        wanted: Rules = ()
        files, left_out = frozenset[DeviceFile](), None
        if there.load_state == LOADED and (own or there.is_closed):
            files, left_out = self._files_of(unit, devices)
            # What it says itself of a file counts: systemd has one rule for each.
            wanted = tuple(
                f"{path} rw"
                for path in sorted({file.path for file in files} - {rule.partition(" ")[0] for rule in own})
            )
        self._record(unit, tuple(dict.fromkeys((*added, *wanted))))
        is_renumbered = bool(wanted) and self._numbered.get(unit, files) != files
        if there.load_state == LOADED and (set(there.allowed) != {*own, *wanted} or is_renumbered):
            self._systemd.set(unit, (*own, *wanted), until)
        self._record(unit, wanted)
        self._numbered[unit] = files
        if left_out is not None:
            raise left_out  # and the rest is as it should be
        self._settled[unit] = devices

    def _files_of(
        self, unit: str, devices: tuple[str, ...]
    ) -> tuple[frozenset[DeviceFile], SysfsError | UnitsError | None]:
        """Return the files that a unit may be allowed, and why the first of the others may not be.

        Those of a device that is gone: their names and numbers may be somebody else's now. Those that another unit still has.
        """
        found = set[DeviceFile]()
        left_out: SysfsError | UnitsError | None = None
        for device in devices:
            try:
                files = self._files(device)
            except SysfsError as err:
                left_out = left_out or err
                continue
            for file in files:
                holder = self.overdue.get(file.path)
                if holder is None:
                    found.add(file)
                elif left_out is None:
                    why = f"unit {unit} is not allowed {file.path} yet, as systemd could not take it from {holder}"
                    left_out = UnitsError(why, hint=f"systemctl show {holder} --property=DeviceAllow")
        return frozenset(found), left_out

    def _record(self, unit: str, rules: Rules) -> None:
        """Before it is added, and once it has been taken away."""
        assert self._added is not None
        if rules == self._added.get(unit, ()):
            return
        if rules:
            self._records.write(f"{unit}/{_FILE}", f"{json.dumps(rules)}\n".encode())
            self._added[unit] = rules
        else:
            self._records.remove(f"{unit}/{_FILE}")
            del self._added[unit]

    def _read(self) -> dict[str, Rules]:
        """What can't be read is missing: then nobody knows what to take away."""
        found = {}
        for name, content in self._records.read().items():
            unit, _, file = name.partition("/")
            if file == _FILE and content is not None and (rules := _parsed(content)):
                found[unit] = rules
        return found


def _parsed(content: bytes) -> Rules:
    try:
        return parsed(content).each(lambda one: one.text())
    except MisfitError:
        return ()


def _devices_of_units(state: NodeState) -> Mapping[str, tuple[str, ...]]:
    """Return the addresses of what each unit has; what device plugins have given is theirs to explain.

    One that is being given back has none any more: they are free with its pod, which may be in the same turn as somebody else's start.
    """
    found = {}
    for entry in state.entries:
        held = state.promises.of_pod(entry.pod.uid)
        if entry.domain != SYSTEMD or entry.deleting_since_ms is not None or not held.of(DeviceHoldings).devices:
            continue
        plugged = {resource for _, answers in held.of(DeviceHoldings).answers for resource, _ in answers}
        for container in entry.pod.containers:
            own = tuple(
                one.id for one in held.of(DeviceHoldings).devices_of(container.name) if one.resource not in plugged
            )
            if container.unit and own:
                found[container.unit] = own
    return found
