"""What the README says is so: its tables are the code's, its commands, files and exit statuses exist."""

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.parser import COMMANDS
from nodeagent.cli.support.becoming import EXIT_CANNOT_RUN, EXIT_NOT_ENTERED, EXIT_NOT_FOUND
from nodeagent.cli.support.exit_status import EXIT_DIFFERENCE, EXIT_ERROR, EXIT_REFUSED, EXIT_USAGE
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET, PODS_CGROUP
from nodeagent.core.model.config import Config
from nodeagent.core.model.errata import ERRATA
from nodeagent.core.resources.cpu.options import OPTIONS
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, EX_CONFIG, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.formats.config.config_yaml import known_fields

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "readme.py"))


def test_the_tables_are_the_codes(script: dict[str, Any]) -> None:
    assert script["rewritten"](README) == README, "run: make readme"


def test_the_table_of_differences_has_every_erratum() -> None:
    rows = re.findall(r"^\| (\d+)\*? \| (.*?) \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    assert [(int(number), kubelet, ours) for number, kubelet, ours, _ in rows] == [
        (entry.erratum.value, entry.kubelet, entry.nodeagent) for entry in ERRATA
    ]
    assert [re.findall(r"\((https:.*?)\)", row[3]) for row in rows] == [list(entry.links) for entry in ERRATA]


def test_the_table_of_configuration_has_every_field_that_is_read(script: dict[str, Any]) -> None:
    listed = [name for row in script["FIELDS"] for name in row[0].split(", ")]
    assert len(listed) == len(set(listed))
    assert {*listed, *script["UNLISTED"]} == known_fields()
    assert all(f"| `{row[0].split(', ')[0]}`" in README for row in script["FIELDS"])


def test_each_row_of_what_works_says_since_when_and_has_a_page() -> None:
    section = README.partition("## What of Kubernetes' resource management works here")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if "|" in line][2:]
    assert len(rows) > len(OPTIONS)
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row
        pages = re.findall(r"\]\((docs/[^)#]*)#?([^)]*)\)", row[2])
        assert pages, row
        for page, anchor in pages:
            heads = [
                re.sub(r"[^\w -]", "", head).strip().replace(" ", "-").lower()
                for head in re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
            ]
            assert not anchor or anchor in heads, row
    assert {f"`{option}`" for option in OPTIONS} <= {row[0] for row in rows}


def test_its_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|sudo |^)make ([a-z][a-z-]+)", README, re.MULTILINE)) <= targets
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE))
    commands = set(re.findall(r'^(?:sudo |eval "\$\()?nodeagent ([a-z]+)', shell, re.MULTILINE))
    assert commands == COMMANDS.keys() - {"run"}


def test_its_files_exist() -> None:
    named = set(re.findall(r"\b((?:docs|examples|nodeagent|scripts)/[\w./-]*\w)", README))
    inside = {name for name in named if not re.search(rf"/{re.escape(name)}", README)}
    assert {"docs/decisions.md", "docs/simulate.md", "examples/scenario.jsonl", "nodeagent/core"} <= inside
    assert [name for name in sorted(inside) if not (ROOT / name).exists()] == []


def test_its_exit_statuses_are_the_programs() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| ", README.partition("| status |")[2].partition("\n\n")[0], re.MULTILINE)
    said = {int(number) for row in rows for number in row.split(", ")}
    assert said == {
        0, EXIT_ERROR, EXIT_USAGE, EXIT_DIFFERENCE, EXIT_REFUSED, EX_CONFIG, EXIT_NOT_ENTERED, EXIT_CANNOT_RUN, EXIT_NOT_FOUND
    }  # fmt: skip


def test_its_places_are_the_programs() -> None:
    config = Config()
    places = [DEFAULT_CONFIG, DEFAULT_SOCKET, PODS_CGROUP, config.static_pod_path, config.state_directory]
    places += [config.launcher_socket, config.metrics_bind_address, STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT]
    assert [place for place in places if place not in README.partition("| place |")[2].partition("\n\n")[0]] == []


@pytest.mark.parametrize("document", ["README.md", "docs/explain.md"])
def test_what_it_shows_is_what_is_printed(
    document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = _SHOWN.findall((ROOT / document).read_text())
    assert shown
    for command, output in shown:
        main(shlex.split(command))
        assert output in capsys.readouterr().out, command


_SHOWN = re.compile(r"^```\n\$ nodeagent (.*)\n((?:.*\n)*?)```$", re.MULTILINE)

_PRINTED = re.compile(r"^```\n(?:.*\n)*?```$", re.MULTILINE)


def test_it_is_short() -> None:
    """Without its tables, and what commands print, an operator reads it in one go."""
    text = [line for line in _PRINTED.sub("", README).splitlines() if not line.startswith("|")]
    assert len(text) <= 130
    assert max(map(len, text)) <= 140
