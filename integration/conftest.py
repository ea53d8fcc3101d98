"""Guests for the integration tests, with nodeagent.service running; each test gets its guest without pods."""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from integration.guest.guest import Guest
from integration.guests import KINDS, GivenUpError, Guests
from integration.lanes import GUESTS, guest_of, lane_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if _kind_of(item):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=GivenUpError))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the guest in the IDs of tests that ask for it by name. A fixture that asks for it has its name as a parameter."""
    kinds = [kind for kind in KINDS if kind in metafunc.fixturenames]
    if kinds:
        metafunc.parametrize("guest_kind", kinds)


@pytest.fixture(autouse=True)
def guest_kind() -> str:
    """The kind of guest in the test's ID. Empty if another parameter names it, or if there is none."""
    return ""


def _place(item: pytest.Item) -> tuple[int, bool]:
    """Assign it to a lane so that no kind of guest is booted twice in one lane."""
    kind = _kind_of(item)
    return GUESTS.index(kind) if kind else -1, _reinstalls(item)


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


def _kind_of(item: pytest.Item) -> str:
    """The guest that a test needs, empty for none."""
    return "" if lane_of(item.nodeid) is None else guest_of(item.nodeid)


def _reinstalls(item: pytest.Item) -> bool:
    return item.get_closest_marker("reinstalls") is not None


def _guest(request: pytest.FixtureRequest, kind: str) -> Guest:
    assert kind == _kind_of(request.node), "the ID of a test names its guest, by which the lanes are made"
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
