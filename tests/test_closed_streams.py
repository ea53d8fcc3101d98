"""Whoever starts a command may have closed its standard streams, or end it while it starts: that is no reason for a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("words", "closed", "status", "told"),
    [
        ("topology --topology 8c", ">&-", 0, ""),
        ("topology --topology 8c", ">&- 2>&-", 0, ""),
        ("explain -f - --topology 8c --config examples/config.yaml", "<&-", 1, "nodeagent: stdin:1: holds no pod"),
        ("simulate -", "<&-", 1, "nodeagent: "),
        ("topology --topology 9x", "2>&-", 1, ""),
    ],
)
def test_a_closed_stream_is_empty_and_takes_everything(words: str, closed: str, status: int, told: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m nodeagent {words} {closed}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr
