"""Whoever starts a command may have closed its standard streams, or end it while it starts: that is no reason for a traceback."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from nodeagent.cli import main as program
from tests.support.pairs import covering_pairs

ROOT = Path(__file__).parents[2]
NODEAGENT = f"{sys.executable} -m nodeagent"


def answered(script: str) -> subprocess.CompletedProcess[str]:
    """Run it with streams that are buffered, as they are for people, whatever tests run with."""
    return subprocess.run(
        ["sh", "-c", f"unset PYTHONUNBUFFERED; {script}"], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "closed", "status", "reported"),
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
        ("topology --topology 9x", ">&-", 64, "nodeagent: --topology "),
        (
            "explain -f - --topology 8c --config examples/config.yaml",
            "<&-",
            1,
            "nodeagent: cannot read /dev/stdin: got no input\nhint: ",
        ),
        ("simulate -", "<&-", 1, "nodeagent: "),
        ("config show -", "0>/dev/null", 1, "nodeagent: cannot read /dev/stdin: Bad file descriptor\nhint: "),
        ("topology --topology 9x", "2>&-", 64, ""),
        ("topology \"$(printf '\\377')\"", "2>&-", 64, ""),
        ("topology --topology 9x", "2>/dev/full", 64, ""),
        ("topology --topologie 8c", "2>/dev/full", 64, ""),
    ],
)
def test_a_closed_or_full_stream_is_reported_where_that_can_be(
    words: str, closed: str, status: int, reported: str
) -> None:
    done = answered(f"exec {NODEAGENT} {words} {closed}")
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(reported)
    assert "Traceback" not in done.stderr


def test_an_error_after_part_of_the_answer_is_reported_alone_where_that_part_cannot_be_written(tmp_path: Path) -> None:
    half = tmp_path / "half.jsonl"
    half.write_text((ROOT / "examples/scenario.jsonl").read_text().splitlines()[0] + "\n{\n")
    done = answered(f"exec {NODEAGENT} simulate {half} >/dev/full")
    assert done.returncode == 1
    problem, hint = done.stderr.splitlines()
    assert problem.startswith(f"nodeagent: {half}:2: must be JSON: ")
    assert hint.startswith("hint: ")


def test_a_failure_of_a_file_is_not_taken_for_one_of_the_output() -> None:
    with pytest.raises(OSError, match="No space left") as failed, program.flushing_output():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")
    assert failed.value.filename == "file"


def test_what_a_stream_has_no_character_for_is_spelled() -> None:
    done = answered(f"PYTHONIOENCODING=ascii {NODEAGENT} simulate --bench 1 examples/scenario.jsonl")
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout


NAME = "é \x7f \U0001f600"
"""What ASCII, and in part Latin-1, has no characters for."""


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A folder of files whose names and contents few streams can take."""
    cpus = [{"id": cpu, "core": cpu, "socket": 0, "numa": 0} for cpu in range(4)]
    scenario = {"id": NAME, "topology": {"cpus": cpus}, "steps": [{"op": "removePod", "podUID": NAME}]}
    (tmp_path / "scenarios.jsonl").write_text(json.dumps(scenario))
    (tmp_path / f"{NAME}.json").write_text(json.dumps({"topology": {"cpus": cpus}}))
    (tmp_path / "config.yaml").write_text(f"cgroupRoot: /é/{NAME[-1]}\n{(ROOT / 'examples/config.yaml').read_text()}")
    return tmp_path


SHOW = "config show config.yaml"
FIELDS = {
    "simulate scenarios.jsonl": ("id",),
    "simulate --bench 1 scenarios.jsonl": ("id",),
    f"explain -f {ROOT}/examples/guaranteed.yaml --config config.yaml --machine '{NAME}.json'": ("machine", "source"),
    SHOW: ("cgroupRoot",),
}


@pytest.mark.parametrize(
    ("words", "encoding", "form"),
    [*covering_pairs(FIELDS, ("ascii", "latin-1", "utf-8"), ("json", "yaml")), (SHOW, "ascii", "text")],
)
def test_documents_are_read_as_what_they_were_whatever_the_stream_has_characters_for(
    words: str, encoding: str, form: str, named: Path
) -> None:
    command = f"cd {named}; PYTHONPATH={ROOT} PYTHONUTF8=0 PYTHONIOENCODING={encoding} {NODEAGENT} {words} -o {form}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Any = json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)
    for name in FIELDS[words]:
        found = found[name]
    assert found.startswith((NAME, "/é/\U0001f600"))


def test_a_label_that_is_cut_short_is_the_same_in_xml_whatever_the_stream_has_characters_for(named: Path) -> None:
    name = 60 * "x"
    pod = (ROOT / "examples/guaranteed.yaml").read_text()
    (named / "pod.yaml").write_text(pod.replace("name: guaranteed", f"name: {name}"))
    command = f"{NODEAGENT} simulate -f {named}/pod.yaml --config examples/config.yaml --topology 8c -o svg"
    reported = [answered(f"PYTHONIOENCODING={encoding} {command}") for encoding in ("ascii", "utf-8")]
    assert reported[0].stdout == reported[1].stdout
    assert "".join(ET.fromstring(reported[0].stdout).itertext()).count("…") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_is_written_in_part_is_an_error(unbuffered: str, tmp_path: Path) -> None:
    words = f"topology --topology 4096c.2t -o json >{tmp_path}/part"
    done = answered(f"ulimit -f 100; PYTHONUNBUFFERED={unbuffered} exec {NODEAGENT} {words}")
    assert done.returncode == 1
    assert done.stderr.startswith("nodeagent: cannot write the output: File too large\nhint: `df` ")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_takes_no_more_for_now_is_an_error(unbuffered: str) -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent", "topology", "--topology", "4096c.2t", "-o", "json"],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 1
    assert done.stderr.startswith("nodeagent: cannot write the output: Resource temporarily unavailable\nhint: ")


def test_an_interrupted_command_has_written_what_it_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed command ends at once after `main`, so nothing else writes it."""

    def end_in_between() -> None:
        with program.flushing_output():
            sys.stdout.write("one scenario\n")
            raise KeyboardInterrupt

    with (tmp_path / "output").open("w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(KeyboardInterrupt):
            end_in_between()
        assert (tmp_path / "output").read_text() == "one scenario\n"
