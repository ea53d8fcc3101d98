"""Placement files, from which the processes of containers read their CPUs. There is one file per container, in one directory per pod,
readable by all users.

Files are replaced atomically, so nobody reads half-written content. A watch of the directory sees each replacement as one rename.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

from nodeagent.errors import NodeAgentError

MAX_BYTES = 65_536
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


class PlacementFileError(NodeAgentError):
    """A placement file could not be read, written or removed."""

    def __init__(self, message: str, *, path: str, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = error


_IN_THE_WAY = "something other than the expected file or directory has this name: see `ls -la` of it, and move it away"
_HINTS = {
    errno.ENOSPC: "make room: `df` shows the file system, `df -i` its inodes; the agent tries again by itself",
    errno.EDQUOT: "raise the quota of the agent's user (`quota`); the agent tries again by itself",
    errno.EROFS: "mount the file system read-write, or name runtimeDirectory in ReadWritePaths= of the unit",
    errno.EACCES: "run as root, or give the agent's user runtimeDirectory (`namei -l` shows the owners)",
    errno.ENOENT: "make runtimeDirectory (RuntimeDirectory= of the unit does), or set another one",
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY), _IN_THE_WAY),
}


def _make_error(verb: str, path: Path, err: OSError) -> PlacementFileError:
    number = err.errno or 0
    hint = _HINTS.get(number, "`ls -la` of the directory and dmesg may say more")
    return PlacementFileError(
        f"cannot {verb} {path}: {os.strerror(number)}", path=str(path), error=err.errno, hint=hint
    )


class PlacementFiles:
    """Directory of placement files. Each file's name in it is `POD/CONTAINER`."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def list_pods(self) -> set[str]:
        """Return the names of the pods that have files.

        Raises:
            PlacementFileError: the directory can't be read.
        """
        try:
            return set(os.listdir(self._directory))  # noqa: PTH208 - names alone
        except FileNotFoundError:
            return set()
        except OSError as err:
            raise _make_error("read", self._directory, err) from err

    def read(self, pods: Collection[str] | None = None) -> dict[str, bytes | None]:
        """Return the content of each file by its name in the directory.

        The content is None if `write` can't have created the entry (another type, mode or size), and for an empty directory.

        Args:
            pods: names of the pods whose files are read. None means all pods.

        Raises:
            PlacementFileError: the directory can't be read.
        """
        found: dict[str, bytes | None] = {}
        try:
            for pod in self.list_pods() if pods is None else pods:
                path = f"{self._directory}/{pod}"
                files: dict[str, bytes | None] = {}
                with contextlib.suppress(FileNotFoundError):  # the pod's files may have been removed in the meantime
                    if stat.S_ISDIR(os.lstat(path).st_mode):
                        with os.scandir(path) as entries:
                            files = {f"{pod}/{entry.name}": _read(entry) for entry in entries}
                    found |= files or {pod: None}
        except OSError as err:
            raise _make_error("read", self._directory, err) from err
        return found

    def write(self, name: str, content: bytes) -> None:
        """Replace a file's content atomically. A symbolic link in the path is replaced instead of followed.

        Raises:
            PlacementFileError: the write failed. The file still has its old content.
        """
        path = self._directory / name
        temporary = path.with_name(f".{path.name}.new")
        try:
            for directory in (self._directory, path.parent):
                _ensure_directory(directory)
            temporary.unlink(missing_ok=True)  # a crash may have left the file
            with temporary.open("xb") as file:
                # the umask has removed permissions from the mode that open was given
                os.fchmod(file.fileno(), _FILE_MODE)
                file.write(content)
            temporary.replace(path)
        except OSError as err:
            with contextlib.suppress(OSError):
                temporary.unlink()
            with contextlib.suppress(OSError):  # the directory isn't removed if it has other files
                path.parent.rmdir()
            raise _make_error("write", path, err) from err

    def remove(self, name: str) -> None:
        """Remove a file or other entry that `read` found. Also remove the pod's directory if it is then empty.

        Raises:
            PlacementFileError: the entry could not be removed.
        """
        path = self._directory / name
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        except OSError as err:
            raise _make_error("remove", path, err) from err
        if path.parent != self._directory:
            with contextlib.suppress(OSError):  # the directory isn't removed if it has files of other containers
                path.parent.rmdir()


def _ensure_directory(directory: Path) -> None:
    try:
        mode = directory.lstat().st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISLNK(mode):
        directory.unlink()
    if not stat.S_ISDIR(mode):
        directory.mkdir()
        mode = 0
    if stat.S_IMODE(mode) != _DIRECTORY_MODE:  # the umask may have removed permissions
        directory.chmod(_DIRECTORY_MODE)


def _read(file: os.DirEntry[str]) -> bytes | None:
    status = file.stat(follow_symlinks=False)
    is_ours = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == _FILE_MODE
    return Path(file.path).read_bytes() if is_ours and status.st_size <= MAX_BYTES else None
