"""What is asked of ssh, and what is made of its answers, failures and silence. The ssh here is a script; hosts are nobody's."""

import os
import subprocess
from pathlib import Path

import pytest

from nodeagent.tools.fleet.ssh import SshError, run_on_host


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def ssh(directory: Path, script: str) -> None:
    program = directory / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def ask(host: str = "node07", *, seconds: float = 30, max_bytes: int = 1000) -> bytes:
    return run_on_host(host, "nodeagent capture", within_seconds=seconds, max_bytes=max_bytes)


def test_the_command_is_one_word_and_nobody_is_asked_for_a_password(tools: Path) -> None:
    ssh(tools, 'printf "%s\\n" "$@"; cat')
    words = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", "node07", "nodeagent capture"]
    assert ask().decode().splitlines() == words


def test_a_host_is_never_an_option(tools: Path) -> None:
    ssh(tools, 'while [ "$1" != -- ]; do shift; done; printf %s "$2"')
    assert ask("-oProxyCommand=true") == b"-oProxyCommand=true"


def test_connecting_takes_no_longer_than_everything(tools: Path) -> None:
    ssh(tools, 'printf %s "$5"')
    assert ask(seconds=3) == b"ConnectTimeout=3"


def test_what_ssh_itself_says_last_is_why(tools: Path) -> None:
    ssh(tools, "echo banner >&2; echo 'ssh: connect to host node07 port 22: Connection refused' >&2; exit 255")
    with pytest.raises(SshError, match=r"^node07: ssh: connect to host node07 port 22: Connection refused$") as caught:
        ask()
    assert "ssh -o BatchMode=yes node07 true" in caught.value.hint


def test_what_the_command_said_is_why_and_its_advice_is_not(tools: Path) -> None:
    ssh(tools, "printf 'nodeagent: no machine\\nhint: buy one\\n' >&2; exit 1")
    with pytest.raises(SshError, match=r"^node07: `nodeagent capture` ended with status 1: nodeagent: no machine$"):
        ask()


def test_what_is_said_beside_an_answer_does_not_matter(tools: Path) -> None:
    ssh(tools, "head -c 1000000 /dev/zero >&2; echo answer")
    assert ask() == b"answer\n"


def test_silence_is_not_waited_for(tools: Path) -> None:
    ssh(tools, "echo half; exec sleep 1000")
    with pytest.raises(SshError, match=r"^node07: no complete answer within 0.2 s$"):
        ask(seconds=0.2)


def test_endless_complaints_are_not_waited_for(tools: Path) -> None:
    ssh(tools, "exec cat /dev/zero >&2")
    with pytest.raises(SshError, match=r"^node07: no complete answer within 0.2 s$"):
        ask(seconds=0.2)


def test_a_flood_is_not_read(tools: Path) -> None:
    ssh(tools, "exec cat /dev/zero")
    with pytest.raises(SshError, match=r"^node07: it sent more than 1000 bytes$"):
        ask()


def test_a_shared_connection_that_stays_is_not_waited_for(tools: Path) -> None:
    """ssh's ControlPersist: what holds the connection may keep stderr open."""
    ssh(tools, f"sleep 1000 >/dev/null & echo $! >{tools}/pid; echo answer")
    assert ask() == b"answer\n"
    subprocess.run(["kill", (tools / "pid").read_text().strip()], check=True)
