"""Access to cgroup files. A path is relative to the pods' cgroup, or absolute for any other cgroup."""

import errno
import os
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from nodeagent.core.cgroups.write_failures import WriteFailure, classify_failure
from nodeagent.core.model.cgroup import Attribute, Value
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError, NumaSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.cgroup_values import CgroupValueError, parse_flat_keyed, parse_value

Ids = TypeVar("Ids", CpuSet, NumaSet)


class CgroupError(NodeAgentError):
    """A cgroup file or directory could not be read or changed. `errno` is None if the kernel reported no error, for instance because a
    value was granted only in part.
    """

    def __init__(self, message: str, *, path: str, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.errno = error

    @property
    def failure(self) -> WriteFailure:
        """Return the class of the failure, which its errno determines."""
        return classify_failure(self.errno)


class MemoryInUseError(CgroupError):
    """A memory limit was not lowered, because the cgroup uses more memory than the new limit."""

    @property
    def failure(self) -> WriteFailure:
        return WriteFailure.REFUSED


_HINTS = {
    errno.EACCES: "run as root, or give the pods' unit Delegate=yes",
    errno.EPERM: "run as root, or give the pods' unit Delegate=yes",
    errno.EROFS: "is /sys/fs/cgroup mounted read-only? nodeagent.service needs ProtectControlGroups=no",
    errno.ENOENT: "is the controller enabled for this cgroup? see cgroup.controllers there, and `systemctl status nodeagent-pods`",
    errno.ENODEV: "another program has removed this cgroup: the pods' cgroups belong to the agent; see `systemctl status nodeagent-pods`",
    errno.EBUSY: "the cgroup has both processes and children, which cgroup v2 forbids; see its cgroup.procs",
    errno.EAGAIN: "too many cgroups: see cgroup.max.descendants and cgroup.max.depth of the cgroups above",
    errno.ENOSPC: "no CPUs are left, or too many cgroups exist: compare cpuset.*.effective of the cgroups above, and see /proc/cgroups",
    errno.EINVAL: "the kernel does not accept this value: do these CPUs and nodes exist? see `nodeagent topology`, and dmesg",
    errno.ERANGE: "the value is out of the kernel's bounds: compare the pod's resources with `nodeagent inspect`",
    errno.EOPNOTSUPP: "another program has made the cgroup threaded: see cgroup.type there and above",
}


CONTROLLERS = "cgroup.controllers"
_GONE = frozenset({errno.ENOENT, errno.ENODEV})
"""Error numbers of a missing cgroup. ENODEV means that the cgroup was removed after the file was opened."""
_LINKS_OF_LEAF = 2
"""Link count of a directory without subdirectories: its name and its entry `.`. Each subdirectory adds one link (its `..`)."""
_SMALL_BYTES = 4096
"""Size in bytes up to which the kernel returns a cgroup file in one read."""


def make_error(action: str, path: Path | str, err: OSError) -> CgroupError:
    hint = _HINTS.get(err.errno or 0, "see `nodeagent inspect`, and dmesg for the kernel's reason")
    return CgroupError(f"cannot {action}: {os.strerror(err.errno or 0)}", path=str(path), error=err.errno, hint=hint)


def _make_syntax_error(file: Path, reason: str) -> CgroupError:
    hint = "the kernel doesn't write such a text: is cgroupRoot in the configuration on a cgroup file system? see `findmnt -t cgroup2`"
    return CgroupError(f"cannot parse {file}: {reason}", path=str(file), error=None, hint=hint)


def is_cgroup(directory: Path) -> bool:
    """Return whether a directory is a cgroup.

    Raises:
        CgroupError: the directory can't be accessed.
    """
    try:
        (directory / "cgroup.controllers").stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as err:
        raise make_error(f"look at {directory}", directory, err) from err
    return True


def list_subdirectories(directory: str) -> list[str]:
    """Return the sorted names of a cgroup's children. The file types are read only if the link count shows that there are any."""
    if os.stat(directory).st_nlink == _LINKS_OF_LEAF:  # noqa: PTH116 - hundreds of cgroups at a start
        return []
    with os.scandir(directory) as entries:
        return sorted([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])


class CgroupFiles:
    """Reader and writer of cgroup files. Its methods raise CgroupError if the kernel refuses the access, or if a file has content that the
    kernel would not write.

    Args:
        root: directory of the pods' cgroup.
    """

    def __init__(self, root: Path) -> None:
        self.root, self._directory = root, str(root)

    @cached_property
    def mount(self) -> Path:
        """Return the directory of the root cgroup, where cgroup v2 is mounted."""
        above = [directory for directory in self.root.parents if is_cgroup(directory)]
        return above[-1] if above else self.root

    def locate(self, path: str) -> str:
        """Return the directory of a cgroup. The method doesn't use pathlib, which would be slow for thousands of files."""
        return path if path.startswith("/") else f"{self._directory}/{path}" if path else self._directory

    def list_children(self, path: str) -> list[str]:
        directory = self.locate(path)
        try:
            return list_subdirectories(directory)
        except FileNotFoundError:
            return []  # the cgroup is gone
        except OSError as err:
            raise make_error(f"list {directory}", directory, err) from err

    def read(self, path: str, name: str) -> str | None:
        """Read a cgroup file. None means that the file doesn't exist, because its controller isn't enabled or the cgroup was removed."""
        file = f"{self.locate(path)}/{name}"
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # the kernel returns a list of processes one page at a time, even if more bytes are requested
                return b"".join(iter(lambda: os.read(descriptor, 65536), b"")).decode()
            finally:
                os.close(descriptor)
        except OSError as err:
            if err.errno in _GONE:
                return None
            raise make_error(f"read {file}", file, err) from err

    def read_all(self, path: str, names: tuple[str, ...]) -> dict[str, bytes]:
        """Read `cgroup.controllers` and several small files of a cgroup. Files whose controllers aren't enabled are left out. Empty means
        that the cgroup doesn't exist.
        """
        found: dict[str, bytes] = {}
        directory = self.locate(path)
        try:
            place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as err:
            if err.errno in _GONE:
                return found
            raise make_error(f"open {directory}", directory, err) from err
        names_left = [CONTROLLERS]
        try:
            for name in names_left:
                try:
                    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=place)
                    try:
                        text = os.read(descriptor, _SMALL_BYTES)
                        while text and len(text) % _SMALL_BYTES == 0 and (more := os.read(descriptor, _SMALL_BYTES)):
                            text += more
                    finally:
                        os.close(descriptor)
                except OSError as err:
                    if err.errno not in _GONE:
                        raise make_error(f"read {directory}/{name}", f"{directory}/{name}", err) from err
                else:
                    found[name] = text
                    if name is CONTROLLERS:
                        names_left += _list_present(names, text)
        finally:
            os.close(place)
        return found

    def read_value(self, path: str, attribute: Attribute) -> Value | None:
        text = self.read(path, attribute.value)
        return None if text is None else self.parse(path, attribute, text)

    def parse(self, path: str, attribute: Attribute, text: str) -> Value:
        try:
            return parse_value(attribute, text)
        except CgroupValueError as err:
            raise _make_syntax_error(self.root / path / attribute.value, str(err)) from err

    def read_ids(self, path: str, name: str, kind: type[Ids]) -> Ids | None:
        return self.parse_ids(path, name, kind, self.read(path, name))

    def parse_ids(self, path: str, name: str, kind: type[Ids], text: str | None) -> Ids | None:
        try:
            return None if text is None else kind.parse(text.strip())
        except IdSetSyntaxError as err:
            raise _make_syntax_error(self.root / path / name, str(err)) from err

    def read_numbers(self, path: str, name: str) -> dict[str, int]:
        """Read a flat keyed file, such as cgroup.events, as numbers by key. Empty means that the file doesn't exist."""
        return self.parse_numbers(path, name, self.read(path, name) or "")

    def parse_numbers(self, path: str, name: str, text: str) -> dict[str, int]:
        try:
            return parse_flat_keyed(text)
        except CgroupValueError as err:
            raise _make_syntax_error(self.root / path / name, str(err)) from err

    def write(self, path: str, name: str, text: str) -> None:
        file = f"{self.locate(path)}/{name}"
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as err:
            raise make_error(f"write '{text}' to {file}", file, err) from err


@lru_cache(maxsize=64)
def _list_present(names: tuple[str, ...], controllers: bytes) -> tuple[str, ...]:
    """Return those of the files that exist in a cgroup with these controllers, without `cgroup.controllers` itself."""
    prefixes = {"cgroup", *controllers.decode().split()}
    return tuple(name for name in names if name[name.rfind("/") + 1 : name.find(".")] in prefixes)
