"""Reader of the files that describe the machine. formats/kernel/sysfs.py parses and validates their contents."""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType

from nodeagent.formats.kernel.machine_fingerprint import FINGERPRINT_FILES
from nodeagent.formats.kernel.settings import SETTINGS, Settings
from nodeagent.formats.kernel.sysfs_sample import (
    CPUS,
    FIRMWARE_ANSWERS,
    ONLINE_FILES,
    WANTED,
    SysfsError,
    SysfsSample,
)

ATTEMPTS = 8
"""Maximum number of readings. A reading, which takes about 0.1 s, is repeated if a CPU was added or removed meanwhile."""

MAX_FILE_BYTES = 32 * 2**20
"""Maximum size of a file in bytes. The largest is /proc/cpuinfo with about 1.5 KiB per CPU; all others have at most a page."""

_LINK = "@"
"""Suffix of a pattern that matches symbolic links. For such a link, the target path is the content."""

_Files = dict[str, "_Files | None"]
"""Names to read in a directory, as a tree. None marks a file. An empty mapping marks a directory that is listed but not read."""

_ROOT_HINT = "name the copy of a node's file system: --root DIR"


class VanishedError(SysfsError):
    """A file disappeared between the listing of its directory and its reading."""


def read_devices(root: str = "/") -> SysfsSample:
    """Read the files in /sys that describe the machine's devices.

    Raises:
        SysfsError: a file can't be read.
    """
    from nodeagent.formats.kernel.pci_devices import CLASSES, list_device_files  # noqa: PLC0415 - only where devices are needed

    return read_files(list_device_files(read_files(CLASSES, root)), root)


def read_machine(root: str = "/") -> SysfsSample:
    """Read all files from which the machine's topology is determined. Read them again if a CPU was added or removed meanwhile.

    Raises:
        SysfsError: a file can't be read or isn't a regular file, or a CPU was added or removed during each reading.
    """
    base = root.rstrip("/") if root else "."
    try:
        is_directory = stat.S_ISDIR(Path(base or "/").stat().st_mode)
    except FileNotFoundError as err:
        raise SysfsError(base, "there is no such directory", hint=_ROOT_HINT) from err
    except OSError as err:
        raise _make_error(base, err, listed=False) from err
    if not is_directory:
        raise SysfsError(base, "it is not a directory", hint=_ROOT_HINT)
    failure: SysfsError | None = None
    for _ in range(ATTEMPTS):
        try:
            before = _read(base, ONLINE_FILES)
            sample = _read(base, WANTED)
            if _read(base, ONLINE_FILES) == before:
                return sample
        except VanishedError as err:
            failure = err
    raise failure or SysfsError(
        f"{base}/{CPUS}/online",
        f"CPUs went online or offline during each of {ATTEMPTS} attempts to read the machine",
        hint="wait until CPU hotplug is over (`udevadm settle`), then try again",
    )


def read_files(wanted: tuple[str, ...], root: str = "/") -> SysfsSample:
    """Read the files below the root that match the patterns.

    In a pattern, `#` matches a decimal number, and `*` matches any name. A pattern for symbolic links ends with `@`.

    Raises:
        SysfsError: a file can't be read, or files disappeared during each attempt.
    """
    failure: SysfsError | None = None
    for _ in range(ATTEMPTS):
        try:
            return _read(root.rstrip("/") if root else ".", wanted)
        except VanishedError as err:
            failure = err
    assert failure is not None
    raise failure


def read_fingerprint_files(root: str = "/") -> SysfsSample:
    """Read the few files that change with every change of the machine (see formats/kernel/machine_fingerprint.py).

    Raises:
        SysfsError: a file doesn't exist or can't be read.
    """
    return _read(root.rstrip("/") if root else ".", FINGERPRINT_FILES)


def read_settings(root: str = "/") -> Settings:
    """Read the kernel's and services' settings for `nodeagent check`. The result lists the files that can't be read."""
    base = root.rstrip("/") if root else "."
    files: dict[str, str] = {}
    directories: dict[str, tuple[str, ...]] = {}
    unreadable = []
    for pattern in SETTINGS:
        try:
            sample = _read(base, (pattern,))
        except SysfsError:
            unreadable.append(pattern)
        else:
            files |= sample.files
            directories |= sample.directories
    sample = SysfsSample(MappingProxyType(files), MappingProxyType(directories), base)
    return Settings(sample, tuple(unreadable))


