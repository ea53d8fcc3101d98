"""The kubelet that runs on this node: its command line, from /proc."""

from contextlib import suppress
from pathlib import Path

_NAME = "kubelet"
_MAX_BYTES = 1 << 20


def kubelet_arguments(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the arguments of the kubelet that runs; none: none runs, or it was given none."""
    for directory in sorted(proc.iterdir()) if proc.is_dir() else ():
        if not directory.name.isdigit():
            continue
        with suppress(OSError):  # it has ended
            if (directory / "comm").read_text(encoding="utf-8", errors="replace").strip() == _NAME:
                with (directory / "cmdline").open("rb") as file:
                    words = file.read(_MAX_BYTES).decode(errors="replace").split("\0")
                return tuple(words[1:-1])
    return ()
