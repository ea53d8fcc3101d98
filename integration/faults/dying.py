"""In the guest this is the agent's `sitecustomize`. It counts what the agent's deciding thread does to files and cgroups, and kills it.

Python tells its audit hooks of every such call before it is made: a file opened to be written, a rename, a directory made or removed.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from threading import get_ident
from typing import Any

DIRECTORY = Path("/run/faults")
ORDER = DIRECTORY / "order"
"""`PID STEP`: that process must die before that one of the changes it makes from now on."""
START_ORDER = DIRECTORY / "now"
"""`STEP`: the process that is being started must die before that change."""
SAID = "change"
_PLACES = ("/var/lib/nodeagent/", "/sys/fs/cgroup/", "/run/nodeagent/placement")
_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir"}


class Fate:
    def __init__(self) -> None:
        self._thread = get_ident()
        self._is_looking = False
        self._text = ""
        self._count = 0
        self._dies_at = self._started_with()

    def _started_with(self) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return int(START_ORDER.read_text())
        return None

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        """Python's audit hook."""
        if self._is_looking or get_ident() != self._thread or not _is_change(event, details):
            return
        self._is_looking = True
        try:
            self._look()
        finally:
            self._is_looking = False
        if self._dies_at is None:
            return
        self._count += 1
        os.write(2, f"{SAID} {self._count} {event} {details[0]}\n".encode())
        if self._count >= self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _look(self) -> None:
        """Take a new order."""
        with contextlib.suppress(FileNotFoundError):
            text = ORDER.read_text()
            pid, step = text.split()
            if text != self._text and int(pid) == os.getpid():
                self._text, self._count, self._dies_at = text, 0, int(step)


def _is_change(event: str, details: tuple[Any, ...]) -> bool:
    if event != "open" and event not in _CHANGES:
        return False
    if event == "open" and not details[2] & (os.O_WRONLY | os.O_RDWR):
        return False
    return str(details[0]).startswith(_PLACES)


if __name__ == "sitecustomize":
    sys.addaudithook(Fate().hear)
