"""Guests for the integration tests: booted once per session and kind, with nodeagent.service running; each test gets them without pods."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import FOUR_CACHES, FOUR_NODES, TWO_SOCKETS, Machine
from integration.guest.releases import release_of
from integration.node import Node


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the long forms of the integration tests")
    parser.addoption("--soak", action="store_true", help="hours of churn")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long") or config.getoption("--soak"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def _booted(debian: int, machine: Machine, *cmdline: str) -> Iterator[Guest]:
    with Guest.boot(guest_image(release_of(debian)), machine, cmdline=cmdline) as guest:
        guest.run("systemctl start nodeagent", timeout_seconds=60)
        yield guest


@pytest.fixture(scope="session")
def two_sockets_booted() -> Iterator[Guest]:
    yield from _booted(12, TWO_SOCKETS)


@pytest.fixture(scope="session")
def four_caches_booted() -> Iterator[Guest]:
    yield from _booted(12, FOUR_CACHES, "isolcpus=12-15", "nohz_full=12-15")


@pytest.fixture(scope="session")
def four_nodes_booted() -> Iterator[Guest]:
    yield from _booted(13, FOUR_NODES)


@pytest.fixture
def two_sockets(two_sockets_booted: Guest) -> Guest:
    """Debian 12: kernel 6.1, systemd 252. 2 sockets, 2 NUMA nodes, an L3 each, 16 CPUs."""
    Node(two_sockets_booted).clear()
    return two_sockets_booted


@pytest.fixture
def four_caches(four_caches_booted: Guest) -> Guest:
    """Debian 12. One socket and NUMA node with four uncore caches, 16 CPUs, those of the last cache isolated."""
    Node(four_caches_booted).clear()
    return four_caches_booted


@pytest.fixture
def four_nodes(four_nodes_booted: Guest) -> Guest:
    """Debian 13: kernel 6.12, systemd 257. Four NUMA nodes at three distances, 16 CPUs."""
    Node(four_nodes_booted).clear()
    return four_nodes_booted
