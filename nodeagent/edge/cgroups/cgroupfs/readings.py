"""Cache of the pods' cgroups. A cgroup is read again only if it may have changed.

The kernel reports some changes: another process has written to a file; a cgroup was created, removed or emptied; a partition became
invalid. It doesn't report others: changes of a thread's affinity, and changes of effective CPUs and memory nodes that follow from a change
elsewhere.

Therefore, more is read than was reported. If CPUs or memory nodes of a cgroup change, all its descendants are read. If a partition changes,
each cgroup that could have the partition's CPUs is read. All other unreported changes are found because each turn reads a fraction of the
cgroups, in rotation.

If only some files of a cgroup have changed, only these files and those that the kernel itself changes are read.
"""

from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet

from nodeagent.core.model.cgroup import MEMBER, Attribute, ObservedCgroup
from nodeagent.core.model.cgroup_layout import PAYLOAD, is_within
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.rotation import Rotation

SUBTREE_CONTROL = "cgroup.subtree_control"
_OF_PARTITIONS = frozenset({Attribute.CPUSET_CPUS_EXCLUSIVE.value, Attribute.CPUSET_CPUS_PARTITION.value})
_OF_CPUSETS = frozenset({Attribute.CPUSET_CPUS.value, Attribute.CPUSET_MEMS.value})
_CPUS = (Attribute.CPUSET_CPUS, Attribute.CPUSET_CPUS_EXCLUSIVE, Attribute.FALLBACK_CPUS)
_POD_LEVELS = 2
"""Number of levels that the agent manages below each of its directories: pod and container. Deeper cgroups belong to the containers'
processes.
"""


