"""Search for the processes that have a file open for writing, in /proc (proc_pid_fd(5), proc_pid_fdinfo(5))."""

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Writer(Struct, frozen=True):
    pid: int
    name: str


def find_writers(path: str) -> tuple[Writer, ...]:
    """Return the processes that have a file open for writing, ordered by PID. Processes that this user can't inspect are left out."""
    found = []
    with suppress(OSError):
        file = Path(path).stat()
        for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with suppress(OSError):
                if any(_is_open_for_writing(pid, entry.name, file) for entry in Path(f"/proc/{pid}/fd").iterdir()):
                    name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="backslashreplace")
                    found.append(Writer(pid, name.removesuffix("\n")))
    return tuple(found)


def _is_open_for_writing(pid: int, descriptor: str, file: os.stat_result) -> bool:
    with suppress(OSError):
        if not os.path.samestat(Path(f"/proc/{pid}/fd/{descriptor}").stat(), file):
            return False
        for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines():
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
