"""The examples in every command's help can be pasted: a shell reads them, and the command takes their arguments."""

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support.definitions import extract_command
from nodeagent.cli.support.exit_status import EXIT_WRONG

ROOT = Path(__file__).parents[2]


def examples(text: str) -> list[str]:
    """The lines below `examples:`."""
    return [
        line.strip()
        for line in re.findall(r"^  \S.*$", text.partition("examples:\n")[2].partition("\n\n")[0], re.MULTILINE)
    ]


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A directory of programs that only write down how they were called, an argument a line."""
    for name in ("nodeagent", "sudo", "systemctl", "jq", "xz", "lstopo", "kubectl", "grep", "awk"):
        program = tmp_path / name
        skipped = "shift\n" if name == "sudo" else ""
        said = f'printf "%s\\n" "$@" >"{tmp_path}/called.$$"\n' if name in {"nodeagent", "sudo"} else ""
        program.write_text(f"#!/bin/sh\n{skipped}{said}")
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_commands_that_can_be_given(
    command: str, shell: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = examples(capsys.readouterr().out)
    assert lines
    monkeypatch.setattr(importlib.import_module(f"nodeagent.cli.commands.{command}"), "run", lambda _: 0)
    for name in (
        "scenarios.jsonl",
        "web.yaml",
        "a.yaml",
        "before.json",
        "good.json",
        "bad.json",
        "run-1.json",
        "run-2.json",
        "run-3.json",
    ):
        (shell / name).touch()
    called = 0
    for line in lines:
        done = subprocess.run(
            ["sh", "-ec", line],
            cwd=shell,
            env={"PATH": f"{shell}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), line
        for call in shell.glob("called.*"):
            assert main(call.read_text().splitlines()) == 0, line
            called += 1
            call.unlink()
    assert called >= len([line for line in lines if "nodeagent" in line and not line.startswith(("systemctl", "cd"))])


SCHEMAS = {
    "inspect": ("inspection",),
    "interference": ("interference",),
    "probe": ("probe",),
    "cpus": ("cpus",),
    "fleet": ("fleet-inspection",),
    "check": ("check",),
    "apply": ("apply",),
    "diff": ("diff",),
    "delete": ("delete",),
    "unpin": ("delete",),
    "queue": ("job-queue",),
    "report": ("run-comparison",),
    "retry": ("retry",),
    "release": ("release",),
    "simulate": ("scenario-result",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_an_example_takes_out_of_a_document_is_in_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    filters = re.findall(r"\| jq (?:-r )?('[^']*'|\S+)", capsys.readouterr().out)
    assert bool(filters) == (command in SCHEMAS)
    schema = "".join((ROOT / f"docs/schema/{name}.json").read_text() for name in SCHEMAS.get(command, ()))
    for text in filters:
        assert text.startswith("'") or "[" not in text, "a shell takes brackets for a pattern"
        fields = re.findall(r"\.([a-zA-Z]+)", text)
        assert fields
        assert [field for field in fields if f'"{field}": {{' not in schema] == [], text


def test_the_columns_that_the_help_cuts_out_are_those_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    said = capsys.readouterr().out
    (line,) = [line for line in examples(said) if "awk" in line]
    wide = ROOT / "tests/golden/inspect-wide.txt"
    cut = subprocess.run(["sh", "-c", f"{line.partition('|')[2]} <{wide}"], capture_output=True, text=True, check=True)
    assert cut.stdout.splitlines()[1] == "default/web app 0-7"
    (heading,) = [line for line in wide.read_text().splitlines() if line.startswith("POD ")]
    assert " ".join(heading.split()) in " ".join(said.split())


def with_actions(name: str) -> list[tuple[str, ...]]:
    """A command, and each of what it is made of."""
    (found,) = [one for one in extract_command(build_parser([name])).subcommands if one.name == name]
    return [(name,), *((name, action.name) for action in extract_command(found.parser).subcommands)]


@pytest.mark.parametrize("words", [(), *(words for name in COMMANDS for words in with_actions(name))], ids=" ".join)
def test_prose_fits_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    text = capsys.readouterr().out
    whole = {f"  {line}" for line in re.findall(r"^  (\S.*)$", text.partition("\n\nexamples:\n")[2], re.MULTILINE)}
    assert [line for line in text.splitlines() if len(line) > 80 and line not in whole] == []


@pytest.mark.parametrize(("command", "says"), [("explain", "guaranteed"), ("simulate", "")])
def test_those_that_need_no_node_work_as_pasted(
    command: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = examples(capsys.readouterr().out)
    assert len(lines) >= 3
    there, *lines = lines
    assert there.startswith("cd ")
    monkeypatch.chdir(shlex.split(there)[1])
    for line in lines:
        expected = EXIT_WRONG if "--compare" in line else 0  # the two configurations decide differently
        assert main(shlex.split(line.partition(" >")[0])[1:]) == expected, line
        shown = capsys.readouterr().out
        assert shown
        assert says in shown
