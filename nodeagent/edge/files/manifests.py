"""Reader of the files in the manifest directory.

Symbolic links are followed, as by kubelet, because configuration tools install a file by swapping a link (`..data`). A user who can write
there can start processes as root anyway.
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
"""Limit on manifests per directory. The first ones by name are read."""
MAX_OTHER_FILES = 20
"""Limit on listed files that aren't manifests. The first ones by name are listed."""
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Limit on the total size of all manifests."""
MAX_READINGS = 3
"""Limit on readings per scan, for a directory that changes while it is read."""

LOCK_SECONDS = 10
"""Time that a command waits for another command that writes manifests."""
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
"""Settings for nodeagent.service that make these directories visible to the agent."""


def _explain_hidden(path: str) -> str:
    """Explain which setting of the unit hides a directory from the agent. The text is empty if no setting does."""
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
        """Whether the directory doesn't exist, which is normal on a new node."""
        self.reason = cause.strerror
        hint = f"create it, or set manifestDirectory; `namei -l {shlex.quote(path)}` shows the owners and permissions"
        hint += _explain_hidden(path)
        super().__init__(f"cannot read manifest directory {path}: {cause.strerror}", hint=hint)


class ManifestLockError(NodeAgentError):
    """Manifests can't be written now."""


class ManifestFile(Struct, frozen=True):
    """One file of the directory."""

    name: str
    content: bytes | None
    """Content of the file. None means that the file can't be read now, and its pods stay unchanged."""
    problem: str | None = None
    """Reason for missing content, with the file's path."""
    being_written: bool = False
    """Whether the problem is temporary, because a process has the file open for writing."""


class ManifestScan(Struct, frozen=True):
    files: tuple[ManifestFile, ...]
    """Manifests in name order. Hidden files and subdirectories are left out."""
    unread: int = 0
    """Number of files beyond MAX_FILES."""
    others: tuple[str, ...] = ()
    """Names of other visible files, in order, without editors' backups."""
    is_partial: bool = False
    """Whether the directory changed during each reading. A renamed file may then be missing under both names."""


class _Listing(Struct, frozen=True):
    names: list[str]
    """Names of the manifests to read."""
    unread: int
    others: tuple[str, ...]
    version: tuple[int, int]
    """The directory's ctime, and a hash of all names with their inodes, because several changes may have the same ctime."""


@contextmanager
def lock_manifests(path: str, hint: str) -> Iterator[None]:
    """Lock the manifests against other commands. Wait for another command LOCK_SECONDS at most.

    The lock is on a temporary file that only its owner can open, because any reader of the directory could lock the directory itself.

    Args:
        path: the directory, or the only manifest.
        hint: next step if this user may not write to the directory.

    Raises:
        ManifestDirectoryError: the path doesn't exist.
        ManifestLockError: the directory isn't writable, or another command has the lock.
    """
    place = Path(path)
    try:
        lock = place / ".lock" if stat.S_ISDIR(place.stat().st_mode) else place.with_name(f".{place.name}.lock")
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    try:
        handle = _acquire_lock(lock, path)
    except OSError as err:
        raise ManifestLockError(f"cannot lock {lock}: {err.strerror}", hint=hint) from err
    try:
        yield
    finally:
        with suppress(OSError):  # a leftover lock file doesn't prevent the next command from locking
            lock.unlink()
        os.close(handle)


def _acquire_lock(lock: Path, path: str) -> int:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if _try_lock(handle, lock):
            return handle
        holder = os.pread(handle, _PID_BYTES, 0).decode(errors="replace").strip()
        os.close(handle)
        if time.monotonic() >= deadline:
            raise ManifestLockError(
                f"another `nodeagent apply` or `delete` (pid {holder or 'unknown'}) is still at work in {path}",
                hint=f"try again when it has ended; `fuser -v {shlex.quote(str(lock))}` shows it",
            )
        time.sleep(_LOCK_PAUSE_SECONDS)


