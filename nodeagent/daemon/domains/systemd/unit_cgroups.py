"""The cgroups of systemd's units that pods pin: found by what systemd says, and changed by telling it (D30)."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import Change, GiveUnitBack, SetAttribute
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, ObservedCgroups, UnitSettings
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, pinned_pod_path, unit_at
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import SYSTEMD, Pod
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.kernel.host_settings import possible_cpus
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.host_files import HostFileError
from nodeagent.formats.kernel.unit_properties import LOADED, UnitProperties

_BETWEEN_LOOKS_SECONDS = 0.005
_Found = tuple[str, str, str]
"""A file, its content, and what was asked for."""
_OF_UNITS = frozenset({Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS})


class Systemd(Protocol):
    """What is asked of systemd."""

    def show(self, names: Collection[str], /) -> Mapping[str, UnitProperties]:
        """Return what it knows of units; raises UnitsError."""
        ...

    def set(self, unit: str, /, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        """Change a unit; raises UnitsError."""
        ...


class Systemctl:
    """By its command."""

    def show(self, names: Collection[str]) -> Mapping[str, UnitProperties]:
        return units.show_units(names)

    def set(self, unit: str, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        units.set_unit(unit, cpus=cpus, memory_nodes=memory_nodes)


class UnknownUnit(Struct, frozen=True):
    """A unit that a pod stands for, and that cannot have its CPUs now."""

    path: str
    problem: str


def unit_paths(pods: Iterable[Pod]) -> frozenset[str]:
    """Return what stands for the cgroups of the units of some pods."""
    return frozenset(f"{pinned_pod_path(SYSTEMD, pod.uid)}/{unit}" for pod in pods for unit in pod.units)


class UnitCgroups:
    """For the deciding thread, or a command.

    Args:
        tree: reads cgroups.
        systemd: tells of units, and is told.
        mount: the root of all cgroups.
        recorded: returns what units had before they were told anything, as far as an agent has recorded it.
        patience_seconds: limit on how long a change of a unit may take to reach the kernel.
    """

    def __init__(
        self,
        tree: CgroupTree,
        systemd: Systemd | None = None,
        mount: Path = units.CGROUPS,
        recorded: Callable[[], Mapping[str, UnitSettings]] = dict,
        patience_seconds: float = 5.0,
    ) -> None:
        self.patience_seconds = patience_seconds
        self._tree = tree
        self._recorded = recorded
        self._systemd = systemd or Systemctl()
        self._mount = mount
        self._known: Mapping[str, UnitProperties] = {}
        """By name, as last asked for, with what was written since."""
        self._waited_in_vain: dict[str, tuple[_Found, ...]] = {}
        """By unit, what differed all the time from what was wanted."""
        self.unanswered = ""
        """Why systemd has not answered at the last look. What it said before counts, and of whom it has said nothing, nothing is known."""
        self.unknown: tuple[UnknownUnit, ...] = ()
        """As of the last look."""
        self.down: frozenset[str] = frozenset()
        """Paths of units without processes, of which systemd says that they aren't being started. As of the last look."""

    @property
    def unit_cgroups(self) -> Mapping[str, str]:
        """Where the cgroups of the units are, below the root of all, by name; as of the last look."""
        return {name: known.cgroup for name, known in self._known.items() if known.cgroup}

    def read(self, paths: AbstractSet[str], *, rescan: bool = True) -> dict[str, ObservedCgroup]:
        """Read the cgroups of units.

        Args:
            paths: what stands for them.
            rescan: ask systemd about all of them; otherwise only if there is one that it was not asked about before. Their cgroups are read
                anyway.

        Raises:
            CgroupError: one can't be read.
        """
        names = {unit_at(path) for path in paths}
        self.unanswered = ""
        if names and (rescan or not names <= self._known.keys() or any(map(self._may_start, names))):
            try:
                self._known = self._systemd.show(names)
            except UnitsError as err:
                self.unanswered = f"{err.message} ({err.hint})"
        self.unknown = tuple(UnknownUnit(path, why) for path in sorted(paths) if (why := self._problem(unit_at(path))))
        unknown = {one.path for one in self.unknown}
        there = {
            path
            for path in paths
            if unit_at(path) not in self._known or path not in unknown or self._is_running(unit_at(path))
        }
        found = {path: self._observed(path) for path in sorted(there)}
        self.down = frozenset(path for path in paths if self._is_down(path))
        return found

    def _may_start(self, unit: str) -> bool:
        """Whether a unit that was down has a cgroup: that is made before its first process."""
        known = self._known[unit]
        return known.is_down and bool(known.cgroup) and self._look(known.cgroup) is not None

    def _is_down(self, path: str) -> bool:
        """Processes show that a unit has been started since systemd was asked, or that something of it is left."""
        known = self._known.get(unit_at(path))
        there = self._look(known.cgroup) if known is not None and known.cgroup else None
        return known is not None and known.is_down and (there is None or not there.is_populated)

    def _is_running(self, unit: str) -> bool:
        """Whether there are processes of a unit, be its file gone or masked since it was started."""
        known = self._known[unit]
        there = self._look(known.cgroup) if known.cgroup and known.id == unit else None
        return there is not None and there.is_populated

    def _problem(self, unit: str) -> str:
        known = self._known.get(unit)
        if known is None:
            return self.unanswered
        if known.load_state != LOADED:
            return (
                f"unit {unit} is {known.load_state}: it gets its CPUs once systemd knows it (`systemctl status {unit}`)"
            )
        if known.id != unit:
            return f"unit {unit} is another name of {known.id}: pin that one"
        return "" if known.cgroup else f"unit {unit} has no cgroup: only services, scopes and slices have one"

    def _observed(self, path: str) -> ObservedCgroup:
        known = self._known.get(unit_at(path))
        if known is None:
            return _anywhere(path, self._effective_around(""))
        there, recorded = self._look(known.cgroup), self._recorded().get(unit_at(path))
        if there is None or not there.is_populated:
            inactive = _inactive(path, known.settings, self._effective_around(known.cgroup))
            return replace(inactive, unit_before=recorded)
        attributes = tuple(each for each in there.attributes if each[0] in _OF_UNITS and each[1])
        return replace(there, path=path, attributes=attributes, unit=known.settings, unit_before=recorded)

    def _effective_around(self, cgroup: str) -> CpuSet | None:
        """Return where the processes of a cgroup without any may run, if nothing is said of it alone."""
        around = self._around(cgroup)
        return None if around is None else around.cpus_effective

    def _around(self, cgroup: str) -> ObservedCgroup | None:
        around = (self._look(str(directory)) for directory in Path(cgroup).parents or (Path(),))
        return next((there for there in around if there is not None), None)

    def _look(self, cgroup: str) -> ObservedCgroup | None:
        return self._tree.read_of_others(str(self._mount / cgroup))

    def apply(self, change: Change) -> None:
        """Carry out one change.

        Raises:
            CgroupError: it could not be done, or has not the effect that it should have.
        """
        unit = unit_at(change.path)
        if unit not in self._known:
            raise CgroupError(self.unanswered, path=change.path, error=None, hint="`systemctl status`")
        try:
            match change:
                case SetAttribute(_, Attribute.CPUSET_CPUS, CpuSet() as cpus):
                    self._set(unit, UnitSettings(allowed_cpus=cpus))
                case SetAttribute(_, Attribute.CPUSET_MEMS, NumaSet() as nodes):
                    self._set(unit, UnitSettings(allowed_memory_nodes=nodes))
                case GiveUnitBack(_, before):
                    self._give_back(unit, before)
                case _:
                    raise AssertionError(f"{change} is no change of a unit")
        except (UnitsError, HostFileError) as err:
            raise CgroupError(err.message, path=change.path, error=None, hint=err.hint) from err

    def _set(self, unit: str, wanted: UnitSettings) -> None:
        """Tell systemd, and wait until the kernel has it. Where the slices around grant nothing of it, systemd isn't told: the kernel would
        grant what they have, be it somebody's.
        """
        hint = "a slice around the unit grants less: compare AllowedCPUs and AllowedMemoryNodes of those in `systemctl status`"
        cgroup = self._known[unit].cgroup
        self._wait(unit, lambda: _not_granted(wanted, self._around(cgroup)), hint)
        self._tell(unit, wanted)
        self._wait(unit, self._looked_at(cgroup, partial(_differing, wanted)), hint)

    def _looked_at(
        self, cgroup: str, differing: Callable[[ObservedCgroup], Iterable[_Found]]
    ) -> Callable[[], Iterable[_Found]]:
        def found() -> Iterable[_Found]:
            there = self._look(cgroup)
            return differing(there) if there is not None and there.is_populated else ()

        return found

    def _wait(self, unit: str, differing: Callable[[], Iterable[_Found]], hint: str) -> None:
        """Wait until nothing differs: systemd may answer before it writes, and nobody is told when it has. What has lasted that long once
        isn't waited for again as long as it is the same.
        """
        until, last = time.monotonic() + self.patience_seconds, self._waited_in_vain.get(unit)
        while found := tuple(differing()):
            if found == last or time.monotonic() > until:
                self._waited_in_vain[unit] = found
                file, has, asked = found[0]
                directory = str(self._mount / self._known[unit].cgroup)
                raise CgroupError(f"{file} is '{has}', wanted '{asked}'", path=directory, error=None, hint=hint)
            time.sleep(_BETWEEN_LOOKS_SECONDS)
        self._waited_in_vain.pop(unit, None)

    def _tell(self, unit: str, wanted: UnitSettings) -> None:
        cpus, nodes = wanted.allowed_cpus or None, wanted.allowed_memory_nodes or None
        self._systemd.set(unit, cpus=cpus, memory_nodes=nodes)
        self._note(unit, cpus, nodes)

    def _note(self, unit: str, cpus: CpuSet | None, nodes: NumaSet | None) -> None:
        known = self._known[unit]
        now = UnitSettings(
            known.settings.allowed_cpus if cpus is None else cpus,
            known.settings.allowed_memory_nodes if nodes is None else nodes,
        )
        self._known = {**self._known, unit: replace(known, settings=now)}

    def _give_back(self, unit: str, before: UnitSettings) -> None:
        """What had no restriction first gets everything, as systemd leaves a running unit what it has when it forgets that (#43846). It is
        forgotten only once the kernel has that: what systemd says is no proof then.
        """
        now = self._known[unit].settings
        cpus = before.allowed_cpus if before.allowed_cpus != now.allowed_cpus else None
        nodes = before.allowed_memory_nodes if before.allowed_memory_nodes != now.allowed_memory_nodes else None
        everything = UnitSettings(
            CpuSet() if cpus is None else cpus or possible_cpus("/"),
            NumaSet() if nodes is None else nodes or self._all_memory_nodes(),
        )
        self._tell(unit, everything)
        hint = f"what is left of it: compare `systemctl show -p AllowedCPUs,AllowedMemoryNodes {unit}`, and who else writes there"
        self._wait(unit, self._looked_at(self._known[unit].cgroup, partial(_left, everything)), hint)
        cleared = (None if cpus else cpus, None if nodes else nodes)
        if cleared != (None, None):
            self._systemd.set(unit, cpus=cleared[0], memory_nodes=cleared[1])
            self._note(unit, *cleared)

    def _all_memory_nodes(self) -> NumaSet:
        root = self._look("")
        return (root.mems_effective if root is not None else None) or NumaSet.of(0)


