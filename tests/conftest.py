"""Options of the test run."""

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine and in every run, and no verdict by the clock: a red test is red for everybody.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# pytest --hypothesis-profile=search looks for what those examples leave out.
settings.register_profile("search", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-vectors",
        action="store_true",
        help="replay every decision vector; without it default.jsonl.gz and a quarter of the others, by commit",
    )
    parser.addoption(
        "--host-soak", action="store_true", help="load on the host in full: a thousand pods, 100,000 file events"
    )


@pytest.fixture
def host_soak(request: pytest.FixtureRequest) -> bool:
    """Whether the long forms are to run."""
    return bool(request.config.getoption("--host-soak"))
