"""No text that somebody chose makes a terminal act: what can't be printed is escaped, in columns, in errors, on stdout and on stderr."""

import sys
from threading import Thread

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.support.printable_output import escape_output, find_raw_errors, find_raw_output, write_coloured
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.errors import NodeAgentError
from nodeagent.views.wording.columns import break_text, format_table

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x7f\x9b2J\u202egnp\r\b\u2028"
ESCAPED = r"\x1b]0;pwned\x07\x1b[2J\x7f\x9b2J\u202egnp\r\x08\u2028"


def test_what_is_printed_is_escaped_but_for_lines_and_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    with escape_output():
        sys.stdout.write(f"name\t{HOSTILE} é µs ▁\n")
        sys.stdout.writelines(["\x1b[1m\n", "plain\n", "\x1b[31mred\x1b[0m\n"])
    sys.stdout.write("\x1b[m as before\n")
    reported = "\\x1b[1m\nplain\n\\x1b[31mred\\x1b[0m\n\x1b[m as before\n"
    assert capsys.readouterr().out == f"name\t{ESCAPED} é µs ▁\n{reported}"


def test_what_is_said_on_stderr_is_escaped_by_whichever_way_it_gets_there(capsys: pytest.CaptureFixture[str]) -> None:
    with escape_output():
        write_error(f"one\ttwo {HOSTILE}\n")
        sys.stderr.writelines([HOSTILE, "\n"])
        find_raw_errors().write("\x1b[A")
    find_raw_errors().write("\x1b[m as before\n")
    assert capsys.readouterr().err == f"one\ttwo {ESCAPED}\n{ESCAPED}\n\x1b[A\x1b[m as before\n"


def test_the_answer_is_what_the_commands_own_thread_writes(capsys: pytest.CaptureFixture[str]) -> None:
    with escape_output():
        other = Thread(target=lambda: sys.stdout.write("a plugin's \x1b[2J\n"))
        other.start()
        other.join()
        sys.stdout.write("{}\n")
    assert capsys.readouterr() == ("{}\n", "a plugin's \\x1b[2J\n")


def test_a_painted_text_keeps_our_colours_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    painted = "\x1b[1;36mA\x1b[0m \x1b[33m#\x1b[0m\n"
    write_coloured(painted)
    with escape_output():
        write_coloured(f"{painted}{HOSTILE}\x1b[8mhidden\x1b[1;1mx\x1b[031m")
    assert capsys.readouterr().out == f"{painted}{painted}{ESCAPED}\\x1b[8mhidden\\x1b[1;1mx\\x1b[031m"


def test_what_draws_on_a_terminal_reaches_it(capsys: pytest.CaptureFixture[str]) -> None:
    find_raw_output().write("\x1b[H")
    with escape_output():
        find_raw_output().write("\x1b[J")
    assert capsys.readouterr().out == "\x1b[H\x1b[J"


def test_stdout_is_as_it_was_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    assert main(["inspect", "--machine", f"/{HOSTILE}"]) == 1
    with pytest.raises(SystemExit):
        main(["inspect", "--frames", HOSTILE])
    assert sys.stdout is before
    assert "\x1b" not in capsys.readouterr().err


def test_a_hint_is_escaped_as_the_message_is() -> None:
    err = NodeAgentError(f"no {HOSTILE}\nat all", hint=f"try {HOSTILE}\nor not")
    assert (err.message, err.hint) == (f"no {ESCAPED}\nat all", f"try {ESCAPED}\nor not")


def test_columns_are_as_wide_as_what_is_shown() -> None:
    assert format_table([["a\nb", "x"], ["c", HOSTILE]], None) == ["a\\nb  x", f"c     {ESCAPED}"]


@pytest.mark.parametrize("width", [None, 100])
def test_a_line_end_breaks_a_text_and_what_follows_is_indented(width: int | None) -> None:
    assert break_text(f"  one\n{HOSTILE}\nno difference", width) == ["  one", f"    {ESCAPED}", "    no difference"]
    assert break_text("", width) == [""]
