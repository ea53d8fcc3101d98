"""Placement files, which tell containers' processes where they run: one per container, in a directory per pod, readable by all users.

A file is replaced as a whole, so that readers never see half of it, and a watch of its directory reports one rename. It isn't durable,
because the container doesn't outlive the boot either. Knows nothing of the contents.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path

from nodeagent.errors import NodeAgentError

MAX_BYTES = 65_536
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


class PlacementFileError(NodeAgentError):
    """A file could not be read, written or removed. `errno` is the kernel's answer."""

    def __init__(self, message: str, *, path: str, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = error


_IN_THE_WAY = "something else is where the agent keeps its files: see `ls -la` of it, and move it away"
_HINTS = {
    errno.ENOSPC: "make room: `df` shows the file system, `df -i` its inodes; the agent tries again by itself",
    errno.EDQUOT: "raise the quota of the agent's user (`quota`); the agent tries again by itself",
    errno.EROFS: "mount the file system read-write, or name runtimeDirectory in ReadWritePaths= of the unit",
    errno.EACCES: "run as root, or give the agent's user runtimeDirectory (`namei -l` shows the owners)",
    errno.ENOENT: "make runtimeDirectory (RuntimeDirectory= of the unit does), or set another one",
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY), _IN_THE_WAY),
}


def _failure(doing: str, path: Path, err: OSError) -> PlacementFileError:
    number = err.errno or 0
    hint = _HINTS.get(number, "`ls -la` of the directory and dmesg may say more")
    return PlacementFileError(
        f"cannot {doing} {path}: {os.strerror(number)}", path=str(path), error=err.errno, hint=hint
    )


class PlacementFiles:
    """Store of files named `POD/CONTAINER`."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def read(self) -> dict[str, bytes | None]:
        """Return the content of each file by name. The content is None for an entry that `write` didn't create, and for an empty directory.

        Raises:
            PlacementFileError: the directory can't be read.
        """
        found: dict[str, bytes | None] = {}
        try:
            with os.scandir(self._directory) as pods:
                for pod in pods:
                    files = _files(pod)
                    found |= {f"{pod.name}/{name}": content for name, content in files.items()} or {pod.name: None}
        except FileNotFoundError:
            return {}  # no file was written yet
        except OSError as err:
            raise _failure("read", self._directory, err) from err
        return found

    def write(self, name: str, content: bytes) -> None:
        """Replace a file's content.

        Raises:
            PlacementFileError: the write failed, and the file has its old content.
        """
        path = self._directory / name
        try:
            for directory in (self._directory, path.parent):
                _ensure(directory)
            temporary = path.with_name(f".{path.name}.new")
            with temporary.open("wb") as file:
                os.fchmod(file.fileno(), _FILE_MODE)  # independent of the umask
                file.write(content)
            temporary.replace(path)
        except OSError as err:
            raise _failure("write", path, err) from err

    def remove(self, name: str) -> None:
        """Remove an entry that `read` found, and the pod's directory with its last file.

        Raises:
            PlacementFileError: the entry is still there.
        """
        path = self._directory / name
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        except OSError as err:
            raise _failure("remove", path, err) from err
        if path.parent != self._directory:
            with contextlib.suppress(OSError):  # files of the pod's other containers are there
                path.parent.rmdir()


def _files(pod: os.DirEntry[str]) -> dict[str, bytes | None]:
    if not pod.is_dir(follow_symlinks=False):
        return {}
    with os.scandir(pod.path) as files:
        return {file.name: _content(file) for file in files}


def _content(file: os.DirEntry[str]) -> bytes | None:
    there = file.stat(follow_symlinks=False)
    as_written = stat.S_ISREG(there.st_mode) and stat.S_IMODE(there.st_mode) == _FILE_MODE
    return Path(file.path).read_bytes() if as_written and there.st_size <= MAX_BYTES else None


def _ensure(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    if stat.S_IMODE(directory.stat().st_mode) != _DIRECTORY_MODE:
        directory.chmod(_DIRECTORY_MODE)
