"""What a shell is answered at TAB, and that bash makes of it what the user sees. The other shells are asked in guests."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.cli.commands.completion import find_candidates
from nodeagent.cli.main import main
from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support import known_names
from nodeagent.cli.support.completion_scripts import SCRIPTS
from nodeagent.cli.support.definitions import Command, extract_command
from nodeagent.cli.support.known_names import find_named_pods
from nodeagent.core.model.config import Config
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.formats.checkpoint.node_state import decode_state
from tests.formats.checkpoint.test_node_state import CONTENT

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copied file-system root, with what the agent has saved."""
    directory = tmp_path / Config().state_directory.lstrip("/")
    directory.mkdir(parents=True)
    pods = [
        ("default", "web", ["app", "proxy"]),
        ("default", "db", ["main"]),
        ("test", "db", ["main"]),
        ("default", "$(reboot)", ["x"]),
    ]
    entries = [
        {"pod": {"metadata": {"namespace": ns, "name": name}, "spec": {"containers": [{"name": c} for c in cs]}}}
        for ns, name, cs in pods
    ]
    (directory / STATE_FILE).write_text("header\n" + json.dumps({"entries": entries}) + "\n")
    return tmp_path


def answered(*words: str) -> tuple[str, list[str]]:
    answer = find_candidates(extract_command(build_parser(words)), list(words))
    return answer.kind, [word for word, _ in answer.words]


def test_commands_and_what_they_do() -> None:
    assert answered("")[1] == list(COMMANDS)
    assert answered("ch") == ("words", ["check", "checkpoint"])
    answer = find_candidates(extract_command(build_parser([""])), ["ret"])
    assert answer.words == (("retry", COMMANDS["retry"]),)
    assert answered("nosuch", "") == ("words", [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("inspect", "--ou"), ("words", ["--output"])),
        (("inspect", "-o", "j"), ("words", ["json"])),
        (("inspect", "--output=y"), ("words", ["--output=yaml"])),
        (("inspect", "--output", "=", "y"), ("words", ["yaml"])),
        (("inspect", "--output", "=", "yaml", "--machi"), ("words", ["--machine"])),
        (("inspect", "--machine", ""), ("files", [])),
        (("inspect", "--root", ""), ("directories", [])),
        (("checkpoint", "v"), ("words", ["verify"])),
        (("checkpoint", "verify", ""), ("files", [])),
        (("checkpoint", "convert", "--to", "memory-v"), ("words", ["memory-v1", "memory-v2"])),
        (("config", "mig"), ("words", ["migrate-from-kubelet"])),
        (("simulate", ""), ("files", [])),
        (("completion", ""), ("words", ["bash", "zsh", "fish"])),
        (("apply", ""), ("files", [])),
        (("diff", "web.yaml", ""), ("files", [])),
        (("apply", "web.yaml", "--fo"), ("words", ["--force"])),
        (("exec", "web", "app", ""), ("words", ["--"])),
        (("exec", "web", "app", "--", "l"), ("commands", [])),
        (("exec", "web", "app", "--", "cat", ""), ("files", [])),
        (("retry", "web", "--s"), ("words", ["--socket"])),
        (("retry", "web", "-o", "y"), ("words", ["yaml"])),
        (("release", "--all", "--dry-run", "--root", ""), ("directories", [])),
        (("capture", "--o"), ("words", ["--out"])),
        (("capture", "--out", ""), ("files", [])),
        (("simulate", "--compare", "a.yaml", ""), ("files", [])),
        (("simulate", "--compare", "a.yaml", "b.yaml", "--compa"), ("words", ["--compare"])),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[1], str) else "",
)
def test_words_that_may_stand_there(words: tuple[str, ...], expected: tuple[str, list[str]]) -> None:
    assert answered(*words) == expected


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("", ["web", "default/db", "test/db"]),
        ("w", ["web"]),
        ("default/", ["default/db"]),
        ("default/w", ["default/web"]),
        ("x", []),
    ],
)
def test_pods_are_named_as_short_as_they_may_be_called(root: Path, typed: str, names: list[str]) -> None:
    assert answered("inspect", "--root", str(root), typed) == ("words", names)
    assert answered("inspect", f"--root={root}", typed) == ("words", names)


def test_containers_are_those_of_the_pod(root: Path) -> None:
    containers = [pod.containers for pod in find_named_pods({"root": str(root)})]
    assert containers == [("app", "proxy"), ("main",), ("main",)]


