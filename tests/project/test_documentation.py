"""What docs/ says is so: its reference is the code's, its commands print and draw what it shows, its links lead somewhere.

What a page shows of a node, a guest shows: integration/test_documentation.py.
"""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml

from integration.pages import HERE, INSTALLATION, ON_NODE, README, UNTYPED, blocks_of, first_command
from nodeagent.cli.main import main
from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support.definitions import Command, extract_command
from nodeagent.cli.support.exit_status import EXIT_REFUSED, EXIT_WRONG
from nodeagent.core.metrics.agent_metrics import METRICS
from nodeagent.core.model.errata import ERRATA
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.refusals import Reason
from nodeagent.core.numa.topology_manager import OPTIONS as TOPOLOGY_OPTIONS, Scope, TopologyPolicy
from nodeagent.core.resources.cpu.options import OPTIONS
from nodeagent.core.turn.world import EventKind
from nodeagent.daemon.reports import logs
from nodeagent.formats.config.config_yaml import known_fields, parse_config
from nodeagent.formats.manifest.pod_manifest import RefusedPod, parse_manifest
from nodeagent.formats.topology.topology_spec import topology_from_spec
from scripts import reference, shown
from scripts.reference_configuration import FIELDS, UNLISTED
from scripts.shown import DOCS, ON_A_NODE, PICTURES, ROOT, blocks
from tests.support.explained_events import explained_events

