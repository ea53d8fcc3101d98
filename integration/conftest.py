"""Guests for the integration tests: each kind booted once, with nodeagent.service running; each test gets its guest without pods."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import FOUR_CACHES, FOUR_NODES, TWO_SOCKETS, Machine
from integration.guest.releases import release_of
from integration.lanes import lane_of
from integration.node import CONFIG, Node


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the long forms of the integration tests")
    parser.addoption("--soak", action="store_true", help="hours of churn")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--long") or config.getoption("--soak")):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items.sort(key=lambda item: _ORDER.index(_kind_of(item)))  # so that no kind of guest is booted twice in one lane
    stray = [item.nodeid for item in items if lane_of(item.nodeid) == 1 and _kind_of(item) not in {"", "two_sockets"}]
    if stray:
        raise pytest.UsageError(f"these need another guest than their lane has, see integration/lanes.py: {stray}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Turn a guest off after its last test and what that leaves to do: an idle one takes processor time from the others."""
    try:
        return (yield)
    finally:
        if nextitem is None or _kind_of(nextitem) != _kind_of(item):
            item.config.stash[_GUESTS].close()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_GUESTS] = Guests()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_GUESTS].close()


class Guests:
    """At most one guest at a time in this process."""

    def __init__(self) -> None:
        self._kind = ""
        self._running = ExitStack()
        self._failed: dict[str, Exception] = {}

    def of(self, kind: str, *, configured: bool) -> Guest:
        """The running guest of that kind, or a new one. What couldn't be booted once isn't tried again.

        `configured`: without pods and on the usual configuration; else the test sees to both.
        """
        if kind in self._failed:
            raise self._failed[kind]
        if kind != self._kind:
            self.close()
            debian, machine, cmdline = KINDS[kind]
            try:
                guest = Guest.boot(guest_image(release_of(debian)), machine, cmdline=cmdline)
                self._guest = self._running.enter_context(guest)
                guest.run("systemctl start nodeagent", timeout_seconds=60)
            except Exception as err:
                self._failed[kind] = err
                raise
            self._kind, self._usual = kind, guest.get(CONFIG)
        if configured:
            node = Node(self._guest)
            if self._guest.get(CONFIG) == self._usual:
                node.clear()
            else:
                node.configure(self._usual.decode())
        return self._guest

    def close(self) -> None:
        self._kind = ""
        self._running.close()


_GUESTS = pytest.StashKey[Guests]()
KINDS: dict[str, tuple[int, Machine, tuple[str, ...]]] = {
    "two_sockets": (12, TWO_SOCKETS, ()),
    "four_caches": (12, FOUR_CACHES, ("isolcpus=12-15", "nohz_full=12-15")),
    # the second half of each node is for what the kernel can move: it may be taken offline
    "four_nodes": (13, FOUR_NODES, ("movablecore=1G",)),
}
"""Debian release, machine, and what is added to the kernel's command line."""
_ORDER = ("", "four_nodes", "four_caches", "two_sockets")
"""Debian 13 first: its image is made while the other lane makes that of Debian 12."""


def _kind_of(item: pytest.Item) -> str:
    """Which guest a test is for, empty for none."""
    if lane_of(item.nodeid) is None:
        return ""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}
    return next((kind for kind in KINDS if kind in named), "")


def _guest(request: pytest.FixtureRequest, kind: str) -> Guest:
    configured = request.node.get_closest_marker("configures") is None
    return request.config.stash[_GUESTS].of(kind, configured=configured)


@pytest.fixture
def two_sockets(request: pytest.FixtureRequest) -> Guest:
    """Debian 12: kernel 6.1, systemd 252. 2 sockets, 2 NUMA nodes, an L3 each, 16 CPUs."""
    return _guest(request, "two_sockets")


@pytest.fixture
def four_caches(request: pytest.FixtureRequest) -> Guest:
    """Debian 12. One socket and NUMA node with four uncore caches, 16 CPUs, those of the last cache isolated."""
    return _guest(request, "four_caches")


@pytest.fixture
def four_nodes(request: pytest.FixtureRequest) -> Guest:
    """Debian 13: kernel 6.12, systemd 257. Four NUMA nodes at three distances, 16 CPUs."""
    return _guest(request, "four_nodes")
