"""contrib/check/nodeagent-health names the kinds of problems by any one of its sources. A guest shows what they say on a node."""

import os
import subprocess
from pathlib import Path

import pytest

from integration.contrib import CONTRIB

SCRIPT = CONTRIB / "check/nodeagent-health"
QUIET = "2 pods, 4 exclusive CPUs, 0 problems, 0 refused"
WRONG = "1 pod, 1 exclusive CPU, 2 problems (launcher, sync), 1 refused: a (b), 3 refused (see: nodeagent inspect)"
NAMED = "1 pod, 0 exclusive CPUs, 1 problem (manifest), 0 refused: /m/a problems (state, sync), 3 refused.yaml (see: nodeagent inspect)"
NONE = 'nodeagent_problems{kind="other"} 0.0'


FORMER = "2 pods, shared CPUs 0-1,4-15"


def ran(
    directory: Path, inspect: int, status: str, metrics: str, *, options: str = "--no-fail", has_failed: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the script with programs that only answer."""
    answers = {
        "nodeagent": f"case $* in *--help*) echo '  {options}  for people' ;; *) exit {inspect} ;; esac",
        "systemctl": f"case $1 in is-failed) exit {int(not has_failed)} ;; *) echo '{status}' ;; esac",
        "curl": f"printf '%s\\n' '{metrics}'",
    }
    for name, answer in answers.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
    path = {"PATH": f"{directory}:{os.defpath}"}
    return subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False, env=path)


@pytest.mark.parametrize(
    ("inspect", "status", "metrics", "expected"),
    [
        pytest.param(0, QUIET, NONE, [], id="nothing"),
        pytest.param(3, QUIET, NONE, ["agent_away"], id="an agent that hangs: its last words are of better times"),
        pytest.param(3, "waiting for nodeagent-pods.service", NONE, ["agent_away"], id="an agent that starts"),
        pytest.param(
            0, FORMER, "", ["other_release"], id="an agent of a former release, whose command has another exit status"
        ),
        pytest.param(1, FORMER, "", ["other_release"], id="an agent of a former release, which the command can't ask"),
        pytest.param(2, WRONG, "", ["launcher", "refused", "sync"], id="by the status line alone"),
        pytest.param(2, NAMED, "", ["manifest"], id="a file whose name reads like a status line"),
        pytest.param(2, "", 'nodeagent_problems{kind="crash_loop"} 12.0', ["crash_loop"], id="by the metrics alone"),
        pytest.param(2, WRONG, 'nodeagent_problems{kind="sync"} 1.0', ["launcher", "refused", "sync"], id="by both"),
        pytest.param(2, QUIET, NONE, ["difference"], id="only inspect sees it"),
    ],
)
def test_the_kinds_are_named(tmp_path: Path, inspect: int, status: str, metrics: str, expected: list[str]) -> None:
    done = ran(tmp_path, inspect, status, metrics)
    assert (done.stdout.split(), done.returncode, done.stderr) == (expected, 2 if expected else 0, "")


def test_a_failed_unit_and_a_command_of_a_former_release_are_told_whatever_that_command_says(tmp_path: Path) -> None:
    for inspect in (0, 2, 3):
        failed = ran(tmp_path, inspect, FORMER, "", options="--strict", has_failed=True)
        assert (failed.stdout.split(), failed.returncode) == (["agent_away"], 2)
    for inspect in (2, 3):
        before_the_restart = ran(tmp_path, inspect, QUIET, NONE, options="--strict")
        assert (before_the_restart.stdout.split(), before_the_restart.returncode) == (["other_release"], 2)


def test_a_look_that_fails_names_nothing(tmp_path: Path) -> None:
    done = ran(tmp_path, 1, QUIET, NONE)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "could not look" in done.stderr
