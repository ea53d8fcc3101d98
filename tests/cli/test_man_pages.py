"""The manual pages say what --help says, in man(7)'s language. That `man` finds and shows them is seen in guests."""

import re
from pathlib import Path

import pytest

from nodeagent.cli.man_pages import man_pages, write_all
from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support.completion_scripts import FISH_PLACE, PLACES, SCRIPTS
from nodeagent.cli.support.definitions import extract_command

PAGES = man_pages()
REQUESTS = {"TH", "SH", "TP", "PP", "RS", "RE", "br", "nf", "fi", "nh", "ad"}


def shown(page: str) -> str:
    """Its text without man's language."""
    return (
        re.sub(r"\\f.|\\&", "", page)
        .replace("\\-", "-")
        .replace("\\(aq", "'")
        .replace("\\(ga", "`")
        .replace("\\e", "\\")
    )


def test_there_is_a_page_of_the_program_and_of_each_command() -> None:
    assert set(PAGES) == {"nodeagent.8", *(f"nodeagent-{name}.8" for name in COMMANDS)}
    assert all(f"nodeagent-{name}(8)" in shown(PAGES["nodeagent.8"]) for name in COMMANDS)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed(name: str) -> None:
    lines = PAGES[name].splitlines()
    assert lines[0].startswith(f'.TH {name.removesuffix(".8").upper()} 8 "" "nodeagent ')
    assert {line[1:].split(" ")[0] for line in lines if line.startswith((".", "'"))} <= REQUESTS
    sections = [line.removeprefix(".SH ") for line in lines if line.startswith(".SH ")]
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert lines.count(".nf") == lines.count(".fi")
    assert lines.count(".RS") == lines.count(".RE")
    assert re.search(r"^nodeagent[\w\\-]* \\- \S", PAGES[name], re.MULTILINE), "what apropos reads"
    assert not re.search(r"\\[^&e(f-]", PAGES[name]), "an escape that means something else"
    assert "\n\n" not in PAGES[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_all_that_help_has(name: str) -> None:
    text = shown(PAGES[f"nodeagent-{name}.8"])
    (found,) = [one for one in extract_command(build_parser([name])).subcommands if one.name == name]
    for command in (
        extract_command(found.parser),
        *(extract_command(one.parser) for one in extract_command(found.parser).subcommands),
    ):
        for argument in (*command.options, *command.places):
            if argument.help is not None:
                assert argument.help in text
                assert all(spelling in text for spelling in argument.spellings)
                assert argument.metavar in text
    for line in extract_command(found.parser).epilog.splitlines():
        for part in re.split(r";\s+(?=\d)|;$", line):  # each exit status is on a line of its own
            assert part.startswith(("exit status:", "examples:")) or part.strip() in text


def test_a_page_has_each_section_once() -> None:
    for name, text in PAGES.items():
        sections = re.findall(r"^\.SH (.*)$", text, re.MULTILINE)
        assert len(sections) == len(set(sections)), name


def test_the_place_of_the_documents_is_that_of_the_installation(tmp_path: Path) -> None:
    assert str(Path(__file__).parents[2]) not in "".join(PAGES.values())
    assert "share/nodeagent of the environment" in PAGES["nodeagent.8"]
    write_all(tmp_path, tmp_path, "/opt/nodeagent/share/nodeagent")
    page = (tmp_path / "man/man8/nodeagent.8").read_text()
    assert "documents and examples: /opt/nodeagent/share/nodeagent\n" in page


def test_each_exit_status_has_a_line_of_its_own() -> None:
    for name in COMMANDS:
        lines = shown(PAGES[f"nodeagent-{name}.8"]).partition(".SH EXIT STATUS\n")[2].partition("\n.SH")[0]
        assert [
            line for line in lines.split("\n.br\n") if not re.match(r"\d[\d, ]*: \S|the command's own$", line)
        ] == [], name


def test_pages_and_completions_are_written_where_they_are_looked_for(tmp_path: Path) -> None:
    share, fish = tmp_path / "share", tmp_path / "fish"
    write_all(share, fish)
    written = {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()}
    assert written == {f"man/man8/{name}" for name in PAGES} | set(PLACES.values())
    assert (share / "man/man8/nodeagent.8").read_text() == PAGES["nodeagent.8"]
    assert {shell: (share / place).read_text() for shell, place in PLACES.items()} == {
        shell: SCRIPTS[shell] for shell in ("bash", "zsh")
    }
    assert (fish / FISH_PLACE).read_text() == SCRIPTS["fish"]
