"""The share of examples that a run tries."""

import pytest
from hypothesis import HealthCheck, settings

from nodeagent.edge.transport.local_api_client import call
from tests.support import shares

_EXAMPLES = 100
# The same examples on every machine and in every run, and no verdict by the clock: a red test is red for everybody.
settings.register_profile(
    "all", max_examples=_EXAMPLES, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Examples follow from a seed, which follows from the commit. A database of failed examples would make runs differ.
settings.register_profile(
    "quarter",
    max_examples=_EXAMPLES // shares.QUARTERS,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# pytest --hypothesis-profile=search looks for what those examples leave out.
settings.register_profile("search", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# A client gives up after some seconds. A slow machine must not fail a test for that.
assert call.__kwdefaults__ is not None
call.__kwdefaults__["timeout_seconds"] = 120.0


def pytest_configure(config: pytest.Config) -> None:
    """Choose the share, before any test module asks for it."""
    if config.getoption("--all"):
        settings.load_profile("all")
    elif config.getoption("--hypothesis-profile") is None:
        seed = config.getoption("--hypothesis-seed") or str(shares.quarter_of_commit())
        config.option.hypothesis_seed = seed
        shares.quarter = int(seed) % shares.QUARTERS
        settings.load_profile("quarter")


def pytest_report_header(config: pytest.Config) -> str:
    if shares.quarter is None:
        return "examples: all"
    return (
        f"examples: a quarter, of --hypothesis-seed={config.getoption('--hypothesis-seed')} by the commit; all: --all"
    )


@pytest.fixture
def host_soak(request: pytest.FixtureRequest) -> bool:
    """Whether the long forms are to run."""
    return bool(request.config.getoption("--host-soak"))
