"""Which processes have a file open for writing, from /proc (proc_pid_fd(5), proc_pid_fdinfo(5)). Only looks."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Writer(Struct, frozen=True):
    pid: int
    name: str


def writers_of(path: str) -> tuple[Writer, ...]:
    """List the processes that have a file open for writing, by pid. Processes that can't be inspected, or end in the meantime, are left
    out.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return tuple(_writers((found.st_dev, found.st_ino)))


def _writers(identity: tuple[int, int]) -> Iterator[Writer]:
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):
            if any(_writes(pid, entry.name, identity) for entry in Path(f"/proc/{pid}/fd").iterdir()):
                name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="backslashreplace")
                yield Writer(pid, name.removesuffix("\n"))


def _writes(pid: int, descriptor: str, identity: tuple[int, int]) -> bool:
    with suppress(OSError):
        found = Path(f"/proc/{pid}/fd/{descriptor}").stat()
        if (found.st_dev, found.st_ino) != identity:
            return False
        for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines():
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
