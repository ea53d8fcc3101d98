"""Wakes when somebody writes into the pods' cgroups, makes or removes one, or the last process leaves one. Carries no data.

inotify sees writes to cgroup files like those to any other, and the kernel's own changes of `cgroup.events` (cgroup-v2.rst, "Interface
Files"). Its own changes of `*.effective` it doesn't announce: those are found by the periodic look.
"""

from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileModifiedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from nodeagent.core.model.cgroup import Attribute
from nodeagent.errors import NodeAgentError

_WANTED: list[type[FileSystemEvent]] = [DirCreatedEvent, DirDeletedEvent, DirMovedEvent, FileModifiedEvent]
_FILES = frozenset({*(attribute.value for attribute in Attribute), "cgroup.subtree_control", "cgroup.events"})


class CgroupWatchError(NodeAgentError):
    """The kernel gives no watch; the periodic look still finds every change."""


class CgroupWatch:
    """One recursive watch: a kernel object per cgroup, one thread and one inotify instance in all.

    Args:
        root: directory of the pods' cgroup.
        wake: called from the watch's thread, often; it must be quick and must not raise.

    """

    def __init__(self, root: str, wake: Callable[[], None]) -> None:
        self._root = Path(root)
        self._handler = _CgroupHandler(wake)
        self._observer: BaseObserver | None = None
        self._watched: tuple[ObservedWatch, tuple[int, int]] | None = None

    def renew(self) -> None:
        """Watch what is there now: systemd makes the directory anew when the unit starts again. Cheap.

        Raises:
            CgroupWatchError: the kernel refuses.

        """
        try:
            found = self._root.stat()
        except OSError:
            self._forget()
            return
        identity = (found.st_dev, found.st_ino)
        if self._watched is not None and self._watched[1] == identity:
            return
        self._forget()
        try:
            if self._observer is None:
                self._observer = Observer()
                self._observer.start()
            watch = self._observer.schedule(self._handler, str(self._root), recursive=True, event_filter=_WANTED)
        except FileNotFoundError:
            return  # gone again: the next look finds out
        except OSError as err:
            raise CgroupWatchError(
                f"cannot watch {self._root}: {err.strerror or err}",
                hint="raise fs.inotify.max_user_watches or max_user_instances (`sysctl -w`); until then changes are found at each period",
            ) from err
        self._watched = watch, identity

    def stop(self) -> None:
        """End the watch and its threads; harmless if there are none."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = self._watched = None

    def _forget(self) -> None:
        if self._watched is not None and self._observer is not None:
            self._observer.unschedule(self._watched[0])
        self._watched = None


class _CgroupHandler(FileSystemEventHandler):
    """Runs in watchdog's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if not isinstance(event, FileModifiedEvent) or Path(str(event.src_path)).name in _FILES:
            self._wake()
