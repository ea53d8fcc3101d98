"""The tree of the pods' cgroups: read as a whole, and changed one step at a time."""

import errno
import os
import select
import time
from collections.abc import Callable, Collection, Mapping, Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import (
    Change,
    EnableControllers,
    GatherThreads,
    MakeCgroup,
    RemoveCgroup,
    SetAttribute,
)
from nodeagent.core.model.cgroup import (
    MEMBER,
    Attribute,
    ByteLimit,
    ObservedCgroup,
    Partition,
    PartitionKind,
    Value,
)
from nodeagent.core.model.cgroup_layout import ABOVE, is_above, payload_path
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kernel_limits import MOST_CPUS
from nodeagent.edge.cgroups.cgroupfs.files import (
    CONTROLLERS,
    CgroupError,
    CgroupFiles,
    MemoryInUseError,
    is_cgroup,
    make_error,
)
from nodeagent.edge.cgroups.cgroupfs.processes import CgroupProcesses
from nodeagent.edge.cgroups.cgroupfs.readings import SUBTREE_CONTROL, CgroupReadings
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.cgroup_values import (
    EFFECTIVE_CPUS,
    EFFECTIVE_MEMS,
    format_for_write,
    format_value,
    parse_flat_keyed,
    parse_value,
)

if TYPE_CHECKING:
    from nodeagent.edge.cgroups.cgroupfs.watch import CgroupWatch

_OF_OTHERS = (Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX)
_EVENTS = ("cgroup.events", "memory.events")
_READ = (
    SUBTREE_CONTROL,
    *_EVENTS,
    EFFECTIVE_CPUS,
    EFFECTIVE_MEMS,
    *(attribute.value for attribute in Attribute),
)
_FILES = (CONTROLLERS, *_READ)
_OF_KERNEL = (*_EVENTS, EFFECTIVE_CPUS, EFFECTIVE_MEMS, Attribute.CPUSET_CPUS_PARTITION.value)
"""Files that the kernel itself changes. They are read again together with any changed file of the cgroup."""
_FREEZE_SECONDS = 10.0
_MODE = 0o755


