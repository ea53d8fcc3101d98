"""Files that survive a crash: written atomically, read with a size limit, renamed if unusable, and locked against a second agent."""

import contextlib
import enum
import errno
import fcntl
import os
import re
import shlex
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeagent.errors import NodeAgentError

LOCK_NAME = ".lock"
_PID_BYTES = 32


class StateFileError(NodeAgentError):
    """A state file could not be read, written, moved or locked. `errno` is the kernel's error number, or None if the content is invalid."""

    def __init__(self, message: str, *, path: str, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = error


_LINKLESS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""Error numbers that mean that the file system can't create a hard link."""
_HINTS = {
    errno.ENOSPC: "make room: `df` shows the file system, `df -i` its inodes; the agent tries again by itself",
    errno.EDQUOT: "raise the disk quota of the agent's user (`quota`); the agent tries again by itself",
    errno.EROFS: "mount the file system read-write, or name the directory in ReadWritePaths= of the unit; if the directory was deleted "
    "under the agent, `systemctl restart nodeagent` (pods keep running)",
    errno.EACCES: "run as root, or give the agent's user this directory (`namei -l` shows the owners)",
    errno.EPERM: "run as root; `lsattr` shows whether the file is immutable",
    errno.EIO: "the disk is failing: see `dmesg` and `smartctl`; the file has either its old or its new content",
    errno.ENOENT: "`systemctl restart nodeagent` makes the directory (StateDirectory= of the unit) while pods keep running; elsewhere make "
    "it first, or set another stateDirectory",
    errno.ENOTDIR: "a file is where a directory is expected: move it away and make the directory, or set another stateDirectory",
    errno.EISDIR: "a directory is where the file is expected: see `ls -ld` of it, and move it away",
    errno.ELOOP: "a symbolic link is where the file is expected: see `ls -l` of it, and move it away",
}


def _make_error(verb: str, path: str, err: OSError, hint: str | None = None) -> StateFileError:
    number = err.errno or 0
    hint = hint or _HINTS.get(number, "`ls -la` of the directory and dmesg may say more")
    return StateFileError(f"cannot {verb} {path}: {os.strerror(number)}", path=path, error=err.errno, hint=hint)


def temporary_path(path: str) -> str:
    """Return the path of the temporary file that replaces `path`. It is always the same, so the next write removes a file that a crash has
    left.
    """
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.new"


class Sync(enum.Enum):
    """Guarantee about a file's content if the power fails after a write. docs/reliability.md lists the guarantee for each file."""

    DURABLE = enum.auto()
    """Guarantee of the new content. The file is synced before the rename, and the directory after it."""
    WHOLE = enum.auto()
    """Guarantee of either the old or the complete new content. Only the file is synced."""
    NONE = enum.auto()
    """No guarantee: the file may even be empty. Nothing is synced."""


def write_atomically(
    path: str, content: bytes, *, mode: int = 0o600, sync: Sync = Sync.DURABLE, hint: str | None = None
) -> None:
    """Replace a file's content atomically. If the process is killed, the file has either its old or its new content.

    The caller must hold the lock of the directory, because two writers would use the same temporary file.

    Args:
        path: the file.
        content: the complete new content.
        mode: permissions of the file.
        sync: guarantee if the power fails.
        hint: hint of the error, for a file outside of the state directory.

    Raises:
        StateFileError: the write failed. The file has its old content, or its new content without the guarantee of `sync`. The caller may
            repeat the write.
    """
    temporary = temporary_path(path)
    try:
        _remove_if_there(temporary)
        try:
            _write_new(temporary, content, mode, syncs=sync is not Sync.NONE)
            os.replace(temporary, path)  # noqa: PTH105 - system calls are named as such here
        except OSError:
            # the first failure is reported; the next write removes the leftover file
            with contextlib.suppress(OSError):
                _remove_if_there(temporary)
            raise
        if sync is Sync.DURABLE:
            _sync_directory(os.path.dirname(path))  # noqa: PTH120 - once or twice a turn
    except OSError as err:
        raise _make_error("write", path, err, hint) from err


def remove(path: str) -> None:
    """Remove a file, and the temporary file that a crash may have left. Neither has to exist.

    Raises:
        StateFileError: a file could not be removed.
    """
    try:
        _remove_if_there(path)
        _remove_if_there(temporary_path(path))
    except OSError as err:
        raise _make_error("remove", path, err) from err


def _remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - as above


def _write_new(path: str, content: bytes, mode: int, *, syncs: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, mode)  # the umask has removed permissions from the mode that os.open was given
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        if syncs:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    """Sync a directory, so that a rename in it survives a power loss (fsync(2), notes)."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str, *, max_bytes: int, follow_symlinks: bool = False) -> bytes | None:
    """Return the file's content. None means that the file doesn't exist.

    Args:
        path: the file.
        max_bytes: the maximum accepted size.
        follow_symlinks: whether `path` may be a symbolic link, as for files that an administrator installs.

    Raises:
        StateFileError: the file can't be read, isn't a regular file, or is too large.
    """
    # without O_NONBLOCK, opening a FIFO would wait for a writer
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_symlinks else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise _make_error("read", path, err) from err
    content = bytearray()
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a directory later fails with EISDIR
            raise StateFileError(
                f"cannot read {path}: it is not a regular file",
                path=path,
                error=None,
                hint=f"a device, FIFO or socket is where the file is expected: see `ls -l {shlex.quote(path)}`; "
                "put a regular file there, or name another",
            )
        while len(content) <= max_bytes and (part := os.read(descriptor, min(max_bytes + 1 - len(content), 1 << 20))):
            content += part
    except OSError as err:
        raise _make_error("read", path, err) from err
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise StateFileError(
            f"cannot read {path}: it is larger than {max_bytes} bytes",
            path=path,
            error=None,
            hint=f"nodeagent never writes such a large file: check it (`file {shlex.quote(path)}`), and move it away",
        )
    return bytes(content)


def set_aside(path: str) -> str:
    """Give an unusable file a second name, `PATH.aside-N`, so that the next write doesn't destroy its content. Return the second name.

    The file keeps its first name, too, until the next write replaces it. If the agent crashes before this write, the next start finds the
    second name and doesn't add a third. An entry that isn't a regular file is renamed instead. No existing file is overwritten.

    Raises:
        StateFileError: the second name could not be created.
    """
    try:
        aside = _add_second_name(path)
        _sync_directory(str(Path(path).parent))
    except OSError as err:
        raise _make_error("set aside", path, err) from err
    return aside


def _add_second_name(path: str) -> str:
    directory, name = Path(path).parent, Path(path).name
    pattern = re.compile(re.escape(name) + r"\.aside-([1-9][0-9]{0,8})")
    taken = [int(match[1]) for entry in directory.iterdir() if (match := pattern.fullmatch(entry.name))]
    highest = max(taken, default=0)
    entry_stat = os.lstat(path)
    if taken and os.path.samestat(os.lstat(f"{path}.aside-{highest}"), entry_stat):
        return f"{path}.aside-{highest}"
    aside = f"{path}.aside-{highest + 1}"  # the name is free, because this process holds the directory's lock
    if stat.S_ISREG(entry_stat.st_mode):
        try:
            os.link(path, aside, follow_symlinks=False)
        except OSError as err:
            if err.errno not in _LINKLESS:
                raise
        else:
            return aside
    os.rename(path, aside)  # noqa: PTH104 - system calls are named as such here
    return aside


class DirectoryLock:
    """Lock on a directory. It ends with `release`, the `with` block, or the process."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def lock_directory(path: str) -> DirectoryLock:
    """Lock a directory against other agents.

    The lock is on the directory itself, so it also works if the file system is full or read-only. For the error message of other agents,
    the process with the lock writes its PID into a file in the directory.

    Raises:
        StateFileError: another agent has the lock, or the directory can't be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise _make_error("lock", path, err) from err
    lock_file = Path(path, LOCK_NAME)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(descriptor)
        holder = ""
        with contextlib.suppress(OSError):
            holder = lock_file.read_bytes()[:_PID_BYTES].decode(errors="replace").strip()
        raise StateFileError(
            f"another nodeagent (pid {holder or 'unknown'}) already uses {path}",
            path=path,
            error=err.errno,
            hint="stop it (`systemctl stop nodeagent`), or give this one another stateDirectory",
        ) from err
    except OSError as err:
        os.close(descriptor)
        raise _make_error("lock", path, err) from err
    with contextlib.suppress(OSError):  # the agent starts even if the disk is full
        file = os.open(lock_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        finally:
            os.close(file)
    return DirectoryLock(path, descriptor)
