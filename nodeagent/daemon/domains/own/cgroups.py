"""The agent's own domain: pods from manifests, whose processes the launcher starts and ends, in cgroups below the pods' cgroup."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DomainInput, DomainView
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, is_pinned
from nodeagent.core.model.config import Config
from nodeagent.core.model.derived import find_replaced, list_replaced
from nodeagent.core.model.pod import OWN
from nodeagent.core.model.rotation import Rotation
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.passive_domain import PassiveDomain
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree


class SourceReader(Protocol):
    """Reader of a source of pods. It wakes the deciding thread when its pods change."""

    def look(self, *, rescan: bool, part: float = 1.0) -> PodSource:
        """Return the source's pods.

        Args:
            rescan: whether to read the source again. Otherwise, the last result is returned.
            part: fraction of the source to check for unreported changes (see `Domain.bring`).
        """
        ...

    def follow(self, config: Config) -> None:
        """Apply a changed configuration."""
        ...


class OwnDomain(PassiveDomain):
    """The agent's own domain. It reads and writes the cgroups of its pods. The step `act` of a turn starts and signals their processes."""

    name = OWN

    def __init__(self, tree: CgroupTree, readers: Sequence[SourceReader]) -> None:
        self._tree, self._readers = tree, readers
        self._entries: tuple[PodEntry, ...] = ()
        """Pod entries for which `_paths` was computed."""
        self._paths: dict[str, str] = {}
        """Cgroup path of each run in `_entries`, by the run's ID."""
        self._runs: Runs = {}
        self._rotation = Rotation()
        self._strays: frozenset[str] = frozenset()
        self._cgroups: ObservedCgroups = {}
        self._above: ObservedCgroups = {}
        self._all: ObservedCgroups = {}
        """Observed cgroups. `_cgroups` contains the pods' cgroup and its descendants, `_above` the ancestors, and `_all` both."""

    def follow(self, config: Config, /) -> None:
        for reader in self._readers:
            reader.follow(config)

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:
        return tuple(reader.look(rescan=rescan, part=part) for reader in self._readers)

    def observe(self, look: DomainInput, /) -> DomainView:
        runs = look.runs or {}
        for attempt in list_replaced(self._runs, runs) if runs is not self._runs else ():
            if path := self._list_paths(look.state).get(attempt):
                self._tree.doubt(path)  # a start populates the container's cgroup, and the end may be an OOM kill
        self._runs = runs
        cgroups, above = self._tree.read_changed(OWN_DIRECTORIES, look.part), self._tree.read_above()
        changed = frozenset[str]()
        if cgroups is not self._cgroups or above != self._above:
            changed = frozenset(list_replaced(self._cgroups, cgroups))
            self._cgroups, self._above, self._all = cgroups, above, {**cgroups, **above}
        return DomainView(self._all, strays=self._find_strays(look.state, look.part, changed))

    def _find_strays(self, state: NodeState, part: float, changed: frozenset[str]) -> frozenset[str]:
        """Return the IDs of the launcher's runs whose main process has left the container's cgroup.

        The kernel reports such a process only if its old cgroup becomes empty, so the runs must be checked. Each call checks the runs that
        were outside before, the runs whose cgroups have changed, and the fraction `part` of the other runs.
        """
        checked = {*self._strays, *self._rotation.take(self._runs, part)}
        if not checked and not changed:
            return self._strays
        paths = self._list_paths(state)
        if changed:
            checked |= {attempt for attempt, path in paths.items() if path in changed}
        strays = set()
        for attempt in checked & self._runs.keys() & paths.keys():
            run, path = self._runs[attempt], paths[attempt]
            if run.exit is not None or run.pid is None or run.start_ticks is None:
                continue
            if self._tree.processes.has_left(path, run.pid, run.start_ticks):
                strays.add(attempt)
        self._strays = frozenset(strays)
        return self._strays

    def _list_paths(self, state: NodeState) -> Mapping[str, str]:
        """Return the cgroup path of each container's current run, by the run's ID."""
        gone, came = find_replaced(self._entries, state.entries)
        for attempt in chain.from_iterable([entry.paths_of_runs for entry in self._entries[gone]]):
            del self._paths[attempt]
        for entry in state.entries[came]:
            self._paths |= entry.paths_of_runs
        self._entries = state.entries
        return self._paths

    def owns(self, path: str, /) -> bool:
        return not is_pinned(path)

    def apply(self, change: Change, /) -> None:
        self._tree.apply(change)
