"""Watch of the manifest directory. It wakes the agent when the directory may have changed."""

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from nodeagent.errors import NodeAgentError

_WANTED: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]
"""Events that wake the agent. Opening and closing without writing aren't among them, because the agent itself does so when it reads the
manifests.
"""

_MANY = 32
"""Number of reported names from which on every file counts as changed. The kernel's event queue may then have overflowed, and the package
watchdog doesn't report this.
"""

_DirectoryIdentity = tuple[int, int]


class ManifestWatchError(NodeAgentError):
    """The kernel refuses to watch the manifest directory. The agent finds changes at its periodic rescans."""

    def __init__(self, path: str, cause: OSError) -> None:
        self.path = path
        super().__init__(
            f"cannot watch {path}: {cause.strerror or cause}",
            hint="raise fs.inotify.max_user_watches or max_user_instances (`sysctl -w`); until then, changes are found at the next check",
        )


class ManifestWatch:
    """Watch of the manifest directory. Its parent is watched, too, because the directory may be created or removed.

    Args:
        directory: absolute path of the directory, which need not exist.
        wake: function that wakes the agent. The watch's thread calls it often, so it must be quick, and it must not raise an exception.
    """

    def __init__(self, directory: str, wake: Callable[[], None]) -> None:
        self._directory = directory
        self._parent = str(Path(directory).parent)
        self._wake = wake
        self._observer: BaseObserver | None = None
        self._watches: dict[str, tuple[_DirectoryIdentity, ObservedWatch]] = {}
        self._changed: deque[str] = deque(maxlen=_MANY)
        """Names of changed files in the latest events."""
        self._is_new = False
        """Whether the directory's watch has begun since the last call of `take_changed`. Any file may have changed before it began."""
        self._replaced = threading.Event()
        """Event that is set when the directory is created or removed. Comparing inode numbers isn't enough, because a new directory often
        has the number of the old one.
        """

    def renew(self) -> bool:
        """Watch the directory that exists now. Return whether there is one. Call this method before each scan; if nothing was replaced, it
        does little.

        Raises:
            ManifestWatchError: the kernel refuses to watch a directory.
        """
        if self._observer is None:
            try:
                observer = Observer()
            except OSError as err:  # creating an Observer opens an inotify instance
                raise ManifestWatchError(self._directory, err) from err
            observer.start()
            self._observer = observer
        if self._replaced.is_set():
            self._replaced.clear()  # the flag is reset before the scan, because later events set it again
            self._forget(self._directory)
        self._watch(self._parent)
        return self._watch(self._directory)

    def take_changed(self) -> frozenset[str] | None:
        """Return the names of the files that have changed since the last call. None means that any file may have changed."""
        is_known = self._directory in self._watches and not self._is_new
        self._is_new = False
        names = [self._changed.popleft() for _ in range(len(self._changed))]
        return frozenset(names) if is_known and len(names) < _MANY else None

    def stop(self) -> None:
        """End the watch and its threads, if there are any."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None
            self._watches.clear()

    def _watch(self, path: str) -> bool:
        assert self._observer is not None
        try:
            status = Path(path).stat()
            identity = status.st_dev, status.st_ino
        except OSError:
            identity = None
        known = self._watches.get(path)
        if known is not None and known[0] == identity:
            return True
        self._forget(path)
        if identity is None:
            return False
        try:
            # watchdog doesn't follow a link, so the link's target is watched
            handler = _ManifestHandler(self._directory, self._changed, self._replaced, self._wake)
            watch = self._observer.schedule(handler, os.path.realpath(path), recursive=False, event_filter=_WANTED)
        except FileNotFoundError:
            return False  # the directory was removed after stat; the watch of its parent reports the removal
        except OSError as err:
            raise ManifestWatchError(path, err) from err
        self._watches[path] = (identity, watch)
        self._is_new |= path == self._directory
        return True

    def _forget(self, path: str) -> None:
        known = self._watches.pop(path, None)
        if known is not None and self._observer is not None:
            self._observer.unschedule(known[1])


class _ManifestHandler(FileSystemEventHandler):
    """Handler of file system events, which watchdog calls in a thread of its own."""

    def __init__(
        self, directory: str, changed: deque[str], replaced: threading.Event, wake: Callable[[], None]
    ) -> None:
        self._names = {Path(directory).name, Path(os.path.realpath(directory)).name}
        self._changed = changed
        self._replaced = replaced
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        names = [os.fsdecode(path).rpartition("/")[2] for path in (event.src_path, event.dest_path)]
        if isinstance(event, DirCreatedEvent | DirDeletedEvent | DirMovedEvent) and not self._names.isdisjoint(names):
            self._replaced.set()
        self._changed.extend(filter(None, names))
        self._wake()
