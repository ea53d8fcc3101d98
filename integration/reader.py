"""The reader of README and docs/, an ordinary user of the node who types what is shown there: sudo only where it is shown.

Each line is typed in a new login, so that the groups are those that the previous line has left.
"""

import re
from collections.abc import Mapping

from integration.guest.base import base_of
from integration.guest.guest import Completed
from integration.node import MANIFESTS, Node

HOME = "/home/reader"
INSTALL = "sudo make install"
JOIN = "sudo usermod -aG nodeagent $USER"
"""What permits a user to query the agent, as documented."""
_SUDOERS = "reader ALL=(ALL) NOPASSWD: ALL\nDefaults env_keep += WHEELS\n"
_LOGIN = (
    *("setpriv", "--reuid=reader", "--regid=reader", "--init-groups"),
    *("env", "-i", f"HOME={HOME}", "USER=reader", "LANG=C.UTF-8", "TERM=xterm", f"WHEELS={HOME}/wheels"),
    *("PATH=/usr/local/bin:/usr/bin:/bin", "bash", "-o", "pipefail", "-c"),
)
"""WHEELS: a guest has no network to install from."""


_LINE_SECONDS, _INSTALL_SECONDS = 30, 600
_CHANGES = re.compile(r"\bnodeagent (apply|delete) ")
"""Commands that install or remove manifests."""


class Reader:
    def __init__(self, node: Node) -> None:
        self.node = node
        node.run("userdel --remove reader 2>/dev/null || true; useradd --create-home --shell /bin/bash reader")
        node.guest.put("/etc/sudoers.d/reader", _SUDOERS, 0o440)
        assert self.types("id -un; ! nodeagent inspect").stdout == "reader\n"

    def leave(self) -> None:
        self.node.run("userdel --remove reader && rm /etc/sudoers.d/reader")

    def has(self, path: str, content: str) -> None:
        """Give the reader a file; its path starts at home."""
        self._keep({path: content}, 0o644)

    def has_only(self, files: Mapping[str, str], mode: int) -> None:
        """Give the reader these files, and take away what else there is at home."""
        self.node.run(f"find {HOME} -mindepth 1 -delete")
        self._keep(files, mode)

    def _keep(self, files: Mapping[str, str], mode: int) -> None:
        for path, content in files.items():
            self.node.guest.put(f"{HOME}/{path}", content, mode)
        self.node.run(f"chown -R reader: {HOME}")

    def has_wheels(self) -> None:
        """What pip would fetch."""
        for wheel in base_of(self.node.guest.image.release).wheels.iterdir():
            self.node.guest.put(f"{HOME}/wheels/{wheel.name}", wheel.read_bytes())

    def types(self, line: str, *, directory: str = HOME) -> Completed:
        """Type a line, and wait for its end. The effects on manifests are awaited before the next line."""
        seconds = _INSTALL_SECONDS if INSTALL in line else _LINE_SECONDS
        done = self.node.guest.run((*_LOGIN, line), check=False, timeout_seconds=seconds, cwd=directory)
        if MANIFESTS in line or _CHANGES.search(line):
            self.node.wait_decided()
        return done

    def ends(self, line: str, statuses: frozenset[int] = frozenset({0}), *, directory: str = HOME) -> Completed:
        """Type a line, and check that it ends as expected."""
        done = self.types(line, directory=directory)
        assert done.returncode in statuses, f"{done.returncode} of $ {line}\n{done.stdout}{done.stderr}"
        return done

    def watches(self, line: str, until: str, *, directory: str = HOME) -> str:
        """Type a line on a terminal, and q once something is drawn; return what was drawn."""
        drawn = bytearray()
        guest = self.node.guest
        request = guest.start((*_LOGIN, line), cwd=directory, terminal=(40, 100, "xterm"), on_output=drawn.extend)

        def look() -> bool | None:
            assert request.wait(0) is None, drawn.decode(errors="replace")
            return until.encode() in drawn or None

        self.node.until(look, lambda: f"{until} is not drawn: {drawn.decode(errors='replace')}")
        request.send(b"q")
        ended = self.node.until(lambda: request.wait(0), lambda: f"{line} goes on after q")
        assert ended == 0
        return drawn.decode(errors="replace")
