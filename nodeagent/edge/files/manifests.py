"""Reader of the files in the manifest directory.

Symbolic links are followed, because configuration tools install a file by swapping a link (`..data`). kubelet follows links, too. A user
who can write to this directory can start processes as root anyway.
"""

import errno
import fcntl
import heapq
import os
import shlex
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path

from msgspec import Struct, field

from nodeagent.core.model.rotation import Rotation
from nodeagent.errors import NodeAgentError

MAX_FILES = 10_000
"""Maximum number of manifests per directory. Further files in name order are not read."""
MAX_OTHER_FILES = 20
"""Maximum number of listed files that aren't manifests. Further files in name order are not listed."""
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Maximum total size of all manifests, in bytes."""
MAX_READINGS = 3
"""Maximum number of readings per scan if the directory changes during each reading."""

LOCK_SECONDS = 10
"""Seconds that a command waits for another command that writes manifests."""
_LOCK_PAUSE_SECONDS = 0.05
_TICK_NS = 50_000_000
_PID_BYTES = 32

SUFFIXES = (".yaml", ".yml", ".json")
"""File name suffixes of manifests. All other files in the directory (`web.yaml.bak`, `notes.txt`, an editor's own files) are ignored."""

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
    """Explain which setting of the unit hides a directory from the agent. The result is empty if no setting hides it."""
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
    """Content of a file in the manifest directory, or the reason why it is missing."""

    name: str
    content: bytes | None
    """Content of the file. None means that the file can't be read now, so that its pods stay unchanged."""
    problem: str | None = None
    """Reason why the content is missing, with the file's path."""
    being_written: bool = False
    """Whether the problem is temporary because another process has the file open for writing."""


class ManifestScan(Struct, frozen=True):
    files: tuple[ManifestFile, ...]
    """Manifests in name order. Hidden files and subdirectories are left out."""
    unread: int = 0
    """Number of manifests that were not read, because there are more than MAX_FILES."""
    others: tuple[str, ...] = ()
    """Names of other visible files, in name order, without editors' backups."""
    is_partial: bool = False
    """Whether the directory changed during each reading. A renamed file may then be missing under both its names."""


class ReadFile(Struct, frozen=True):
    """File as of its last reading, with a stamp of the file's status. A change of the file changes the stamp."""

    file: ManifestFile
    stamp: tuple[int, ...]
    is_certain: bool
    """Whether every later change of the file will change the stamp. If not, the file is read at each scan."""


class KnownManifests(Struct):
    """Last readings of a directory, kept so that unchanged files aren't read again."""

    files: dict[str, ReadFile] = field(default_factory=dict)
    """Files by name, as found by the last scan."""
    uncertain: set[str] = field(default_factory=set)
    """Names of the files that are read at every scan."""
    version: tuple[int, int] | None = None
    """The directory's ctime and inode at the last complete scan. None means that another complete scan is needed."""
    left_bytes: int = MAX_TOTAL_BYTES
    """Size that further files may have together."""
    last: ManifestScan | None = None
    rotation: Rotation = field(default_factory=Rotation)


class _Listing(Struct, frozen=True):
    names: dict[str, int]
    """Inode numbers of the manifests to read, by name and in the order of the names."""
    unread: int
    others: tuple[str, ...]
    version: tuple[int, int]
    """Ctime of the directory, and a hash of all names with their inodes, because several changes may have the same ctime."""
    is_certain: bool
    """Whether every later change of the directory will change its ctime."""


@contextmanager
def lock_manifests(path: str, hint: str) -> Iterator[None]:
    """Lock the manifests against other commands. Wait at most LOCK_SECONDS for another command.

    The lock is on a temporary file that only the file's owner can open. The directory itself could be locked by every user who can read it.

    Args:
        path: the directory, or the only manifest.
        hint: next step, for an error message, if this user may not write to the directory.

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
        with suppress(OSError):  # if the lock file can't be removed, the next command can lock it nevertheless
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
                hint=f"try again when it has ended; `fuser -v {shlex.quote(str(lock))}` shows the process",
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
    with suppress(OSError):  # if the disk is too full for the pid, manifests can still be deleted
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return True


def scan_manifests(
    path: str, known: KnownManifests | None = None, part: float = 1.0, changed: AbstractSet[str] = frozenset()
) -> ManifestScan:
    """Read all manifests of a directory, or the only manifest if the path is a regular file (as kubelet's staticPodPath).

    Args:
        path: the directory or manifest.
        known: the last readings, which are updated. Unchanged files aren't read again.
        part: fraction of the known files, 0 to 1, that is checked for changes although no change was reported. New and replaced files,
            symbolic links, and files that could not be read are always checked. If nothing has changed, the result is the same object as
            before.
        changed: names of further files to check. If `part` is 0, files that another machine has replaced are found by a later scan.

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
        known = KnownManifests() if known is None else known
        doubted = changed | set(known.rotation.take(known.files, part) if part < 1 else known.files)
        if part < 1 and known.last is not None and not _may_have_changed(directory, known, doubted):
            return known.last
        if not part and known.last is not None and (scan := _scan_named(directory, path, known, changed)) is not None:
            return scan
        before = _list(directory)
        # the directory is read until it stays unchanged, so that no renamed file is missed
        for left in reversed(range(MAX_READINGS)):
            files, is_whole = _read_all(directory, path, before.names, known, doubted)
            is_partial = not is_whole or _read_version(directory) != before.version
            if not is_partial or not left:
                break
            files.clear()
            before = _list(directory)
        scan = ManifestScan(tuple(files), before.unread, before.others, is_partial)
        known.version = None if is_partial or not before.is_certain else _version(directory)
    except OSError as err:
        raise ManifestDirectoryError(path, err) from err
    else:
        known.last = known.last if scan == known.last else scan
        return known.last or scan
    finally:
        os.close(directory)


def _version(directory_fd: int) -> tuple[int, int]:
    status = os.fstat(directory_fd)
    return status.st_ctime_ns, status.st_ino


def _may_have_changed(directory_fd: int, known: KnownManifests, doubted: AbstractSet[str]) -> bool:
    """Return whether the directory, or one of the files that are checked this time, has changed since the last scan."""
    if known.version != _version(directory_fd):
        return True
    names = known.uncertain | (doubted & known.files.keys())
    for name in names:
        try:
            if _stamp(os.stat(name, dir_fd=directory_fd)) != known.files[name].stamp:
                return True
        except OSError:
            return True
    return any(known.files[name].file.content is None for name in names)


_INODE, _CTIME, _MODE = 1, 4, 5
_stamp: Callable[[os.stat_result], tuple[int, ...]] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode"
)
"""Function that returns the stamp: the values of a file's status that change whenever the file changes. The inode number is at _INODE, the
ctime at _CTIME, and the mode at _MODE.
"""


def _list(directory_fd: int) -> _Listing:
    entries_hash, unread = 0, 0
    names: dict[str, int] = {}
    others: list[str] = []
    changed_ns = os.fstat(directory_fd).st_ctime_ns
    with os.scandir(directory_fd) as entries:
        for entry in entries:
            name, inode = entry.name, entry.inode()
            entries_hash ^= hash((name, inode))
            if name[0] == "." or entry.is_dir(follow_symlinks=False):
                continue
            if name.endswith(SUFFIXES):
                names[name] = inode
                # only the first names are kept, which saves memory in a directory with millions of files
                if len(names) == 2 * MAX_FILES:
                    names = {first: names[first] for first in heapq.nsmallest(MAX_FILES, names, key=os.fsencode)}
                    unread += MAX_FILES
            elif len(others) < MAX_FILES and not name.endswith("~") and not _leads_to_directory(entry):
                others.append(_make_printable(name))
    first_names = _sort_names(names)[:MAX_FILES]
    return _Listing(
        {name: names[name] for name in first_names},
        unread + len(names) - len(first_names),
        tuple(sorted(others)[:MAX_OTHER_FILES]),
        (changed_ns, entries_hash),
        _is_certain(changed_ns),
    )


def _sort_names(names: Iterable[str]) -> list[str]:
    return sorted(names, key=None if all(map(str.isascii, names)) else os.fsencode)


def _read_version(directory_fd: int) -> tuple[int, int]:
    """Return the directory's present version, as in `_Listing.version`."""
    entries_hash, changed_ns = 0, os.fstat(directory_fd).st_ctime_ns
    with os.scandir(directory_fd) as entries:
        for entry in entries:
            entries_hash ^= hash((entry.name, entry.inode()))
    return changed_ns, entries_hash


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # the path is a symbolic link that leads back to itself


def _read_all(
    directory_fd: int, path: str, names: Mapping[str, int], known: KnownManifests, doubted: AbstractSet[str]
) -> tuple[list[ManifestFile], bool]:
    """Return the files, and whether all of them still existed when they were read. `known` is updated."""
    files: list[ManifestFile] = []
    is_whole, left_bytes = True, MAX_TOTAL_BYTES
    before, known.files, known.uncertain = known.files, {}, set()
    for name, inode in names.items():
        read, stamp = before.get(name), tuple[int, ...]()
        if read is not None and read.is_certain and read.stamp[_INODE] == inode and name not in doubted:
            stamp = read.stamp
        else:
            with suppress(OSError):  # the later attempt to read the file reports the problem
                stamp = _stamp(os.stat(name, dir_fd=directory_fd, follow_symlinks=True))
        if read is None or not read.is_certain or read.stamp != stamp or len(read.file.content or b"") > left_bytes:
            try:
                read = _read_stamped(directory_fd, path, name, stamp, left_bytes)
            except FileNotFoundError:
                is_whole = False
                continue
            if read is None:
                continue
        known.files[name] = read
        if not read.is_certain:
            known.uncertain.add(name)
        left_bytes -= len(read.file.content or b"")
        files.append(read.file)
    known.left_bytes = left_bytes
    return files, is_whole


def _scan_named(directory_fd: int, path: str, known: KnownManifests, changed: AbstractSet[str]) -> ManifestScan | None:
    """Check only the files with these names, the new files, and the files that are checked each time. `known` is updated.

    Returns:
        The manifests. None means that each file must be checked: for instance, a known file that is missing or replaced may have another
        file's name by now.
    """
    last, files, uncertain, left_bytes = known.last, dict(known.files), set(known.uncertain), known.left_bytes
    version, present = _version(directory_fd), set(os.listdir(directory_fd))
    if last is None or last.is_partial or last.unread or last.others or not files.keys() <= present:
        return None
    for name in (present - files.keys()) | (present & changed) | uncertain:
        if name[0] == "." or name[-1] == "~":
            continue
        read, stamp = files.get(name), tuple[int, ...]()
        with suppress(OSError):  # the attempt to read the file below reports the problem
            stamp = _stamp(os.stat(name, dir_fd=directory_fd))
        if read is not None and stamp[: _INODE + 1] != read.stamp[: _INODE + 1]:
            return None
        if read is not None and read.is_certain and stamp == read.stamp:
            continue
        if read is None and stamp and stat.S_ISDIR(stamp[_MODE]):
            continue
        if not name.endswith(SUFFIXES):
            return None
        try:
            found = _read_stamped(directory_fd, path, name, stamp, MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        left_bytes += len(read.file.content or b"") if read is not None else 0
        left_bytes -= len(found.file.content or b"") if found is not None else 0
        if found is None or left_bytes < 0:
            return None
        files[name] = found
        (uncertain.discard if found.is_certain else uncertain.add)(name)
    if len(files) > MAX_FILES or _version(directory_fd) != version:
        return None
    if len(files) > len(known.files):
        files = {name: files[name] for name in _sort_names(files)}
    known.files, known.uncertain, known.left_bytes, known.version = files, uncertain, left_bytes, None
    scan = ManifestScan(tuple([read.file for read in files.values()]))
    known.last = last if scan == last else scan
    return known.last


def _read_stamped(directory_fd: int, path: str, name: str, stamp: tuple[int, ...], left_bytes: int) -> ReadFile | None:
    """Read a file that had this stamp before. None means that the name is a directory's.

    Raises:
        FileNotFoundError: the file doesn't exist any more.
    """
    found = _read(directory_fd, name, f"{path}/{name}", min(left_bytes, MAX_FILE_BYTES))
    if found is None:
        return None
    is_certain = found.content is not None and bool(stamp) and _is_certain(stamp[_CTIME])
    return ReadFile(found, stamp, is_certain and not _is_link(directory_fd, name))


def _is_link(directory_fd: int, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)
    return True


def _is_certain(changed_ns: int) -> bool:
    """Return whether a change from now on will get a later ctime. The kernel's clock ticks are at most 10 ms long."""
    return time.time_ns() - changed_ns > _TICK_NS


def _read(directory_fd: int | None, name: str, path: str, max_bytes: int) -> ManifestFile | None:
    """Read one file. None means that the path is a directory.

    Raises:
        FileNotFoundError: the file doesn't exist any more.
    """
    printable = _make_printable(name)
    if printable != name:
        return ManifestFile(
            printable, None, f"{path.removesuffix(name)}{printable}: the name has characters that can't be printed"
        )
    try:
        # with O_PATH, opening a FIFO doesn't block, and a device isn't opened before its type is known
        handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError as err:
        try:
            os.readlink(name, dir_fd=directory_fd)
        except OSError:
            raise err from None  # the name isn't a link, so the file was removed
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
        return _read_regular(handle, name, path, max_bytes)
    except OSError as err:
        return ManifestFile(name, None, f"cannot read {path}: {err.strerror}")
    finally:
        os.close(handle)


def _make_printable(name: str) -> str:
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return text if text.isprintable() and "\\x" not in text else ascii(name)[1:-1]


def _read_regular(handle: int, name: str, path: str, max_bytes: int) -> ManifestFile:
    file = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        with _hold_lease(file) as has_no_writer:
            if not has_no_writer:
                problem = f"{path} is being written: it is read when its writer closes it"
                return ManifestFile(name, None, problem, being_written=True)
            content = bytearray()
            while len(content) <= max_bytes and (part := os.read(file, max_bytes + 1 - len(content))):
                content += part
    finally:
        os.close(file)
    if len(content) <= max_bytes:
        return ManifestFile(name, bytes(content))
    problem = f"{path} is larger than {MAX_FILE_BYTES} bytes"
    if max_bytes < MAX_FILE_BYTES:
        problem = f"{path} is not read: the files before it have {MAX_TOTAL_BYTES} bytes already"
    return ManifestFile(name, None, problem)


@contextmanager
def _hold_lease(file: int) -> Iterator[bool]:
    """Take a read lease (fcntl(2), F_SETLEASE). Yield False if a process has the file open for writing.

    A later writer waits until the lease is released, so that a half-written file is never read. If leases aren't possible (network file
    systems, files of other users), the file counts as complete.
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
