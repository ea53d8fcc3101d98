"""Watch of the pods' cgroups. It wakes the agent after a change, and reports which cgroups and files have changed.

The agent is woken when a process writes to a cgroup file; when a cgroup is created, removed or emptied; when `cpuset.cpus` of a cgroup
above changes; and when systemd creates a pinned unit's cgroup. inotify reports writes and the kernel's changes of `cgroup.events`
(cgroup-v2.rst, "Interface Files"), but not the kernel's changes of `*.effective`.

`cgroup.events` is watched as a file in addition to its directory. The kernel finds the watch through the file's inode, which otherwise
might be dropped from the cache (fs/kernfs/file.c, kernfs_notify_workfn).

inotify(7) is called directly, because the package watchdog either needs a thread per directory or reports new directories twice.
"""

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeagent.core.model.cgroup import Attribute
from nodeagent.edge.cgroups.cgroupfs.files import list_subdirectories
from nodeagent.errors import NodeAgentError

_EVENTS = "cgroup.events"
_FILES = frozenset({*(attribute.value for attribute in Attribute), "cgroup.subtree_control", _EVENTS})

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _IS_DIRECTORY, _ONLY_DIRECTORIES = 0x4000, 0x8000, 0x40000000, 0x01000000
"""Event masks and flags of inotify(7), as in include/uapi/linux/inotify.h."""
_WANTED = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORIES
_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class CgroupWatchError(NodeAgentError):
    """The kernel can't watch all cgroups. The agent finds unreported changes at its next periodic check."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(
            f"cannot watch {path}: {cause.strerror or cause}",
            hint="raise fs.inotify.max_user_watches or max_user_instances (`sysctl -w`); until then, changes are found at the next check",
        )


class CgroupWatch:
    """Watch of all the pods' cgroups, with one thread and one inotify instance.

    Args:
        root: directory of the pods' cgroup.
        wake: function that wakes the agent. The watch's thread calls it often, so it must be quick, and it must not raise an exception.
    """

    def __init__(self, root: str, wake: Callable[[], None]) -> None:
        self._root = root
        self._wake = wake
        self._watching: _Watching | None = None

    def renew(self, beside: Collection[str] = ()) -> None:
        """Watch the cgroups that exist now. Call this method before each turn, because systemd may have created the pods' cgroup anew. If
        it hasn't, the call does nothing.

        Args:
            beside: absolute paths of other cgroups, such as those of pinned units. Only their creation is watched.

        Raises:
            CgroupWatchError: the kernel refuses to watch all or some of the cgroups. The next call tries again.
        """
        try:
            found = Path(self._root).stat()
        except OSError:
            self.stop()
            return
        identity = (found.st_dev, found.st_ino, frozenset(map(_find_next_created, beside)))
        if self._watching is not None and self._watching.identity == identity and self._watching.failure is None:
            return
        self.stop()
        try:
            self._watching = _Watching(self._root, identity, self._wake)
        except FileNotFoundError:
            return  # the cgroup is gone
        except OSError as err:
            raise CgroupWatchError(self._root, err) from err
        if self._watching.failure is not None:
            raise CgroupWatchError(self._root, self._watching.failure)

    def take_changes(self) -> frozenset[tuple[str, str]] | None:
        """Return the changes since the last call, each as the path of a cgroup below the pods' cgroup and the name of the changed file.

        An empty name means that the cgroup was created or removed. None instead of changes means that any cgroup may have changed.
        """
        return None if self._watching is None else self._watching.take_changes()

    @property
    def has_changes(self) -> bool:
        """Return whether `take_changes` would return any change now."""
        return self._watching is None or self._watching.changes is None or bool(self._watching.changes)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold back wake-ups during the `with` block, which is meant for the agent's own writes.

        If `take_changes` is called before the block ends, it returns these writes, and they cause no wake-up.
        """
        if self._watching is None:
            yield
            return
        with self._watching.lock:
            yield

    def stop(self) -> None:
        """End the watch and its thread, if there is one."""
        if self._watching is not None:
            self._watching.stop()
            self._watching = None


def _find_next_created(path: str) -> tuple[str, str]:
    """Return the nearest existing cgroup above a missing cgroup, and the name of the first missing directory below it. The creation of this
    directory can be watched.
    """
    missing = Path(path)
    while not missing.parent.is_dir():
        missing = missing.parent
    return str(missing.parent), missing.name


_Identity = tuple[int, int, frozenset[tuple[str, str]]]