def _try_lock(handle: int, lock: Path) -> bool:
    """Lock the file and write this process's pid into it. Return False if another process has the lock, or has just removed the file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), lock.lstat()):
            return False
    except (BlockingIOError, FileNotFoundError):
        return False
    with suppress(OSError):  # manifests can be deleted even if the disk is too full for the pid
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return True


def scan_manifests(path: str) -> ManifestScan:
    """Read all manifests of a directory, or the only manifest if the path is a regular file (as kubelet's staticPodPath).

    Raises:
        ManifestDirectoryError: the directory is missing or can't be read.
    """
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        try:
            file = _read(None, path, path, MAX_FILE_BYTES)
        except FileNotFoundError as err:
            raise ManifestDirectoryError(path, err) from err
        return ManifestScan((), is_partial=True) if file is None else ManifestScan((file,))
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    try:
        before = _list(directory)
        # repeat until the directory stays unchanged, so that no renamed file is missed
        for left in reversed(range(MAX_READINGS)):
            files, is_whole = _read_all(directory, path, before.names)
            after = _list(directory)
            is_partial = not is_whole or after.version != before.version
            if not is_partial or not left:
                break
            files.clear()
            before = after
        return ManifestScan(tuple(files), before.unread, before.others, is_partial)
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    finally:
        os.close(directory)


def _list(directory: int) -> _Listing:
    count = entries_hash = 0
    others: list[str] = []

    def list_manifests() -> Iterator[str]:
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
                    others.append(_make_printable(entry.name))

    changed_ns = os.fstat(directory).st_ctime_ns
    # the bounded heap saves memory in a directory with millions of files
    names = heapq.nsmallest(MAX_FILES, list_manifests(), key=os.fsencode)
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
    """Read one file. None means that the path is a directory.

    Raises:
        FileNotFoundError: the file is gone.
    """
    printable = _make_printable(name)
    if printable != name:
        return ManifestFile(
            printable, None, f"{path.removesuffix(name)}{printable}: the name has characters that can't be printed"
        )
    try:
        # with O_PATH, a FIFO doesn't block, and a device isn't opened before its type is known
        handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError as err:
        try:
            os.readlink(name, dir_fd=directory)
        except OSError:
            raise err from None  # the name isn't a link, so the file has vanished
        target = os.path.realpath(path)
        hidden = _explain_hidden(target)
        problem = f"cannot open {path}: a symbolic link to a file that doesn't exist ({target}: {err.strerror}){hidden}"
        return ManifestFile(name, None, problem)
    except OSError as err:
        return ManifestFile(name, None, f"cannot open {path}: {err.strerror}")
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISREG(mode):
            return ManifestFile(
                name, None, f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'not a regular file')}, not a regular file"
            )
        return _read_regular(handle, name, path, most)
    except OSError as err:
        return ManifestFile(name, None, f"cannot read {path}: {err.strerror}")
    finally:
        os.close(handle)


def _make_printable(name: str) -> str:
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return text if text.isprintable() and "\\x" not in text else ascii(name)[1:-1]


def _read_regular(handle: int, name: str, path: str, most: int) -> ManifestFile:
    file = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        with _hold_lease(file) as has_no_writer:
            if not has_no_writer:
                problem = f"{path} is being written: it is read when its writer closes it"
                return ManifestFile(name, None, problem, being_written=True)
            content = bytearray()
            while len(content) <= most and (part := os.read(file, most + 1 - len(content))):
                content += part
    finally:
        os.close(file)
    if len(content) <= most:
        return ManifestFile(name, bytes(content))
    problem = f"{path} is larger than {MAX_FILE_BYTES} bytes"
    if most < MAX_FILE_BYTES:
        problem = f"{path} is not read: the files before it have {MAX_TOTAL_BYTES} bytes already"
    return ManifestFile(name, None, problem)


@contextmanager
def _hold_lease(file: int) -> Iterator[bool]:
    """Take a read lease (fcntl(2), F_SETLEASE), and yield False if a process has the file open for writing.

    A later writer waits until the lease is returned, so that no half-written file is read. Without leases (network file systems, files of
    other users) the file counts as complete.
    """
    try:
        # The kernel announces a waiting writer by a signal. SIGIO would end the process; SIGURG is ignored by default.
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
