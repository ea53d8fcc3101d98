"""contrib/cset/cset understands what scripts say to `cset shield`, and answers by commands of nodeagent."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from integration.contrib import CONTRIB

SCRIPT = CONTRIB / "cset/cset"


def ran(directory: Path, *words: str) -> tuple[int, str]:
    """Run the script with a program that prints how it was called, and its input."""
    program = directory / "nodeagent"
    program.write_text('#!/bin/sh\necho "$@"\ncase $1 in apply) cat ;; esac\n')
    program.chmod(0o755)
    path = {"PATH": f"{directory}:{os.defpath}"}
    done = subprocess.run([str(SCRIPT), *words], capture_output=True, text=True, check=False, env=path)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "called"),
    [
        ("shield", "inspect shield\n"),
        ("shield --exec ./bench -- -t 4 --reset", "exec shield shield -- ./bench -t 4 --reset\n"),
        ("shield -e ./bench 1", "exec shield shield -- ./bench 1\n"),
        ("shield --reset", "delete shield --wait\n"),
        ("shield -r --force", "delete shield --wait\n"),
    ],
)
def test_its_words_are_commands_of_nodeagent(tmp_path: Path, words: str, called: str) -> None:
    assert ran(tmp_path, *words.split()) == (0, called)


@pytest.mark.parametrize(
    ("words", "cpus"), [("--cpu 2-5,8 --kthread on", "5"), ("-c 3 -k on", "1"), ("--cpu=1,3", "2")]
)
def test_a_shield_is_a_pod_with_so_many_exclusive_cpus(tmp_path: Path, words: str, cpus: str) -> None:
    status, said = ran(tmp_path, "shield", *words.split())
    called, manifest = said.split("\n", 1)
    assert (status, called) == (0, "apply --wait -")
    (container,) = yaml.safe_load(manifest)["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": cpus, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("set --list", "only shield is known"),
        ("shield --cpu x", "is not a list of CPUs"),
        ("shield --cpu 5-2", "is not a list of CPUs"),
        ("shield --cpu 1-", "is not a list of CPUs"),
        ("shield --cpu 1,1", "names a CPU twice"),
        ("shield --cpu 1-3,2", "names a CPU twice"),
        ("shield --cpu 8,2,1-3", "names a CPU twice"),
        ("shield --cpu 2, 3", "3 is one word too many"),
        ("shield --reset all", "all is one word too many"),
        ("shield --cpu 99999999999999999999", "is no number of a CPU"),
        ("shield --cpu 0-100000", "is no number of a CPU"),
        ("shield --cpu 2-5 --reset", "separate calls"),
        ("shield --reset --cpu=2-5", "separate calls"),
        ("shield --cpu 2 --exec ./bench", "separate calls"),
        ("shield --cpu 2 --cpu 3", "separate calls"),
        ("shield --shield --pid 4", "`nodeagent pin UNIT --cpus 2`"),
    ],
)
def test_what_it_cannot_do_is_said(tmp_path: Path, words: str, reason: str) -> None:
    status, said = ran(tmp_path, *words.split())
    assert status == 1
    assert reason in said
