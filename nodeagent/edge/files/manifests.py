"""Reader of the manifest directory. Knows no manifest syntax, and doesn't decide what a bad file means for its pods.

Symbolic links are followed, as kubelet does: configuration tools install a file by swapping a link (`..data`). Anyone who can write to the
directory can start processes as root anyway.
"""

import errno
import fcntl
import heapq
import os
import shlex
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from nodeagent.errors import NodeAgentError

MAX_FILES = 10_000
"""Limit per directory; the first files by name count."""
MAX_OTHER_FILES = 20
"""Limit per directory of files that aren't manifests; the first ones by name count."""
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Limit per scan of what is kept in memory."""
MAX_READINGS = 3
"""Limit per scan of a directory that changes while it is read."""

LOCK_SECONDS = 10
"""Time for which a command waits for another one that writes there."""
_LOCK_PAUSE_SECONDS = 0.05
_PID_BYTES = 32

SUFFIXES = (".yaml", ".yml", ".json")
"""File names of manifests. All other files in the directory (`web.yaml.bak`, `notes.txt`, an editor's own files) are ignored."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


_SHOWN_BY = {
    "ProtectHome=no": ("home", "root", "run/user"),
    "PrivateTmp=no": ("tmp", "var/tmp"),
}
"""Settings in systemd/nodeagent.service that would show the agent these directories."""


def _hidden(path: str) -> str:
    """Explain why the service may not see a directory that others see. Empty means that it would."""
    for setting, roots in _SHOWN_BY.items():
        for root in roots:
            if path.startswith(f"/{root}/"):
                return f"; nodeagent.service cannot see /{root} unless `systemctl edit nodeagent` gives [Service] {setting}"
    return ""


class ManifestDirectoryError(NodeAgentError):
    """The manifest directory can't be read."""

    def __init__(self, path: str, cause: OSError) -> None:
        self.path = path
        self.missing = cause.errno == errno.ENOENT
        """Whether the directory doesn't exist. That is no error on a fresh node, and a reason to keep the pods that run on another."""
        self.reason = cause.strerror
        hint = f"create it, or set manifestDirectory; `namei -l {shlex.quote(path)}` shows what is there, and who may read it"
        hint += _hidden(path)
        super().__init__(f"cannot read manifest directory {path}: {cause.strerror}", hint=hint)


class ManifestLockError(NodeAgentError):
    """Manifests can't be written now."""


class ManifestFile(Struct, frozen=True):
    """One file of the directory. If it has no content, its pods stay as they are."""

    name: str
    content: bytes | None
    problem: str | None = None
    """Reason for missing content; includes the path."""
    being_written: bool = False
    """Whether a process has the file open for writing, so that the problem is temporary."""


class ManifestScan(Struct, frozen=True):
    files: tuple[ManifestFile, ...]
    """Manifests in name order. Other files, dot files and subdirectories are left out."""
    unread: int = 0
    """Number of files beyond MAX_FILES."""
    others: tuple[str, ...] = ()
    """Names of visible files that aren't manifests, in order, without editors' backups."""
    is_partial: bool = False
    """Whether the directory changed during each reading, so that a file renamed meanwhile may be missing under both names."""


class _Listing(Struct, frozen=True):
    names: list[str]
    """Names of the manifests to read."""
    unread: int
    others: tuple[str, ...]
    version: tuple[int, int]
    """Fingerprint of the directory: its ctime, and all names with their inodes, because several changes may have the same ctime."""


@contextmanager
def locked_manifests(path: str, hint: str) -> Iterator[None]:
    """Keep other commands from writing there. Waits for one that does, LOCK_SECONDS at most.

    The lock is on a file that only its owner can open, because any reader of the directory could lock the directory forever. The file is
    gone
    afterwards.

    Args:
        path: the directory, or the only manifest.
        hint: next step if this user may not write there.

    Raises:
        ManifestDirectoryError: the path is absent.
        ManifestLockError: the directory isn't writable, or another command is at work.
    """
    place = Path(path)
    try:
        lock = place / ".lock" if stat.S_ISDIR(place.stat().st_mode) else place.with_name(f".{place.name}.lock")
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    try:
        handle = _locked(lock, path)
    except OSError as err:
        raise ManifestLockError(f"cannot lock {lock}: {err.strerror}", hint=hint) from err
    try:
        yield
    finally:
        with suppress(OSError):  # the next command locks a file that was left
            lock.unlink()
        os.close(handle)


def _locked(lock: Path, path: str) -> int:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if _is_taken(handle, lock):
            return handle
        holder = os.pread(handle, _PID_BYTES, 0).decode(errors="replace").strip()
        os.close(handle)
        if time.monotonic() >= deadline:
            raise ManifestLockError(
                f"another `nodeagent apply` or `delete` (pid {holder or 'unknown'}) is still at work in {path}",
                hint=f"try again when it has ended; `fuser -v {shlex.quote(str(lock))}` shows it",
            )
        time.sleep(_LOCK_PAUSE_SECONDS)


def _is_taken(handle: int, lock: Path) -> bool:
    """Lock the file, and write this process into it. Returns False if another process has it, or has just removed it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), lock.lstat()):
            return False
    except (BlockingIOError, FileNotFoundError):
        return False
    with suppress(OSError):  # a full disk must not keep manifests from being deleted
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return True


def scan_manifests(path: str) -> ManifestScan:
    """Read all manifests. The path of a regular file counts as a directory with only that file, as in kubelet's staticPodPath.

    Raises:
        ManifestDirectoryError: the directory is missing or can't be read.
    """
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        return _scan_file(path)
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    try:
        return _scan(directory, path)
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    finally:
        os.close(directory)


def _scan_file(path: str) -> ManifestScan:
    try:
        found = _read(None, path, path, MAX_FILE_BYTES)
    except FileNotFoundError as err:
        raise ManifestDirectoryError(path, err) from err
    return ManifestScan((), is_partial=True) if found is None else ManifestScan((found,))


def _scan(directory: int, path: str) -> ManifestScan:
    """Read the files as of one moment if possible, so that a pod whose file is renamed is never missing."""
    before = _listing(directory)
    for left in reversed(range(MAX_READINGS)):
        files, is_whole = _read_all(directory, path, before.names)
        after = _listing(directory)
        is_partial = not is_whole or after.version != before.version
        if not is_partial or not left:
            break
        files.clear()
        before = after
    return ManifestScan(tuple(files), before.unread, before.others, is_partial)


def _listing(directory: int) -> _Listing:
    count = entries_hash = 0
    others: list[str] = []

    def counted() -> Iterator[str]:
        nonlocal count, entries_hash
        with os.scandir(directory) as entries:
            for entry in entries:
                entries_hash ^= hash((entry.name, entry.inode()))
                if entry.name.startswith(".") or entry.is_dir(follow_symlinks=False):
                    continue
                if entry.name.endswith(SUFFIXES):
                    count += 1
                    yield entry.name
                elif len(others) < MAX_FILES and not entry.name.endswith("~") and not entry.is_dir():
                    others.append(_shown(entry.name))

    changed_ns = os.fstat(directory).st_ctime_ns
    # A bounded heap: a directory of millions of files costs time, not memory.
    names = heapq.nsmallest(MAX_FILES, counted(), key=os.fsencode)
    return _Listing(names, count - len(names), tuple(sorted(others)[:MAX_OTHER_FILES]), (changed_ns, entries_hash))


def _read_all(directory: int, path: str, names: list[str]) -> tuple[list[ManifestFile], bool]:
    """Return the files, and whether all of them still existed."""
    files: list[ManifestFile] = []
    is_whole, left = True, MAX_TOTAL_BYTES
    for name in names:
        try:
            found = _read(directory, name, f"{path}/{name}", min(left, MAX_FILE_BYTES))
        except FileNotFoundError:
            is_whole = False
            continue
        if found is not None:
            left -= len(found.content or b"")
            files.append(found)
    return files, is_whole


def _read(directory: int | None, name: str, path: str, most: int) -> ManifestFile | None:
    """Read one file. Returns None for a directory.

    Raises:
        FileNotFoundError: the file is gone.
    """
    shown = _shown(name)
    if shown != name:
        return ManifestFile(
            shown, None, f"{path.removesuffix(name)}{shown}: the name has characters that can't be printed"
        )
    try:
        # O_PATH opens nothing: a FIFO can't block and a device isn't touched before its type is known.
        handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError as err:
        return _dangling(directory, name, path, err)
    except OSError as err:
        return ManifestFile(shown, None, f"cannot open {path}: {err.strerror}")
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISREG(mode):
            return ManifestFile(
                shown, None, f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'not a regular file')}, not a regular file"
            )
        return _read_regular(handle, shown, path, most)
    except OSError as err:
        return ManifestFile(shown, None, f"cannot read {path}: {err.strerror}")
    finally:
        os.close(handle)


def _shown(name: str) -> str:
    """Return a printable name: the name itself, if it is printable."""
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    return shown if shown.isprintable() and "\\x" not in shown else ascii(name)[1:-1]


def _dangling(directory: int | None, name: str, path: str, cause: FileNotFoundError) -> ManifestFile:
    try:
        os.readlink(name, dir_fd=directory)
    except OSError:
        raise cause from None  # not a link, so it has vanished, even if another file has its name by now
    target = os.path.realpath(path)
    problem = f"cannot open {path}: a symbolic link to a file that doesn't exist ({target}: {cause.strerror}){_hidden(target)}"
    return ManifestFile(name, None, problem)


def _read_regular(handle: int, name: str, path: str, most: int) -> ManifestFile:
    file = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        with _no_writer(file) as settled:
            if not settled:
                problem = f"{path} is being written: it is read when its writer closes it"
                return ManifestFile(name, None, problem, being_written=True)
            content = _bounded(file, most)
    finally:
        os.close(file)
    if content is None:
        over = f"is larger than {MAX_FILE_BYTES} bytes"
        if most < MAX_FILE_BYTES:
            over = f"is not read: the files before it have {MAX_TOTAL_BYTES} bytes already"
        return ManifestFile(name, None, f"{path} {over}")
    return ManifestFile(name, content)


@contextmanager
def _no_writer(file: int) -> Iterator[bool]:
    """Check that no process has the file open for writing, and keep it that way while reading.

    A read lease (fcntl(2), F_SETLEASE) is granted only then; a later writer waits until the lease is returned. So a half-written file is
    never
    mistaken for a whole manifest. Without leases (network file systems, files of other users) the file counts as complete.
    """
    try:
        # The kernel announces a lease break by a signal; SIGIO would end the process, SIGURG is ignored by default.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        yield False
        return
    except OSError:
        yield True
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _bounded(file: int, most: int) -> bytes | None:
    """Read to the end. Returns None if there is more than allowed."""
    parts: list[bytes] = []
    left = most + 1
    while left:
        part = os.read(file, left)
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    return None
