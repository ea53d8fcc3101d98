"""Removes nodeagent from a guest, as if it had never been installed. No later test gets the guest, see the marker `reinstalls`."""

from integration.node import Node

_NOT_OURS = ("/usr/src/*", "/tmp/*", "*/nodeagent-guest*")
"""What guests are built with, and what a test has put there."""


def uninstall(node: Node, *options: str) -> None:
    """Leave nothing. Options: of `make uninstall`."""
    node.run(" ".join(["make --directory=/usr/src/nodeagent uninstall PURGE=1", *options]))


def traces(node: Node, *elsewhere: str) -> list[str]:
    """Find everything that belongs to nodeagent: files (except those that match `elsewhere`), cgroups, units, the group."""
    places = " ".join(f"-not -path '{path}'" for path in (*_NOT_OURS, *elsewhere))
    found = node.run(f"find / -xdev -name '*nodeagent*' {places}").stdout.splitlines()
    found += node.run("ls -d /run/nodeagent* /sys/fs/cgroup/nodeagent.slice/*.service", check=False).stdout.splitlines()
    units = node.run("systemctl list-units --all --plain --no-legend 'nodeagent*.service'").stdout.splitlines()
    found += [line for line in units if not line.startswith("nodeagent-guest-agent")]
    return found + node.run("getent group nodeagent", check=False).stdout.splitlines()
