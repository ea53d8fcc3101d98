"""Debian trees: unpacking one from packages, and running commands inside. Needs root."""

import os
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.guest import apt
from integration.guest.cache import cache_directory
from integration.guest.errors import SetupError
from integration.guest.packages import as_root
from integration.guest.releases import Release

_CHROOT_ENVIRONMENT = (
    "env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8"
)


def unpack_debian(
    release: Release, root: Path, *, variant: str, packages: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    """A tree with the packages and what they depend on; downloaded packages stay in the cache for the next time."""
    downloads = cache_directory() / "debs" / f"{release.codename}-{variant}"
    downloads.mkdir(parents=True, exist_ok=True)
    archives = '"$1"/var/cache/apt/archives'
    cached = shlex.quote(str(downloads))
    checked(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        f"--variant={variant}",
        "--format=directory",
        "--skip=essential/unlink,download/empty",  # keep the packages until the last hook has saved them
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={path}" for path in left_out),
        *(f"--aptopt={option}" for option in apt.options()),
        f"--setup-hook=mkdir -p {archives} && cp --archive --link {cached}/. {archives}",
        f"--customize-hook=rm -f {cached}/*.deb && cp --archive --link {archives}/*.deb {cached}",
        f"--include={','.join(packages)}",
        release.codename,
        os.fspath(root),
        *apt.sources(release),
    )


def in_mount_namespace(script: str) -> None:
    """Run a shell script, as root, that mounts what it likes: nothing stays mounted, however it ends."""
    checked(*as_root(("unshare", "--mount", "sh", "-ec", script)))


def in_copy_of(tree: Path, script: str, *, mounts: tuple[tuple[Path, str], ...] = ()) -> None:
    """Run a shell script in a copy of a tree that is gone afterwards, with devices, /proc and the mounts (source, inside).

    What is mounted can be written to, and stays.
    """
    with TemporaryDirectory() as name:
        directory = Path(name)
        inside = chroot_script(directory / "merged", script, mounts=((Path("/dev"), "/dev"), *mounts))
        folders = " ".join(shlex.quote(str(directory / part)) for part in ("upper", "merged", "work"))
        in_mount_namespace(f"mount -t tmpfs tmpfs {name}\nmkdir {folders}\n{layered_script(tree, directory, inside)}")


def chroot_script(root: Path, script: str, *, mounts: tuple[tuple[Path, str], ...] = ()) -> str:
    """A shell script for `in_mount_namespace`: the given one in the root, with /proc and the mounts (source, inside)."""
    quoted_root = shlex.quote(str(root))
    lines = [f"mount -t proc proc {quoted_root}/proc"]
    lines += [f"mount --bind {shlex.quote(str(source))} {quoted_root}{inside}" for source, inside in mounts]
    lines.append(f"{_CHROOT_ENVIRONMENT} chroot {quoted_root} sh -ec {shlex.quote(script)}")
    return "\n".join(lines)


def layered_script(lower: Path, directory: Path, script: str) -> str:
    """A shell script for `in_mount_namespace`: the given one, where `directory`/merged shows the tree `lower` and takes what is written.

    What `directory`/upper holds already lies upon the tree. Upper, merged and work have to be there, and empty but for that.
    """
    quoted = shlex.quote(os.fspath(lower))
    return (
        # where an overlay can't lie upon the cache's own file system (a container's, mostly), copy
        f"cd {shlex.quote(os.fspath(directory))}\n"
        f"mount -t overlay -o lowerdir={quoted},upperdir=upper,workdir=work overlay merged 2>/dev/null ||"
        f" {{ cp --archive --reflink=auto {quoted}/. merged; cp --archive upper/. merged; }}\n{script}"
    )


def checked(*command: str, cwd: Path | None = None) -> None:
    """Run a command quietly; SetupError with its output if it fails."""
    result = subprocess.run(
        command, check=False, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.decode(errors="replace").splitlines()[-40:])
        raise SetupError(f"{shlex.join(command[:6])} … ended with status {result.returncode}:\n{tail}")
