"""Processes among kubelet's pods that belong to no container the runtime tells of: where they may run, nobody else is let in."""

import time
from collections.abc import Mapping

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.daemon.reports.logs import Log
from nodeagent.edge.cgroups.cgroupfs import CgroupTree

_KUBELETS = ("kubepods.slice", "kubepods")
"""Where kubelet's pods are, with either cgroup driver."""
_MAX_NAMED = 5


class Strangers:
    """Used by the deciding thread.

    Args:
        tree: for the cgroups.
        log: told of each that stays.
    """

    def __init__(self, tree: CgroupTree, log: Log) -> None:
        self._tree = tree
        self._log = log
        self.has_listed = False
        """The runtime has told what there is."""
        self._suspects: Mapping[str, CpuSet] = {}
        """Cgroups that were unknown at the last search: a pod's first process is there before the runtime tells of the pod."""
        self._searched_at: float | None = None
        self.found: Mapping[str, CpuSet] = {}
        """By cgroup below the root of all, the CPUs that count as occupied."""
        self._logged: frozenset[str] = frozenset()
        """Cgroups of `found`."""

    def look(self, registry: Registry, seconds: float) -> None:
        """Search all if so many seconds have passed since the last time, or nothing is known for certain; otherwise look at those found.

        What is unknown counts at once as long as the runtime hasn't told what there is; later, if it is so at two searches.

        Raises:
            CgroupError: a file can't be read.
        """
        made = [made for entry in registry.entries for made in entry.made]
        known = {one.cgroup for one in made}
        ids = {one.id for one in made} | {one.id for one in registry.sandboxes}

        def is_known(path: str) -> bool:
            return path in known or _id_of(path) in ids

        now = time.monotonic()
        if not self.has_listed or self._searched_at is None or now >= self._searched_at + seconds:
            found = {path: cpus for top in _KUBELETS for path, cpus in self._tree.occupied_below(top, is_known).items()}
            last = self._suspects if self.has_listed else found
            self._searched_at, self._suspects = now, found
            self._note({path: cpus for path, cpus in found.items() if path in last})
        elif self.found:
            there = {path: self._tree.read_of_others(path) for path in self.found if not is_known(path)}
            self._note(
                {path: one.cpus_effective or CpuSet() for path, one in there.items() if one and one.is_populated}
            )

    @property
    def problem(self) -> str:
        """Who they are; empty: there are none."""
        if not self.found:
            return ""
        named = ", ".join(f"/sys/fs/cgroup/{path} ({cpus})" for path, cpus in sorted(self.found.items())[:_MAX_NAMED])
        more = f" and {len(self.found) - _MAX_NAMED} more" if len(self.found) > _MAX_NAMED else ""
        return f"processes of no container that the runtime tells of: {named}{more}; their CPUs count as occupied (see cgroup.procs there)"

    def _note(self, found: Mapping[str, CpuSet]) -> None:
        for path in sorted(found.keys() - self._logged) if self.has_listed else ():
            self._log.warning("cgroup_of_no_container", cgroup=path, cpus=str(found[path]))
        self._logged = frozenset(found) if self.has_listed else frozenset()
        self.found = found


def _id_of(path: str) -> str:
    """Return the id in a cgroup's name: `PREFIX-ID.scope`, or the id alone with the cgroupfs driver."""
    return path.rpartition("/")[2].removesuffix(".scope").rpartition("-")[2]