class CgroupReadings:
    """Cache of the cgroups below the pods' cgroup, as they were last read.

    Args:
        read: function that reads a cgroup, by its path below the pods' cgroup and the names of its changed files. If the names are None,
            any file may have changed. The result None means that the cgroup doesn't exist.
        list_children: function that lists the names of a cgroup's children.
    """

    def __init__(
        self,
        read: Callable[[str, AbstractSet[str] | None], ObservedCgroup | None],
        list_children: Callable[[str], Iterable[str]],
    ) -> None:
        self._read, self._list_children = read, list_children
        self._known: Mapping[str, ObservedCgroup] = {}
        self._in_doubt: dict[str, set[str]] = {}
        """Names of the changed files by cgroup path. They are read at the next refresh."""
        self._in_doubt_below: set[str] = {""}
        self._changed_cpusets: set[str] = set()
        self._changed_partitions: set[str] = set()
        self._rotation = Rotation()

    def doubt_all(self) -> None:
        """Make the next refresh read every cgroup."""
        self._in_doubt_below.add("")

    def doubt(self, path: str, file: str = "") -> None:
        """Make the next refresh read a changed cgroup, and all cgroups whose values the change may affect.

        Args:
            path: path of the cgroup.
            file: name of the changed file. Empty means that the cgroup itself was created or removed.
        """
        self._in_doubt.setdefault(path, set()).add(file)
        if path.endswith(f"/{PAYLOAD}"):
            path = path.removesuffix(f"/{PAYLOAD}")
            self._in_doubt.setdefault(path, set()).add(f"{PAYLOAD}/{file}")
        if file in _OF_PARTITIONS:
            self._changed_partitions.add(path)
        elif file in _OF_CPUSETS:
            self._changed_cpusets.add(path)
        elif file == SUBTREE_CONTROL or not file:
            self._in_doubt_below.add(path)

    def doubt_containers(self) -> None:
        """Make the next refresh read each container's cgroup that has processes, because the kernel doesn't report changes of threads'
        affinity.
        """
        for path, cgroup in self._known.items():
            if cgroup.is_populated and cgroup.get(Attribute.FALLBACK_CPUS) is not None:
                self._in_doubt.setdefault(path, set())

    def refresh(self, own: frozenset[str], part: float) -> Mapping[str, ObservedCgroup]:
        """Read the cgroups that may have changed, and a fraction of the others in rotation. Return all cgroups by path.

        An unchanged cgroup stays the same object. If no cgroup has changed, the mapping stays the same object, too.

        Args:
            own: paths of the agent's cgroups that aren't pods (`burstable`, …).
            part: fraction, from 0 to 1, of the cgroups to read although no change was reported.

        Raises:
            CgroupError: a cgroup can't be read. The next refresh tries again.
        """
        known = dict(self._known)
        changed_files: dict[str, AbstractSet[str]] = {}
        if "" in self._in_doubt_below:
            wanted = ["", *known]  # new cgroups are found below
        else:
            changed_files |= {
                path: files for path, files in self._in_doubt.items() if path in known and _is_managed(path, own)
            }
            unknown = self._in_doubt.keys() - changed_files.keys()
            wanted = [path for path in (*unknown, *self._in_doubt_below) if _is_managed(path, own)]
            tops = self._in_doubt_below & known.keys()  # if a cgroup is unknown, all cgroups below it are unknown, too
            if tops:
                wanted += [path for path in known if _is_within_any(path, tops)]
            if self._changed_cpusets:
                having = [path for path, cgroup in known.items() if cgroup.cpus_effective is not None]
                below = [path for path in having if _is_within_any(path, self._changed_cpusets)]
                changed_files = dict.fromkeys(below, frozenset()) | changed_files
            wanted += self._find_beside_partitions(own)
        wanted += self._rotation.take(known, part)
        changed = False
        for path, files in (changed_files | dict.fromkeys(wanted)).items():
            before = known.get(path)
            if before is not None and path not in self._known:
                continue  # the cgroup has just been read, because a cgroup above it is new
            now = self._read(path, files)
            if now is None:
                gone = [other for other in known if is_within(other, path)]
                changed |= bool(gone)
                for other in gone:
                    del known[other]
            elif now != before:
                known[path], changed = now, True
                if before is None:
                    self._read_below(path, own, known)
        # if the pods' cgroup is new, all cgroups below it have just been read
        if "" in self._in_doubt_below and "" in self._known:
            changed |= self._read_below("", own, known)
        self._in_doubt.clear()
        self._in_doubt_below.clear()
        self._changed_cpusets.clear()
        self._changed_partitions.clear()
        if changed:
            self._known = known
        return self._known

    def _find_beside_partitions(self, own: frozenset[str]) -> list[str]:
        """Return the cgroups whose effective CPUs a change of a partition may have changed, too. These are the cgroups whose `cpuset.cpus`
        is empty or contains CPUs of the partition.
        """
        cgroups = {path: self._known.get(path) for path in self._in_doubt_below | self._changed_cpusets}
        cgroups |= {path: self._read(path, None) for path in self._changed_cpusets if not _is_managed(path, own)}
        changed = self._changed_partitions | {
            path
            for path, cgroup in cgroups.items()
            if cgroup is not None and cgroup.get(Attribute.CPUSET_CPUS_PARTITION) not in {None, MEMBER}
        }
        if not changed:
            return []
        if not all(_is_managed(path, own) for path in changed):
            return list(self._known)
        moved = CpuSet()
        for cgroup in filter(None, (*map(self._known.get, changed), *(self._read(path, None) for path in changed))):
            for attribute in _CPUS:
                cpus = cgroup.get(attribute)
                moved |= cpus if isinstance(cpus, CpuSet) else CpuSet()
        return [
            *changed,
            *(path for path in self._known if (listed := self._find_listed(path)) is None or listed & moved),
        ]

    def _find_listed(self, path: str) -> CpuSet | None:
        """Return the CPUs in a cgroup's `cpuset.cpus`, or in that of its nearest ancestor where the file isn't empty.

        None means that the file is empty in the cgroup and in all its ancestors up to the pods' cgroup.
        """
        while True:
            cgroup = self._known.get(path)
            cpus = None if cgroup is None else cgroup.get(Attribute.CPUSET_CPUS)
            if isinstance(cpus, CpuSet) and cpus:
                return cpus
            if not path:
                return None
            path = path.rpartition("/")[0]

    def _read_below(self, top: str, own: frozenset[str], known: dict[str, ObservedCgroup]) -> bool:
        """Read the cgroups below a cgroup that aren't in `known`, and add them. Return whether there were any."""
        pending, found = [top], False
        while pending:
            above = pending.pop()
            for name in self._list_children(above):
                path = f"{above}/{name}" if above else name
                if not _is_managed(path, own):
                    continue
                if path not in known:
                    cgroup = self._read(path, None)
                    if cgroup is None:
                        continue
                    known[path], found = cgroup, True
                if _is_managed(f"{path}/pod", own):
                    pending.append(path)
        return found


def _is_within_any(path: str, tops: AbstractSet[str]) -> bool:
    while path not in tops:
        path, _, name = path.rpartition("/")
        if not name:
            return False
    return True


def _is_managed(path: str, own: frozenset[str]) -> bool:
    if not path or path in own:
        return True
    for _ in range(_POD_LEVELS):
        path, _, name = path.rpartition("/")
        if path in own or (not path and name.startswith("pod")):
            return True
    return False
