"""The cgroup v2 tree below the pods' cgroup: read as a whole, and changed one change at a time. Decides nothing; the plan has the order."""

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from nodeagent.core.cgroups.write_failures import WriteFailure, classify_failure
from nodeagent.core.cgroups.write_order import (
    Change,
    EnableControllers,
    GatherThreads,
    MakeCgroup,
    RemoveCgroup,
    SetAttribute,
)
from nodeagent.core.model.cgroup import MEMBER, Attribute, ByteLimit, ObservedCgroup, Partition, PartitionKind, Value
from nodeagent.core.model.cgroup_layout import ABOVE, is_above, payload_path
from nodeagent.core.model.idset import MOST_CPUS, CpuSet, IdSetSyntaxError, NumaSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.cgroup_values import (
    EFFECTIVE_CPUS,
    EFFECTIVE_MEMS,
    CgroupValueError,
    format_for_write,
    format_value,
    parse_flat_keyed,
    parse_value,
)

Ids = TypeVar("Ids", CpuSet, NumaSet)

MAX_DEPTH = 3
"""Depth of QoS class, pod and container. Cgroups that containers create below are their own."""
_OF_OTHERS = (Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX)
HELD_AT_ONCE = 512
"""Number of processes held by a pidfd each: half of the default limit of open files."""
_FREEZE_SECONDS = 10.0
_MODE = 0o755


