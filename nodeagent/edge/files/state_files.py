"""Files that must survive a crash: written as a whole, read with a limit, set aside when broken, locked against a second daemon.

Knows nothing of their contents. Every system call that changes something is visible here, in its order.
"""

import contextlib
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
    """A state file could not be read, written, moved or locked. `errno` is the kernel's answer, or None if the content was the problem."""

    def __init__(self, message: str, *, path: str, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = error


_LINKLESS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""Values of errno on file systems without hard links."""
_HINTS = {
    errno.ENOSPC: "make room: `df` shows the file system, `df -i` its inodes; the agent tries again by itself",
    errno.EDQUOT: "raise the disk quota of the agent's user (`quota`); the agent tries again by itself",
    errno.EROFS: "mount the file system read-write, or name the directory in ReadWritePaths= of the unit",
    errno.EACCES: "run as root, or give the agent's user this directory (`namei -l` shows the owners)",
    errno.EPERM: "run as root; `lsattr` shows whether the file is immutable",
    errno.EIO: "the disk fails: see `dmesg` and `smartctl`; the file holds its old or its new content, nothing between",
    errno.ENOENT: "make the directory first (StateDirectory= of the unit does), or set another stateDirectory",
    errno.ENOTDIR: "there is a file where a directory is expected: move it away, or set another stateDirectory",
    errno.EISDIR: "there is a directory where the file is expected: see `ls -ld` of it, and move it away",
    errno.ELOOP: "there is a symbolic link where the file is expected: see `ls -l` of it, and move it away",
}


def _failure(doing: str, path: str, err: OSError, hint: str | None = None) -> StateFileError:
    number = err.errno or 0
    hint = hint or _HINTS.get(number, "`ls -la` of the directory and dmesg may say more")
    return StateFileError(f"cannot {doing} {path}: {os.strerror(number)}", path=path, error=err.errno, hint=hint)


def temporary_path(path: str) -> str:
    """Return the file that holds the next content of `path` while it is being written.

    Its name is fixed, so that the next write finds and removes a file left by a crash without a search.
    """
    return str(Path(path).parent / f".{Path(path).name}.new")


def write_atomically(path: str, content: bytes, *, mode: int = 0o600, hint: str | None = None) -> None:
    """Replace the file's content, durably: after a crash at any time it is the old content or the new one.

    The caller holds the directory's lock, so there is one writer.

    Args:
        path: the file.
        content: the complete content.
        mode: permissions of the file.
        hint: next step after a failure, for a file that is not one of the agent's own.

    Raises:
        StateFileError: the file has its old content. Only if the directory could not be synced at the end it has the new one, which a power
            failure may undo. Writing again is right in every case.
    """
    temporary = temporary_path(path)
    try:
        _remove_if_there(temporary)
        try:
            _write_new(temporary, content, mode)
            os.replace(temporary, path)  # noqa: PTH105 - system calls are named as such here
        except OSError:
            with contextlib.suppress(OSError):  # report the first failure; the next write removes the file anyway
                _remove_if_there(temporary)
            raise
        _sync_directory(str(Path(path).parent))
    except OSError as err:
        raise _failure("write", path, err, hint) from err


def remove(path: str) -> None:
    """Remove a file, and its temporary file from a crash. A missing file is not an error.

    Raises:
        StateFileError: the file is still there.
    """
    try:
        _remove_if_there(path)
        _remove_if_there(temporary_path(path))
    except OSError as err:
        raise _failure("remove", path, err) from err


def _remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - as above


def _write_new(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, mode)  # not by os.open, because the umask would change it
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    """Sync a directory, which makes a rename in it durable (fsync(2), notes)."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str, *, max_bytes: int, follow_symlinks: bool = False) -> bytes | None:
    """Return the file's content, or None if the file doesn't exist.

    Args:
        path: the file.
        max_bytes: a larger file is refused before it is read into memory.
        follow_symlinks: whether the last part of the path may be a symbolic link (right for files that an administrator installs, wrong for
            files that only the agent writes).

    Raises:
        StateFileError: it cannot be read, is not a regular file, or is too large.
    """
    # O_NONBLOCK: opening a FIFO that nobody writes to must not hang the daemon
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_symlinks else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise _failure("read", path, err) from err
    try:
        _check_regular(path, os.fstat(descriptor))
        content = _read_up_to(descriptor, max_bytes + 1)
    except OSError as err:
        raise _failure("read", path, err) from err
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise StateFileError(
            f"cannot read {path}: it is larger than {max_bytes} bytes",
            path=path,
            error=None,
            hint=f"nodeagent never writes one this large: check what it is (`file {shlex.quote(path)}`), and move it away",
        )
    return content


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise StateFileError(
            f"cannot read {path}: it is not a regular file",
            path=path,
            error=None,
            hint=f"there is a device, FIFO or socket where the file is expected: see `ls -l {shlex.quote(path)}`; "
            "put a regular file there, or name another",
        )


def _read_up_to(descriptor: int, limit_bytes: int) -> bytes:
    parts = []
    while limit_bytes > 0 and (part := os.read(descriptor, min(limit_bytes, 1 << 20))):
        parts.append(part)
        limit_bytes -= len(part)
    return b"".join(parts)


def set_aside(path: str) -> str:
    """Give an unusable file (or other entry) a second name, `PATH.aside-N`. No file is ever overwritten.

    A file keeps its first name until the next write replaces it, so a start after a crash in between finds it again, and creates no third
    name.
    Anything but a regular file is renamed.

    Returns:
        The second name.

    Raises:
        StateFileError: it could not be created.
    """
    try:
        aside = _second_name(path)
        _sync_directory(str(Path(path).parent))
    except OSError as err:
        raise _failure("set aside", path, err) from err
    return aside


def _second_name(path: str) -> str:
    directory, name = Path(path).parent, Path(path).name
    pattern = re.compile(re.escape(name) + r"\.aside-([1-9][0-9]{0,8})")
    taken = [int(match[1]) for entry in directory.iterdir() if (match := pattern.fullmatch(entry.name))]
    highest = max(taken, default=0)
    here = os.lstat(path)
    if taken:
        there = os.lstat(f"{path}.aside-{highest}")
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return f"{path}.aside-{highest}"
    aside = f"{path}.aside-{highest + 1}"  # the name is free, because this process holds the directory's lock
    if stat.S_ISREG(here.st_mode):
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
    """Lock held from creation until `release()`, or until the process ends, however it ends."""

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
    """Make sure that no other daemon uses this directory.

    The directory itself is locked, which needs no space and no writable file system. A file in it names the holder of the lock.

    Raises:
        StateFileError: another daemon uses it (its pid is in the message), or the directory cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise _failure("lock", path, err) from err
    try:
        _take(descriptor, path)
    except OSError as err:
        os.close(descriptor)
        raise _failure("lock", path, err) from err
    except StateFileError:
        os.close(descriptor)
        raise
    with contextlib.suppress(OSError):  # a full disk must not keep the daemon from starting
        _say_who(str(Path(path) / LOCK_NAME))
    return DirectoryLock(path, descriptor)


def _take(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        holder = ""
        with contextlib.suppress(OSError):
            holder = Path(path, LOCK_NAME).read_bytes()[:_PID_BYTES].decode(errors="replace").strip()
        raise StateFileError(
            f"another nodeagent (pid {holder or 'unknown'}) works in {path}",
            path=path,
            error=err.errno,
            hint="stop it (`systemctl stop nodeagent`), or give this one another stateDirectory",
        ) from err


def _say_who(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    finally:
        os.close(descriptor)
