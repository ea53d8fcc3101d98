"""systemd's domain: pods from manifests whose containers pin units. systemd writes their cgroups, and starts and ends their processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DomainCounts, DomainInput, DomainView, TakenBack, TurnDone
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups, UnitSettings, unclear_units
from nodeagent.core.model.cgroup_layout import UNITS_LEFT, UNITS_UNCLEAR, is_pinned_by, unit_at
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import OWN, SYSTEMD, Pod
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import taken_devices
from nodeagent.core.turn.pod_sources import PodSource, offered
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.systemd.unit_cgroups import Systemd, UnitCgroups, unit_paths
from nodeagent.daemon.domains.systemd.unit_records import UNIT_DEVICES, UnitRecords
from nodeagent.daemon.reports.problems import units_of_unknown_pods
from nodeagent.daemon.turn.problem import Problem, owner_fields
from nodeagent.edge.cgroups.cgroupfs import CgroupTree

if TYPE_CHECKING:
    from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices


class SystemdDomain:
    """For the deciding thread.

    Args:
        config: the agent's.
        tree: reads cgroups.
        systemd: tells of units, and is told. None means systemd by its command.
    """

    name = SYSTEMD
    is_unsettled = False

    def __init__(self, config: Config, tree: CgroupTree, systemd: Systemd | None = None) -> None:
        self._config = config
        self._records = UnitRecords(config)
        self._cgroups = UnitCgroups(tree, systemd, recorded=self._records.look)
        self._devices: UnitDevices | None = None
        """None means that no unit has had devices of its own."""
        self._left: frozenset[str] = frozenset()
        """Paths of units to give back that no pod pins any more."""
        self._unclear: frozenset[str] = frozenset()
        """Paths of units of which it isn't known now whether a pod pins them."""
        self._unclear_cpus: Mapping[str, CpuSet] = {}
        """Where these may run, by name."""
        self._rescan = False

    def follow(self, config: Config, /) -> None: ...

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:
        self._rescan = rescan
        return ()

    def observe(self, look: DomainInput, /) -> DomainView:
        units = self._units_without_pod(look)
        # Whether a pod pins them is not known while a manifest can't be read.
        is_unclear = any(s.is_blind or s.is_partial or s.unreadable or s.misspelt for s in look.sources)
        self._left = frozenset() if is_unclear else frozenset(f"{UNITS_LEFT}/{unit}" for unit in units)
        self._unclear = frozenset(f"{UNITS_UNCLEAR}/{unit}" for unit in units) if is_unclear else frozenset()
        paths = unit_paths((*_pods_of(look.state), *_pods_in(look.sources)))
        cgroups = self._cgroups.read(paths | self._left | self._unclear, rescan=look.rescan)
        self._unclear_cpus = unclear_units(cgroups)
        return DomainView(
            cgroups,
            down=self._cgroups.down,
            is_all_told=not self._unclear,
            problems=tuple(
                Problem(one.problem, owner_fields(look.state, one.path))
                for one in self._cgroups.unknown
                if one.path not in self._left | self._unclear
            ),
            retries=bool(self._cgroups.unanswered),
            places=self._cgroups.unit_cgroups,
        )

    def decide(self, decided: Turn, _world: World, /) -> Turn:
        return decided

    def withdraw(self, why: str, /) -> None: ...

    def record(self, state: NodeState, observed: ObservedCgroups, /) -> tuple[str, ...]:
        """Record what units go back to, before they are told anything; and forget it once they have that."""
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
            is_over = not self._cgroups.unanswered if there is None else there.unit == before
            is_over = is_over if path in self._left else _has_gone_back(unit, before, observed)
            if unit not in wanted and not is_over:
                wanted[unit] = before
        return self._records.keep(wanted)

    def desired(self, observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        return tuple(
            DesiredCgroup(path, is_leaf=True, goes_back_to=there.unit_before)
            for path, there in sorted(observed.items())
            if path.startswith(f"{UNITS_LEFT}/") and there.unit_before is not None
        )

    def occupied(self, _state: NodeState, /) -> CpuSet:
        return CpuSet()

    def owns(self, path: str, /) -> bool:
        return is_pinned_by(SYSTEMD, path)

    def apply(self, change: Change, /) -> None:
        self._cgroups.apply(change)

    def take_back(self, state: NodeState, /) -> TakenBack:
        if self._devices is None:
            has_some = bool(taken_devices(state.promises) and _pods_of(state))
            if not has_some and not Path(self._config.runtime_directory, UNIT_DEVICES).exists():
                return TakenBack({})
            from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices  # noqa: PLC0415 - few units have any

            self._devices = UnitDevices(self._config)
        problems = self._devices.keep(state, rescan=self._rescan, unclear=frozenset(map(unit_at, self._unclear)))
        return TakenBack({path: f"unit {unit}" for path, unit in self._devices.overdue.items()}, problems)

    def finish(self, _done: TurnDone, /) -> tuple[str, ...]:
        return ()

    def standing_problem(self) -> str | None:
        return units_of_unknown_pods(self._unclear_cpus) if self._unclear_cpus else None

    def count(self) -> DomainCounts:
        return DomainCounts()

    def _units_without_pod(self, look: DomainInput) -> tuple[str, ...]:
        """Return the units that an earlier state's pods pinned, and that no pod will pin: the state was lost, and what was pinned has no
        manifest, or is refused.
        """
        known = {entry.pod.uid for entry in look.state.entries}
        coming = (pod for pod in _pods_in(look.sources) if pod.uid not in known)
        pinned = {unit for pod in (*_pods_of(look.state), *coming) for unit in pod.units}
        return tuple(sorted(self._records.look().keys() - pinned))


def _pods_of(state: NodeState) -> tuple[Pod, ...]:
    return tuple(entry.pod for entry in state.entries if entry.is_active and entry.domain == SYSTEMD)


def _pods_in(sources: tuple[PodSource, ...]) -> tuple[Pod, ...]:
    return tuple(one.pod for one in offered(sources) if one.origin.domain == OWN)


def _has_gone_back(unit: str, before: UnitSettings, observed: ObservedCgroups) -> bool:
    """Whether the pod that pinned a unit, and that has ended in this turn, has left it what it had before."""
    return any(
        there.unit == before
        for path, there in observed.items()
        if is_pinned_by(SYSTEMD, path) and unit_at(path) == unit and not path.startswith(f"{UNITS_UNCLEAR}/")
    )
