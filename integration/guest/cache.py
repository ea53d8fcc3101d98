"""Directories that hold what was built, named by a hash of everything that went in; never half-made, even when killed."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_UNFINISHED = ".unfinished"


def cache_directory() -> Path:
    chosen = os.environ.get("NODEAGENT_CACHE")
    directory = Path(chosen).resolve() if chosen else REPOSITORY / ".cache" / "guests"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def content_key(parts: Iterable[bytes | str]) -> str:
    """Hash of the parts, each with its length: moving a byte from one part to the next is another key."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return digest.hexdigest()[:16]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of that name; the kernel drops it with the process, however that ends."""
    with (cache_directory() / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def building(entry: Path) -> Iterator[Path]:
    """Give a directory to build in, which becomes `entry` at the end of the block, or nothing. Call it under the lock.

    What is built is readable by everyone, whatever the caller's umask: it becomes a file system's content.
    """
    unfinished = entry.with_name(entry.name + _UNFINISHED)
    if unfinished.exists():  # left by a killed build
        shutil.rmtree(unfinished)
    mask = os.umask(0o022)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(entry)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        os.umask(mask)


def keep_newest(prefix: str, count: int) -> None:
    """Remove all but the most recently used entries whose names start with `prefix`."""
    entries = [entry for entry in cache_directory().glob(f"{prefix}*") if entry.is_dir()]
    entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in entries[count:]:
        shutil.rmtree(entry)


def mark_used(entry: Path) -> None:
    if os.access(entry, os.W_OK):  # what root built, a user may still use
        os.utime(entry)
