"""containerd of the Debian release after those that guests run: its programs alone, which run on Debian 13, too."""

import subprocess
from pathlib import Path

from integration.guest import apt
from integration.guest.cache import building, cache_directory, content_key, locked, mark_used
from integration.guest.phases import phase

CODENAME = "forky"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


def next_containerd() -> Path:
    """The directory that the programs are in: downloaded if they aren't cached."""
    entry = cache_directory() / f"containerd-{content_key((CODENAME, Path(__file__).read_bytes()))}"
    with locked("containerd"):
        if not entry.exists():
            with building(entry) as directory, phase(f"downloading containerd of {CODENAME}"):
                apt.download(CODENAME, "containerd", directory)
                (package,) = directory.glob("*.deb")
                subprocess.run(("dpkg-deb", "--extract", str(package), str(directory)), check=True)
                package.unlink()
    mark_used(entry)
    return entry / "usr/bin"
