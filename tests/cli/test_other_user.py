"""`job --user`: what of root's the command gets, on a terminal and without one."""

import os
import select
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.job_agent import admit_job, answer_jobs

INJECT = 'ioctl(STDIN, 0x5412, $c = "x") or print "refused\\n"'
SETUP = (
    "import sys; from pathlib import Path; from nodeagent.cli.support import other_user; "
    "other_user.INJECTION = Path(sys.argv.pop(1)); from nodeagent.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def words(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """A command line of a job, on a kernel that lets processes type into their terminal, or on another."""
    kernel = tmp_path / "legacy_tiocsti"
    with answer_jobs(admit_job) as socket:

        def made(*command: str, injects: str = "1\n", options: tuple[str, ...] = ()) -> list[str]:
            kernel.write_text(injects)
            job = ("job", "--socket", socket, "--cpus", "2", "--memory", "1Gi", "--user", "nobody", *options)
            return [sys.executable, "-c", SETUP, str(kernel), *job, "--", *command]

        yield made


def on_terminal(words: list[str], typed: bytes = b"", size: tuple[int, int] = (24, 80)) -> tuple[int, str, bytes]:
    """Run on a terminal, as a session's leader, and type as soon as it shows something.

    Returns its status, what it shows, and what it leaves typed in that terminal.
    """
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, size)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
    # a shell in the background has its commands, and so these tests, ignore Ctrl-C
    own = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", own, *words], start_new_session=True, **streams)
    ended, shown, left = os.pidfd_open(process.pid), b"", b""
    while (ready := select.select([master, ended], [], [])[0]) != [ended]:
        shown += os.read(master, 65536)
        os.write(master, typed)
        typed = b""
    attributes = termios.tcgetattr(slave)
    attributes[3] &= ~termios.ICANON
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    while select.select([slave], [], [], 0)[0]:
        left += os.read(slave, 65536)
    for descriptor in (master, slave, *ready):
        os.close(descriptor)
    return process.wait(), shown.decode(), left


def test_roots_environment_and_descriptors_do_not_pass(words: Callable[..., list[str]]) -> None:
    secret = os.memfd_create("secret")
    os.write(secret, b"of root's")
    environment = {**os.environ, "TOKEN": "secret", "LD_LIBRARY_PATH": "/root", "TERM": "vt100"}

    def tell(*options: str) -> str:
        os.lseek(secret, 0, os.SEEK_SET)
        asked = words("bash", "-c", f"env; cat <&{secret}", options=options)
        return subprocess.run(
            asked, env=environment, pass_fds=(secret,), capture_output=True, text=True, check=False
        ).stdout

    told = tell()
    variables = dict(line.split("=", 1) for line in told.splitlines())
    assert {"TOKEN", "LD_LIBRARY_PATH"}.isdisjoint(variables)
    assert (variables["USER"], variables["TERM"], variables["PATH"]) == (
        "nobody",
        "vt100",
        "/usr/local/bin:/usr/bin:/bin",
    )
    assert "of root's" not in told
    everything = tell("--inherit")
    assert "TOKEN=secret" in everything
    assert "of root's" in everything
    os.close(secret)


def test_where_a_process_can_type_into_its_terminal_it_has_another(words: Callable[..., list[str]]) -> None:
    status, _, left = on_terminal(words("perl", "-e", INJECT))
    assert (status, left) == (0, b"")
    assert on_terminal(words("perl", "-e", INJECT, injects="0\n"))[2] == b"x", (
        "a kernel that allows it, taken for one that doesn't"
    )


def test_it_relays_input_output_size_and_status(words: Callable[..., list[str]]) -> None:
    script = "stty size; read line; echo got $line; exit 7"
    status, shown, _ = on_terminal(words("sh", "-c", script), b"hello\n", (33, 101))
    assert status == 7
    assert "33 101" in shown
    assert "got hello" in shown
    assert on_terminal(words("sh", "-c", "kill -TERM $$"))[0] == -15
    assert on_terminal(words("sh", "-c", "echo; read line"), b"\x03")[0] == -2, "Ctrl-C"
    long = on_terminal(words("sh", "-c", "yes 0123456789 | head -n 20000; echo end"))[1]
    assert long.count("0123456789") <= 20000
    assert on_terminal(words("no-such-program"))[0] == 127


def test_it_may_be_asked_for_with_a_user_alone(words: Callable[..., list[str]]) -> None:
    asked = [word for word in words("true", options=("--inherit",)) if word not in {"--user", "nobody"}]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (done.returncode, "--inherit needs --user" in done.stderr) == (64, True)
