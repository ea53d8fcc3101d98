"""systemd's domain: pods from manifests whose containers pin units. systemd writes the units' cgroups, and starts and ends the units'
processes.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DeviceWithdrawal, DomainInput, DomainView
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups, unclear_units
from nodeagent.core.model.cgroup_layout import UNITS_LEFT, UNITS_UNCLEAR, is_pinned_by, unit_at
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import OWN, SYSTEMD, Pod
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.devices.holdings import taken_devices
from nodeagent.core.turn.pod_sources import PodSource, list_manifests
from nodeagent.daemon.domains.passive_domain import PassiveDomain
from nodeagent.daemon.domains.systemd.unit_cgroups import Systemd, UnitCgroups, unit_paths
from nodeagent.daemon.domains.systemd.unit_records import UNIT_DEVICES, UnitRecords
from nodeagent.daemon.reports.problems import describe_units_of_unknown_pods
from nodeagent.daemon.turn.problem import Problem, owner_fields
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree

if TYPE_CHECKING:
    from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices


class SystemdDomain(PassiveDomain):
    """systemd's domain, for the deciding thread. If `systemd` is None, the domain runs the command `systemctl`."""

    name = SYSTEMD

    def __init__(self, config: Config, tree: CgroupTree, systemd: Systemd | None = None) -> None:
        self._config = config
        self._records = UnitRecords(config)
        self._cgroups = UnitCgroups(tree, systemd, recorded=self._records.look)
        self._devices: UnitDevices | None = None
        """Writer of the units' device rules. None means that it isn't needed yet, because no unit has had devices."""
        self._left: frozenset[str] = frozenset()
        """Paths of units that no pod pins any more. Their original settings must be restored."""
        self._unclear: frozenset[str] = frozenset()
        """Paths of units that aren't restored for now, because a pod whose manifest can't be read may pin them."""
        self._unclear_cpus: Mapping[str, CpuSet] = {}
        """CPUs of the units in `_unclear`, by unit name."""
        self._rescan = False
        self._entries: tuple[PodEntry, ...] = ()
        self._sources: tuple[PodSource, ...] = ()
        self._paths: frozenset[str] = frozenset()
        """Paths of the pinned units in `_entries` and `_sources`."""

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:  # noqa: ARG002 - manifests pin units
        self._rescan = rescan
        return ()

    def observe(self, look: DomainInput, /) -> DomainView:
        if (look.state.entries, look.sources) != (self._entries, self._sources):
            self._entries, self._sources = look.state.entries, look.sources
            self._paths = unit_paths((*look.state.pods_of_units(), *_pods_in(look.sources)))
        units = self._units_without_pod(look)
        # A manifest that can't be read now might define a pod that pins one of these units.
        is_unclear = any(s.is_blind or s.is_partial or s.unreadable or s.misspelt for s in look.sources)
        self._left = frozenset() if is_unclear else frozenset(f"{UNITS_LEFT}/{unit}" for unit in units)
        self._unclear = frozenset(f"{UNITS_UNCLEAR}/{unit}" for unit in units) if is_unclear else frozenset()
        cgroups = self._cgroups.read(self._paths | self._left | self._unclear, rescan=look.rescan)
        self._unclear_cpus = unclear_units(cgroups)
        return DomainView(
            cgroups,
            inactive_units=self._cgroups.last_read.down,
            has_reported_all=not self._unclear,
            problems=tuple(
                Problem(unit.problem, owner_fields(look.state, unit.path))
                for unit in self._cgroups.last_read.unknown
                if self._cgroups.last_read.unanswered or unit.path not in self._left | self._unclear
            ),
            retries=bool(self._cgroups.last_read.unanswered),
            places=self._cgroups.unit_cgroups,
        )

    def record(self, state: NodeState, observed: ObservedCgroups, /) -> tuple[str, ...]:
        """Record the original settings of units before the agent changes these units. Remove the record of each unit whose original
        settings are restored.
        """
        wanted = {
            container.unit: status.unit_before
            for entry in state.entries
            if entry.domain == SYSTEMD
            for container, status in entry.pairs()
            if status.unit_before is not None
        }
        for unit, before in self._records.look().items():
            path = f"{UNITS_LEFT}/{unit}"
            there = observed.get(path)
            if path not in self._left:  # the unit's pod may have ended in this turn
                is_restored = any(
                    there.unit == before
                    for path, there in observed.items()
                    if is_pinned_by(SYSTEMD, path)
                    and unit_at(path) == unit
                    and not path.startswith(f"{UNITS_UNCLEAR}/")
                )
            else:
                is_restored = not self._cgroups.last_read.unanswered if there is None else there.unit == before
            if unit not in wanted and not is_restored:
                wanted[unit] = before
        return self._records.keep(wanted)

    def desired(self, observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        return tuple(
            DesiredCgroup(path, is_leaf=True, goes_back_to=there.unit_before)
            for path in sorted(self._left & observed.keys())
            if (there := observed[path]).unit_before is not None
        )

    def owns(self, path: str, /) -> bool:
        return is_pinned_by(SYSTEMD, path)

    def apply(self, change: Change, /) -> None:
        self._cgroups.apply(change)

    @cached_property
    def _has_former_devices(self) -> bool:
        """Whether an earlier agent process has recorded device rules that it added to units."""
        return Path(self._config.runtime_directory, UNIT_DEVICES).exists()

    def take_back(self, state: NodeState, /) -> DeviceWithdrawal:
        if self._devices is None:
            has_some = bool(taken_devices(state.promises) and state.pods_of_units())
            if not has_some and not self._has_former_devices:
                return DeviceWithdrawal({})
            from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices  # noqa: PLC0415 - few units have any

            self._devices = UnitDevices(self._config)
        problems = self._devices.keep(state, rescan=self._rescan, unclear=frozenset(map(unit_at, self._unclear)))
        return DeviceWithdrawal({path: f"unit {unit}" for path, unit in self._devices.overdue.items()}, problems)

    def standing_problem(self) -> str | None:
        return describe_units_of_unknown_pods(self._unclear_cpus) if self._unclear_cpus else None

    def _units_without_pod(self, look: DomainInput) -> tuple[str, ...]:
        """Return the units with a record that no pod pins, and that no new pod is about to pin. There are such units if the state was lost
        and their manifests were removed or refused.
        """
        if not (recorded := self._records.look().keys()):
            return ()
        known = {entry.pod.uid for entry in look.state.entries}
        coming = (pod for pod in _pods_in(look.sources) if pod.uid not in known)
        pinned = {unit for pod in (*look.state.pods_of_units(), *coming) for unit in pod.units}
        return tuple(sorted(recorded - pinned))


def _pods_in(sources: tuple[PodSource, ...]) -> list[Pod]:
    """Return the pods of these sources that pin units."""
    return [
        manifest.pod for manifest in list_manifests(sources) if manifest.pod.units and manifest.origin.domain == OWN
    ]
