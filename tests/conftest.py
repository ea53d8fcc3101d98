"""Options of the test run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-vectors",
        action="store_true",
        help="replay every decision vector; without it default.jsonl.gz and a quarter of the others, by commit",
    )