PAGES = sorted(DOCS.rglob("*.md"))
KUBERNETES = reference.REFERENCE / "kubernetes.md"
"""Written by hand: the only page there that is not made of the code."""
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
COMMAND = re.compile(r"(?:^|\$\(|until )(?:sudo )?nodeagent (?P<words>[^|&;<>)]*)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return reference.pages()


@pytest.mark.parametrize("page", [page for page in PAGES if page.read_text().startswith(reference.MADE)], ids=name)
def test_the_reference_is_the_codes(page: Path, made: dict[Path, str]) -> None:
    assert page.read_text() == made[page], "run: make reference"


def test_every_page_that_is_made_is_there(made: dict[Path, str]) -> None:
    assert [page for page in made if page not in PAGES] == []
    assert {path for path in reference.REFERENCE.iterdir() if path not in made} == {KUBERNETES}


def test_the_table_of_differences_has_every_erratum() -> None:
    page = (reference.REFERENCE / "differences.md").read_text()
    rows = re.findall(r"^\| (\d+)\*? \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert [(int(number), kubelet, ours) for number, kubelet, ours, *_ in rows] == [
        (entry.erratum.value, entry.kubelet, entry.nodeagent) for entry in ERRATA
    ]
    assert [re.findall(r"\((https:.*?)\)", row[4]) for row in rows] == [list(entry.links) for entry in ERRATA]
    mended = [re.findall(r"\[(\d+)\]", row[3]) for row in rows]
    assert mended == [[] if entry.mended_by is None else [str(entry.mended_by)] for entry in ERRATA]


def test_the_table_of_configuration_has_every_field_that_is_read(made: dict[Path, str]) -> None:
    listed = [name for row in FIELDS for name in row[0].split(", ")]
    assert len(listed) == len(set(listed))
    assert {*listed, *UNLISTED} == known_fields()
    page = made[reference.REFERENCE / "configuration.md"]
    assert all(f"| `{row[0].split(', ')[0]}`" in page for row in FIELDS)


def test_each_feature_of_kubernetes_says_since_when_and_has_a_page() -> None:
    rows = [line.strip("|").split(" | ") for line in KUBERNETES.read_text().splitlines() if line.startswith("|")][2:]
    assert len(rows) > len(OPTIONS)
    for row in rows:
        assert [bool(cell.strip()) for cell in row] == [True] * 3, row
        assert LINK.search(row[2]), row
    assert {f"`{option}`" for option in OPTIONS} <= {row[0].strip() for row in rows}


@pytest.mark.parametrize("page", shown.pages(), ids=name)
def test_commands_print_and_draw_what_is_shown(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    assert shown.refreshed(text, tmp_path) == text, "run: make shown"
    for picture in tmp_path.glob("*.svg"):
        assert (PICTURES / picture.name).read_bytes() == picture.read_bytes(), "run: make shown"


def answering(commands: Iterator[Command]) -> Iterator[tuple[str, bool]]:
    """Each command that does something itself, and whether it answers as JSON."""
    for command in commands:
        if command.subcommands:
            yield from answering(extract_command(one.parser) for one in command.subcommands)
        else:
            forms = [option.choices for option in command.options if "-o" in option.spellings]
            yield command.name.removeprefix("nodeagent "), any("json" in choices for choices in forms)


def test_every_document_that_a_command_prints_has_a_schema_and_every_schema_such_a_command() -> None:
    ours = ((name, extract_command(build_parser([name])).subcommands) for name in COMMANDS)
    found = dict(
        answering(extract_command(one.parser) for name, parsers in ours for one in parsers if one.name == name)
    )
    assert found.keys() == reference.ANSWERS.keys()
    documented = {name for name, schemas in reference.ANSWERS.items() if not isinstance(schemas, str)}
    assert {name for name, answers in found.items() if answers} | {"capture", "job"} == documented
    schemas = {one for found in reference.ANSWERS.values() if not isinstance(found, str) for one in found}
    assert {path.stem for path in (DOCS / "schema").iterdir()} == schemas


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_says_what_each_option_takes_where_it_is_written_by_hand_too(name: str) -> None:
    command = extract_command(
        next(one.parser for one in extract_command(build_parser([name])).subcommands if one.name == name)
    )
    for option in command.options:
        for spelling in option.spellings:
            if option.metavar and (found := re.search(rf"\[{spelling} ([^] ]+)", command.usage)):
                assert found[1].strip("{}[").replace(",", "|") == option.metavar.split()[0]


def test_every_picture_is_drawn_by_one_command_and_shown_with_words() -> None:
    drawn = [found for page in PAGES for found in re.findall(r">(\S+\.svg)$", console(page), re.MULTILINE)]
    assert len(drawn) == len(set(drawn))
    assert {path.name for path in PICTURES.iterdir()} == set(drawn)
    images = [found for page in PAGES for found in re.findall(r"!\[(.*?)\]\([./]*pictures/(\S+)\)", page.read_text())]
    assert {image for _, image in images} == set(drawn)
    assert all(len(words) > 20 for words, _ in images)


def console(page: Path) -> str:
    return "".join(block.text for block in blocks(page.read_text()) if block.runs_here)


@pytest.mark.parametrize("page", [shown.README, *PAGES], ids=name)
def test_its_commands_can_be_given(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language in {"sh", "console"}:
            for line in block.text.replace("\n> ", "\n").splitlines():
                for found in COMMAND.finditer(line.removeprefix("$ ")):
                    words = shlex.split(found["words"], comments=True)
                    with_known = build_parser(words).parse_known_args(words)
                    assert with_known[1] == [], line


def test_links_lead_somewhere() -> None:
    for page in [shown.README, *PAGES]:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target, anchor in LINK.findall(text):
            if target.startswith("https:"):
                continue
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{name(page)}: {target}"
            if anchor:
                assert anchor in anchors(there), f"{name(page)}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """As Markdown's table of contents makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in headings}


def test_prose_is_of_readable_width() -> None:
    written = [
        page for page in PAGES if page.parent.name in {"how-to", "policies"} or page.stem in {"index", "tutorial"}
    ]
    assert len(written) >= 9
    for page in written:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert [line for line in prose.splitlines() if len(line) > 140 and line[0] not in "|!"] == [], name(page)


def test_the_navigation_has_every_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(leaves(site["nav"]))
    assert len(listed) == len(set(listed))
    assert {DOCS / one for one in listed} == set(PAGES)
    assert site["strict"] is True
    assert site["theme"]["font"] is False, "a reader's browser asks nobody else"
    assert all((ROOT / hook).exists() for hook in site["hooks"])


def leaves(tree: object) -> Iterator[str]:
    match tree:
        case str():
            yield tree
        case list():
            for one in tree:
                yield from leaves(one)
        case dict():
            for one in tree.values():
                yield from leaves(one)


def test_each_policy_and_option_is_explained() -> None:
    cpu, topology, memory = (
        (DOCS / f"policies/{manager}-manager.md").read_text() for manager in ("cpu", "topology", "memory")
    )
    assert [one for one in (*OPTIONS, "static") if f"`{one}`" not in cpu] == []
    assert [one.value for one in (*TopologyPolicy, *Scope) if f"`{one.value}`" not in topology] == []
    assert [one for one in TOPOLOGY_OPTIONS if f"### `{one}`" not in topology] == []
    assert "memoryManagerPolicy: None`" in memory
    assert "`Static`" in memory


def test_one_page_says_which_settings_kubelet_does_not_have() -> None:
    """Other pages that name a proposal's setting link there, and call it neither alpha nor missing themselves."""
    rows = (DOCS / "reference/differences.md").read_text().partition("## Not in kubelet\n")[2]
    proposed = ("numa-allocation-strategy", "numa-score-weights", "prefer-most-allocated-numa-node", "systemPartition")
    assert [one for one in proposed if f"`{one}`" not in rows] == []
    wrong = re.compile(r"\balpha\b|kubelet (?:doesn't|does not) have (?:it|them) yet|no (?:released )?kubelet has")
    for page in (*DOCS.rglob("*.md"), DOCS.parent / "README.md"):
        if page.name == "differences.md":
            continue
        paragraphs = page.read_text().split("\n\n")
        lines = [line for text in paragraphs for line in (text.splitlines() if text.startswith("|") else [text])]
        assert [line for line in lines if any(one in line for one in proposed) and wrong.search(line)] == [], page


def test_the_reference_names_every_command_metric_and_reason(made: dict[Path, str]) -> None:
    text = {path.stem: page for path, page in made.items()}
    assert [one for one in COMMANDS if f"## `nodeagent {one}`" not in text["commands"]] == []
    assert [one.name for one in METRICS if f"| `{one.name}` |" not in text["metrics"]] == []
    assert [one.value for one in Reason if f"| `{one.value}` |" not in text["refusals"]] == []
    assert "there is no file … | make one with `nodeagent capture --out FILE`" in text["errors"]


def test_every_event_is_explained_and_every_field_of_the_journal() -> None:
    """The launcher's are held to the page where they are logged: tests/support/launcher_process.py."""
    page = (DOCS / "how-to" / "logs.md").read_text()
    assert {*EventKind, *get_args(logs.AgentEvent)} <= explained_events()
    given = {"POD", "POD_UID", "CONTAINER", "EVENT"}
    assert set(re.findall(r"^\| `NODEAGENT_(\w+)`", page, re.MULTILINE)) == given
    fields = set(re.findall(r"NODEAGENT_(\w+)", str(logs.__doc__)))
    assert fields == given


def test_files_that_nothing_runs_here_are_right() -> None:
    """What the tutorial has one write on a node."""
    files = {block.title: block.text for block in blocks((DOCS / "tutorial.md").read_text()) if block.is_file}
    config = parse_config(files.pop("/etc/nodeagent/config.yaml").encode(), "config.yaml")
    assert config.reported_fields == ()
    assert files
    for title, text in files.items():
        (found,) = parse_manifest(text.encode(), title)
        assert not isinstance(found, RefusedPod), found


def test_the_packet_forwarders_kernel_leaves_cpus_for_pods_that_share() -> None:
    page = (DOCS / "how-to" / "packet-forwarder.md").read_text()
    (isolated,) = {CpuSet.parse(found) for found in re.findall(r"isolcpus=managed_irq,domain,(\S+)", page)}
    assert f'"isolated": "{isolated}"' in page, "what is simulated is what the kernel is told"
    placement = parse_config(file_of(page, "config.yaml").encode(), "config.yaml").placement
    assert placement.isolated_cpus == "only"
    assert dict(placement.cpu_manager_policy_options)["strict-cpu-reservation"] == "true"
    assert not isolated & placement.reserved_system_cpus
    assert topology_from_spec("2s.4c.2t").online - isolated - placement.reserved_system_cpus == CpuSet.parse("4,12")


def file_of(page: str, title: str) -> str:
    (text,) = (block.text for block in blocks(page) if block.is_file and block.title == title)
    return text


def test_what_runs_on_a_node_is_said_to() -> None:
    titles = {block.title for page in PAGES for block in blocks(page.read_text()) if block.language == "console"}
    assert titles == {"", ON_A_NODE}


def test_every_block_of_commands_is_typed_or_says_why_not() -> None:
    named = [*UNTYPED, *HERE]
    assert len(named) == len(set(named))
    assert all(len(reason) > 15 for reason in UNTYPED.values())
    used = set()
    for path in [*PAGES, shown.README]:
        page = os.path.relpath(path, DOCS)
        for block in blocks_of(page):
            why = {(page, first_command(block)), (page, "")} & set(named)
            assert why or page in ON_NODE or page in INSTALLATION, f"{page}: nobody types {first_command(block)}"
            used |= why
    assert used == set(named), "of these blocks there is none"


def test_what_the_tutorial_has_one_install_with_the_readme_has_too() -> None:
    (block,) = (block for block in blocks_of("tutorial.md") if ("tutorial.md", first_command(block)) in UNTYPED)
    typed = {line.partition("  #")[0].strip() for one in blocks_of(README) for line in one.text.splitlines()}
    assert set(block.text.splitlines()) <= typed


@pytest.mark.parametrize(("page", "first"), sorted(HERE))
def test_a_block_that_needs_no_node_is_typed(
    page: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, example in {"scenarios.jsonl": "scenario.jsonl", "config.yaml": "config.yaml"}.items():
        (tmp_path / name).symlink_to(ROOT / "examples" / example)
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks_of(page) if first_command(block) == first)
    for line in block.text.splitlines():
        words = shlex.split(line.partition(" >")[0], comments=True)  # the answer goes where pytest has it
        assert main(words[1:]) in {0, EXIT_WRONG, EXIT_REFUSED}, line


@pytest.mark.parametrize(
    ("shown_text", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a  \nb\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("…\n", "", True),
        ("a\n…\nd\n", "a\nb\nd\ne\n", False),
        ("a.c\n", "abc\n", False),
        ("", "a\n", False),
    ],
)
def test_an_ellipsis_stands_for_any_lines(shown_text: str, printed: str, same: bool) -> None:
    assert shown.is_as_shown(shown_text, printed) is same


def test_a_page_whose_commands_print_something_else_is_rewritten(tmp_path: Path) -> None:
    page = '```yaml title="a.txt"\nhello\n```\n\n```console\n$ cat a.txt\nold\n$ cat <<E\n> one\n> E\none\n```\n'
    assert shown.refreshed(page, tmp_path) == page.replace("old", "hello")


def test_the_page_of_problems_names_the_one_that_only_inspect_knows() -> None:
    page = (ROOT / "docs/reference/problems.md").read_text()
    without_kind = [row for row in page.splitlines() if row.startswith("| a ") and "nodeagent_problems" not in row]
    said = page.partition("\n* ")[0]
    assert len(without_kind) == 1
    assert "Only `nodeagent inspect` compares the cgroups" in " ".join(said.split())
