"""What all test runs share, with any number of processes.

The tests in guests run one after the other in two lanes, since all of a kind share one guest; the others fill what processor time is
left. What tests count is printed at the end, as captured output of a passing test and of another process isn't.
"""

import os
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from integration import processor_time
from integration.lanes import lane_of
from integration.processor_time import ProcessorTimes
from integration.progress import ProgressReports
from integration.repeats import Repeats

FIGURE = "figure"
"""Name of the property that a test records each of its figures as."""
_NICENESS = 4
"""Of what runs beside guests: emulated processors share two real ones, and guests are what takes longest. Not more: beside somebody else's
busy loops these tests would get next to nothing.
"""

_SHARING = ("tests/project/", "tests/formats/topology/test_machines.py")
"""Beginnings of the files with fixtures that take seconds, which each process would make again."""

_HAS_BEGUN = pytest.StashKey[bool]()


class TwoLanes(LoadScopeScheduling):
    """A lane of tests in guests is one piece of work, for one process, and so is a file whose tests share something."""

    def _split_scope(self, nodeid: str) -> str:
        lane = lane_of(nodeid)
        if lane is not None:
            return f"lane {lane}"
        return nodeid.partition("::")[0] if nodeid.startswith(_SHARING) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoLanes:
    return TwoLanes(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="every test but `long` ones, with all examples and decision vectors; without it, no test that is marked `whole`, a quarter of "
        "examples and vectors, and of the tests in guests those that are marked `main_job`",
    )
    parser.addoption("--long", action="store_true", help="the tests in guests, their long forms among them")
    parser.addoption("--soak", action="store_true", help="hours of churn in guests")
    parser.addoption(
        "--host-soak", action="store_true", help="load on the host in full: a thousand pods, 100,000 file events"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_long = config.getoption("--long") or config.getoption("--soak")
    is_all = is_long or config.getoption("--all") or config.getoption("--host-soak")
    left_out = {item for item in items if (_is_long(item) and not is_long) or (_is_whole(item) and not is_all)}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _is_whole(item: pytest.Item) -> bool:
    """Return whether only a run of all tests has it."""
    is_in_guest = lane_of(item.nodeid) is not None
    return item.get_closest_marker("whole") is not None or (is_in_guest and item.get_closest_marker("main_job") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Stand back in a process that begins with other tests: the guests are in others. Those go on with the rest when they are done."""
    config = item.config
    if not config.stash.get(_HAS_BEGUN, False):
        config.stash[_HAS_BEGUN] = True
        if _shares_processors() and lane_of(item.nodeid) is None:
            os.nice(_NICENESS)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(processor_time)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, pytest.TerminalReporter):
        config.pluginmanager.register(Repeats(terminal))
        config.pluginmanager.register(ProcessorTimes(terminal))
        if config.get_verbosity() == 0:
            config.pluginmanager.register(ProgressReports(terminal))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = list(_figures(terminalreporter))
    if lines:
        terminalreporter.section("what the tests have counted")
        for line in lines:
            terminalreporter.write_line(line)


def _figures(reporter: pytest.TerminalReporter) -> Iterator[str]:
    for outcome in ("passed", "failed"):
        for report in sorted(reporter.stats.get(outcome, ()), key=lambda report: report.nodeid):
            yield from (
                str(value) for name, value in report.user_properties if name == FIGURE and report.when == "call"
            )


def _shares_processors() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
