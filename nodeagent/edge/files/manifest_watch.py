"""Watch of the manifest directory. It wakes the agent when the directory may have changed, and carries no data."""

import os
import threading
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
"""Events without opening, and closing after reading. The agent's own scan does both, and would wake it forever."""

_DirectoryIdentity = tuple[int, int]


class ManifestWatchError(NodeAgentError):
    """The kernel refuses to watch the manifest directory. The periodic rescan still finds every change."""

    def __init__(self, path: str, cause: OSError) -> None:
        self.path = path
        super().__init__(
            f"cannot watch {path}: {cause.strerror or cause}",
            hint="raise fs.inotify.max_user_watches or max_user_instances (`sysctl -w`); until then changes are found by the rescan",
        )


class ManifestWatch:
    """Watch of the directory, and of its parent for its creation and removal.

    `renew` is cheap and belongs before every scan. It starts the watch, and moves it when the directory was created, replaced or removed
    meanwhile.
    """

    def __init__(self, directory: str, wake: Callable[[], None]) -> None:
        """Prepare a watch.

        Args:
            directory: absolute path; it may be absent.
            wake: function called often from the watch's thread; it must be quick and must not raise.
        """
        self._directory = directory
        self._parent = str(Path(directory).parent)
        self._wake = wake
        self._observer: BaseObserver | None = None
        self._watches: dict[str, tuple[_DirectoryIdentity, ObservedWatch]] = {}
        self._replaced = threading.Event()
        """Whether the directory was created or removed. Its inode doesn't show it, because a new directory often gets the old number."""

    def renew(self) -> bool:
        """Watch what exists now.

        Returns:
            Whether the directory itself is watched. False means that it doesn't exist.

        Raises:
            ManifestWatchError: the kernel refuses.
        """
        if self._observer is None:
            self._observer = self._started()
        if self._replaced.is_set():
            self._replaced.clear()  # reset before the scan, because events from here on set it again
            self._forget(self._directory)
        self._watch(self._parent)
        return self._watch(self._directory)

    def _started(self) -> BaseObserver:
        try:
            observer = Observer()
        except OSError as err:  # the first inotify instance is opened here
            raise ManifestWatchError(self._directory, err) from err
        observer.start()
        return observer

    def stop(self) -> None:
        """End the watch and its threads. Harmless without a watch."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None
            self._watches.clear()

    def _watch(self, path: str) -> bool:
        assert self._observer is not None
        identity = _identity(path)
        known = self._watches.get(path)
        if known is not None and known[0] == identity:
            return True
        self._forget(path)
        if identity is None:
            return False
        try:
            # Watch the link's target: inotify watches the target of a path, and watchdog doesn't follow links.
            handler = _ManifestHandler(self._directory, self._replaced, self._wake)
            watch = self._observer.schedule(handler, os.path.realpath(path), recursive=False, event_filter=_WANTED)
        except FileNotFoundError:
            return False  # gone again, as the watch of its parent reports
        except OSError as err:
            raise ManifestWatchError(path, err) from err
        self._watches[path] = (identity, watch)
        return True

    def _forget(self, path: str) -> None:
        known = self._watches.pop(path, None)
        if known is not None and self._observer is not None:
            self._observer.unschedule(known[1])


class _ManifestHandler(FileSystemEventHandler):
    """Handler that runs in watchdog's thread."""

    def __init__(self, directory: str, replaced: threading.Event, wake: Callable[[], None]) -> None:
        self._name = Path(directory).name
        self._replaced = replaced
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if isinstance(event, DirCreatedEvent | DirDeletedEvent | DirMovedEvent) and self._name in {
            Path(os.fsdecode(event.src_path)).name,
            Path(os.fsdecode(event.dest_path)).name,
        }:
            self._replaced.set()
        self._wake()


def _identity(path: str) -> _DirectoryIdentity | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
