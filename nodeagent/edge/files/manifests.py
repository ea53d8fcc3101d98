"""Reader of the manifest files.

Symbolic links are followed, as by kubelet, because configuration tools install files by replacing a link (`..data`). This gives nobody
additional rights, because a user who can write to the directory can start processes as root in any case.
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
"""Maximum number of manifests that are read in a directory, in the order of their names."""
MAX_OTHER_FILES = 20
"""Maximum number of listed files that aren't manifests, in the order of their names."""
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Maximum total size of all manifests, in bytes."""
MAX_READINGS = 3
"""Maximum number of readings per scan. A reading is repeated if the directory has changed meanwhile."""

LOCK_SECONDS = 10
"""Maximum number of seconds for which a command waits until another command has finished writing manifests."""
_LOCK_PAUSE_SECONDS = 0.05
_TICK_NS = 50_000_000
_PID_BYTES = 32

SUFFIXES = (".yaml", ".yml", ".json")
"""Name endings of manifests. The agent doesn't read other files, such as `web.yaml.bak` or `notes.txt`."""

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
"""Settings of nodeagent.service, each with the directories that it makes visible to the agent."""


def _explain_hidden(path: str) -> str:
    """Return a text that names the setting of nodeagent.service without which the agent can't see a directory. Empty means that no setting
    hides it.
    """
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
    """A command can't write manifests now, because it isn't allowed to or another command is writing."""


class ManifestFile(Struct, frozen=True):
    """File in the manifest directory, with its content or the reason why it couldn't be read."""

    name: str
    content: bytes | None
    """Content of the file. None means that it can't be read now. The file's pods then stay as they are."""
    problem: str | None = None
    """Reason why the file couldn't be read, with its path. None means that it was read."""
    being_written: bool = False
    """Whether the file wasn't read because a process has it open for writing. This normally ends soon."""


class ManifestScan(Struct, frozen=True):
    files: tuple[ManifestFile, ...]
    """Manifests in the order of their names, without hidden files and subdirectories."""
    unread: int = 0
    """Number of manifests that were not read, because there are more than MAX_FILES."""
    others: tuple[str, ...] = ()
    """Names of the visible files that aren't manifests, in order, without editors' backup files."""
    is_partial: bool = False
    """Whether the directory changed during each reading. A file that was renamed meanwhile may be missing under both names."""


class ReadFile(Struct, frozen=True):
    """File as it was last read, with a stamp by which a change is recognized (see `_stamp`)."""

    file: ManifestFile
    stamp: tuple[int, ...]
    is_certain: bool
    """Whether any later change of the file is certain to change the stamp. If not, each scan reads the file."""


class KnownManifests(Struct):
    """Files of a directory as they were last read, so that unchanged files aren't read again."""

    files: dict[str, ReadFile] = field(default_factory=dict)
    """Files found by the last scan, by name."""
    uncertain: set[str] = field(default_factory=set)
    """Names of the files that each scan must read, because a change might not change their stamps."""
    version: tuple[int, int] | None = None
    """Ctime and inode of the directory at the last complete scan. None means that the next scan must be complete."""
    left_bytes: int = MAX_TOTAL_BYTES
    """Size in bytes that further files may have together until the limit MAX_TOTAL_BYTES is reached."""
    last: ManifestScan | None = None
    rotation: Rotation = field(default_factory=Rotation)


class _Listing(Struct, frozen=True):
    names: dict[str, int]
    """Inode numbers of the manifests to read, by name, in the order of the names."""
    unread: int
    others: tuple[str, ...]
    version: tuple[int, int]
    """Ctime of the directory, with a hash of all names and inodes. The hash shows changes that leave the ctime the same because they are
    too close in time.
    """
    is_certain: bool
    """Whether any later change of the directory is certain to change its ctime."""


@contextmanager
def lock_manifests(path: str, hint: str) -> Iterator[None]:
    """Lock the manifests against other commands during the `with` block. If another command has the lock, wait up to LOCK_SECONDS.

    The lock is on a hidden file that only its owner can open. The directory itself could be locked by any user with read access, who would
    thereby block all commands.

    Args:
        path: the manifest directory, or the only manifest.
        hint: hint of the error if this user may not write to the directory.

    Raises:
        ManifestDirectoryError: the path doesn't exist.
        ManifestLockError: the directory isn't writable, or another command still has the lock.
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
    """Lock the lock file, and write this process's PID into it. Return False if another process has the lock, or has removed the file
    meanwhile.
    """
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
    """Read the manifests in a directory. If the path is a regular file, read it as the only manifest, like kubelet's staticPodPath.

    If nothing has changed since the last scan, the result is the same object as before.

    Args:
        path: the directory or manifest.
        known: files as last read, which are updated. Unchanged files aren't read again.
        part: fraction, from 0 to 1, of the known files to check for changes that weren't reported. Some files are always checked: new and
            replaced ones, symbolic links, and those that could not be read.
        changed: names of further files to check, because changes of them were reported. Changes that another machine has made aren't
            reported, so they are found only by a scan whose `part` isn't 0.

    Raises:
        ManifestDirectoryError: the directory doesn't exist or can't be read.
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
    """Return whether the directory, or a file that this scan checks, has changed since the last scan."""
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
"""Function that computes a file's stamp: those status values of which at least one changes with every change of the file. _INODE, _CTIME
and _MODE are the positions of three of them.
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
    """Compute the current version of the directory, as in `_Listing.version`."""
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
    """Read the files, or reuse them from `known`, which is updated. Return the files, and whether all of them still existed."""
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
    """Check only the files in `changed`, new files, and files that each scan must read. Update `known`.

    Returns:
        The manifests. None means that this isn't enough and all files must be checked, for instance because a known file is missing and may
            now have another name.
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
    """Read a file, and keep the stamp that it had before. None means that the name belongs to a directory.

    Raises:
        FileNotFoundError: the file was removed meanwhile.
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
    """Return whether any change from now on is certain to get a later ctime than `changed_ns`. A few ticks of the kernel's clock (at most
    10 ms each) must have passed since then.
    """
    return time.time_ns() - changed_ns > _TICK_NS


def _read(directory_fd: int | None, name: str, path: str, max_bytes: int) -> ManifestFile | None:
    """Read a file. None means that the path is a directory.

    Raises:
        FileNotFoundError: the file was removed meanwhile.
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
    """Hold a read lease on a file (fcntl(2), F_SETLEASE) during the `with` block. Yield False if a process has the file open for writing.

    With the lease, a process that opens the file for writing has to wait, so no half-written content is read. Where leases aren't possible
    (on network file systems, or for another user's files), True is yielded without a lease.
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
