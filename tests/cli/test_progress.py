"""The progress bar: where one is seen, where none may be, and that commands of some length count into it."""

import fcntl
import io
import os
import re
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.support import progress as under_test
from nodeagent.cli.support.progress import Progress

EXAMPLES = Path(__file__).parents[2] / "examples"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch, *, seconds: float = 1.0) -> Terminal:
    """Make stderr a terminal (in the test itself: pytest puts its own there before each), some time after the command began."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(under_test, "BEGUN", time.monotonic() - seconds)
    monkeypatch.setenv("TERM", "xterm")
    return made


def counted(progress: Progress, steps: int = 3) -> None:
    with progress:
        for _ in range(steps):
            progress.step()


def test_a_bar_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    counted(Progress("pods", 3))
    drawn = terminal.getvalue()
    assert "pods" in drawn
    assert "/3" in drawn
    assert drawn.rsplit("\r", 1)[-1].strip() == "", "the line is left as it was"


@pytest.mark.parametrize("total", [None, 3])
def test_what_is_counted_is_named_and_has_no_other_unit(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    terminal = terminal_of(monkeypatch)
    counted(Progress("questions to the agent", total))
    drawn = terminal.getvalue()
    assert "questions to the agent: " in drawn
    assert not re.search(r"\dit|it/s", drawn), drawn


def test_what_takes_less_than_a_second_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch, seconds=-3600.0)
    counted(Progress("pods", 3))
    assert terminal.getvalue() == ""


def test_what_begins_when_a_second_has_passed_has_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch, seconds=1.0)
    counted(Progress("pods", 3), steps=1)
    assert "pods" in terminal.getvalue()


@pytest.mark.parametrize("size", [(0, 0), (24, 80)], ids=["a serial console, which has no size", "a window"])
def test_every_terminal_shows_it(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.setattr(under_test, "BEGUN", time.monotonic() - 1.0)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as seen:
        monkeypatch.setattr(sys, "stderr", terminal)
        counted(Progress("pods", 3))
        assert b"pods" in seen.read(4096)


def test_what_is_not_done_yet_is_seen_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with Progress("pods", 3) as progress:
        progress.tick()
        drawn = terminal.getvalue()
        progress.tick()
        assert len(terminal.getvalue()) > len(drawn) > 0
    assert "1/3" not in terminal.getvalue()


def test_a_file_a_dumb_terminal_and_one_with_output_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(sys, "stdout", Terminal())
    counted(Progress("scenarios", beside_output=True))
    monkeypatch.setenv("TERM", "dumb")
    counted(Progress("pods", 3))
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    counted(Progress("pods", 3))
    assert (terminal.getvalue(), file.getvalue()) == ("", "")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["simulate", "--capacity", "-f", f"{EXAMPLES}/guaranteed.yaml"], "copies"),
        (["simulate", "-f", f"{EXAMPLES}/guaranteed.yaml"], "pods"),
        (["simulate", f"{EXAMPLES}/scenario.jsonl"], "scenarios"),
        (["simulate", "--bench", "2", f"{EXAMPLES}/scenario.jsonl"], "replays"),
        (["simulate", "--compare", f"{EXAMPLES}/config.yaml", f"{EXAMPLES}/config.yaml", "-f", "large.yaml"], "pods"),
        (["simulate", "-f", "large.yaml"], "manifests read"),
        (["explain", "-f", "large.yaml"], "changes tried for default/large"),
        (["explain", "-f", "large.yaml", "-f", f"{EXAMPLES}/guaranteed.yaml"], "pods"),
    ],
)
def test_commands_count_into_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str], what: str) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("large.yaml").write_text(
        (EXAMPLES / "guaranteed.yaml").read_text().replace("guaranteed", "large").replace('"2"', '"200"')
    )
    node = ["--topology", "2s.2n.8c.2t"]
    node += [] if "--compare" in command else ["--config", f"{EXAMPLES}/config.yaml"]
    main([*command, *(node if "-f" in command else [])])
    assert what in terminal.getvalue()