class CgroupTree:
    """Tree of the pods' cgroups. Methods that read raise CgroupError if a file can't be read or parsed.

    Args:
        root: directory of the pods' cgroup. In cgroups above it, the agent writes only `cpuset.cpus.exclusive` (D27).
        begin_partition: function that writes `cpuset.cpus.partition`, which requires CAP_SYS_ADMIN. None means that this process writes the
            file itself.
        gather: function that lets all threads in a cgroup run on all of its CPUs again. None means that this process does so itself.
        watch: watch that reports changes of the pods' cgroups. None means that `read_changed` reads every cgroup.
    """

    def __init__(
        self,
        root: str,
        begin_partition: Callable[[Path, str], None] | None = None,
        gather: Callable[[Path], None] | None = None,
        watch: "CgroupWatch | None" = None,
    ) -> None:
        self.root = Path(root)
        self._files = CgroupFiles(self.root)
        self.processes = CgroupProcesses(self._files)
        self.watch = watch
        self._readings = CgroupReadings(self._read_one, self._files.list_children)
        self._read_texts: dict[str, tuple[tuple[bytes | None, ...], ObservedCgroup]] = {}
        """Contents of each cgroup's files when they were last read, with the values parsed from them."""
        self._has_partitions = False
        """Whether a partition has ever been observed. If there are partitions and a CPU goes offline, the kernel may fail to move threads
        off that CPU, so the threads must be checked.
        """
        self._begin_partition, self._gather_threads = begin_partition, gather

    @property
    def mount(self) -> Path:
        """Return the directory of the root cgroup, where cgroup v2 is mounted."""
        return self._files.mount

    def read(self, own: frozenset[str], only: Collection[str] | None = None) -> Mapping[str, ObservedCgroup]:
        """Read the pods' cgroup and every managed cgroup below it. Return them by path.

        Args:
            own: paths of the agent's cgroups that aren't pods (`burstable`, …).
            only: paths of the cgroups to read. None means all.
        """
        if only is not None:
            return {path: seen for path in only if (seen := self._read_one(path)) is not None}
        self._readings.doubt_all()
        return self._refresh(own, 0)

    def read_changed(self, own: frozenset[str], part: float) -> Mapping[str, ObservedCgroup]:
        """Read the cgroups that may have changed since the last reading, and a fraction of the others. Return all cgroups by path, as
        `read` does.

        If there is no watch, or the watch has missed events, every cgroup is read. A cgroup without changes stays the same object.

        Args:
            own: paths of the agent's cgroups that aren't pods.
            part: fraction, from 0 to 1, of the cgroups to read although no change was reported.
        """
        changes = None if self.watch is None else self.watch.take_changes()
        if changes is None or part >= 1:
            self._readings.doubt_all()
        for path, file in changes or ():
            self._readings.doubt(path, file)
        if part and self._has_partitions:
            self._readings.doubt_containers()
        return self._refresh(own, part)

    def _refresh(self, own: frozenset[str], part: float) -> Mapping[str, ObservedCgroup]:
        found = self._readings.refresh(own, part)
        # texts of removed unmanaged cgroups may remain here, because nothing reports their removal
        if len(self._read_texts) > len(found):
            self._read_texts = {path: self._read_texts[path] for path in found}
        return found

    def writing(self) -> AbstractContextManager[None]:
        """Return a context manager that holds back the watch's wake-ups while the agent itself writes to cgroups."""
        return nullcontext() if self.watch is None else self.watch.held()

    def doubt(self, path: str) -> None:
        """Make the next reading include a cgroup, although the kernel reports no change of it."""
        self._readings.doubt(path, "memory.events")

    def read_above(self) -> dict[str, ObservedCgroup]:
        """Read `cpuset.cpus.exclusive` of the cgroups above the pods' cgroup. Cgroups without this file are left out, namely the root
        cgroup, and every cgroup on an older kernel.
        """
        attribute, found, path = Attribute.CPUSET_CPUS_EXCLUSIVE, {}, ABOVE
        for directory in self.root.parents:
            if directory == self.mount or not directory.is_relative_to(self.mount):
                break
            value = self._files.read_value(path, attribute)
            if value is not None:
                found[path] = ObservedCgroup(
                    path,
                    frozenset(),
                    frozenset(),
                    ((attribute, value),),
                    None,
                    None,
                    is_populated=False,
                    is_frozen=False,
                )
            path += f"/{ABOVE}"
        return found

    def read_foreign(self, path: str) -> ObservedCgroup | None:
        """Read the CPUs, memory nodes and population of a cgroup that the agent doesn't manage. None means that the cgroup doesn't exist.

        If the cgroup doesn't have the cpuset controller, its effective CPUs are those of its nearest ancestor with the controller.

        Args:
            path: path below the root cgroup, or absolute.
        """
        directory = self.mount / path
        # every cgroup, even the root, has cgroup.controllers, so without this file, the directory is no cgroup
        if self._files.read(str(directory), "cgroup.controllers") is None:
            return None
        found = ((attribute, self._files.read_value(str(directory), attribute)) for attribute in _OF_OTHERS)
        cpus = (self._files.read_ids(str(each), EFFECTIVE_CPUS, CpuSet) for each in (directory, *directory.parents))
        state = self._files.read_numbers(str(directory), "cgroup.events")
        return ObservedCgroup(
            path=str(directory),
            controllers=frozenset(),
            subtree_control=frozenset(),
            attributes=tuple((attribute, value) for attribute, value in found if value is not None),
            cpus_effective=next((each for each in cpus if each is not None), None),
            mems_effective=self._files.read_ids(str(directory), EFFECTIVE_MEMS, NumaSet),
            is_populated=state.get("populated") == 1,
            is_frozen=state.get("frozen") == 1,
        )

    def read_occupied_below(self, top: str, is_known: Callable[[str], bool]) -> dict[str, CpuSet]:
        """Find the unknown cgroups with processes in another program's tree of cgroups. Return their effective CPUs by path below the root
        cgroup.

        Args:
            top: path of the tree's top cgroup, below the root cgroup. It need not exist.
            is_known: function that returns whether a cgroup is known. Cgroups below a known one are not searched.
        """
        found: dict[str, CpuSet] = {}
        pending = [(top, CpuSet())]
        while pending:
            path, cpus = pending.pop()
            directory = str(self.mount / path)
            if is_known(path) or self._files.read_numbers(directory, "cgroup.events").get("populated") != 1:
                continue
            cpus = self._files.read_ids(directory, EFFECTIVE_CPUS, CpuSet) or cpus
            if inner := self._files.list_children(directory):
                pending += [(f"{path}/{name}", cpus) for name in inner]
            else:
                found[path] = cpus
        return found

    def read_chain(self) -> tuple[tuple[str, CpuSet], ...] | None:
        """Read the effective CPUs of the pods' cgroup and all cgroups above it. Return (path, CPUs) pairs, starting at the root cgroup.

        None means that one of the cgroups doesn't exist or has no cpuset controller. This may last only until systemd enables the
        controller.
        """
        found: list[tuple[str, CpuSet]] = []
        for directory in (self.root, *self.root.parents):
            cpus = self._files.read_ids(str(directory), EFFECTIVE_CPUS, CpuSet)
            if cpus:
                found.append((str(directory), cpus))
            elif is_cgroup(directory):
                return None
            else:
                break
        return tuple(reversed(found)) or None

    def apply(self, change: Change) -> None:
        """Make one change, and check that the kernel has granted the written value.

        Raises:
            CgroupError: the change failed, or the effective CPUs or memory nodes differ from those that were written.
        """
        # enabling a controller adds files to the cgroups below
        file = change.attribute.value if isinstance(change, SetAttribute) else ""
        self._readings.doubt(change.path, file)
        match change:
            case MakeCgroup(path, has_payload):
                for directory in (path, payload_path(path)) if has_payload else (path,):
                    try:
                        (self.root / directory).mkdir(mode=_MODE)
                    except FileExistsError:
                        continue
                    except OSError as err:
                        raise make_error(f"make cgroup {self.root / directory}", self.root / directory, err) from err
            case EnableControllers(path, controllers):
                self._files.write(path, SUBTREE_CONTROL, " ".join(f"+{c}" for c in controllers))
            case GatherThreads(path):
                self._gather(path)
            case SetAttribute(path, attribute, value):
                self._set(path, attribute, value)
                self._verify(path, attribute, value)
            case RemoveCgroup(path):
                self._remove(path)

    def _read_one(self, path: str, changed: AbstractSet[str] | None = None) -> ObservedCgroup | None:
        """Read a cgroup. `changed` contains the names of the files that have changed since the last reading; None means that any may have.
        The result None means that the cgroup doesn't exist.
        """
        files, known = self._files, self._read_texts.get(path)
        names = _READ
        if changed is not None and known is not None:
            names = tuple([name for name in _READ if name in _OF_KERNEL or name in changed])
        texts = files.read_all(path, names)
        if CONTROLLERS not in texts:
            self._read_texts.pop(path, None)
            return None
        content = tuple(map(texts.get, _FILES))
        if names is not _READ and known is not None:
            if content[0] != known[0][0]:
                return self._read_one(path)
            pairs = zip(_FILES, content, known[0], strict=True)
            content = tuple([now if now is not None or name in names else before for name, now, before in pairs])
        if known is not None and known[0] == content and not self._has_partitions:
            return known[1]
        try:
            content, parsed = _parse_contents(content)
        except ValueError:
            self._raise_misread(path, {name: text.decode() for name, text in texts.items()})
            raise
        observed = replace(parsed, path=path)
        kind = observed.get(Attribute.CPUSET_CPUS_PARTITION)
        self._has_partitions |= isinstance(kind, Partition) and kind.kind is not PartitionKind.MEMBER
        is_container = observed.get(Attribute.FALLBACK_CPUS) is not None
        if self._has_partitions and observed.is_populated and is_container and self._find_outside(path):
            # CPUs may have gone online or offline between the two readings, so both values are read again
            now = files.read_ids(path, EFFECTIVE_CPUS, CpuSet)
            observed = replace(observed, cpus_effective=now, elsewhere=self._find_outside(path))
        self._read_texts[path] = (content, observed)
        return observed

    def _raise_misread(self, path: str, texts: Mapping[str, str]) -> None:
        """Parse the contents file by file, after parsing all at once has failed. The error that is raised then names the file."""
        for name, text in texts.items():
            if name in _EVENTS:
                self._files.parse_numbers(path, name, text)
            elif name in {EFFECTIVE_CPUS, EFFECTIVE_MEMS}:
                self._files.parse_ids(path, name, CpuSet, text)
            elif name not in {CONTROLLERS, SUBTREE_CONTROL}:
                self._files.parse(path, Attribute(name), text)

    def _find_outside(self, path: str) -> CpuSet:
        """Return the CPUs on which threads of a cgroup may run although they aren't among the cgroup's effective CPUs."""
        effective = frozenset(self._files.read_ids(path, EFFECTIVE_CPUS, CpuSet) or ())
        if not effective:
            return CpuSet()
        outside = set[int]()
        for tid in self.processes.list_threads(path):
            with suppress(ProcessLookupError):
                outside |= os.sched_getaffinity(tid) - effective
        return CpuSet.from_ids(outside)

    def _gather(self, path: str) -> None:
        """Reset the affinity of those threads in a cgroup that may run on CPUs outside of it. They may then run on all CPUs of the cgroup.

        An affinity that such a thread has set itself is lost. If the ID of a thread is reused during the call, another thread's affinity is
        reset; the kernel still keeps this thread within its own cgroup.

        Raises:
            CgroupError: some threads may still run elsewhere.
        """
        directory = self.root / path
        try:
            if self._gather_threads is not None:
                self._gather_threads(directory)
            else:
                own = frozenset(self._files.read_ids(path, EFFECTIVE_CPUS, CpuSet) or ())
                for tid in self.processes.list_threads(path):
                    try:
                        if not os.sched_getaffinity(tid) <= own:
                            os.sched_setaffinity(tid, range(MOST_CPUS))
                    except ProcessLookupError:
                        continue
                    except OSError as err:
                        raise make_error(f"bring thread {tid} back to {directory}", directory, err) from err
        except NodeAgentError as err:
            hint = err.hint or "see `systemctl status nodeagent-launcher`"
            raise CgroupError(str(err), path=str(directory), error=None, hint=hint) from err
        if outside := self._find_outside(path):
            raise CgroupError(
                f"threads of {directory} may still run on {outside}",
                path=str(directory),
                error=None,
                hint="compare Cpus_allowed_list in /proc/TID/status with cpuset.cpus.effective",
            )

    def _remove(self, path: str) -> None:
        """Remove a cgroup without processes, together with the descendants that its container created."""
        assert not is_above(path), f"{path} is not ours"
        for child in self._files.list_children(path):
            self._remove(f"{path}/{child}")
        try:
            (self.root / path).rmdir()
        except FileNotFoundError:
            return
        except OSError as err:
            raise make_error(f"remove cgroup {self.root / path}", self.root / path, err) from err

    def _set(self, path: str, attribute: Attribute, value: Value) -> None:
        if attribute is Attribute.MEMORY_MAX and isinstance(value, ByteLimit) and value.limit_bytes is not None:
            self._check_memory(path, value.limit_bytes)
        if self._begin_partition is None or not isinstance(value, Partition) or value == MEMBER:
            self._files.write(path, attribute.value, format_for_write(attribute, value))
            return
        try:
            self._begin_partition(self.root / path, value.kind.value)
        except NodeAgentError as err:
            hint = err.hint or "see `systemctl status nodeagent-launcher`"
            raise CgroupError(str(err), path=str(self.root / path), error=None, hint=hint) from err

    def _check_memory(self, path: str, limit_bytes: int) -> None:
        """Raise MemoryInUseError if a limit is lower than the memory in use, because the kernel would kill processes. kubelet also refuses
        such a limit (KEP-1287).
        """
        text = self._files.read(path, "memory.current")
        if text is not None and int(text) > limit_bytes:
            file = self.root / path / "memory.max"
            raise MemoryInUseError(
                f"{file} was not lowered: more than {limit_bytes} bytes are in use, and the kernel would kill processes",
                path=str(file),
                error=None,
                hint="raise the memory limit, or wait: the agent tries again at every sync. `nodeagent inspect` shows the memory in use",
            )

    def _verify(self, path: str, attribute: Attribute, value: Value) -> None:
        match attribute, value:
            case Attribute.CPUSET_CPUS, CpuSet():
                granted = self._files.read_ids(path, EFFECTIVE_CPUS, CpuSet)
                if granted and granted != value:
                    value, granted = self._adjust_for_partitions(path, value, granted)
                self._compare(path, EFFECTIVE_CPUS, value, granted)
            case Attribute.CPUSET_MEMS, NumaSet():
                self._compare(path, EFFECTIVE_MEMS, value, self._files.read_ids(path, EFFECTIVE_MEMS, NumaSet))
            case Attribute.FREEZE, True:
                self._wait_until_frozen(path)
            case Attribute.CPUSET_CPUS_PARTITION, Partition():
                file = self.root / path / attribute.value
                state = self._files.parse(path, attribute, self._files.read(path, attribute.value) or "")
                if state != value:
                    raise CgroupError(
                        f"{file} is '{format_value(state)}', but should be '{format_value(value)}'",
                        path=str(self.root / path),
                        error=errno.EINVAL,
                        hint="the kernel's reason is in the parentheses; compare cpuset.cpus.exclusive.effective of the cgroups above",
                    )
            case _:
                pass

    def _adjust_for_partitions(self, path: str, wanted: CpuSet, granted: CpuSet) -> tuple[CpuSet, CpuSet]:
        """Adjust the wanted and the granted CPUs of a cgroup, so that they are equal if the kernel granted everything.

        A partition can only have exclusive CPUs, so no others are wanted. In another cgroup, exclusive CPUs count as granted, because
        partitions below it may have taken them.
        """
        kind = self._files.read(path, Attribute.CPUSET_CPUS_PARTITION.value)
        name = Attribute.CPUSET_CPUS_EXCLUSIVE
        exclusive = self._files.parse(path, name, self._files.read(path, name.value) or "")
        assert isinstance(exclusive, CpuSet)
        if kind == "member\n":
            return wanted, granted | (exclusive & wanted)
        return (wanted & exclusive, granted) if kind in {"root\n", "isolated\n"} else (wanted, granted)

    def _compare(self, path: str, name: str, wanted: CpuSet | NumaSet, granted: CpuSet | NumaSet | None) -> None:
        if granted is None:
            raise make_error(f"read {self.root / path / name}", self.root / path / name, OSError(errno.ENOENT, name))
        if granted != wanted:
            raise CgroupError(
                f"{self.root / path}/{name} is '{granted}', but should be '{wanted}'",
                path=str(self.root / path),
                error=None,
                hint="a cgroup above grants less, or CPUs went offline: compare cpuset.*.effective of the cgroups above",
            )

    def _wait_until_frozen(self, path: str) -> None:
        """Wait until a cgroup is frozen. The kernel freezes a cgroup asynchronously, and then signals POLLPRI on cgroup.events."""
        file = f"{self.root}/{path}/cgroup.events"
        deadline = time.monotonic() + _FREEZE_SECONDS
        try:
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC), "rb") as events:
                poller = select.poll()
                poller.register(events, select.POLLPRI)
                while parse_flat_keyed(os.pread(events.fileno(), 4096, 0).decode()).get("frozen") != 1:
                    seconds = deadline - time.monotonic()
                    if seconds <= 0:
                        raise CgroupError(
                            f"{self.root / path} did not freeze within {_FREEZE_SECONDS:.0f} s",
                            path=str(self.root / path),
                            error=None,
                            hint="a process may hang in the kernel (state D): see `ps -o pid,stat,wchan`",
                        )
                    poller.poll(seconds * 1000)
        except OSError as err:
            raise make_error(f"read {file}", file, err) from err


