"""Whoever starts a command may have closed its standard streams, or end it while it starts: that is no reason for a traceback."""

import os
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
        ("topology --topology 9x", "2>&-", 2, ""),
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


def test_what_a_stream_has_no_character_for_is_spelled() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", "simulate", "--bench", "1", "examples/scenario.jsonl"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout
