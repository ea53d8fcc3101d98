"""How a run of tests in guests goes on after a failure, and what it says meanwhile; without a guest."""

import re
from typing import Any, Self

import pytest

from integration import guests
from integration.guests import GivenUpError, Guests
from integration.telling import Telling


class Booted:
    """A guest that answers everything with nothing."""

    made: list["Booted"]
    is_closed = False

    @classmethod
    def boot(cls, *_: object, **__: object) -> Self:
        guest = cls()
        cls.made.append(guest)
        return guest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def run(self, *_: object, **__: object) -> None:
        pass

    def get(self, _: str) -> bytes:
        return b""


@pytest.fixture
def of_one_process(monkeypatch: pytest.MonkeyPatch) -> Guests:
    Booted.made = []
    monkeypatch.setattr(guests, "Guest", Booted)
    monkeypatch.setattr(guests, "guest_image", lambda _: None)
    monkeypatch.setattr(guests, "examined", lambda _: "as it was")
    return Guests()


def test_tests_of_a_kind_share_a_guest(of_one_process: Guests) -> None:
    first = of_one_process.of("two_sockets", configured=False)
    assert of_one_process.of("two_sockets", configured=False) is first
    assert of_one_process.of("four_nodes", configured=False) is not first
    assert [guest.is_closed for guest in Booted.made] == [True, False]


def test_a_failure_is_looked_at_once_and_the_next_test_gets_a_new_guest(of_one_process: Guests) -> None:
    first = of_one_process.of("two_sockets", configured=False)
    assert of_one_process.failed(waited_in_vain=False) == [("the guest after the failure", "as it was")]
    assert of_one_process.failed(waited_in_vain=False) == [], "its teardown failed, too"
    assert of_one_process.is_spoilt
    of_one_process.close()  # as after every test whose guest is spoilt
    assert of_one_process.of("two_sockets", configured=False) is not first
    assert not of_one_process.is_spoilt


def test_nobody_waits_in_vain_for_hours(of_one_process: Guests) -> None:
    for waits in range(2):
        of_one_process.of("two_sockets", configured=False)
        assert len(Booted.made) == waits + 1
        of_one_process.failed(waited_in_vain=True)
        of_one_process.close()
    with pytest.raises(GivenUpError, match="not tried, after 2 waits in vain"):
        of_one_process.of("two_sockets", configured=False)
    assert len(Booted.made) == 2


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def telling(told: list[str]) -> Telling:
    class Terminal:
        def ensure_newline(self) -> None:
            pass

        def write_line(self, line: str, **_: bool) -> None:
            told.append(re.sub(r"^\d\d:\d\d:\d\d ", "", line))

    terminal: Any = Terminal()
    return Telling(terminal)


@pytest.mark.parametrize(
    ("nodeid", "when", "outcome", "expected"),
    [
        ("integration/test_a.py::b", "call", "passed", ["integration/test_a.py::b passed after 3 s"]),
        ("integration/test_a.py::b", "call", "skipped", ["integration/test_a.py::b skipped after 3 s"]),
        ("integration/test_a.py::b", "setup", "passed", []),
        ("tests/test_a.py::b", "call", "passed", []),
        ("tests/test_a.py::b", "call", "failed", ["tests/test_a.py::b failed after 3 s", "x is y", "--- log ---", "z"]),
        (
            "integration/test_a.py::b",
            "setup",
            "failed",
            ["integration/test_a.py::b failed at setup after 3 s", "x is y", "--- log ---", "z"],
        ),
    ],
)
def test_what_a_run_says_at_once(
    nodeid: str, when: Any, outcome: Any, expected: list[str], telling: Telling, told: list[str]
) -> None:
    why = "x is y" if outcome == "failed" else None
    report = pytest.TestReport(nodeid, ("", 0, ""), {}, outcome, why, when, sections=[("log", "z")], duration=3.2)
    telling.pytest_runtest_logreport(report)
    assert told == expected
