"""The former release in a guest: an upgrade from it, and the way back, as `make install` does them.

Its sources come from git's history, so this needs a clone that has it.
"""

import subprocess

from integration.guest.base import base_of
from integration.guest.cache import REPOSITORY
from integration.node import Node

FORMER = "196a012fd60d7bbf0cfbc9586e1ce7225bba2cd9^"
"""The commit of 0.1 before resources and domains had folders of their own."""
INSTALL_SECONDS = 300


def put_former_release(node: Node) -> None:
    """Put the former release's sources beside this one's, and what both need to be installed without a network."""
    for wheel in base_of(node.guest.image.release).wheels.iterdir():
        node.guest.put(f"/root/wheels/{wheel.name}", wheel.read_bytes())
    former = ("git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY), "archive", FORMER)
    node.guest.put("/root/former.tar", subprocess.run(former, check=True, capture_output=True).stdout)
    node.run(
        "mkdir /usr/src/former && tar --extract --file=/root/former.tar --directory=/usr/src/former", timeout_seconds=30
    )


def installs(sources: str) -> str:
    """Return the script that installs these sources, `former` or `nodeagent`, over those that are there, without the restart."""
    return f"WHEELS=/root/wheels make --directory=/usr/src/{sources} install"
