"""The layer that rarely changes: Debian, its kernel and initrd, and a virtual environment with third-party packages.

Keyed by everything that goes in, these modules' own text included; kept unpacked, for the project's layer to lie upon.
"""

import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.guest import apt, initrd, releases, trees
from integration.guest.cache import REPOSITORY, building, cache_directory, content_key, keep_newest, locked, mark_used
from integration.guest.errors import SetupError
from integration.guest.phases import phase
from integration.guest.releases import Release
from integration.guest.trees import checked, chroot_script, in_mount_namespace, unpack_debian

VENV = "/opt/nodeagent"
_KEPT_BASES = 2


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


def _inputs(release: Release) -> tuple[bytes | str, ...]:
    recipe = [Path(module).read_bytes() for module in (__file__, initrd.__file__, releases.__file__, trees.__file__)]
    return (repr(release), *apt.sources(release), *_dependencies(), *_build_dependencies(), *recipe)


def _dependencies() -> tuple[str, ...]:
    return tuple(_project()["project"]["dependencies"])


def _build_dependencies() -> tuple[str, ...]:
    """What pip needs to build the project, without network, when it is installed."""
    return (*_project()["build-system"]["requires"], "wheel")


def dependencies_of_tests() -> tuple[str, ...]:
    """What running the tests of the host needs beside the program's own."""
    wanted = ("pytest", "hypothesis", "prometheus-client", "PyYAML", "grpcio-tools")
    return tuple(one for one in _project()["project"]["optional-dependencies"]["dev"] if one.startswith(wanted))


def _project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def _build(base: Base) -> None:
    with phase(f"{base.release} base: downloading Python packages"):
        download_wheels(base.release, base.wheels, (*_dependencies(), *_build_dependencies()))
    with phase(f"{base.release} base: downloading and unpacking Debian packages"):
        unpack_debian(
            base.release,
            base.root,
            variant="minbase",
            packages=releases.packages_of(base.release),
            left_out=releases.LEFT_OUT,
        )
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


def download_wheels(release: Release, target: Path, requirements: tuple[str, ...]) -> None:
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
        *requirements,
    )