def _anywhere(path: str, cpus: CpuSet | None) -> ObservedCgroup:
    """Return what must be reckoned with of a unit that systemd has told nothing about: it may be everywhere, and can't be changed."""
    return ObservedCgroup(
        path,
        controllers=frozenset(),
        subtree_control=frozenset(),
        attributes=(),
        cpus_effective=cpus,
        mems_effective=None,
        is_populated=True,
        is_frozen=False,
    )


def _inactive(path: str, settings: UnitSettings, around: CpuSet | None) -> ObservedCgroup:
    """Return what a unit without processes will have when it becomes active, which may be at any moment: systemd sets it before it starts
    the first. A cgroup that it may have until then says nothing; the controller may be off there.
    """
    given = ((Attribute.CPUSET_CPUS, settings.allowed_cpus), (Attribute.CPUSET_MEMS, settings.allowed_memory_nodes))
    return ObservedCgroup(
        path,
        controllers=frozenset(),
        subtree_control=frozenset(),
        attributes=tuple(each for each in given if each[1]),
        cpus_effective=around and (settings.allowed_cpus & around or around),
        mems_effective=None,
        is_populated=False,
        is_frozen=False,
        unit=settings,
    )


def _not_granted(wanted: UnitSettings, around: ObservedCgroup | None) -> Iterator[_Found]:
    """Return the files of the cgroup around that have nothing of what is wanted."""
    if around is None:
        return
    cpus, nodes = around.cpus_effective, around.mems_effective
    if wanted.allowed_cpus and cpus is not None and not wanted.allowed_cpus & cpus:
        yield f"{around.path}/cpuset.cpus.effective", str(cpus), str(wanted.allowed_cpus)
    if wanted.allowed_memory_nodes and nodes is not None and not wanted.allowed_memory_nodes & nodes:
        yield f"{around.path}/cpuset.mems.effective", str(nodes), str(wanted.allowed_memory_nodes)


