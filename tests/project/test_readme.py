"""Checks README against the program: its commands and files exist, and it stays short. What it shows: test_documentation.py."""

import re

import pytest

from integration.pages import INSTALLATION, blocks_of
from nodeagent.cli.parser import COMMANDS
from scripts.shown import README, ROOT

TEXT = README.read_text()


def test_an_operator_reads_it_in_one_go() -> None:
    assert len(README.read_bytes()) <= 8 * 1024
    assert [line for line in TEXT.splitlines() if len(line) > 140 and line[0] not in "|!"] == []


@pytest.mark.parametrize("page", ["README.md", "docs/development.md"])
def test_the_targets_of_make_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|sudo |^)make ([a-z][a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert named <= targets


def test_the_pages_from_installation_to_uninstalling_have_every_command() -> None:
    shell = "".join(block.text for page in INSTALLATION for block in blocks_of(page))
    commands = set(re.findall(r'^(?:sudo |eval "\$\()?nodeagent ([a-z]+)', shell, re.MULTILINE))
    assert commands == COMMANDS.keys() - {"run"}


def test_its_files_exist() -> None:
    named = set(re.findall(r"\b((?:docs|examples|scripts)/[\w./-]*\w)", TEXT))
    assert {"docs/decisions.md", "docs/index.md", "examples/guaranteed.yaml"} <= named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