class _Watching:
    """inotify instance with the thread that reads its events."""

    def __init__(self, root: str, identity: _Identity, wake: Callable[[], None]) -> None:
        self.identity = identity
        self.failure: OSError | None = None
        """Reason why some directory isn't watched. None means that all are."""
        self._root = root
        self._wake = wake
        self._paths: dict[int, str] = {}
        """Watched cgroups, by watch descriptor, as absolute paths."""
        self._events: dict[int, str] = {}
        """Cgroups whose `cgroup.events` is watched, by watch descriptor, as absolute paths."""
        self.lock = threading.RLock()
        """Lock for reading the instance's events, and for `changes`."""
        self.changes: set[tuple[str, str]] | None = None
        """Changes since the last call of `take_changes`. None means that any cgroup may have changed."""
        self._outside: dict[int, set[str]] = {}
        """Cgroups outside of the pods' cgroup whose creation is awaited: their names, by the watch descriptor of the parent directory. If
        the watch is on a file instead, the name is empty.
        """
        self._kernel = _check_result(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), root)
        try:
            self._stopping = os.eventfd(0, os.EFD_CLOEXEC)
            try:
                self._add(root)
            except OSError:
                os.close(self._stopping)
                raise
        except OSError:
            os.close(self._kernel)
            raise
        self._watch_above(root)
        self._watch_beside(identity[2])
        self._watch_below(root)
        self._thread = threading.Thread(target=self._follow, name="cgroup-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        os.eventfd_write(self._stopping, 1)
        self._thread.join()
        os.close(self._stopping)
        os.close(self._kernel)

    def take_changes(self) -> frozenset[tuple[str, str]] | None:
        with self.lock:
            self._drain()
            taken = None if self.changes is None or self.failure is not None else frozenset(self.changes)
            self.changes = set()
            return taken

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._kernel, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        while all(ready != self._stopping for ready, _ in poll.poll()):
            with self.lock:
                has_to_wake = self._drain()
            if has_to_wake:
                # the agent is woken only after new cgroups are watched, so that its scan doesn't miss a change
                self._wake()

    def _drain(self) -> bool:
        """Handle all events that are waiting. Return whether the agent must be woken."""
        has_to_wake = False
        while True:
            try:
                events, at = os.read(self._kernel, _READ_BYTES), 0
            except BlockingIOError:
                return has_to_wake
            while at < len(events):
                watch, mask, _, length = _HEADER.unpack_from(events, at)
                at += _HEADER.size + length
                has_to_wake |= self._handle(watch, mask, os.fsdecode(events[at - length : at].rstrip(b"\0")))

    def _handle(self, watch: int, mask: int, name: str) -> bool:
        """Update the watches and `changes` after one event. Return whether the agent must be woken."""
        if mask & _OVERFLOW:
            self.changes = None
            self._watch_below(self._root)
            return True
        if mask & _IGNORED:
            self._events.pop(watch, None)
            if self._paths.pop(watch, None) != self._root:
                return False
            self.changes = None
            return True
        if watch in self._events:
            self._note(self._events[watch], _EVENTS)
            return True
        if watch in self._outside:
            is_wanted = bool(mask & (_CREATE | _MOVED_TO | _MODIFY)) and name in self._outside[watch]
            if is_wanted and name:
                # a cgroup outside of the agent's tree has changed, so the agent must read that cgroup again
                self._note(self._root, _EVENTS)
            elif is_wanted:
                self.changes = None
            return is_wanted
        parent = self._paths.get(watch)
        if not mask & _IS_DIRECTORY:
            if not mask & _MODIFY or name not in _FILES:
                return False
            self._note(parent, name)
            return True
        if parent is not None:
            self._note(f"{parent}/{name}", "")
            if mask & (_CREATE | _MOVED_TO):
                self._add_with_children(f"{parent}/{name}")
        return True

    def _note(self, path: str | None, file: str) -> None:
        if path is None:
            self.changes = None
        elif self.changes is not None:
            self.changes.add((path.removeprefix(self._root).removeprefix("/"), file))

    def _watch_above(self, path: str) -> None:
        for directory in Path(path).parents:
            file = directory / Attribute.CPUSET_CPUS.value
            if not file.exists():
                return
            try:
                watch = _libc.inotify_add_watch(self._kernel, os.fsencode(file), _MODIFY)
                self._outside[_check_result(watch, str(file))] = {""}
            except OSError as err:
                self.failure = err
                return

    def _watch_beside(self, names: Collection[tuple[str, str]]) -> None:
        for directory, name in names:
            try:
                watch = add_watch(self._kernel, directory)
            except FileNotFoundError:
                continue  # the directory is gone; the next `renew` watches its nearest existing ancestor
            except OSError as err:
                self.failure = err
                return
            if watch not in self._paths:
                self._outside.setdefault(watch, set()).add(name)

    def _watch_below(self, path: str) -> None:
        try:
            children = list_subdirectories(path)
        except OSError:
            return  # the cgroup is gone; the watch of its parent reports the removal
        for child in children:
            self._add_with_children(f"{path}/{child}")

    def _add_with_children(self, path: str) -> None:
        try:
            self._add(path)  # the watch is added before the scan, so that children created later cause events
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as err:
            self.failure = err
            return
        self._watch_below(path)

    def _add(self, path: str) -> None:
        self._paths[add_watch(self._kernel, path)] = path
        file = os.fsencode(f"{path}/{_EVENTS}")
        watch = _libc.inotify_add_watch(self._kernel, file, _MODIFY)
        if watch >= 0:
            self._events[watch] = path
        elif (error := ctypes.get_errno()) != errno.ENOENT:
            raise OSError(error, os.strerror(error), file)


def add_watch(instance: int, path: str) -> int:
    """Watch a directory with an inotify instance, and return the watch descriptor. For the same directory, it is always the same.

    Raises:
        OSError: the kernel refuses, or the directory doesn't exist.
    """
    return _check_result(_libc.inotify_add_watch(instance, os.fsencode(path), _WANTED), path)


def _check_result(result: int, path: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return result