def _left(told: UnitSettings, there: ObservedCgroup) -> Iterator[_Found]:
    """Return the files that don't have what systemd was told: what is effective may be less, as it was before."""
    for attribute, wanted in (
        (Attribute.CPUSET_CPUS, told.allowed_cpus),
        (Attribute.CPUSET_MEMS, told.allowed_memory_nodes),
    ):
        found = there.get(attribute)
        if wanted and found is not None and found != wanted:
            yield f"{there.path}/{attribute.value}", str(found), str(wanted)


def _differing(wanted: UnitSettings, there: ObservedCgroup) -> Iterator[_Found]:
    """Return the files that don't have what was asked for."""
    if wanted.allowed_cpus and there.cpus_effective != wanted.allowed_cpus:
        yield f"{there.path}/cpuset.cpus.effective", str(there.cpus_effective or ""), str(wanted.allowed_cpus)
    if wanted.allowed_memory_nodes and there.mems_effective != wanted.allowed_memory_nodes:
        yield f"{there.path}/cpuset.mems.effective", str(there.mems_effective or ""), str(wanted.allowed_memory_nodes)


def read_cgroups(tree: CgroupTree, units: UnitCgroups, pods: Sequence[Pod]) -> ObservedCgroups:
    """Read the cgroups of the agent's own pods and the units that pods pin, without a turn.

    Args:
        tree: for the cgroups.
        units: systemd's.
        pods: those that may pin some.

    Raises:
        CgroupError: one can't be read.
    """
    return tree.read(OWN_DIRECTORIES) | tree.read_above() | units.read(unit_paths(pods))
