"""Reads the manifest directory. Knows no manifest syntax; what a bad file means for its pods is not decided here.

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
"""Per directory, the first ones by name."""
MAX_OTHER_FILES = 20
"""Per directory, for files that aren't manifests: the first ones by name."""
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Per scan: the limit on what it keeps in memory."""
MAX_READINGS = 3
"""Per scan, of a directory that changes while it is read."""

LOCK_SECONDS = 10
"""How long a command waits for another one that writes there."""
_LOCK_PAUSE_SECONDS = 0.05
_PID_BYTES = 32

SUFFIXES = (".yaml", ".yml", ".json")
"""File names of manifests. Anything else in the directory (`web.yaml.bak`, `notes.txt`, an editor's own files) is ignored: it has no
pods.
"""

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
"""In systemd/nodeagent.service: the setting that would show the agent what is below these directories, as seen from the root."""


def _hidden(path: str) -> str:
    """Explain why the service may not see what others can; empty: it would."""
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
        """The directory doesn't exist: not an error on a fresh node, a reason to keep what runs on a node with pods."""
        self.reason = cause.strerror
        hint = f"create it, or set manifestDirectory; `namei -l {shlex.quote(path)}` shows what is there, and who may read it"
        hint += _hidden(path)
        super().__init__(f"cannot read manifest directory {path}: {cause.strerror}", hint=hint)


class ManifestLockError(NodeAgentError):
    """Manifests can't be written now."""


class ManifestFile(Struct, frozen=True):
    """One file of the directory. Without content it says nothing about its pods: those that it had stay as they are."""

    name: str
    content: bytes | None
    problem: str | None = None
    """Why there is no content; includes the path."""
    being_written: bool = False
    """A process has it open for writing: the problem is temporary."""


class ManifestScan(Struct, frozen=True):
    files: tuple[ManifestFile, ...]
    """In name order; other files, dot files and subdirectories are left out."""
    unread: int = 0
    """Number of files beyond MAX_FILES."""
    others: tuple[str, ...] = ()
    """Names of files that aren't those of manifests, in order; hidden files and editors' backups are left out on purpose."""
    is_partial: bool = False
    """It changed during each reading: a file that was renamed meanwhile may be missing under both names."""


class _Listing(Struct, frozen=True):
    names: list[str]
    """Of the manifests to read."""
    unread: int
    others: tuple[str, ...]
    version: tuple[int, int]
    """Differs if the directory has changed: its ctime, for changes that were taken back, and all names with their inodes, because several
    changes may have the same ctime.
    """


@contextmanager
def locked_manifests(path: str, hint: str) -> Iterator[None]:
    """Keep other commands from writing there; wait for the one that does, LOCK_SECONDS at most.

    What is locked is a file that only its owner can open: whoever may read the directory could lock that itself, for ever. It is gone
    afterwards.

    Args:
        path: the directory, or the only manifest.
        hint: what to do if this user may not write there.

    Raises:
        ManifestDirectoryError: there is nothing.
        ManifestLockError: nothing can be written there, or another command is at work.
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
        with suppress(OSError):  # the next command locks what is left
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
    """Lock the file, and write this process into it; False: another one has it, or has just removed it."""
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
    """Read all manifests. A path of a regular file is treated as a directory with only that file, as for kubelet's staticPodPath.

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
    """Read the files that are there at one time, if the directory lets us: a pod whose file is renamed has one all the time."""
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
    """Return the files, and whether none had vanished."""
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
    """Read one file; None: it is a directory.

    Raises:
        FileNotFoundError: it is gone.
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
        raise cause from None  # no link: it has vanished, even if another file has its name by now
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

    A read lease (fcntl(2), F_SETLEASE) is granted only then; a writer that comes while we read waits until the lease is returned. So a file
    that a writer left half done is never mistaken for a whole manifest. Without leases (network file systems, files of other users) the
    file counts as settled.
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
    """Read to the end; None: there is more than allowed."""
    parts: list[bytes] = []
    left = most + 1
    while left:
        part = os.read(file, left)
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    return None
