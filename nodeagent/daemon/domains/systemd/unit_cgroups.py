"""Cgroups of pinned systemd units. The agent reads them from systemd and the cgroup files, and changes them only through systemd (D30)."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import Change, GiveUnitBack, SetAttribute
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, ObservedCgroups, UnitSettings
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, pinned_pod_path, unit_at
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import SYSTEMD, Pod
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.kernel.host_settings import read_possible_cpus
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.host_files import HostFileError
from nodeagent.formats.kernel.unit_properties import LOADED, UnitProperties

_POLL_SECONDS = 0.005
_Mismatch = tuple[str, str, str]
"""Cgroup file whose content isn't as wanted: path, content, wanted content."""
_UNIT_ATTRIBUTES = frozenset({Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS})


class Systemd(Protocol):
    """Interface for reading and changing systemd units."""

    def show(self, names: Collection[str], /) -> Mapping[str, UnitProperties]:
        """Return the properties of units, by unit name.

        Raises:
            UnitsError: systemd doesn't answer.
        """
        ...

    def set(self, unit: str, /, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        """Set AllowedCPUs= and AllowedMemoryNodes= of a unit. None means that the property stays unchanged.

        Raises:
            UnitsError: systemd refuses the change, or doesn't answer.
        """
        ...


class Systemctl:
    """Access to systemd through the command `systemctl`."""

    def show(self, names: Collection[str]) -> Mapping[str, UnitProperties]:
        return units.show_units(names)

    def set(self, unit: str, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        units.set_unit(unit, cpus=cpus, memory_nodes=memory_nodes)


class UnknownUnit(Struct, frozen=True):
    """Pinned unit whose CPUs can't be set now, with the reason."""

    path: str
    problem: str


class UnitsRead(Struct, frozen=True):
    """Result of the last read, apart from the cgroups themselves."""

    unanswered: str = ""
    """Reason why systemd didn't answer. The agent then uses the previous answers. Empty means that systemd answered, or wasn't asked."""
    unknown: tuple[UnknownUnit, ...] = ()
    down: frozenset[str] = frozenset()
    """Paths of units that are inactive, have no processes, and aren't starting."""


def unit_paths(pods: Iterable[Pod]) -> frozenset[str]:
    """Return the cgroup paths of the units that pods pin."""
    return frozenset(f"{pinned_pod_path(SYSTEMD, pod.uid)}/{unit}" for pod in pods for unit in pod.units)


class UnitCgroups:
    """Reader and writer of the cgroups of pinned units, for the deciding thread or a command.

    Args:
        tree: reader of cgroup files.
        systemd: access to systemd. None means the command `systemctl`.
        mount: mount point of the cgroup file system.
        recorded: function that returns the units' original settings, from before the agent's first change.
        patience_seconds: seconds within which a change must be visible in the cgroup.
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
        """Properties by unit: systemd's last answer, updated with the settings written since then."""
        self._timed_out: dict[str, tuple[_Mismatch, ...]] = {}
        """Mismatches that still existed after the time limit, by unit. The agent doesn't wait for the same mismatches a second time."""
        self.last_read = UnitsRead()

    @property
    def unit_cgroups(self) -> Mapping[str, str]:
        """Return each unit's cgroup, as a path below the cgroup root. The paths are from the last read."""
        return {name: known.cgroup for name, known in self._known.items() if known.cgroup}

    def read(self, paths: AbstractSet[str], *, rescan: bool = True) -> dict[str, ObservedCgroup]:
        """Read the cgroups of units. If `rescan` is false, ask systemd only if a unit is new or may be starting.

        Raises:
            CgroupError: a cgroup can't be read.
        """
        names, unanswered = {unit_at(path) for path in paths}, ""
        if names and (rescan or not names <= self._known.keys() or any(map(self._may_start, names))):
            try:
                self._known = self._systemd.show(names)
            except UnitsError as err:
                unanswered = f"{err.message} ({err.hint})"
        observed, unknown, down = dict[str, ObservedCgroup](), [], set()
        for path in sorted(paths):
            unit = unit_at(path)
            known = self._known.get(unit)
            problem = unanswered if known is None else _find_problem(unit, known)
            if problem:
                unknown.append(UnknownUnit(path, problem))
            cgroup = self._look(known.cgroup) if known is not None and known.cgroup else None
            is_populated = cgroup is not None and cgroup.is_populated
            if known is not None and known.is_down and not is_populated:
                down.add(path)
            # Even if the unit's file was removed or masked, the unit may still have processes.
            if known is None or not problem or (known.id == unit and is_populated):
                observed[path] = self._observe(path, known, cgroup)
        self.last_read = UnitsRead(unanswered, tuple(unknown), frozenset(down))
        return observed

    def _may_start(self, unit: str) -> bool:
        """Return whether a unit may be starting although systemd has last reported it as inactive. If so, the unit's cgroup exists, because
        systemd creates the cgroup before the first process.
        """
        known = self._known[unit]
        return known.is_down and bool(known.cgroup) and self._look(known.cgroup) is not None

    def _observe(self, path: str, known: UnitProperties | None, cgroup: ObservedCgroup | None) -> ObservedCgroup:
        around = self._find_ancestor("" if known is None else known.cgroup)
        cpus = None if around is None else around.cpus_effective
        if known is None:  # an unknown unit may have processes on any of these CPUs
            return _observed_without_cgroup(path, cpus, is_populated=True)
        recorded = self._recorded().get(unit_at(path))
        if cgroup is not None and cgroup.is_populated:
            attributes = tuple(each for each in cgroup.attributes if each[0] in _UNIT_ATTRIBUTES and each[1])
            return replace(cgroup, path=path, attributes=attributes, unit=known.settings, unit_before=recorded)
        # systemd applies the unit's settings before the first process starts. So the unit's settings are used instead of the values of an
        # empty cgroup.
        settings = known.settings
        given = (
            (Attribute.CPUSET_CPUS, settings.allowed_cpus),
            (Attribute.CPUSET_MEMS, settings.allowed_memory_nodes),
        )
        return replace(
            _observed_without_cgroup(path, cpus and (settings.allowed_cpus & cpus or cpus), is_populated=False),
            attributes=tuple(each for each in given if each[1]),
            unit=settings,
            unit_before=recorded,
        )

    def _find_ancestor(self, cgroup: str) -> ObservedCgroup | None:
        """Return the nearest existing ancestor of a cgroup."""
        ancestors = (self._look(str(directory)) for directory in Path(cgroup).parents or (Path(),))
        return next((ancestor for ancestor in ancestors if ancestor is not None), None)

    def _look(self, cgroup: str) -> ObservedCgroup | None:
        return self._tree.read_foreign(str(self._mount / cgroup))

    def _look_if_populated(self, cgroup: str) -> ObservedCgroup | None:
        there = self._look(cgroup)
        return there if there is not None and there.is_populated else None

    def apply(self, change: Change) -> None:
        """Change the CPUs or memory nodes of a unit through systemd, or restore the unit's original settings.

        Raises:
            CgroupError: the change failed, or its effect wasn't visible in time.
        """
        unit = unit_at(change.path)
        if unit not in self._known:
            raise CgroupError(self.last_read.unanswered, path=change.path, error=None, hint="see `systemctl status`")
        try:
            match change:
                case SetAttribute(_, Attribute.CPUSET_CPUS, CpuSet() as cpus):
                    self._restrict(unit, UnitSettings(allowed_cpus=cpus))
                case SetAttribute(_, Attribute.CPUSET_MEMS, NumaSet() as nodes):
                    self._restrict(unit, UnitSettings(allowed_memory_nodes=nodes))
                case GiveUnitBack(_, before):
                    self._restore(unit, before)
                case _:
                    raise AssertionError(f"{change} is not a change of a unit")
        except (UnitsError, HostFileError) as err:
            raise CgroupError(err.message, path=change.path, error=None, hint=err.hint) from err

    def _restrict(self, unit: str, wanted: UnitSettings) -> None:
        """Set a unit's properties, and wait until its cgroup has these values.

        First wait until the parent cgroup has at least one of the wanted CPUs and nodes. If it had none, the kernel would let the unit use
        all of the parent's CPUs or nodes, including those allocated to other pods.
        """
        hint = "a slice that contains the unit grants less: compare AllowedCPUs and AllowedMemoryNodes of the slices in `systemctl status`"
        cgroup = self._known[unit].cgroup
        self._wait(unit, lambda: _files_that_grant_nothing(wanted, self._find_ancestor(cgroup)), hint)
        self._set(unit, wanted.allowed_cpus or None, wanted.allowed_memory_nodes or None)
        self._wait(unit, lambda: _files_without_effect(wanted, self._look_if_populated(cgroup)), hint)

    def _wait(self, unit: str, mismatches: Callable[[], Iterable[_Mismatch]], hint: str) -> None:
        """Wait until all files have the wanted content. The files must be polled, because systemd may answer before it writes them, and
        sends no notification when it has done so.
        """
        until, last = time.monotonic() + self.patience_seconds, self._timed_out.get(unit)
        while found := tuple(mismatches()):
            if found == last or time.monotonic() > until:
                self._timed_out[unit] = found
                file, content, wanted = found[0]
                directory = str(self._mount / self._known[unit].cgroup)
                raise CgroupError(
                    f"{file} is '{content}', but should be '{wanted}'", path=directory, error=None, hint=hint
                )
            time.sleep(_POLL_SECONDS)
        self._timed_out.pop(unit, None)

    def _set(self, unit: str, cpus: CpuSet | None, nodes: NumaSet | None) -> None:
        self._systemd.set(unit, cpus=cpus, memory_nodes=nodes)
        known = self._known[unit]
        settings = UnitSettings(
            known.settings.allowed_cpus if cpus is None else cpus,
            known.settings.allowed_memory_nodes if nodes is None else nodes,
        )
        self._known = {**self._known, unit: replace(known, settings=settings)}

    def _restore(self, unit: str, before: UnitSettings) -> None:
        """Restore a unit's properties to those before the agent's changes.

        systemd doesn't widen a running unit when a property is cleared (#43846). A property that was originally empty is therefore first
        set to all CPUs or nodes, and cleared after the cgroup has this value.
        """
        now = self._known[unit].settings
        cpus = before.allowed_cpus if before.allowed_cpus != now.allowed_cpus else None
        nodes = before.allowed_memory_nodes if before.allowed_memory_nodes != now.allowed_memory_nodes else None
        root = self._look("")
        all_nodes = (None if root is None else root.mems_effective) or NumaSet.of(0)
        everything = UnitSettings(
            CpuSet() if cpus is None else cpus or read_possible_cpus("/"),
            NumaSet() if nodes is None else nodes or all_nodes,
        )
        self._set(unit, everything.allowed_cpus or None, everything.allowed_memory_nodes or None)
        hint = f"compare `systemctl show -p AllowedCPUs,AllowedMemoryNodes {unit}`: another program may write to the cgroup, too"
        cgroup = self._known[unit].cgroup
        self._wait(unit, lambda: _files_not_restored(everything, self._look_if_populated(cgroup)), hint)
        cleared = (None if cpus else cpus, None if nodes else nodes)
        if cleared != (None, None):
            self._set(unit, *cleared)


def _find_problem(unit: str, known: UnitProperties) -> str:
    """Return the reason why a unit's CPUs can't be set. Empty means that the CPUs can be set."""
    if known.load_state != LOADED:
        return f"unit {unit} is {known.load_state}: it gets its CPUs once systemd knows it (`systemctl status {unit}`)"
    if known.id != unit:
        return f"unit {unit} is another name of {known.id}: pin that one"
    return "" if known.cgroup else f"unit {unit} has no cgroup: only services, scopes and slices have one"


def _observed_without_cgroup(path: str, cpus: CpuSet | None, *, is_populated: bool) -> ObservedCgroup:
    return ObservedCgroup(
        path,
        controllers=frozenset(),
        subtree_control=frozenset(),
        attributes=(),
        cpus_effective=cpus,
        mems_effective=None,
        is_populated=is_populated,
        is_frozen=False,
    )


def _files_that_grant_nothing(wanted: UnitSettings, parent: ObservedCgroup | None) -> Iterator[_Mismatch]:
    """Yield each effective cpuset file of the parent cgroup that contains none of the wanted CPUs or nodes."""
    if parent is None:
        return
    cpus, nodes = parent.cpus_effective, parent.mems_effective
    if wanted.allowed_cpus and cpus is not None and not wanted.allowed_cpus & cpus:
        yield f"{parent.path}/cpuset.cpus.effective", str(cpus), str(wanted.allowed_cpus)
    if wanted.allowed_memory_nodes and nodes is not None and not wanted.allowed_memory_nodes & nodes:
        yield f"{parent.path}/cpuset.mems.effective", str(nodes), str(wanted.allowed_memory_nodes)


def _files_not_restored(wanted: UnitSettings, cgroup: ObservedCgroup | None) -> Iterator[_Mismatch]:
    """Yield the cpuset files of a unit whose content isn't the restored value.

    The effective values aren't compared, because a parent cgroup may grant less than the unit's properties.
    """
    for attribute, value in (
        (Attribute.CPUSET_CPUS, wanted.allowed_cpus),
        (Attribute.CPUSET_MEMS, wanted.allowed_memory_nodes),
    ):
        found = None if cgroup is None else cgroup.get(attribute)
        if cgroup is not None and value and found is not None and found != value:
            yield f"{cgroup.path}/{attribute.value}", str(found), str(value)


def _files_without_effect(wanted: UnitSettings, cgroup: ObservedCgroup | None) -> Iterator[_Mismatch]:
    """Yield the effective cpuset files of a unit whose content isn't the wanted value."""
    if cgroup is None:
        return
    if wanted.allowed_cpus and cgroup.cpus_effective != wanted.allowed_cpus:
        yield f"{cgroup.path}/cpuset.cpus.effective", str(cgroup.cpus_effective or ""), str(wanted.allowed_cpus)
    if wanted.allowed_memory_nodes and cgroup.mems_effective != wanted.allowed_memory_nodes:
        yield f"{cgroup.path}/cpuset.mems.effective", str(cgroup.mems_effective or ""), str(wanted.allowed_memory_nodes)


def read_cgroups(tree: CgroupTree, units: UnitCgroups, pods: Sequence[Pod]) -> ObservedCgroups:
    """Read the cgroups of the agent's own pods and of pinned units, for use outside of a turn.

    Raises:
        CgroupError: a cgroup can't be read.
    """
    return {**tree.read(OWN_DIRECTORIES), **tree.read_above(), **units.read(unit_paths(pods))}