class CgroupError(NodeAgentError):
    """A cgroup file or directory could not be read or changed. `errno` is the kernel's answer, or None if the file's text was the
    problem.
    """

    def __init__(self, message: str, *, path: str, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = error

    @property
    def failure(self) -> WriteFailure:
        """Return the class of the failed write."""
        return classify_failure(self.errno)


class MemoryInUseError(CgroupError):
    """A memory limit would be below the memory in use. It is not set."""

    @property
    def failure(self) -> WriteFailure:
        return WriteFailure.REFUSED


_HINTS = {
    errno.EACCES: "run as root, or give the pods' unit Delegate=yes",
    errno.EPERM: "run as root, or give the pods' unit Delegate=yes",
    errno.EROFS: "is /sys/fs/cgroup mounted read-only? nodeagent.service needs ProtectControlGroups=no",
    errno.ENOENT: "is the controller enabled for this cgroup? see cgroup.controllers there, and `systemctl status nodeagent-pods`",
    errno.ENODEV: "another program has removed this cgroup: the pods' cgroups belong to the agent; see `systemctl status nodeagent-pods`",
    errno.EBUSY: "a process may live in a cgroup that has children; see cgroup.procs there",
    errno.EAGAIN: "too many cgroups: see cgroup.max.descendants and cgroup.max.depth of the cgroups above",
    errno.ENOSPC: "the kernel has no room for it: compare cpuset.*.effective of the cgroups above, and count the cgroups in /proc/cgroups",
    errno.EINVAL: "the kernel does not know such a value: do these CPUs and nodes exist? see `nodeagent topology`, and dmesg",
    errno.ERANGE: "the value is out of the kernel's bounds: compare the pod's resources with `nodeagent inspect`",
    errno.EOPNOTSUPP: "another program has made the cgroup threaded: see cgroup.type there and above",
}


def _failure(doing: str, path: Path | str, err: OSError) -> CgroupError:
    hint = _HINTS.get(err.errno or 0, "see `nodeagent inspect`, and dmesg for the kernel's reason")
    return CgroupError(f"cannot {doing}: {os.strerror(err.errno or 0)}", path=str(path), error=err.errno, hint=hint)


def _malformed(file: Path, why: str) -> CgroupError:
    hint = "the kernel does not write such text: see `findmnt -t cgroup2`, and cgroupRoot in the configuration"
    return CgroupError(f"cannot understand {file}: {why}", path=str(file), error=None, hint=hint)


def _is_cgroup(directory: Path) -> bool:
    """Whether a directory is a cgroup. (Path.exists would raise where access is denied.)"""
    try:
        (directory / "cgroup.controllers").stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as err:
        raise _failure(f"look at {directory}", directory, err) from err
    return True


def _oom_kills(events: Mapping[str, int]) -> int:
    """Return how many processes the kernel has killed for memory, from `memory.events`.

    If the cgroup dies as a whole (memory.oom.group), the chosen process is killed first and then once more with all the others; `oom_kill`
    counts both (mm/oom_kill.c, oom_kill_process), unless it had ended before the second. `oom_group_kill` (kernel 5.17) counts how often
    the cgroup was killed.
    """
    group_kills = events.get("oom_group_kill", 0)
    return max(events.get("oom_kill", 0) - group_kills, group_kills)


def _besides_partitions(observed: Mapping[str, ObservedCgroup]) -> Iterator[str]:
    """Return the populated containers, if some are in partitions and some outside. There the kernel may fail to take a CPU offline."""
    kinds = (there.get(Attribute.CPUSET_CPUS_PARTITION) for there in observed.values())
    if any(isinstance(found, Partition) and found.kind is not PartitionKind.MEMBER for found in kinds):
        for path, there in observed.items():
            if there.is_populated and there.get(Attribute.FALLBACK_CPUS) is not None:
                yield path


class CgroupTree:
    """Cgroups of the pods.

    Args:
        root: directory of the pods' cgroup. Of those above it only `cpuset.cpus.exclusive` is ever written (D27).
        begin_partition: function that writes `cpuset.cpus.partition` with the required right (CAP_SYS_ADMIN) and raises NodeAgentError.
            None
            means that this process has the right.
        gather: function that moves threads of a cgroup back to all of its CPUs and raises NodeAgentError. None means that this process does
            it.
    """

    def __init__(
        self,
        root: str,
        begin_partition: Callable[[Path, str], None] | None = None,
        gather: Callable[[Path], None] | None = None,
    ) -> None:
        self.root = Path(root)
        self._begin_partition, self._gather_threads = begin_partition, gather

    def read(self, own: frozenset[str]) -> dict[str, ObservedCgroup]:
        """Read the pods' cgroup and every managed cgroup below it.

        Args:
            own: names of the directories directly below the root that are not pods (`burstable`, …).

        Raises:
            CgroupError: a file cannot be read, or has a content that the kernel would not write.
        """
        found = {path: seen for path in self._walk(own) if (seen := self._read_one(path)) is not None}
        return found | {
            path: seen for path in _besides_partitions(found) if (seen := self._read_with_threads(path)) is not None
        }

    def read_above(self) -> dict[str, ObservedCgroup]:
        """Read the cgroups above the pods' cgroup, without the root cgroup, for the CPUs that they hand down to partitions.

        On an older kernel they have no such file.

        Raises:
            CgroupError: a file cannot be read, or has a content that the kernel would not write.
        """
        return {path: seen for path in self._above() if (seen := self._read_one_above(path)) is not None}

    def read_of_others(self, path: str) -> ObservedCgroup | None:
        """Read the CPUs, memory nodes and population of a cgroup that another program creates and removes.

        Args:
            path: path below the root cgroup, or absolute.

        Returns:
            The cgroup, with the CPUs of the nearest cgroup above as its effective ones if its controllers are off. None if it is absent.

        Raises:
            CgroupError: a file cannot be read, or has a content that the kernel would not write.
        """
        directory = self.mount / path
        if self._text(str(directory), "cgroup.controllers") is None:  # the root cgroup has it, too
            return None
        found = ((one, self._text(str(directory), one.value)) for one in _OF_OTHERS)
        cpus = (self._effective(str(each), EFFECTIVE_CPUS, CpuSet) for each in (directory, *directory.parents))
        state = self._keyed(str(directory), "cgroup.events")
        return ObservedCgroup(
            path=str(directory),
            controllers=frozenset(),
            subtree_control=frozenset(),
            attributes=tuple((one, self._parsed(str(directory), one, text)) for one, text in found if text is not None),
            cpus_effective=next((each for each in cpus if each is not None), None),
            mems_effective=self._effective(str(directory), EFFECTIVE_MEMS, NumaSet),
            is_populated=state.get("populated") == 1,
            is_frozen=state.get("frozen") == 1,
        )

    def occupied_below(self, top: str, is_known: Callable[[str], bool]) -> dict[str, CpuSet]:
        """Return unknown populated cgroups of another program, with the CPUs that their processes may run on.

        Args:
            top: path below the root cgroup where to begin; it may be absent.
            is_known: function that says whether a path below the root cgroup is known; cgroups below a known one are skipped.

        Raises:
            CgroupError: a file cannot be read, or has a content that the kernel would not write.
        """
        found: dict[str, CpuSet] = {}
        pending = [(top, CpuSet())]
        while pending:
            path, cpus = pending.pop()
            directory = str(self.mount / path)
            if is_known(path) or self._keyed(directory, "cgroup.events").get("populated") != 1:
                continue
            cpus = self._effective(directory, EFFECTIVE_CPUS, CpuSet) or cpus
            if inner := self._children(directory):
                pending += [(f"{path}/{name}", cpus) for name in inner]
            else:
                found[path] = cpus
        return found

    def _above(self) -> Iterator[str]:
        path = ABOVE
        for directory in self.root.parents:
            if directory == self.mount or not directory.is_relative_to(self.mount):
                return
            yield path
            path += f"/{ABOVE}"

    def _read_one_above(self, path: str) -> ObservedCgroup | None:
        attribute = Attribute.CPUSET_CPUS_EXCLUSIVE
        text = self._text(path, attribute.value)
        if text is None:
            return None
        attributes = ((attribute, self._parsed(path, attribute, text)),)
        return ObservedCgroup(
            path, frozenset(), frozenset(), attributes, None, None, is_populated=False, is_frozen=False
        )

    def _walk(self, own: frozenset[str]) -> Iterator[str]:
        yield ""
        pending = [name for name in self._children("") if name in own or name.startswith("pod")]
        while pending:
            path = pending.pop()
            yield path
            parts = path.split("/")
            if len(parts) < (MAX_DEPTH if parts[0] in own else MAX_DEPTH - 1):
                pending += [f"{path}/{name}" for name in self._children(path)]

    def _children(self, path: str) -> list[str]:
        try:
            with os.scandir(self.root / path) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []  # it disappeared after it was listed, so it doesn't exist
        except OSError as err:
            raise _failure(f"list {self.root / path}", self.root / path, err) from err

    def _read_one(self, path: str) -> ObservedCgroup | None:
        controllers = self._text(path, "cgroup.controllers")
        if controllers is None:
            return None
        attributes = []
        for attribute in Attribute:
            text = self._text(path, attribute.value)
            if text is not None:
                attributes.append((attribute, self._parsed(path, attribute, text)))
        events = self._keyed(path, "cgroup.events")
        return ObservedCgroup(
            path=path,
            controllers=frozenset(controllers.split()),
            subtree_control=frozenset((self._text(path, "cgroup.subtree_control") or "").split()),
            attributes=tuple(attributes),
            cpus_effective=self._effective(path, EFFECTIVE_CPUS, CpuSet),
            mems_effective=self._effective(path, EFFECTIVE_MEMS, NumaSet),
            is_populated=events.get("populated") == 1,
            is_frozen=events.get("frozen") == 1,
            oom_kills=_oom_kills(self._keyed(path, "memory.events")),
        )

    def _read_with_threads(self, path: str) -> ObservedCgroup | None:
        """Read a container's cgroup again if its threads are outside of its CPUs."""
        if not self._elsewhere(path):
            return None
        # CPUs may have come or gone in between. The current value counts, and only what two readings agree on.
        seen, cpus = self._read_one(path), self._elsewhere(path)
        return replace(seen, elsewhere=cpus) if seen is not None and cpus else None

    def _elsewhere(self, path: str) -> CpuSet:
        """Return the CPUs outside of the effective ones that its threads may run on, including threads in cgroups that it has created
        itself.
        """
        effective = self._effective(path, EFFECTIVE_CPUS, CpuSet)
        if not effective:
            return CpuSet()
        own, beside = frozenset(effective), set[int]()
        for tid in self.threads(path):
            with suppress(ProcessLookupError):
                beside |= os.sched_getaffinity(tid) - own
        return CpuSet.from_ids(beside)

    def _parsed(self, path: str, attribute: Attribute, text: str) -> Value:
        try:
            return parse_value(attribute, text)
        except CgroupValueError as err:
            raise _malformed(self.root / path / attribute.value, str(err)) from err

    def _effective(self, path: str, name: str, kind: type[Ids]) -> Ids | None:
        text = self._text(path, name)
        try:
            return None if text is None else kind.parse(text.strip())
        except IdSetSyntaxError as err:
            raise _malformed(self.root / path / name, str(err)) from err

    def _keyed(self, path: str, name: str) -> dict[str, int]:
        try:
            return parse_flat_keyed(self._text(path, name) or "")
        except CgroupValueError as err:
            raise _malformed(self.root / path / name, str(err)) from err

    def _text(self, path: str, name: str) -> str | None:
        """Return a file's content. None if it doesn't exist, because its controller is off or the cgroup has just gone."""
        file = os.path.join(self.root, path, name)  # noqa: PTH118 - thousands a turn; an absolute path stays what it is
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # the kernel returns lists of processes one page at a time, however much is requested
                return b"".join(iter(lambda: os.read(descriptor, 65536), b"")).decode()
            finally:
                os.close(descriptor)
        except OSError as err:
            if err.errno in {
                errno.ENOENT,
                errno.ENODEV,
            }:  # ENODEV: removed after it was looked up, or opened (kernfs)
                return None
            raise _failure(f"read {file}", file, err) from err

    def chain(self) -> tuple[tuple[str, CpuSet], ...] | None:
        """Read the effective CPUs of the pods' cgroup and of all above it, as (path, CPUs) from the root cgroup down.

        CPUs are None for a cgroup that is absent, or lacks the controller cpuset, if only while systemd enables it.

        Raises:
            CgroupError: a file cannot be read, or has a content that the kernel would not write.
        """
        found: list[tuple[str, CpuSet]] = []
        for directory in (self.root, *self.root.parents):
            if not _is_cgroup(directory):
                break
            cpus = self._effective(str(directory), EFFECTIVE_CPUS, CpuSet)
            if not cpus:
                return None
            found.append((str(directory), cpus))
        return tuple(reversed(found)) or None

    def apply(self, change: Change) -> None:
        """Carry out one change, and check the granted value if the kernel may grant another one.

        Raises:
            CgroupError: the change failed, or the effective CPUs or memory nodes differ from those written.
        """
        match change:
            case MakeCgroup(path, has_payload):
                self._make(path)
                if has_payload:
                    self._make(payload_path(path))
            case EnableControllers(path, controllers):
                self._write(path, "cgroup.subtree_control", " ".join(f"+{c}" for c in controllers))
            case GatherThreads(path):
                self._gather(path)
            case SetAttribute(path, attribute, value):
                self._set(path, attribute, value)
                self._verify(path, attribute, value)
            case RemoveCgroup(path):
                self._remove(path)

    def _gather(self, path: str) -> None:
        """Let each thread that may run on other CPUs run on all CPUs of its cgroup. An affinity of its own is lost.

        If an id is reused meanwhile, the other thread is not harmed: it gets no CPU that its own cgroup lacks.
        """
        try:
            if self._gather_threads is not None:
                self._gather_threads(self.root / path)
            else:
                self._bring_back_threads(path)
        except NodeAgentError as err:
            hint = err.hint or "see `systemctl status nodeagent-launcher`"
            raise CgroupError(str(err), path=str(self.root / path), error=None, hint=hint) from err
        if left := self._elsewhere(path):
            raise CgroupError(
                f"threads of {self.root / path} may still run on {left}",
                path=str(self.root / path),
                error=None,
                hint="compare Cpus_allowed_list in /proc/TID/status with cpuset.cpus.effective",
            )

    def _bring_back_threads(self, path: str) -> None:
        own = frozenset(self._effective(path, EFFECTIVE_CPUS, CpuSet) or ())
        for tid in self.threads(path):
            try:
                if not os.sched_getaffinity(tid) <= own:
                    os.sched_setaffinity(tid, range(MOST_CPUS))
            except ProcessLookupError:
                continue
            except OSError as err:
                raise _failure(f"bring thread {tid} back to {self.root / path}", self.root / path, err) from err

    def kill(self, path: str) -> None:
        """Kill every process of a cgroup and of those below it (`cgroup.kill`, kernel 5.14).

        Raises:
            CgroupError: the kernel refused. An absent cgroup has nothing to kill.
        """
        try:
            self._write(path, "cgroup.kill", "1")
        except CgroupError as err:
            if err.errno not in {errno.ENOENT, errno.ENODEV}:
                raise

    def processes(self, path: str) -> tuple[int, ...]:
        """Return the ids of the processes of a cgroup and of those below it, each once. An absent cgroup has none."""
        here = [int(line) for line in (self._text(path, "cgroup.procs") or "").split()]
        return tuple(dict.fromkeys((*here, *self._processes_below(path))))

    def beside(self, path: str) -> int | None:
        """Return a process that is in a container's cgroup itself instead of in its payload.

        The kernel allows that while the payload has none, and then allows none there.

        Raises:
            CgroupError: the cgroup cannot be read.
        """
        if payload_path(path) not in (f"{path}/{child}" for child in self._children(path)):
            return None
        here = (self._text(path, "cgroup.procs") or "").split()
        return int(here[0]) if here else None

    def threads(self, path: str) -> frozenset[int]:
        """Return the ids of the threads of a cgroup and of those below it. An absent cgroup has none.

        Raises:
            CgroupError: the cgroup cannot be read.
        """
        found = frozenset(int(line) for line in (self._text(path, "cgroup.threads") or "").split())
        return found.union(*(self.threads(f"{path}/{child}") for child in self._children(path)))

    def numbers(self, path: str) -> frozenset[int]:
        """Return the ids of a cgroup and of those below it in the kernel's events. An absent cgroup has none.

        Raises:
            CgroupError: the cgroup cannot be read.
        """
        try:
            number = (self.root / path).stat().st_ino
        except FileNotFoundError:
            return frozenset()
        except OSError as err:
            raise _failure(f"look at {self.root / path}", self.root / path, err) from err
        return frozenset({number}).union(*(self.numbers(f"{path}/{child}") for child in self._children(path)))

    def _processes_below(self, path: str) -> Iterator[int]:
        for child in self._children(path):
            try:
                yield from self.processes(f"{path}/{child}")
            except CgroupError as err:
                # In a threaded cgroup, the kernel lists all its processes in its domain (cgroup-v2.rst, Threads).
                if err.errno != errno.EOPNOTSUPP:
                    raise

    def terminate(self, path: str) -> None:
        """Send SIGTERM to every process of a cgroup and of those below it.

        A process id could be reused before the signal, so processes are held by pidfds, and only those that a second reading finds there
        get the
        signal.

        Raises:
            CgroupError: cgroup.procs cannot be read, or a process cannot be held. The others have got the signal then.
        """
        pids = self.processes(path)
        failed: CgroupError | None = None
        for start in range(0, len(pids), HELD_AT_ONCE):
            with ExitStack() as held:
                batch = pids[start : start + HELD_AT_ONCE]
                descriptors: dict[int, int] = {}
                for pid in batch:
                    try:
                        descriptor = self._held(pid, held)
                    except CgroupError as err:
                        failed = failed or err
                        continue
                    if descriptor is not None:
                        descriptors[pid] = descriptor
                for pid in descriptors.keys() & set(self.processes(path)):
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(descriptors[pid], signal.SIGTERM)
        if failed is not None:
            raise failed

    def _held(self, pid: int, held: ExitStack) -> int | None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except OSError as err:
            raise _failure(f"hold process {pid} to end it", f"/proc/{pid}", err) from err
        held.callback(os.close, descriptor)
        return descriptor

    def has_left(self, path: str, pid: int, start_ticks: int) -> bool:
        """Whether a process that was started in a cgroup is now outside of it. A process that has ended is not.

        Args:
            path: path of the cgroup.
            pid: id of the process.
            start_ticks: its start time, as in /proc/PID/stat, to exclude another process with the same id.
        """
        from nodeagent.formats.kernel.task_stat import parse_task_stat  # noqa: PLC0415 - commands don't ask this

        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            stat = parse_task_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return False
        where = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
        if where is None or stat.start_ticks != start_ticks or stat.is_dead:
            return False
        home = f"/{(self.root / path).relative_to(self.mount)}"
        return where != home and not where.startswith(f"{home}/")

    @cached_property
    def mount(self) -> Path:
        """Return the root cgroup."""
        above = [directory for directory in self.root.parents if _is_cgroup(directory)]
        return above[-1] if above else self.root

    def bring_back(self, path: str, pid: int, start_ticks: int) -> None:
        """Move a process that has left a container's cgroup back to its payload. Does nothing if it is there, or has ended.

        Raises:
            CgroupError: the kernel refuses.
        """
        if not self.has_left(path, pid, start_ticks):
            return
        try:
            self._write(payload_path(path), "cgroup.procs", str(pid))
        except CgroupError as err:
            if err.errno != errno.ESRCH:
                raise

    def take_in(self, path: str, pid: int, is_alive: Callable[[], bool]) -> bool:
        """Move a process from wherever it is into a cgroup.

        The kernel takes its id. If the process ends at that moment, the id may belong to another process, which is then moved back.

        Args:
            path: path of a container's cgroup, which has no other process.
            pid: id of the process.
            is_alive: function that says whether this very process exists, which stays False once it has ended.

        Returns:
            Whether the process is there. False means that it has ended.

        Raises:
            CgroupError: the kernel refuses.
        """
        if not is_alive():
            return False
        try:
            self._write(payload_path(path), "cgroup.procs", str(pid))
        except CgroupError as err:
            if err.errno != errno.ESRCH:
                raise
            return False
        if is_alive():
            return True
        for other in self.processes(path):
            self._put_to_parent(other)
        return False

    def _put_to_parent(self, pid: int) -> None:
        """Move a process that has just started to its parent's cgroup, where it was started."""
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            parent = next((line.partition(":")[2].strip() for line in status if line.startswith("PPid:")), "1")
            lines = Path(f"/proc/{parent}/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            home = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
            Path(f"{self.mount}{home}", "cgroup.procs").write_text(str(pid), encoding="ascii")

    def _make(self, path: str) -> None:
        try:
            (self.root / path).mkdir(mode=_MODE)
        except FileExistsError:
            return
        except OSError as err:
            raise _failure(f"make cgroup {self.root / path}", self.root / path, err) from err

    def _remove(self, path: str) -> None:
        """Remove a cgroup without processes, with the cgroups that its containers created below it."""
        assert not is_above(path), f"{path} is not ours"
        for child in self._children(path):
            self._remove(f"{path}/{child}")
        try:
            (self.root / path).rmdir()
        except FileNotFoundError:
            return
        except OSError as err:
            raise _failure(f"remove cgroup {self.root / path}", self.root / path, err) from err

    def _set(self, path: str, attribute: Attribute, value: Value) -> None:
        if attribute is Attribute.MEMORY_MAX and isinstance(value, ByteLimit) and value.limit_bytes is not None:
            self._check_memory(path, value.limit_bytes)
        if self._begin_partition is None or not isinstance(value, Partition) or value == MEMBER:
            self._write(path, attribute.value, format_for_write(attribute, value))
            return
        try:
            self._begin_partition(self.root / path, value.kind.value)
        except NodeAgentError as err:
            hint = err.hint or "see `systemctl status nodeagent-launcher`"
            raise CgroupError(str(err), path=str(self.root / path), error=None, hint=hint) from err

    def _check_memory(self, path: str, limit_bytes: int) -> None:
        """Refuse a limit below the memory in use, for which the kernel would kill (KEP-1287: kubelet doesn't set one either)."""
        text = self._text(path, "memory.current")
        if text is not None and int(text) > limit_bytes:
            file = self.root / path / "memory.max"
            raise MemoryInUseError(
                f"{file} stays as it is: more than {limit_bytes} bytes are in use, and the kernel would kill for less",
                path=str(file),
                error=None,
                hint="raise its memory limit; else it is tried again at every reconcile: `nodeagent inspect` shows what is in use",
            )

    def _write(self, path: str, name: str, text: str) -> None:
        file = f"{self.root}/{path}/{name}" if path else f"{self.root}/{name}"
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as err:
            raise _failure(f"write '{text}' to {file}", file, err) from err

    def _verify(self, path: str, attribute: Attribute, value: Value) -> None:
        match attribute, value:
            case Attribute.CPUSET_CPUS, CpuSet():
                granted = self._effective(path, EFFECTIVE_CPUS, CpuSet)
                if granted and granted != value:
                    value, granted = self._beside_partitions(path, value, granted)
                self._compare(path, EFFECTIVE_CPUS, value, granted)
            case Attribute.CPUSET_MEMS, NumaSet():
                self._compare(path, EFFECTIVE_MEMS, value, self._effective(path, EFFECTIVE_MEMS, NumaSet))
            case Attribute.FREEZE, True:
                self._wait_until_frozen(path)
            case Attribute.CPUSET_CPUS_PARTITION, Partition():
                self._compare_partition(path, value)
            case _:
                pass

    def _beside_partitions(self, path: str, wanted: CpuSet, granted: CpuSet) -> tuple[CpuSet, CpuSet]:
        """Return the effective CPUs to compare: for a partition its own CPUs, and for a cgroup above partitions all CPUs but theirs."""
        kind = self._text(path, Attribute.CPUSET_CPUS_PARTITION.value)
        name = Attribute.CPUSET_CPUS_EXCLUSIVE
        cpus = self._parsed(path, name, self._text(path, name.value) or "")
        assert isinstance(cpus, CpuSet)
        if kind == "member\n":
            return wanted, granted | (cpus & wanted)
        return (wanted & cpus, granted) if kind in {"root\n", "isolated\n"} else (wanted, granted)

    def _compare(self, path: str, name: str, wanted: CpuSet | NumaSet, granted: CpuSet | NumaSet | None) -> None:
        if granted is None:
            raise _failure(f"read {self.root / path / name}", self.root / path / name, OSError(errno.ENOENT, name))
        if granted != wanted:
            raise CgroupError(
                f"{self.root / path}/{name} is '{granted}', wanted '{wanted}'",
                path=str(self.root / path),
                error=None,
                hint="a cgroup above grants less, or CPUs went offline: compare cpuset.*.effective of the cgroups above",
            )

    def _compare_partition(self, path: str, wanted: Partition) -> None:
        file = self.root / path / Attribute.CPUSET_CPUS_PARTITION.value
        granted = self._parsed(path, Attribute.CPUSET_CPUS_PARTITION, self._text(path, file.name) or "")
        if granted != wanted:
            raise CgroupError(
                f"{file} is '{format_value(granted)}', wanted '{format_value(wanted)}'",
                path=str(self.root / path),
                error=errno.EINVAL,
                hint="the kernel's reason is in the parentheses; compare cpuset.cpus.exclusive.effective of the cgroups above",
            )

    def _wait_until_frozen(self, path: str) -> None:
        """Wait until the cgroup is frozen. The kernel freezes asynchronously and notifies on cgroup.events (POLLPRI)."""
        file = f"{self.root}/{path}/cgroup.events"
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._poll_until_frozen(path, descriptor)
            finally:
                os.close(descriptor)
        except OSError as err:
            raise _failure(f"read {file}", file, err) from err

    def _poll_until_frozen(self, path: str, events: int) -> None:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        deadline = time.monotonic() + _FREEZE_SECONDS
        while parse_flat_keyed(os.pread(events, 4096, 0).decode()).get("frozen") != 1:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CgroupError(
                    f"{self.root / path} did not freeze within {_FREEZE_SECONDS:.0f} s",
                    path=str(self.root / path),
                    error=None,
                    hint="a process may hang in the kernel (state D): see `ps -o pid,stat,wchan`",
                )
            poller.poll(left * 1000)
