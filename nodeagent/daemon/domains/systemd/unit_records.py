"""What systemd's units had before they were told anything, beside the state: a boot forgets both what they were told and this.

The state has it, too. It may be lost, and then nothing else tells what the agent has set from what is a unit's own (D30).
"""

from collections.abc import Mapping

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Config
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.formats.kernel.unit_properties import parse_unit_record, print_unit_record

_FILE = "before"
UNIT_DEVICES = "unit-devices"
"""The directory beside it of what units were allowed (unit_devices.py): there once one had a device of its own."""


class UnitRecords:
    """One file per unit, below the runtime directory."""

    def __init__(self, config: Config) -> None:
        self._files = PlacementFiles(f"{config.runtime_directory}/units")
        self._known: dict[str, UnitSettings] | None = None
        """None: not read yet."""

    def look(self) -> Mapping[str, UnitSettings]:
        """Return what is recorded, by unit; what can't be read is missing."""
        if self._known is None:
            try:
                self._known = self._read()
            except PlacementFileError:
                return {}
        return self._known

    def _read(self) -> dict[str, UnitSettings]:
        found = {}
        for name, content in self._files.read().items():
            before = None if content is None else parse_unit_record(content)
            unit, _, file = name.partition("/")
            if before is not None and file == _FILE:
                found[unit] = before
        return found

    def keep(self, wanted: Mapping[str, UnitSettings]) -> tuple[Problem, ...]:
        """Record these units, and no others. Returns what prevented it: nothing is written over what can't be read."""
        if self._known is None:
            try:
                self._known = self._read()
            except PlacementFileError as err:
                return (Problem.from_error(err),)
        problems = []
        known = dict(self._known)
        for unit in sorted(wanted.keys() | known.keys()):
            if wanted.get(unit) == known.get(unit):
                continue
            try:
                if unit in wanted:
                    self._files.write(f"{unit}/{_FILE}", print_unit_record(wanted[unit]))
                else:
                    self._files.remove(f"{unit}/{_FILE}")
            except PlacementFileError as err:
                problems.append(Problem.from_error(err))
                continue
            known = {name: before for name, before in known.items() if name != unit} | (
                {unit: wanted[unit]} if unit in wanted else {}
            )
        self._known = known
        return tuple(problems)
