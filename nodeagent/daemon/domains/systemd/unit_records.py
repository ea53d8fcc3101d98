"""Original settings of pinned systemd units, recorded in the runtime directory. A reboot removes these records, and also the agent's
settings.

The state contains the original settings, too. If the state is lost, only these records distinguish original settings from the agent's
(D30).
"""

from collections.abc import Mapping

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Config
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.formats.kernel.unit_properties import format_unit_record, parse_unit_record

_FILE = "before"
UNIT_DEVICES = "unit-devices"
"""Name of the directory that records added device rules, in the runtime directory. It exists once a unit has had devices."""


class UnitRecords:
    """Records of original settings, one file per unit."""

    def __init__(self, config: Config) -> None:
        self._files = PlacementFiles(f"{config.runtime_directory}/units")
        self._known: dict[str, UnitSettings] | None = None
        """Recorded settings by unit. None means that the records have not been read yet."""

    def look(self) -> Mapping[str, UnitSettings]:
        """Return the recorded settings by unit. Records that can't be read are left out."""
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
        """Record the original settings of these units, and remove the records of all other units. Return the problems.

        If the existing records can't be read, nothing is changed.
        """
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
                    self._files.write(f"{unit}/{_FILE}", format_unit_record(wanted[unit]))
                else:
                    self._files.remove(f"{unit}/{_FILE}")
            except PlacementFileError as err:
                problems.append(Problem.from_error(err))
                continue
            known.pop(unit, None)
            known |= {unit: wanted[unit]} if unit in wanted else {}
        self._known = known
        return tuple(problems)
