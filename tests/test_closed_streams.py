"""Whoever starts a command may have closed its standard streams, or end it while it starts: that is no reason for a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NODEAGENT = f"{sys.executable} -m nodeagent"


def answered(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "closed", "status", "told"),
    [
        ("topology --topology 8c", ">&-", 1, "nodeagent: cannot write the output: Bad file descriptor\nhint: "),
        ("topology --topology 8c", ">&- 2>&-", 1, ""),
        ("--help", ">&-", 1, "nodeagent: cannot write the output: Bad file descriptor\nhint: "),
        ("--help", ">/dev/full", 1, "nodeagent: cannot write the output: No space left on device\nhint: `df`"),
        (
            "topology --topology 8c",
            ">/dev/full",
            1,
            "nodeagent: cannot write the output: No space left on device\nhint: `df`",
        ),
        ("topology --topology 9x", ">&-", 2, "nodeagent: --topology "),
        ("explain -f - --topology 8c --config examples/config.yaml", "<&-", 1, "nodeagent: /dev/stdin:1: holds no pod"),
        ("simulate -", "<&-", 1, "nodeagent: "),
        ("topology --topology 9x", "2>&-", 2, ""),
    ],
)
def test_a_closed_or_full_stream_is_told_of_where_that_can_be(words: str, closed: str, status: int, told: str) -> None:
    done = answered(f"exec {NODEAGENT} {words} {closed}")
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr


def test_what_a_stream_has_no_character_for_is_spelled() -> None:
    done = answered(f"PYTHONIOENCODING=ascii {NODEAGENT} simulate --bench 1 examples/scenario.jsonl")
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout
