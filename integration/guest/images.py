"""The layer that changes with every edit: the project, installed on a base as on a bare-metal node, as a disk image.

The base lies below an overlay file system, so that only what the installation writes is written, and the image is
made straight from the merged tree.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from integration.guest import emulator, settings
from integration.guest.base import VENV, Base, base_of, ensure_base
from integration.guest.cache import REPOSITORY, building, cache_directory, content_key, keep_newest, locked, mark_used
from integration.guest.errors import SetupError, status_of
from integration.guest.packages import build_as_root, ensure_packages
from integration.guest.phases import phase
from integration.guest.releases import RELEASES, Release, release_of
from integration.guest.trees import chroot_script, in_mount_namespace, layered_script

_KEPT_IMAGES = 3
_DISK_SIZE = "2G"  # sparse
_SOURCE = "usr/src/nodeagent"
# Parts of the repository that the installed program doesn't come from: editing a test makes no new image.
NOT_INSTALLED = (".ci/", "benchmarks/", "debian/", "integration/", "tests/")


@dataclass(frozen=True, slots=True)
class Image:
    """What a guest boots from; never written to (`snapshot=on`)."""

    release: Release
    disk: Path
    kernel: Path
    initrd: Path


@dataclass(frozen=True, slots=True)
class _Layer:
    """All that is laid upon the base, read once: what the key says is what gets installed, even if files change now."""

    files: tuple[tuple[str, int, bytes], ...]  # path without the leading slash, mode, content
    links: tuple[tuple[str, str], ...]

    def entry(self, base: Base) -> Path:
        files = (part for path, mode, content in self.files for part in (path, str(mode), content))
        key = content_key((base.key, repr(self.links), Path(__file__).read_bytes(), *files))
        return cache_directory() / f"image-{base.release.number}-{key}"


def guest_image(release: Release) -> Image:
    """The image with the current checkout installed: built, from the nearest cached layer on, if it isn't there."""
    ensure_packages()
    layer = _read_layer()
    entry = layer.entry(base_of(release))
    if not (entry.exists() and emulator.is_there()):
        entry = _build_all(release, layer) if os.geteuid() == 0 else build_as_root(__spec__.name, release).parent
    mark_used(entry)
    return Image(release, entry / "disk", entry / "kernel", entry / "initrd")


def install_script() -> str:
    """How the project is installed inside the guest's tree, from its sources, without network (wheels are in /mnt)."""
    return f"make --directory=/{_SOURCE} install WHEELS=/mnt"


def _build_all(release: Release, layer: _Layer) -> Path:
    """Emulator and image at once: each keeps one CPU busy for most of the time."""
    with ThreadPoolExecutor(1) as other:
        ready = other.submit(emulator.ensure_emulator)
        entry = _ensure_image(release, layer)
        ready.result()
    return entry


def _ensure_image(release: Release, layer: _Layer) -> Path:
    base = ensure_base(release)
    with locked(f"image-{release.number}"):
        entry = layer.entry(base)
        if not entry.exists():
            with building(entry) as directory, phase(f"{release} image: installing the project, writing the disk"):
                _build(base, layer, directory)
            keep_newest(f"image-{release.number}-", _KEPT_IMAGES)
        return entry


def _read_layer() -> _Layer:
    files = [(path, 0o644, content) for path, content in settings.guest_files().items()]
    files += read_project(_SOURCE, NOT_INSTALLED)
    return _Layer(tuple(sorted(files)), tuple(sorted(settings.guest_links().items())))


def read_project(where: str, left_out: tuple[str, ...]) -> list[tuple[str, int, bytes]]:
    """Every one of `project_files`: its path below `where`, its mode and content."""
    return [
        (f"{where}/{path}", 0o755 if os.access(REPOSITORY / path, os.X_OK) else 0o644, (REPOSITORY / path).read_bytes())
        for path in project_files(left_out)
    ]


def project_files(left_out: tuple[str, ...] = ()) -> list[Path]:
    """Tracked and new files, as git sees them, in a repository whoever owns it; without those that begin like this."""
    git = ("git", "-c", f"safe.directory={REPOSITORY}", "-C", os.fspath(REPOSITORY))
    listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    result = subprocess.run((*git, *listing), check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise SetupError(f"git can't list the project's files: {result.stderr}hint: run this in a git checkout")
    names = sorted({name for name in result.stdout.split("\0") if name and not name.startswith(left_out)})
    return [Path(name) for name in names if (REPOSITORY / name).is_file()]


def _build(base: Base, layer: _Layer, directory: Path) -> None:
    os.link(base.kernel, directory / "kernel")
    os.link(base.initrd, directory / "initrd")
    upper, merged, _ = scratch = tuple(directory / name for name in ("upper", "merged", "work"))
    for path in scratch:
        path.mkdir()
    write_files(layer.files, upper)
    for name, target in layer.links:
        path = upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    install = f"{install_script()}\npython3 -m compileall -q /{settings.AGENT_DIRECTORY} {VENV}"
    installing = chroot_script(merged, install, mounts=((base.wheels, "/mnt"),))
    script = (
        f"unshare --mount sh -ec {shlex.quote(installing)}\n"
        f"mke2fs -q -t ext4 -E root_owner=0:0 -d merged disk {_DISK_SIZE}"
    )
    in_mount_namespace(layered_script(base.root, directory, script))
    for path in scratch:
        shutil.rmtree(path)


def write_files(files: Iterable[tuple[str, int, bytes]], root: Path) -> None:
    """Write them: path below the root, mode, content."""
    for name, mode, content in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.guest.images", description="Build guests' disk images."
    )
    parser.add_argument("--debian", type=int, choices=[release.number for release in RELEASES], action="append")
    chosen = parser.parse_args().debian

    def build() -> None:
        for release in RELEASES if chosen is None else map(release_of, chosen):
            print(guest_image(release).disk)

    return status_of(build)


if __name__ == "__main__":
    sys.exit(main())
