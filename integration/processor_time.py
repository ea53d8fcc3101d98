"""Processor time of each test, and the ten files and ten tests that took most of it in the last lines of a run.

Processor time, not the clock's: several processes run tests beside guests. It includes fixtures, child processes that were waited for, and
the emulators of guests.
"""

from collections import defaultdict
from collections.abc import Generator
from operator import itemgetter
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import psutil
import pytest

from integration.lanes import lane_of

PROCESSOR_TIME = "processor seconds"
"""Name of the property with which each test records its time; `--junitxml` writes it, too."""
_SHOWN = 10


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEGUN_AT] = _processor_seconds(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """Record the time in the test's last report."""
    if call.when == "teardown":
        item.user_properties.append((PROCESSOR_TIME, round(_processor_seconds(item) - item.stash[_BEGUN_AT], 3)))
    return (yield)


class ProcessorTimes:
    """Sums processor time by test and by file, and prints the largest sums."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._by_test: dict[str, float] = defaultdict(float)
        self._by_file: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            seconds = sum(
                value for name, value in report.user_properties if name == PROCESSOR_TIME and isinstance(value, float)
            )
            self._by_test[report.nodeid] += seconds
            self._by_file[report.nodeid.partition("::")[0]] += seconds

    def pytest_terminal_summary(self) -> None:
        self._terminal.section(f"processor time: {sum(self._by_file.values()):.0f} s")
        for sums in (self._by_file, self._by_test):
            for name, seconds in sorted(sums.items(), key=itemgetter(1), reverse=True)[:_SHOWN]:
                self._terminal.write_line(f"{seconds:7.1f} s  {name}")


def _processor_seconds(item: pytest.Item) -> float:
    """Return the processor seconds so far of this process and of its children: those that were waited for, and a running guest."""
    usages = map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    if lane_of(item.nodeid) is not None:
        seconds += sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())
    return seconds


_BEGUN_AT = pytest.StashKey[float]()
