"""An agent at rest, for the tests that need no other node than a small one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_model import Daemon, at_rest
from tests.support.world import SMALL, node


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with at_rest(monkeypatch, tmp_path, node(SMALL)) as daemon:
        yield daemon
