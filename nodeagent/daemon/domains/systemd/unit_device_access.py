"""Access of pinned systemd units to their own devices. Most agents load nothing of it, as few units have any."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.domains.systemd.unit_records import UNIT_DEVICES
from nodeagent.daemon.turn.troubles import Trouble

if TYPE_CHECKING:
    from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices


class UnitDeviceAccess:
    """Device rules of units, from the first unit that has a device of its own."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._units: UnitDevices | None = None

    @property
    def overdue(self) -> Mapping[str, str]:
        """The device files that could not be taken from a unit, each with its unit."""
        return {} if self._units is None else self._units.overdue

    def keep(self, state: NodeState, *, rescan: bool, unclear: frozenset[str]) -> tuple[Trouble, ...]:
        """Let units use their own devices. Return what could not be done."""
        if self._units is None:
            has_some = bool(state.promises.taken_devices() and state.pods_of_units())
            if not has_some and not Path(self._config.runtime_directory, UNIT_DEVICES).exists():
                return ()
            from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices  # noqa: PLC0415 - few units have any

            self._units = UnitDevices(self._config)
        return self._units.keep(state, rescan=rescan, unclear=unclear)