def test_where_pods_or_files_may_stand_pods_come_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_names, "DEFAULT_SOCKET", str(root / "no-agent"))
    monkeypatch.setattr(known_names, "SAVED_STATE", f"{root}/{Config().state_directory}/{STATE_FILE}")
    assert answered("delete", "we") == ("words", ["web"])
    assert answered("delete", "web", "default/d") == ("words", ["default/db"])
    assert answered("delete", "./we") == ("files", [])


def test_containers_are_asked_of_the_node(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_names, "DEFAULT_SOCKET", str(root / "no-agent"))
    monkeypatch.setattr(known_names, "SAVED_STATE", f"{root}/{Config().state_directory}/{STATE_FILE}")
    assert answered("exec", "web", "") == ("words", ["app", "proxy"])
    assert answered("exec", "test/db", "m") == ("words", ["main"])
    assert answered("exec", "nosuch", "") == ("words", [])


def test_names_are_read_as_the_agent_saves_them(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/nodeagent/nodeagent_state"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    entries = decode_state(CONTENT).state.entries
    expected = [(entry.pod.full_name, {c.name for c in entry.pod.containers}) for entry in entries]
    assert [(pod.full_name, set(pod.containers)) for pod in find_named_pods({"root": str(tmp_path)})] == expected
    assert expected


@pytest.mark.parametrize("content", [b"", b"\n", b"x\n{}", b'x\n{"entries": [{}]}', b'x\n{"entries": 3}', b"x\n[\xff]"])
def test_a_state_that_cannot_be_read_gives_no_names_and_no_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "var/lib/nodeagent/nodeagent_state"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert find_named_pods({"root": str(tmp_path)}) == ()
    assert find_named_pods({"machine": str(path)}) == ()


def test_its_places_are_the_agents() -> None:
    assert f"{Config().state_directory}/{STATE_FILE}" == known_names.SAVED_STATE


KNOWN = {"FILE", "PATH", "DIR", "POD", "CONTAINER"}


def _commands(command: Command) -> list[Command]:
    return [command, *(one for sub in command.subcommands for one in _commands(extract_command(sub.parser)))]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_value_says_what_it_is(name: str) -> None:
    """A new FILE or POD is completed by its metavar; a spelling of one's own would be completed by nothing."""
    found = [
        one for one in _commands(extract_command(build_parser([name]))) if one.name.startswith(f"nodeagent {name}")
    ]
    assert found
    for command in found:
        for argument in (*command.options, *command.places):
            if argument.metavar and argument.help is not None and not argument.choices and not argument.takes_the_rest:
                for part in re.split("[| ]", argument.metavar.strip("[]…. ")):
                    assert part in KNOWN or not re.search(r"\b(FILE|POD|DIR|PATH|CONTAINER|CONFIG)", part), argument


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_printed_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]


def test_the_answer_is_a_kind_and_lines_of_word_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "words", "--", "inspect", "--no-h"]) == 0
    kind, line = capsys.readouterr().out.splitlines()
    assert (kind, line.split("\t")[0]) == ("words", "--no-host-processes")
    assert main(["completion", "words"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(COMMANDS)


def completed_by_bash(directory: Path, *words: str) -> list[str]:
    """What bash would offer after these words, of which the last one is being typed."""
    program = directory / "bin" / "nodeagent"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m nodeagent.cli.main "$@"\n')
    program.chmod(0o755)
    script = f"""
PATH={program.parent}:$PATH
cd {directory}
compopt() {{ :; }}
{SCRIPTS["bash"]}
COMP_WORDS=(nodeagent "$@") COMP_CWORD=$#
_nodeagent
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_bash_offers_words_files_directories_and_commands(root: Path) -> None:
    (root / "my node.json").touch()
    assert completed_by_bash(root, "ch") == ["check", "checkpoint"]
    assert completed_by_bash(root, "inspect", "--output", "=") == ["text", "wide", "json", "yaml"]
    assert completed_by_bash(root, "inspect", "--machine", "my") == ["my node.json"]
    assert completed_by_bash(root, "inspect", "--root", "va") == ["var"]
    assert completed_by_bash(root, "inspect", "--root", str(root), "we") == ["web"]
    assert "printf" in completed_by_bash(root, "exec", "web", "app", "--", "prin")
