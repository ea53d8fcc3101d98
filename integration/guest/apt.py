"""The host's way to Debian's packages (mirrors, proxies, certificates), as arguments of mmdebstrap; and single packages."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.guest.releases import Release

_ARCHIVE = "http://deb.debian.org/debian/"
_SECURITY = "http://deb.debian.org/debian-security/"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NOWHERE = subprocess.DEVNULL
# Options of how to fetch; the others (which indexes to fetch) are the host's own business.
_FETCHING = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries", "Acquire::Force")


def sources(release: Release) -> tuple[str, ...]:
    """sources.list lines for the release, from the mirrors that the host itself uses."""
    archive, security = _mirrors(_indexes())
    name, options = release.codename, f"deb [signed-by={_KEYRING}]"
    return (
        f"{options} {archive} {name} main",
        f"{options} {archive} {name}-updates main",
        f"{options} {security} {name}-security main",
    )


def options() -> tuple[str, ...]:
    """The host's apt options about fetching, and no translated package descriptions."""
    dump = subprocess.run(("apt-config", "dump"), check=True, stdout=subprocess.PIPE, text=True).stdout
    return ('Acquire::Languages "none";', *fetching_options(dump))


def download(codename: str, package: str, target: Path) -> None:
    """Put one package of any release, as it is, into a directory. The release's indexes may have expired."""
    with TemporaryDirectory() as name:
        subprocess.run((*_apt_get(codename, Path(name)), "download", package), check=True, cwd=target, stdout=_NOWHERE)


def download_with_dependencies(codename: str, packages: Sequence[str], target: Path, *, status: Path) -> None:
    """Put packages of any release into a directory, with those that they depend on and that aren't there.

    Args:
        codename: of the release.
        packages: their names.
        target: the directory.
        status: dpkg's file of that name on the system that the packages are for.
    """
    with TemporaryDirectory() as name:
        own = Path(name)
        install = ("install", "--yes", "--download-only", "--no-install-recommends", *packages)
        options = (f"--option=Dir::State::status={status}",)
        subprocess.run((*_apt_get(codename, own), *options, *install), check=True, stdout=_NOWHERE)
        for path in (own / "archives").glob("*.deb"):
            shutil.move(path, target)


def _apt_get(codename: str, own: Path) -> tuple[str, ...]:
    """Return the command that knows of the packages of one release, and has its files in a directory."""
    archive, _ = _mirrors(_indexes())
    (own / "lists/partial").mkdir(parents=True)
    (own / "archives/partial").mkdir(parents=True)
    (own / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {archive} {codename} main\n")
    places = {
        "Dir::Etc::SourceList": own / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": own / "lists",
        "Dir::Cache": own,
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Languages": "none",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
    }
    command = ("apt-get", *(f"--option={key}={value}" for key, value in places.items()))
    subprocess.run((*command, "update"), check=True, stdout=_NOWHERE)
    return command


def fetching_options(dump: str) -> tuple[str, ...]:
    """From the output of `apt-config dump`: one `Name "value";` a line."""
    return tuple(line for line in dump.splitlines() if line.startswith(_FETCHING) and not line.endswith(' "";'))


def _indexes() -> str:
    """One line `URI suite` for every package index of the host; empty where the host isn't a Debian."""
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages")
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout


def _mirrors(indexes: str) -> tuple[str, str]:
    """The archive's and the security archive's URI: one mirror carries all releases."""
    archive, security = None, None
    for line in indexes.splitlines():
        uri, _, suite = line.partition(" ")
        if suite.endswith("-security") and uri.rstrip("/").endswith("debian-security"):
            security = security or uri
        elif uri.rstrip("/").endswith("debian"):
            archive = archive or uri
    return archive or _ARCHIVE, security or _SECURITY
