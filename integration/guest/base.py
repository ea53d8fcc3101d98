"""The layer that rarely changes: Debian, its kernel and initrd, and a virtual environment with third-party packages.

Keyed by everything that goes in, these modules' own text included; kept unpacked, for the project's layer to lie upon.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.guest import apt, initrd, releases
from integration.guest.cache import REPOSITORY, building, cache_directory, content_key, keep_newest, locked, mark_used
from integration.guest.errors import SetupError
from integration.guest.phases import phase
from integration.guest.releases import Release

VENV = "/opt/nodeagent"
_KEPT_BASES = 2
_CHROOT_ENVIRONMENT = (
    "env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8"
)


@dataclass(frozen=True, slots=True)
class Base:
    release: Release
    key: str
    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def wheels(self) -> Path:
        return self.directory / "wheels"

    @property
    def kernel(self) -> Path:
        return self.directory / "kernel"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd"


def base_of(release: Release) -> Base:
    """Where the release's base is, or will be."""
    key = content_key(_inputs(release))
    return Base(release, key, cache_directory() / f"base-{release.number}-{key}")


def ensure_base(release: Release) -> Base:
    """Build the base if it isn't cached; as root."""
    with locked(f"base-{release.number}"):
        base = base_of(release)
        if not base.directory.exists():
            with building(base.directory) as directory:
                _build(Base(release, base.key, directory))
            keep_newest(f"base-{release.number}-", _KEPT_BASES)
        mark_used(base.directory)
        return base


def in_mount_namespace(script: str) -> None:
    """Run a shell script that mounts what it likes: nothing stays mounted, however it ends."""
    checked("unshare", "--mount", "sh", "-ec", script)


def chroot_script(root: Path, script: str, *, mounts: tuple[tuple[Path, str], ...] = ()) -> str:
    """A shell script for `in_mount_namespace`: the given one in the root, with /proc and the mounts (source, inside)."""
    quoted_root = shlex.quote(str(root))
    lines = [f"mount -t proc proc {quoted_root}/proc"]
    lines += [f"mount --bind {shlex.quote(str(source))} {quoted_root}{inside}" for source, inside in mounts]
    lines.append(f"{_CHROOT_ENVIRONMENT} chroot {quoted_root} sh -ec {shlex.quote(script)}")
    return "\n".join(lines)


def checked(*command: str, cwd: Path | None = None) -> None:
    """Run a command quietly; SetupError with its output if it fails."""
    result = subprocess.run(
        command, check=False, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.decode(errors="replace").splitlines()[-40:])
        raise SetupError(f"{shlex.join(command[:6])} … ended with status {result.returncode}:\n{tail}")


def _inputs(release: Release) -> tuple[bytes | str, ...]:
    recipe = [Path(module).read_bytes() for module in (__file__, apt.__file__, initrd.__file__, releases.__file__)]
    return (repr(release), *apt.sources(release), *_dependencies(), *_build_dependencies(), *recipe)


def _dependencies() -> tuple[str, ...]:
    return tuple(_project()["project"]["dependencies"])


def _build_dependencies() -> tuple[str, ...]:
    """What pip needs to build the project, without network, when it is installed."""
    return (*_project()["build-system"]["requires"], "wheel")


def _project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def _build(base: Base) -> None:
    with phase(f"{base.release} base: downloading Python packages"):
        _download_wheels(base.release, base.wheels)
    with phase(f"{base.release} base: downloading and unpacking Debian packages"):
        _unpack_debian(base.release, base.root)
    with phase(f"{base.release} base: kernel, initrd, virtual environment"):
        shutil.copy(initrd.kernel_of(base.root), base.kernel)
        initrd.build_initrd(base.root, base.initrd)
        dependencies = shlex.join(_dependencies())
        install = f"""
            python3 -m venv {VENV}
            {VENV}/bin/pip install --quiet --no-index --find-links /mnt {dependencies}
            python3 -m compileall -q /usr/lib/python3 /usr/lib/python{base.release.python} {VENV}
        """
        in_mount_namespace(chroot_script(base.root, install, mounts=((base.wheels, "/mnt"),)))


def _download_wheels(release: Release, target: Path) -> None:
    """Wheels for the guest's Python, fetched with the host's pip and its configuration of indexes and certificates."""
    pip = (sys.executable, "-m", "pip")
    if subprocess.run((*pip, "--version"), check=False, capture_output=True).returncode != 0:
        raise SetupError(f"{sys.executable} has no pip\nhint: run this with the Python of a virtual environment")
    wanted = ("--only-binary=:all:", "--implementation=cp", f"--python-version={release.python}")
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("2014", "_2_17", "_2_28")]
    checked(
        *pip,
        "download",
        "--quiet",
        "--dest",
        str(target),
        *wanted,
        *platforms,
        *_dependencies(),
        *_build_dependencies(),
    )


def _unpack_debian(release: Release, root: Path) -> None:
    downloads = cache_directory() / "debs" / release.codename
    downloads.mkdir(parents=True, exist_ok=True)
    archives = '"$1"/var/cache/apt/archives'
    cached = shlex.quote(str(downloads))
    checked(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        "--skip=essential/unlink,download/empty",  # keep the packages until the last hook has saved them
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude={path}" for path in releases.LEFT_OUT),
        *(f"--aptopt={option}" for option in apt.options()),
        f"--setup-hook=mkdir -p {archives} && cp --archive --link {cached}/. {archives}",
        f"--customize-hook=rm -f {cached}/*.deb && cp --archive --link {archives}/*.deb {cached}",
        f"--include={','.join(releases.packages_of(release))}",
        release.codename,
        os.fspath(root),
        *apt.sources(release),
    )