@lru_cache(maxsize=1024)  # results are cached and shared, because many cgroups have the same texts
def _parse_contents(content: tuple[bytes | None, ...]) -> tuple[tuple[bytes | None, ...], ObservedCgroup]:
    """Parse the contents of a cgroup's files, given in the order of `_FILES`. Return the contents, and a cgroup with an empty path.

    The results are cached, so cgroups with equal contents share one copy of them.

    Raises:
        ValueError: a content isn't in its file's format.
    """
    texts = [None if text is None else text.decode() for text in content]
    controllers, subtree_control, events, memory_events, cpus, mems, *attributes = texts
    state, memory = (parse_flat_keyed(text or "") for text in (events, memory_events))
    # When memory.oom.group kills a cgroup, `oom_kill` counts the first chosen process twice, unless this process had already ended
    # (mm/oom_kill.c, oom_kill_process). `oom_group_kill` (kernel 5.17) counts the killed cgroups.
    group_kills = memory.get("oom_group_kill", 0)
    return content, ObservedCgroup(
        path="",
        controllers=_parse_names(controllers or ""),
        subtree_control=_parse_names(subtree_control or ""),
        attributes=tuple(
            (attribute, parse_value(attribute, text))
            for attribute, text in zip(Attribute, attributes, strict=True)
            if text is not None
        ),
        cpus_effective=None if cpus is None else CpuSet.parse(cpus.strip()),
        mems_effective=None if mems is None else NumaSet.parse(mems.strip()),
        is_populated=state.get("populated") == 1,
        is_frozen=state.get("frozen") == 1,
        oom_kills=max(memory.get("oom_kill", 0) - group_kills, group_kills),
    )


@lru_cache(maxsize=64)
def _parse_names(text: str) -> frozenset[str]:
    return frozenset(text.split())
