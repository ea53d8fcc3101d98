"""Guests for the integration tests, with nodeagent.service running; each test gets its guest without pods."""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from integration.guest.guest import Guest
from integration.guests import KINDS, GivenUpError, Guests
from integration.lanes import lane_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if _kind_of(item):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=GivenUpError))
    stray = [item.nodeid for item in items if lane_of(item.nodeid) == 1 and _kind_of(item) not in {"", "two_sockets"}]
    if stray:
        raise pytest.UsageError(f"these need another guest than their lane has, see integration/lanes.py: {stray}")


def _place(item: pytest.Item) -> tuple[int, bool]:
    """Assign it to a lane so that no kind of guest is booted twice in one lane."""
    return _ORDER.index(_kind_of(item)), _reinstalls(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test's report what its guest looked like."""
    report = yield
    if report.failed and _kind_of(item):
        report.sections += item.config.stash[_GUESTS].failed(None if call.excinfo is None else call.excinfo.value)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Turn a guest off after its last test and that test's teardown: an idle guest takes processor time from the others."""
    try:
        return (yield)
    finally:
        if nextitem is None or _kind_of(nextitem) != _kind_of(item) or _reinstalls(item):
            item.config.stash[_GUESTS].close()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_GUESTS] = Guests()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_GUESTS].close()


_GUESTS = pytest.StashKey[Guests]()
_ORDER = ("", "four_nodes", "two_cards", "four_caches", "two_sockets")
"""Debian 13 first: its image is built while the other lane builds that of Debian 12."""


def _kind_of(item: pytest.Item) -> str:
    """The guest that a test needs, empty for none."""
    if lane_of(item.nodeid) is None:
        return ""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}
    return next((kind for kind in KINDS if kind in named), "")


def _reinstalls(item: pytest.Item) -> bool:
    return item.get_closest_marker("reinstalls") is not None


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


@pytest.fixture
def two_cards(request: pytest.FixtureRequest) -> Guest:
    """Debian 13. Two sockets, and a network card on each NUMA node. For long tests: it is one more boot."""
    return _guest(request, "two_cards")
