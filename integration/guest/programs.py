"""Programs of Debian that only one test needs, with what they depend on, for the guests of a release."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from integration.guest import apt
from integration.guest.base import base_of
from integration.guest.cache import building, cache_directory, content_key, locked, mark_used
from integration.guest.guest import Guest
from integration.guest.phases import phase

_ARCHIVE = "/root/programs.tar.gz"


def bring(guest: Guest, packages: Sequence[str]) -> None:
    """Unpack all files of these packages in a guest: downloaded if they aren't cached."""
    release = guest.image.release
    base, name = base_of(release), packages[0]
    key = content_key((release.codename, base.key, repr(packages), Path(__file__).read_bytes()))
    entry = cache_directory() / f"{name}-{key}"
    with locked(name):
        if not entry.exists():
            with building(entry) as directory, phase(f"downloading {name} of {release.codename}"):
                debs, root = directory / "packages", directory / "root"
                debs.mkdir()
                root.mkdir()
                status = base.root / "var/lib/dpkg/status"
                apt.download_with_dependencies(release.codename, packages, debs, status=status)
                for package in sorted(debs.glob("*.deb")):
                    subprocess.run(("dpkg-deb", "--extract", str(package), str(root)), check=True)
                archive = ("tar", "--create", "--gzip", f"--file={directory}/files.tar.gz", f"--directory={root}", ".")
                subprocess.run(archive, check=True)
                subprocess.run(("rm", "-r", str(debs), str(root)), check=True)
    mark_used(entry)
    guest.put(_ARCHIVE, (entry / "files.tar.gz").read_bytes())
    unpack = f"tar -C / --no-overwrite-dir --keep-directory-symlink -xzf {_ARCHIVE} && rm {_ARCHIVE} && ldconfig"
    guest.run(unpack, timeout_seconds=60)