def write_setting(path: str, text: str, root: str = "/") -> None:
    """Write a value to a kernel setting.

    Raises:
        SysfsError: the setting doesn't exist or can't be changed.
    """
    full = f"{root.rstrip('/')}/{path}"
    try:
        descriptor = os.open(full, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as err:
        raise SysfsError(
            full,
            f"cannot write '{text}': {err.strerror}",
            hint=f"run this as root, or write it yourself: echo {text} | sudo tee {full}",
        ) from err


def _read(base: str, wanted: Iterable[str]) -> SysfsSample:
    files: dict[str, str] = {}
    directories: dict[str, tuple[str, ...]] = {}
    tree: _Files = {}
    for pattern in wanted:
        *parents, last = pattern.split("/")
        branch = tree
        for name in parents:
            below = branch.setdefault(name, {})
            assert below is not None, "a name is wanted both as a file and as a directory"
            branch = below
        if last:
            branch[last] = None
    for path, found in _walk(base, "", tree, listed=False):
        if isinstance(found, str):
            files[_escape(path)] = found
        else:
            directories[_escape(path)] = tuple(map(_escape, found))
    return SysfsSample(MappingProxyType(files), MappingProxyType(directories), base)


def _walk(base: str, path: str, tree: _Files, *, listed: bool) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the content of each wanted file, and the matching names in each listed directory, by path below the root.

    `listed` means that the path was found in its parent's listing. If it then doesn't exist, it has disappeared. Directories with a fixed
    name aren't listed, and may be missing.
    """
    entries = list(tree.items())
    if listed or any("#" in name or name == "*" for name in tree):
        try:
            names = sorted(os.listdir(f"{base}/{path}"))  # noqa: PTH208  only names are needed, of hundreds of directories
        except OSError as err:
            if _is_absent(f"{base}/{path}", err, listed=listed):
                return
            raise _make_error(f"{base}/{path}", err, listed=listed) from err
        found = [(name, wanted, branch) for name in names for wanted, branch in tree.items() if _matches(wanted, name)]
        yield path, tuple(name for name, _, _ in found)
        entries = [(f"{name}{_LINK if wanted.endswith(_LINK) else ''}", branch) for name, wanted, branch in found]
        listed = True
    for name, branch in entries:
        below = f"{path}/{name}" if path else name
        if branch:
            yield from _walk(base, below, branch, listed=listed)
        elif branch is None:
            is_link, below = below.endswith(_LINK), below.removesuffix(_LINK)
            text = (_read_target if is_link else _read_text)(base, below, listed=listed)
            if text is not None:
                yield below, text


def _matches(wanted: str, name: str) -> bool:
    wanted = wanted.removesuffix(_LINK)
    if "#" not in wanted:
        return wanted in {name, "*"}
    before, _, after = wanted.partition("#")
    return re.fullmatch(f"{re.escape(before)}[0-9]+{re.escape(after)}", name) is not None


def _escape(name: str) -> str:
    """Return a name as ASCII text, because documents contain only ASCII and the name of a network interface may contain any bytes."""
    return os.fsencode(name).decode("ascii", "backslashreplace")


def _read_text(base: str, path: str, *, listed: bool) -> str | None:
    full = f"{base}/{path}"
    try:
        # in a copied root, the path may be a FIFO; without O_NONBLOCK, opening it would wait for a writer
        descriptor = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        if _is_absent(full, err, listed=listed):
            return None
        raise _make_error(full, err, listed=listed) from err
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SysfsError(full, "expected a regular file")
        content = bytearray()
        while chunk := os.read(descriptor, 65_536):
            content += chunk
            if len(content) > MAX_FILE_BYTES:
                raise SysfsError(full, f"expected at most {MAX_FILE_BYTES} bytes")
    except OSError as err:
        if FIRMWARE_ANSWERS in path:
            return None
        raise _make_error(full, err, listed=listed) from err
    finally:
        os.close(descriptor)
    return content.decode("ascii", "backslashreplace")


def _read_target(base: str, path: str, *, listed: bool) -> str | None:
    full = f"{base}/{path}"
    try:
        return _escape(str(Path(full).readlink()))
    except OSError as err:
        # in a copied root, a copy of the target may have replaced the link
        is_copied = err.errno == errno.EINVAL and Path(full).is_dir()
        if is_copied or _is_absent(full, err, listed=listed):
            return None
        raise _make_error(full, err, listed=listed) from err


def _is_absent(full: str, err: OSError, *, listed: bool) -> bool:
    if listed:  # in a copied root, a link (to a cpufreq policy) may lack its target
        return err.errno == errno.ENOENT and Path(full).is_symlink()
    return err.errno in (errno.ENOENT, errno.ENOTDIR)


def _make_error(full: str, err: OSError, *, listed: bool) -> SysfsError:
    if listed and err.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EBUSY):
        return VanishedError(
            full,
            "it vanished while the machine was being read",
            hint="wait until CPU hotplug is over (`udevadm settle`), then try again",
        )
    if err.errno in (errno.EACCES, errno.EPERM):
        return SysfsError(
            full, err.strerror or "not permitted", hint="run as root, or give read permission (see `ls -l` of it)"
        )
    return SysfsError(full, err.strerror or str(err))
