"""nodeagent taken off a guest, which is one that never had it then, and put back for the tests that come later."""

from collections.abc import Iterator
from contextlib import contextmanager

from integration.node import Node

_BY_MAKE = "opt/nodeagent etc/nodeagent etc/systemd/system/nodeagent*.service usr/local etc/fish"
_NOT_OURS = ("/kept/*", "/usr/src/*", "/tmp/*", "*/nodeagent-guest*")
"""What guests are made with, and what a test has put there."""


@contextmanager
def kept(node: Node) -> Iterator[None]:
    """Have `make install`'s nodeagent there again in the end, whatever becomes of it."""
    node.run(f"rm -rf /kept && mkdir /kept && cd / && cp -al --parents {_BY_MAKE} /kept", timeout_seconds=60)
    try:
        yield
    finally:
        node.run(
            "systemctl stop nodeagent nodeagent-pods || true; dpkg --purge nodeagent || true; rm -rf /etc/nodeagent"
            " /var/lib/nodeagent*; cp -alf /kept/. / && rm -rf /kept; getent group nodeagent || groupadd --system nodeagent;"
            " systemctl daemon-reload && systemctl start nodeagent",
            timeout_seconds=120,
        )


def uninstall(node: Node) -> None:
    """Leave nothing."""
    node.run("make --directory=/usr/src/nodeagent uninstall PURGE=1", timeout_seconds=60)


def traces(node: Node, *elsewhere: str) -> list[str]:
    """Find all that is of nodeagent: files (but those that match `elsewhere`), cgroups, units, the group."""
    places = " ".join(f"-not -path '{path}'" for path in (*_NOT_OURS, *elsewhere))
    found = node.run(f"find / -xdev -name '*nodeagent*' {places}").stdout.splitlines()
    found += node.run("ls -d /run/nodeagent* /sys/fs/cgroup/nodeagent.slice/*.service", check=False).stdout.splitlines()
    units = node.run("systemctl list-units --all --plain --no-legend 'nodeagent*.service'").stdout.splitlines()
    found += [line for line in units if not line.startswith("nodeagent-guest-agent")]
    return found + node.run("getent group nodeagent", check=False).stdout.splitlines()
