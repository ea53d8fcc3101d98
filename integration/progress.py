"""Progress reports during a run of tests."""

import time

import pytest

from integration.lanes import lane_of


class ProgressReports:
    """Reports at once how a test in a guest has ended, and why it failed: a run that is cut off has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome in {"failed", "rerun"}:
            self._report(report, report.outcome, red=True)
            shown = [report.longreprtext, *(f"--- {title} ---\n{text}" for title, text in report.sections)]
            for line in "\n".join(shown).splitlines():
                self._terminal.write_line(line)
        elif report.when == "call" and lane_of(report.nodeid) is not None:
            self._report(report, report.outcome)

    def _report(self, report: pytest.TestReport, outcome: str, **markup: bool) -> None:
        self._terminal.ensure_newline()
        when = "" if report.when == "call" else f" at {report.when}"
        self._terminal.write_line(
            f"{time.strftime('%H:%M:%S')} {report.nodeid} {outcome}{when} after {report.duration:.0f} s", **markup
        )
