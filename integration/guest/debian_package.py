"""The Debian package as `make deb` builds it, in a tree of the release that it is for, with Debian's tools and without a network.

And a second one of a higher version, which differs in nothing else: what an upgrade is tried with.
"""

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from integration.guest import apt, trees
from integration.guest.base import base_of, ensure_base
from integration.guest.cache import building, cache_directory, content_key, keep_newest, locked, mark_used
from integration.guest.errors import status_of
from integration.guest.images import read_project, write_files
from integration.guest.packages import build_as_root, ensure_packages
from integration.guest.phases import phase
from integration.guest.releases import RELEASES, Release, release_of
from integration.guest.trees import chroot_script, in_mount_namespace, unpack_debian

HIGHER_VERSION = "9.0.0"
_TOOLS = ("debhelper", "dpkg-dev", "python3-venv")
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/share/info/*")
_NOT_PACKAGED = (".ci/", "benchmarks/", "integration/", "tests/")
_KEPT = 2
# the least compression: by far the most of the processor time that a package takes is xz's
_BUILD = f"""
    export TMPDIR=/srv DPKG_DEB_COMPRESSOR_LEVEL=1
    WHEELS=/mnt /srv/source/scripts/deb.sh
    mv /srv/source/dist/nodeagent_*.deb /srv/package.deb
    cd /srv && dpkg-deb --raw-extract package.deb higher
    sed -i 's/^Version: .*/Version: {HIGHER_VERSION}/' higher/DEBIAN/control
    cd higher/opt/nodeagent/lib/python3*/site-packages/nodeagent
    sed -i 's/^__version__ = .*/__version__ = "{HIGHER_VERSION}"/' __init__.py
    python3 -m compileall -q -f -l --invalidation-mode unchecked-hash .
    dpkg-deb --build -Znone /srv/higher /srv/higher.deb
"""


@dataclass(frozen=True, slots=True)
class Packages:
    directory: Path

    @property
    def package(self) -> Path:
        return self.directory / "package.deb"

    @property
    def higher(self) -> Path:
        """The same with HIGHER_VERSION."""
        return self.directory / "higher.deb"


def debian_packages(release: Release) -> Packages:
    """The checkout's packages for the release: built if they aren't cached."""
    ensure_packages()
    files = read_project("source", _NOT_PACKAGED)
    parts = (part for path, mode, content in sorted(files) for part in (path, str(mode), content))
    key = content_key((base_of(release).key, _tools(release).name, *parts))
    entry = cache_directory() / f"package-{release.number}-{key}"
    if not entry.exists():
        if os.geteuid() != 0:
            return Packages(build_as_root(__spec__.name, release))
        with locked(f"package-{release.number}"):
            if not entry.exists():
                _build(release, files, entry)
            keep_newest(f"package-{release.number}-", _KEPT)
    mark_used(entry)
    return Packages(entry)


def _build(release: Release, files: list[tuple[str, int, bytes]], entry: Path) -> None:
    wheels, tools = ensure_base(release).wheels, _ensure_tools(release)
    with building(entry) as directory, phase(f"{release}: building the package"):
        write_files(files, directory)
        in_mount_namespace(chroot_script(tools / "root", _BUILD, mounts=((wheels, "/mnt"), (directory, "/srv"))))
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


def _ensure_tools(release: Release) -> Path:
    with locked(f"tools-{release.number}"):
        entry = _tools(release)
        if not entry.exists():
            with building(entry) as directory, phase(f"{release}: downloading and unpacking what builds packages"):
                unpack_debian(release, directory / "root", variant="minbase", packages=_TOOLS, left_out=_LEFT_OUT)
            keep_newest(f"tools-{release.number}-", _KEPT)
        mark_used(entry)
        return entry


def _tools(release: Release) -> Path:
    recipe = [Path(module).read_bytes() for module in (__file__, trees.__file__)]
    return cache_directory() / f"tools-{release.number}-{content_key((*apt.sources(release), *recipe))}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.guest.debian_package", description="Build the Debian packages that guests install."
    )
    parser.add_argument("--debian", type=int, choices=[release.number for release in RELEASES], required=True)
    release = release_of(parser.parse_args().debian)
    return status_of(lambda: print(debian_packages(release).directory))


if __name__ == "__main__":
    sys.exit(main())
