"""The verdict on a run in which tests in guests were repeated: a test that passes the second time, in a fresh guest, is flaky.

A red run means a defect; a machine that is briefly too slow is none. But flaky tests hide defects: a run lists each in its last lines, and
one with several is red. A test whose first run the emulator spoiled, as the guest's kernel said, is listed and counted by itself: its
failure says nothing about the program. pytest-rerunfailures does the repeating (integration/conftest.py selects the tests).
"""

from collections.abc import Generator

import pytest

from integration.guest.errors import EmulatorFailedError

MOST_FLAKY = 2
"""Maximum in a green run, without the tests that the emulator spoiled."""
MOST_SPOILED = 4
"""Maximum in a green run of tests that the emulator spoiled."""
_MOST_LINES = 20
"""Maximum of a failure's text: all of it was printed when it happened."""


class Repeats:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._first_failures: dict[str, str] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome  # pytest's own, and the one of pytest-rerunfailures
        if outcome == "rerun":
            self._first_failures.setdefault(report.nodeid, _text_of(report))
        elif report.failed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Report last, after the summary."""
        yield
        flaky = {nodeid: text for nodeid, text in self._first_failures.items() if nodeid not in self._failed}
        if not flaky:
            return
        spoiled = sum(EmulatorFailedError.__name__ in text.partition("\n")[0] for text in flaky.values())
        is_too_many = len(flaky) - spoiled > MOST_FLAKY or spoiled > MOST_SPOILED
        if is_too_many and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._terminal.ensure_newline()
        self._terminal.section(f"flaky: passed when repeated in a fresh guest; first failed like this ({len(flaky)})")
        for nodeid, text in sorted(flaky.items()):
            self._terminal.write_line(f"FLAKY {nodeid}", yellow=True)
            for line in text.splitlines()[:_MOST_LINES]:
                self._terminal.write_line(f"  {line}")
        if is_too_many:
            self._terminal.write_line(
                f"{len(flaky)} flaky tests are too many, {spoiled} of them spoiled by the emulator: a green run has at most "
                f"{MOST_FLAKY} others, and {MOST_SPOILED} spoiled ones",
                red=True,
            )


def _text_of(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext if crash is None else str(crash.message)
