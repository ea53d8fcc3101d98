"""podman of Debian, with what it depends on, for the guests of a release."""

import subprocess
from pathlib import Path

from integration.guest import apt
from integration.guest.base import base_of
from integration.guest.cache import building, cache_directory, content_key, locked, mark_used
from integration.guest.phases import phase
from integration.guest.releases import Release

_PACKAGES = ("podman", "crun")
"""Its own choice is any OCI runtime, and runc is there; `--cgroups=disabled` needs crun."""


def podman_files(release: Release) -> Path:
    """The archive of all files that these packages bring: made if it isn't cached."""
    base = base_of(release)
    key = content_key((release.codename, base.key, Path(__file__).read_bytes()))
    entry = cache_directory() / f"podman-{key}"
    with locked("podman"):
        if not entry.exists():
            with building(entry) as directory, phase(f"downloading podman of {release.codename}"):
                packages, root = directory / "packages", directory / "root"
                packages.mkdir()
                root.mkdir()
                status = base.root / "var/lib/dpkg/status"
                apt.download_with_dependencies(release.codename, _PACKAGES, packages, status=status)
                for package in sorted(packages.glob("*.deb")):
                    subprocess.run(("dpkg-deb", "--extract", str(package), str(root)), check=True)
                archive = ("tar", "--create", "--gzip", f"--file={directory}/files.tar.gz", f"--directory={root}", ".")
                subprocess.run(archive, check=True)
                subprocess.run(("rm", "-r", str(packages), str(root)), check=True)
    mark_used(entry)
    return entry / "files.tar.gz"
