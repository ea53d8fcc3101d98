"""A program is run where it should be, for as long as it may, and leaves nothing behind. What rt-tests measure, a guest shows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.tools.probe.latency_tools import LatencyToolError, check_installed, run_tool, widen_affinity


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def tool(directory: Path, script: str, name: str = "oslat") -> None:
    """A program that finds the report's file as the last argument."""
    program = directory / name
    program.write_text(f'#!/bin/sh\nfor last; do :; done\nreport="${{last#--json=}}"\n{script}\n')
    program.chmod(0o755)


def test_its_report_is_returned_and_what_it_says_is_not_shown(tools: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tool(tools, 'echo hello; echo "$1" >"$report"')
    assert run_tool(("oslat", "--quiet"), seconds=0) == b"--quiet\n"
    assert capfd.readouterr() == ("", "")


def test_its_stack_is_small_as_it_is_locked_in_the_containers_memory(tools: Path) -> None:
    tool(tools, 'ulimit -s >"$report"')
    assert run_tool(("oslat",), seconds=0) == b"256\n"


def test_a_failure_says_what_it_said_last(tools: Path) -> None:
    tool(tools, "echo no such CPU >&2; exit 3")
    with pytest.raises(LatencyToolError, match=r"^oslat failed with status 3: no such CPU$"):
        run_tool(("oslat",), seconds=0)


def test_half_a_measurement_is_none(tools: Path) -> None:
    tool(tools, 'echo report >"$report"')
    with pytest.raises(LatencyToolError, match="oslat ended too early"):
        run_tool(("oslat",), seconds=30)


def test_a_killed_one_is_named_with_its_signal(tools: Path) -> None:
    tool(tools, "kill -TERM $$")
    with pytest.raises(LatencyToolError, match=r"^oslat was killed by signal 15$"):
        run_tool(("oslat",), seconds=0)


def test_one_that_does_not_end_is_killed(tools: Path, tmp_path: Path) -> None:
    tool(tools, f"echo $$ >{tmp_path}/pid; echo waiting; exec sleep 60")
    with pytest.raises(LatencyToolError, match="has not ended after"):
        run_tool(("oslat",), seconds=0, more_seconds=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_it_ends_with_us_even_if_we_are_killed(tools: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    tool(tools, f"exec >{fifo}; echo ready; exec sleep 60")
    code = "from nodeagent.tools.probe.latency_tools import run_tool; run_tool(('oslat',), seconds=60)"
    with subprocess.Popen([sys.executable, "-c", code]) as ours, fifo.open() as said:
        assert said.readline() == "ready\n"
        ours.send_signal(signal.SIGKILL)
        assert said.read() == "", "its end closes the pipe"


def test_elsewhere_means_through_a_command_of_nodeagent(tools: Path) -> None:
    tool(tools, "exit 0")
    with pytest.raises(LatencyToolError, match="no configuration at /none"):
        run_tool(
            ("oslat",), entering=("exec", "--config", "/none", "--socket", "/none/s", "none", "app", "--"), seconds=0
        )


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LatencyToolError) as caught:
        check_installed(("oslat", "cyclictest"))
    assert caught.value.message == "rt-tests is not installed: there is no oslat"
    assert caught.value.hint == "install it: `apt install rt-tests`"
    tool(tmp_path, "exit 0")
    with pytest.raises(LatencyToolError, match="there is no cyclictest"):
        check_installed(("oslat", "cyclictest"))


def test_our_own_affinity_does_not_limit_it() -> None:
    everywhere = widen_affinity()
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        assert widen_affinity() == everywhere >= CpuSet.of(min(everywhere))
    finally:
        os.sched_setaffinity(0, set(everywhere))
