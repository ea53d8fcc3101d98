"""Installs what the host needs to build and run guests, if it isn't there; instant when it is."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from integration.guest.cache import REPOSITORY
from integration.guest.errors import SetupError, status_of
from integration.guest.phases import phase
from integration.guest.releases import Release

# program (or file) that must be there -> Debian package that brings it
_NEEDED = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "git": "git",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> tuple[str, ...]:
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"  # a user's PATH often lacks /usr/sbin, where mke2fs is
    absent = [
        package
        for needed, package in _NEEDED.items()
        if not (Path(needed).exists() if needed.startswith("/") else shutil.which(needed, path=path))
    ]
    return tuple(sorted(set(absent)))


def ensure_packages() -> None:
    """Install the missing packages with apt; SetupError says what to do where that isn't possible."""
    packages = missing_packages()
    if not packages:
        return
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        raise SetupError(f"guests need: {names}\nhint: install what your distribution calls these Debian packages")
    print(f"Guests need these Debian packages, which are installed now, as root: {names}", file=sys.stderr, flush=True)
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    with phase(f"installing {names}"):
        first = _apt(install)
        if first.returncode != 0:  # no, or outdated, package lists
            _apt(("apt-get", "update"))
            first = _apt(install)
    if first.returncode != 0:
        raise SetupError(f"apt-get could not install {names}:\n{first.stdout}\nhint: {' '.join(install)}")


def as_root(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command, with sudo before it if we aren't root; SetupError where there is no way."""
    if os.geteuid() == 0:
        return command
    if shutil.which("sudo"):
        return ("sudo", "--preserve-env", *command)
    raise SetupError(f"this needs root, and there is no sudo: {' '.join(command)}\nhint: run it as root, then repeat")


def build_as_root(module: str, release: Release) -> Path:
    """Have one of our modules build something for a release, as root; it prints where that is."""
    print(f"Building for {release} needs root (chroot, device nodes).", file=sys.stderr, flush=True)
    command = as_root((sys.executable, "-m", module, f"--debian={release.number}"))
    result = subprocess.run(command, check=False, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SetupError(f"building for {release} failed, see above\nhint: once more, as root: {shlex.join(command)}")
    return Path(result.stdout.strip())


def _apt(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        as_root(command),
        check=False,
        env=environment,
        stdin=None if sys.stdin.isatty() else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main() -> int:
    return status_of(ensure_packages)


if __name__ == "__main__":
    sys.exit(main())
