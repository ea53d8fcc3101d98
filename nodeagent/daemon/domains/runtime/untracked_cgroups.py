"""Untracked cgroups: cgroups below kubepods whose processes belong to no known container. The agent counts the CPUs of these cgroups as
occupied.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.daemon.reports.logs import Log
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree

_KUBELETS = ("kubepods.slice", "kubepods")
"""Possible names of kubelet's top cgroup, for its systemd driver and its cgroupfs driver."""
_MAX_NAMED = 5


class UntrackedCgroups(Struct, frozen=True):
    """Result of the last search for untracked cgroups."""

    has_listed: bool = False
    """Whether the runtime has listed its containers."""
    suspects: Mapping[str, CpuSet] = MappingProxyType({})
    """Unknown cgroups that the last search found, with their CPUs. Such a cgroup may still turn out to be a new pod's, because the runtime
    reports a pod only after its first process exists.
    """
    searched_at: float | None = None
    found: Mapping[str, CpuSet] = MappingProxyType({})
    """Untracked cgroups by path below the cgroup root, with the CPUs that count as occupied."""
    logged: frozenset[str] = frozenset()
    """Untracked cgroups that have already been logged."""

    @property
    def problem(self) -> str:
        """Describe the untracked cgroups. Empty means that there are none."""
        if not self.found:
            return ""
        named = ", ".join(f"/sys/fs/cgroup/{path} ({cpus})" for path, cpus in sorted(self.found.items())[:_MAX_NAMED])
        more = f" and {len(self.found) - _MAX_NAMED} more" if len(self.found) > _MAX_NAMED else ""
        return f"processes that belong to no container of the runtime: {named}{more}; their CPUs count as occupied (see their cgroup.procs)"


def look_for_untracked(
    before: UntrackedCgroups, tree: CgroupTree, registry: Registry, now: float, seconds: float
) -> UntrackedCgroups:
    """Search below kubepods for untracked cgroups, if the last search is more than `seconds` ago or the runtime has not listed its
    containers yet. Otherwise, only read the known untracked cgroups again.

    Until the runtime has listed its containers, every unknown cgroup is untracked. Later, a cgroup is untracked only if two searches in a
    row have found it, because a new pod's cgroup exists before the runtime reports the pod.

    Raises:
        CgroupError: a cgroup file can't be read.
    """
    made = [made for entry in registry.entries for made in entry.made]
    known = {container.cgroup for container in made}
    ids = {container.id for container in made} | {sandbox.id for sandbox in registry.sandboxes}

    def is_known(path: str) -> bool:
        # A container's cgroup is called `PREFIX-ID.scope` by the systemd driver, and `ID` by the cgroupfs driver.
        return path in known or path.rpartition("/")[2].removesuffix(".scope").rpartition("-")[2] in ids

    if not before.has_listed or before.searched_at is None or now >= before.searched_at + seconds:
        suspects = {path: cpus for top in _KUBELETS for path, cpus in tree.read_occupied_below(top, is_known).items()}
        last = before.suspects if before.has_listed else suspects
        found = {path: cpus for path, cpus in suspects.items() if path in last}
        return replace(before, searched_at=now, suspects=MappingProxyType(suspects), found=MappingProxyType(found))
    if not before.found:
        return before
    cgroups = {path: tree.read_foreign(path) for path in before.found if not is_known(path)}
    found = {
        path: cgroup.cpus_effective or CpuSet() for path, cgroup in cgroups.items() if cgroup and cgroup.is_populated
    }
    return replace(before, found=MappingProxyType(found))


def log_untracked(found: UntrackedCgroups, log: Log) -> UntrackedCgroups:
    """Log each untracked cgroup once. Nothing is logged before the runtime has listed its containers."""
    for path in sorted(found.found.keys() - found.logged) if found.has_listed else ():
        log.warning("cgroup_of_no_container", cgroup=path, cpus=str(found.found[path]))
    return replace(found, logged=frozenset(found.found) if found.has_listed else frozenset())
