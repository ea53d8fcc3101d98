"""Reader of a root file system's description of the machine. Validates nothing; formats/kernel/sysfs.py does."""

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
"""Number of readings (each some 0.1 s) before giving up on a machine whose CPUs come and go faster than they can be read."""

MAX_FILE_BYTES = 32 * 2**20
"""/proc/cpuinfo has about 1.5 KiB per CPU; everything else is at most a page."""

_LINK = "@"
"""Suffix of a wanted name that is a link, whose target is read as its text."""

_Files = dict[str, "_Files | None"]
"""Wanted names of a directory. None means a file to read; an empty tree means that only the name counts."""


_ROOT_HINT = "name the copy of a node's file system: --root DIR"


class VanishedError(SysfsError):
    """A directory lists a file that doesn't exist."""


def read_devices(root: str = "/") -> SysfsSample:
    """Read the description of devices.

    Raises:
        SysfsError: a file can't be read.
    """
    from nodeagent.formats.kernel.pci_devices import CLASSES, list_device_files  # noqa: PLC0415 - only where somebody asks for devices

    return read_files(list_device_files(read_files(CLASSES, root)), root)


def read_machine(root: str = "/") -> SysfsSample:
    """Read all that discovery needs as a consistent set, without a CPU hotplug event in between.

    Raises:
        SysfsError: a file can't be read or isn't a regular file, or the machine kept changing; the error names the path.
    """
    base = root.rstrip("/") if root else "."
    try:
        is_directory = stat.S_ISDIR(Path(base or "/").stat().st_mode)
    except FileNotFoundError as err:
        raise SysfsError(base, "there is no such directory", hint=_ROOT_HINT) from err
    except OSError as err:
        raise _failed(base, err, listed=False) from err
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
        f"CPUs came or went during each of {ATTEMPTS} readings",
        hint="wait until CPU hotplug is over (`udevadm settle`), then try again",
    )


def read_files(wanted: tuple[str, ...], root: str = "/") -> SysfsSample:
    """Read files below the root by patterns: `#` is a decimal number, `*` any name, and `@` at the end marks a link.

    Raises:
        SysfsError: a file can't be read, or some kept vanishing; the error names the path.
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
    """Read only what shows whether the machine has changed; see formats/kernel/machine_fingerprint.py.

    Raises:
        SysfsError: a file is missing or can't be read; the error names the path.
    """
    return _read(root.rstrip("/") if root else ".", FINGERPRINT_FILES)


def read_settings(root: str = "/") -> Settings:
    """Read the settings of kernel and services that `nodeagent check` judges. Unreadable ones are listed, and are no error."""
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
    """Change an existing setting.

    Raises:
        SysfsError: the setting is absent, or cannot be changed.
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
            f"'{text}' cannot be written: {err.strerror}",
            hint=f"run this as root, or write it yourself: echo {text} | sudo tee {full}",
        ) from err


def _read(base: str, wanted: Iterable[str]) -> SysfsSample:
    files: dict[str, str] = {}
    directories: dict[str, tuple[str, ...]] = {}
    for path, found in _walk(base, "", _tree(wanted), listed=False):
        if isinstance(found, str):
            files[_ascii(path)] = found
        else:
            directories[_ascii(path)] = tuple(map(_ascii, found))
    return SysfsSample(MappingProxyType(files), MappingProxyType(directories), base)


def _tree(wanted: Iterable[str]) -> _Files:
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
    return tree


def _walk(base: str, path: str, tree: _Files, *, listed: bool) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield each wanted file's text and each listed directory's wanted names, by path below the root.

    `listed` says that the directory above was listed and names this one, so that it must exist. Missing files under a fixed path are absent
    without a listing (that of /proc is long).
    """
    entries = list(tree.items())
    if listed or any("#" in name or name == "*" for name in tree):
        names = _list(base, path, listed=listed)
        if names is None:
            return
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
            text = (_target if is_link else _text)(base, below, listed=listed)
            if text is not None:
                yield below, text


def _matches(wanted: str, name: str) -> bool:
    wanted = wanted.removesuffix(_LINK)
    if "#" not in wanted:
        return wanted in {name, "*"}
    before, _, after = wanted.partition("#")
    return re.fullmatch(f"{re.escape(before)}[0-9]+{re.escape(after)}", name) is not None


def _list(base: str, path: str, *, listed: bool) -> list[str] | None:
    try:
        return sorted(os.listdir(f"{base}/{path}"))  # noqa: PTH208  only names are needed, of hundreds of directories
    except OSError as err:
        if _absent(f"{base}/{path}", err, listed=listed):
            return None
        raise _failed(f"{base}/{path}", err, listed=listed) from err


def _ascii(name: str) -> str:
    """Return a name as text that can be saved and sent. The name of a network interface may have any bytes; the name itself opens the
    file.
    """
    return os.fsencode(name).decode("ascii", "backslashreplace")


def _text(base: str, path: str, *, listed: bool) -> str | None:
    full = f"{base}/{path}"
    try:
        # O_NONBLOCK, because opening a pipe in a hostile root must not wait for a writer.
        descriptor = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        if _absent(full, err, listed=listed):
            return None
        raise _failed(full, err, listed=listed) from err
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
        raise _failed(full, err, listed=listed) from err
    finally:
        os.close(descriptor)
    return content.decode("ascii", "backslashreplace")


def _target(base: str, path: str, *, listed: bool) -> str | None:
    full = f"{base}/{path}"
    try:
        return _ascii(str(Path(full).readlink()))
    except OSError as err:
        if (
            err.errno == errno.EINVAL and Path(full).is_dir()
        ):  # a copied root may have the target of a link instead of the link
            return None
        if _absent(full, err, listed=listed):
            return None
        raise _failed(full, err, listed=listed) from err


def _absent(full: str, err: OSError, *, listed: bool) -> bool:
    if listed:  # copied roots have links (to cpufreq policies) whose targets weren't copied
        return err.errno == errno.ENOENT and Path(full).is_symlink()
    return err.errno in (errno.ENOENT, errno.ENOTDIR)


def _failed(full: str, err: OSError, *, listed: bool) -> SysfsError:
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
