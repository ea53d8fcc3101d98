"""Options of the test run."""

import pytest
from hypothesis import HealthCheck, settings

from tests.support.shares import QUARTERS, WHOLE, quarter_of_commit

# The same examples on every machine and in every run, and no verdict by the clock: a red test is red for everybody.
settings.register_profile(
    "whole", max_examples=WHOLE, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Examples follow from a seed, which follows from the commit. A database of failed examples would make runs differ.
settings.register_profile(
    "quarter",
    max_examples=WHOLE // QUARTERS,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# pytest --hypothesis-profile=search looks for what those examples leave out.
settings.register_profile("search", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--host-soak", action="store_true", help="load on the host in full: a thousand pods, 100,000 file events"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the share of examples, before any test module asks for it."""
    if config.getoption("--all"):
        settings.load_profile("whole")
    elif config.getoption("--hypothesis-profile") is None:
        settings.load_profile("quarter")
        if config.getoption("--hypothesis-seed") is None:
            config.option.hypothesis_seed = str(quarter_of_commit())


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--all"):
        return "examples and decision vectors: all"
    seed = config.getoption("--hypothesis-seed")
    return f"examples and decision vectors: a quarter, by the commit: --hypothesis-seed={seed}; all: --all"


@pytest.fixture
def host_soak(request: pytest.FixtureRequest) -> bool:
    """Whether the long forms are to run."""
    return bool(request.config.getoption("--host-soak"))
