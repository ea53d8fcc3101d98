"""Whoever starts a command may have closed its standard streams, or end it while it starts: that is no reason for a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.cli import main as command_line

ROOT = Path(__file__).parent.parent
NODEAGENT = f"{sys.executable} -m nodeagent"


def answered(script: str) -> subprocess.CompletedProcess[str]:
    """Run it with streams that are buffered, as they are for people, whatever tests run with."""
    return subprocess.run(
        ["sh", "-c", f"unset PYTHONUNBUFFERED; {script}"], cwd=ROOT, capture_output=True, text=True, check=False
    )


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
        (
            "explain -f - --topology 8c --config examples/config.yaml",
            "<&-",
            1,
            "nodeagent: cannot read /dev/stdin: nothing came\nhint: ",
        ),
        ("simulate -", "<&-", 1, "nodeagent: "),
        ("config show -", "0>/dev/null", 1, "nodeagent: cannot read /dev/stdin: Bad file descriptor\nhint: "),
        ("topology --topology 9x", "2>&-", 2, ""),
        ("topology \"$(printf '\\377')\"", "2>&-", 2, ""),
        ("topology --topology 9x", "2>/dev/full", 2, ""),
        ("topology --topologie 8c", "2>/dev/full", 2, ""),
    ],
)
def test_a_closed_or_full_stream_is_told_of_where_that_can_be(words: str, closed: str, status: int, told: str) -> None:
    done = answered(f"exec {NODEAGENT} {words} {closed}")
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr


def test_an_error_after_part_of_the_answer_is_told_alone_where_that_part_cannot_be_written(tmp_path: Path) -> None:
    half = tmp_path / "half.jsonl"
    half.write_text((ROOT / "examples/scenario.jsonl").read_text().splitlines()[0] + "\n{\n")
    done = answered(f"exec {NODEAGENT} simulate {half} >/dev/full")
    assert done.returncode == 1
    problem, hint = done.stderr.splitlines()
    assert problem.startswith(f"nodeagent: {half}:2: must be JSON: ")
    assert hint.startswith("hint: ")


def test_a_failure_of_a_file_is_not_taken_for_one_of_the_output() -> None:
    with pytest.raises(OSError, match="No space left") as failed, command_line._written():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")
    assert failed.value.filename == "file"


def test_what_a_stream_has_no_character_for_is_spelled() -> None:
    done = answered(f"PYTHONIOENCODING=ascii {NODEAGENT} simulate --bench 1 examples/scenario.jsonl")
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout
