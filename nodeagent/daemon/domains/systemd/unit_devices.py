"""Device rules of pinned systemd units: the agent adds a DeviceAllow= rule for each allocated device. This module is imported only if a
unit has devices.

The agent adds no rules to an unrestricted unit (`DevicePolicy=auto` without `DeviceAllow=`). Such a unit may use every device, and a first
rule would forbid all others. The added rules are recorded in the runtime directory, so that later only these rules are removed.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from nodeagent.core.model.config import Config
from nodeagent.core.model.device_access import DeviceFile
from nodeagent.core.model.pod import SYSTEMD
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.daemon.domains.systemd.unit_records import UNIT_DEVICES
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.edge.kernel.device_files import find_device_files
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.kernel.unit_properties import LOADED, NOT_FOUND, DeviceRules
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json

Rules = tuple[str, ...]
"""Device rules in the notation of `DeviceAllow=`, such as `/dev/nvme1 rw`."""
_FILE = "allowed"


def unit_device_directory(config: Config) -> str:
    """Return the directory that records the added rules, in a file `UNIT/allowed` for each unit."""
    return f"{config.runtime_directory}/{UNIT_DEVICES}"


class UnitDeviceRules(Protocol):
    """Interface for reading and changing the device rules of systemd units."""

    def show(self, unit: str, until: float, /) -> DeviceRules:
        """Return a unit's device rules.

        Raises:
            UnitsError: systemd hasn't answered by the monotonic time `until`, or reports an error.
        """
        ...

    def set(self, unit: str, rules: Rules, until: float, /) -> None:
        """Replace a unit's device rules.

        Raises:
            UnitsError: systemd hasn't answered by the monotonic time `until`, or refuses the rules.
        """
        ...

    def keeps(self, unit: str, /) -> bool:
        """Return whether systemd has saved a unit's device rules, and applies them when it next loads the unit."""
        ...


class SystemctlRules:
    """Access to device rules through the command `systemctl`."""

    def show(self, unit: str, until: float) -> DeviceRules:
        return units.show_device_rules(unit, until=until)

    def set(self, unit: str, rules: Rules, until: float) -> None:
        units.set_device_rules(unit, rules, until=until)

    def keeps(self, unit: str) -> bool:
        return units.has_device_drop_in(unit)


class UnitDevices:
    """Writer of the device rules of pinned units, for the deciding thread. `files` returns the device files of a PCI function."""

    def __init__(
        self,
        config: Config,
        systemd: UnitDeviceRules | None = None,
        files: Callable[[str], tuple[DeviceFile, ...]] = find_device_files,
    ) -> None:
        self._records = PlacementFiles(unit_device_directory(config))
        self._systemd = systemd or SystemctlRules()
        self._files = files
        self._added: dict[str, Rules] | None = None
        """Device rules that the agent has added, by unit. None means that the records have not been read yet."""
        self._applied: dict[str, tuple[str, ...]] = {}
        """PCI addresses of the devices for which each unit's rules were last set."""
        self._numbered: dict[str, frozenset[DeviceFile]] = {}
        """Device files, with their numbers, when each unit's rules were last set. If a file's number changes, the rules must be set again,
        because systemd looks the number up only then.
        """
        self.overdue: Mapping[str, str] = {}
        """Device files that a unit may still use although the device is no longer allocated to it, because systemd couldn't withdraw them.
        The value is the unit.
        """

    def keep(self, state: NodeState, *, rescan: bool, unclear: frozenset[str] = frozenset()) -> tuple[Problem, ...]:
        """Make the rules that the agent adds to units match the devices allocated to each unit. Return the problems.

        Args:
            state: the state, with the allocations.
            rescan: whether to compare systemd's current rules even if the devices are unchanged.
            unclear: units that keep their rules, because a pod whose manifest can't be read may pin them.
        """
        if self._added is None:
            try:
                self._added = self._read_records()
            except PlacementFileError as err:
                return (Problem.from_error(err),)
        wanted = _devices_by_unit(state)
        self.overdue = overdue = dict[str, str]()
        problems, until = [], units.start_deadline()
        concerned = wanted.keys() | (self._added.keys() - unclear)
        for unit in sorted(concerned, key=lambda unit: (unit in wanted, unit)):
            devices = wanted.get(unit, ())
            if not rescan and self._applied.get(unit) == devices:
                continue
            try:
                self._update_rules(unit, devices, until)
            except (UnitsError, SysfsError, PlacementFileError) as err:
                self._applied.pop(unit, None)
                problems.append(Problem.from_error(err))
                if not devices and isinstance(err, UnitsError):
                    overdue |= {rule.partition(" ")[0]: unit for rule in self._added.get(unit, ())}
        return tuple(problems)

    def _update_rules(self, unit: str, devices: tuple[str, ...], until: float) -> None:
        assert self._added is not None
        there, added = self._systemd.show(unit, until), self._added.get(unit, ())
        if there.load_state != LOADED and (there.load_state != NOT_FOUND or self._systemd.keeps(unit)):
            self._applied[unit] = devices  # systemd applies the added rules again when it loads the unit
            return
        own = tuple(rule for rule in there.allowed if rule not in added)
        wanted: Rules = ()
        files, left_out = frozenset[DeviceFile](), None
        if there.load_state == LOADED and (own or there.is_closed):
            files, left_out = self._find_files(unit, devices)
            # systemd has one rule per file. If the unit's own settings have a rule for a file, this rule stays.
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
            raise left_out  # the error is raised last, when all other rules are set
        self._applied[unit] = devices

    def _find_files(
        self, unit: str, devices: tuple[str, ...]
    ) -> tuple[frozenset[DeviceFile], SysfsError | UnitsError | None]:
        """Return the device files for a unit's rules, and the reason why the first missing file was left out.

        The files of a removed device are left out, because another device may now have the same name and number. Files that another unit
        may still use are left out, too.
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
                    why = f"unit {unit} may not use {file.path} yet, because systemd could not withdraw this file from {holder}"
                    left_out = UnitsError(why, hint=f"systemctl show {holder} --property=DeviceAllow")
        return frozenset(found), left_out

    def _record(self, unit: str, rules: Rules) -> None:
        """Record which rules were added to a unit. The record must be complete at any time, so call this method before rules are added and
        after rules are removed.
        """
        assert self._added is not None
        if rules == self._added.get(unit, ()):
            return
        if rules:
            self._records.write(f"{unit}/{_FILE}", f"{json.dumps(rules)}\n".encode())
            self._added[unit] = rules
        else:
            self._records.remove(f"{unit}/{_FILE}")
            del self._added[unit]

    def _read_records(self) -> dict[str, Rules]:
        """Read the recorded rules of each unit. Unreadable records are skipped, so the rules that they contain are never removed."""
        found = {}
        for name, content in self._records.read().items():
            unit, _, file = name.partition("/")
            with suppress(MisfitError):
                if file == _FILE and content is not None and (rules := parse_json(content).each(JsonValue.text)):
                    found[unit] = rules
        return found


def _devices_by_unit(state: NodeState) -> Mapping[str, tuple[str, ...]]:
    """Return the PCI addresses of the devices allocated to each unit. Devices of device plugins are not included.

    Units of ending pods are left out, because their devices may be allocated to another pod in the same turn.
    """
    found = {}
    for entry in state.entries:
        held = state.promises.of_pod(entry.pod.uid)
        if entry.domain != SYSTEMD or entry.deleting_since_ms is not None or not held.of(DeviceHoldings).devices:
            continue
        plugged = {resource for _, answers in held.of(DeviceHoldings).answers for resource, _ in answers}
        for container in entry.pod.containers:
            own = tuple(
                device.id
                for device in held.of(DeviceHoldings).devices_of(container.name)
                if device.resource not in plugged
            )
            if container.unit and own:
                found[container.unit] = own
    return found
