"""Command line of this node's kubelet, read from /proc."""

from contextlib import suppress
from pathlib import Path

_NAME = "kubelet"
_MAX_BYTES = 1 << 20


def read_kubelet_arguments(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the arguments of the running kubelet. Empty means that kubelet isn't running."""
    for directory in sorted(proc.iterdir()) if proc.is_dir() else ():
        if not directory.name.isdigit():
            continue
        with suppress(OSError):  # the process may have ended
            if (directory / "comm").read_text(encoding="utf-8", errors="replace").strip() == _NAME:
                with (directory / "cmdline").open("rb") as file:
                    words = file.read(_MAX_BYTES).decode(errors="replace").split("\0")
                return tuple(words[1:-1])
    return ()
