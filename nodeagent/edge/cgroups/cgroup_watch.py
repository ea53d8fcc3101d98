"""Watch of the pods' cgroups, which wakes the agent and carries no data.

It wakes when a process writes to a cgroup file, a cgroup is created or removed, or the last process leaves one; when a cgroup above gets
other CPUs; and when systemd creates the cgroup of a pinned unit. inotify reports writes to cgroup files like those to any other, and the
kernel's own changes of `cgroup.events` (cgroup-v2.rst, "Interface Files"). It doesn't report the kernel's changes of `*.effective`, which
the periodic scan finds.

Uses the kernel interface directly, because watchdog takes one thread per directory, or reports each directory that is created while it
walks
a tree twice. The kernel keeps one watch per directory however often it is requested (inotify_add_watch(2)), so this needs no bookkeeping.
"""

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from nodeagent.core.model.cgroup import Attribute
from nodeagent.errors import NodeAgentError

_FILES = frozenset({*(attribute.value for attribute in Attribute), "cgroup.subtree_control", "cgroup.events"})

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _IS_DIRECTORY, _ONLY_DIRECTORIES = 0x4000, 0x8000, 0x40000000, 0x01000000
"""inotify(7); include/uapi/linux/inotify.h."""
_WANTED = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORIES
_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class CgroupWatchError(NodeAgentError):
    """The kernel refuses to watch cgroups. The periodic scan still finds every change."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(
            f"cannot watch {path}: {cause.strerror or cause}",
            hint="raise fs.inotify.max_user_watches or max_user_instances (`sysctl -w`); until then changes are found at each period",
        )


class CgroupWatch:
    """Kernel watches of all cgroups, with a single thread and inotify instance.

    Args:
        root: directory of the pods' cgroup.
        wake: function called often from the watch's thread; it must be quick and must not raise.
    """

    def __init__(self, root: str, wake: Callable[[], None]) -> None:
        self._root = root
        self._wake = wake
        self._watching: _Watching | None = None

    def renew(self, beside: Collection[str] = ()) -> None:
        """Watch the cgroups that exist now. Cheap. systemd recreates the directory when the unit restarts.

        Args:
            beside: absolute paths of other cgroups, of which only the creation is watched.

        Raises:
            CgroupWatchError: the kernel refuses, even for a part of the tree. The next call tries again.
        """
        try:
            found = Path(self._root).stat()
        except OSError:
            self.stop()
            return
        identity = (found.st_dev, found.st_ino, frozenset(map(_next_made, beside)))
        if self._watching is not None and self._watching.identity == identity and self._watching.failure is None:
            return
        self.stop()
        try:
            self._watching = _Watching(self._root, identity, self._wake)
        except FileNotFoundError:
            return  # gone again; the next call notices
        except OSError as err:
            raise CgroupWatchError(self._root, err) from err
        if self._watching.failure is not None:
            raise CgroupWatchError(self._root, self._watching.failure)

    def stop(self) -> None:
        """End the watch and its thread. Harmless without a watch."""
        if self._watching is not None:
            self._watching.stop()
            self._watching = None


def _next_made(path: str) -> tuple[str, str]:
    """Return the directory in which a cgroup will be created, or the nearest existing one above, and the name to wait for there."""
    parts = Path(path)
    while not parts.parent.is_dir():
        parts = parts.parent
    return str(parts.parent), parts.name


_Identity = tuple[int, int, frozenset[tuple[str, str]]]


class _Watching:
    """State of one inotify instance over one root."""

    def __init__(self, root: str, identity: _Identity, wake: Callable[[], None]) -> None:
        self.identity = identity
        self.failure: OSError | None = None
        """Reason why a directory is not watched."""
        self._root = root
        self._wake = wake
        self._paths: dict[int, str] = {}
        """Path of each watched directory, by watch."""
        self._above: set[int] = set()
        """Watches of the files with the CPUs of cgroups above."""
        self._beside: dict[int, set[str]] = {}
        """Names of directories that other programs will create, by the watch of their parent."""
        self._kernel = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), root)
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
        self._look_above(root)
        self._look_beside(identity[2])
        self._look_below(root)
        self._thread = threading.Thread(target=self._follow, name="cgroup-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        os.eventfd_write(self._stopping, 1)
        self._thread.join()
        os.close(self._stopping)
        os.close(self._kernel)

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._kernel, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        while all(ready != self._stopping for ready, _ in poll.poll()):
            is_to_wake = False
            for watch, mask, name in _events(os.read(self._kernel, _READ_BYTES)):
                is_to_wake |= self._takes_in(watch, mask, name)
            if is_to_wake:
                self._wake()  # wake after the watches are set, so that the woken thread finds what existed before them

    def _takes_in(self, watch: int, mask: int, name: str) -> bool:
        """Update the watches after an event. Returns whether to wake."""
        if mask & _OVERFLOW:
            self._look_below(self._root)
            return True
        if mask & _IGNORED:
            return self._paths.pop(watch, None) == self._root
        if watch in self._beside:
            return bool(mask & (_CREATE | _MOVED_TO)) and name in self._beside[watch]
        if not mask & _IS_DIRECTORY:
            return bool(mask & _MODIFY) and (name in _FILES or watch in self._above)
        parent = self._paths.get(watch)
        if mask & (_CREATE | _MOVED_TO) and parent is not None:
            self._add_if_there(f"{parent}/{name}")
        return True

    def _look_above(self, path: str) -> None:
        for directory in Path(path).parents:
            file = directory / Attribute.CPUSET_CPUS.value
            if not file.exists():
                return
            try:
                self._above.add(_checked(_libc.inotify_add_watch(self._kernel, os.fsencode(file), _MODIFY), str(file)))
            except OSError as err:
                self.failure = err
                return

    def _look_beside(self, made: Collection[tuple[str, str]]) -> None:
        for directory, name in made:
            try:
                watch = add_watch(self._kernel, directory)
            except FileNotFoundError:
                continue  # the parent is gone, and another one is the next to be created
            except OSError as err:
                self.failure = err
                return
            if watch not in self._paths:
                self._beside.setdefault(watch, set()).add(name)

    def _look_below(self, path: str) -> None:
        try:
            with os.scandir(path) as found:
                below = [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return  # gone, as the watch of its parent reports
        for directory in below:
            self._add_if_there(directory)

    def _add_if_there(self, path: str) -> None:
        """Watch a directory, then scan below it. Later creations there have their own events."""
        try:
            self._add(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as err:
            self.failure = err
            return
        self._look_below(path)

    def _add(self, path: str) -> None:
        self._paths[add_watch(self._kernel, path)] = path


def add_watch(instance: int, path: str) -> int:
    """Request the watch of a directory from an inotify instance. The same directory always gets the same watch.

    Raises:
        OSError: the kernel refuses, or the directory is missing.
    """
    return _checked(_libc.inotify_add_watch(instance, os.fsencode(path), _WANTED), path)


def _events(read: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield watch, mask and name of each event."""
    at = 0
    while at < len(read):
        watch, mask, _, length = _HEADER.unpack_from(read, at)
        at += _HEADER.size + length
        yield watch, mask, os.fsdecode(read[at - length : at].rstrip(b"\0"))


def _checked(result: int, path: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return result
