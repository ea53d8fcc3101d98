"""Cached readings of the pods' cgroups. A reading is used until its cgroup may have changed.

The kernel reports a write to a file by another process, a cgroup that is created, removed or emptied, and a partition that it makes
invalid. The kernel doesn't report changes of a thread's affinity. It also doesn't report changes of effective CPUs and memory nodes that a
change of another cgroup causes.

After a change of CPUs or memory nodes, the cgroups below are therefore also read again. After a change of a partition, every cgroup that
could have the partition's CPUs is read again. For all other changes, the cgroups are read again in rotation.

If only files of a cgroup have changed, only these files are read, and those that the kernel changes by itself.
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
"""Number of managed levels below a directory of the agent: pod and container. Deeper cgroups belong to the containers that created them."""


class CgroupReadings:
    """Cgroups below the pods' cgroup, each as of its last reading.

    Args:
        read: function that reads a cgroup by its path below the pods' cgroup. None means that the cgroup doesn't exist. The second argument
            names the files that have changed since the last reading. None means that any file may have changed.
        list_children: function that lists the names of the cgroups directly below a path.
    """

    def __init__(
        self,
        read: Callable[[str, AbstractSet[str] | None], ObservedCgroup | None],
        list_children: Callable[[str], Iterable[str]],
    ) -> None:
        self._read, self._list_children = read, list_children
        self._known: Mapping[str, ObservedCgroup] = {}
        self._in_doubt: dict[str, set[str]] = {}
        """Names of the changed files, by path."""
        self._in_doubt_below: set[str] = {""}
        self._changed_cpusets: set[str] = set()
        self._changed_partitions: set[str] = set()
        self._rotation = Rotation()

    def doubt_all(self) -> None:
        """Mark every cgroup to be read again at the next refresh."""
        self._in_doubt_below.add("")

    def doubt(self, path: str, file: str = "") -> None:
        """Mark a cgroup to be read again at the next refresh. Also mark all other cgroups that the change of its file may affect.

        Args:
            path: path of a cgroup that was made, removed or changed.
            file: name of the changed file. Empty means the cgroup itself.
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
        """Mark the cgroup of each container with processes to be read again at the next refresh. This is necessary because the kernel
        doesn't report changes of a thread's affinity.
        """
        for path, cgroup in self._known.items():
            if cgroup.is_populated and cgroup.get(Attribute.FALLBACK_CPUS) is not None:
                self._in_doubt.setdefault(path, set())

    def refresh(self, own: frozenset[str], part: float) -> Mapping[str, ObservedCgroup]:
        """Read the marked cgroups again, and a fraction of the others in rotation.

        Unchanged readings stay the same objects. Without any change, the same mapping is returned.

        Args:
            own: paths of the agent's cgroups that aren't pods (`burstable`, …).
            part: fraction of all cgroups, 0 to 1, to read again even if unmarked.

        Raises:
            CgroupError: a cgroup can't be read. It is read again at the next refresh.
        """
        known = dict(self._known)
        changed_files: dict[str, AbstractSet[str]] = {
            path: files for path, files in self._in_doubt.items() if path in known and _is_managed(path, own)
        }
        unknown = self._in_doubt.keys() - changed_files.keys()
        wanted = [path for path in (*unknown, *self._in_doubt_below) if _is_managed(path, own)]
        if "" in self._in_doubt_below:
            wanted += known
        else:
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
        """Return the cgroups whose effective CPUs may have changed together with a partition. Their `cpuset.cpus` is empty, or contains
        some of the partition's CPUs.
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
        """Return the CPUs in the cgroup's `cpuset.cpus`. If that file is empty, return the CPUs of the nearest cgroup above whose file
        isn't empty.

        None means that the file is empty in all managed cgroups above.
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
        """Read the unknown cgroups below a cgroup, and add them to `known`. Return whether any were found."""
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
