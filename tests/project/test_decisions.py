"""Checks docs/decisions.md: its form, and that each decision that is cited anywhere is there."""

import re

from integration.guest.images import project_files
from scripts.shown import DOCS, ROOT

TEXT = (DOCS / "decisions.md").read_text()
PARTS = ["Context", "Decision", "Rejected", "Consequences"]
SECTIONS = {
    int(number): text for number, text in re.findall(r"^## D(\d+) \S.*\n((?:(?!## ).*\n)*)", TEXT, re.MULTILINE)
}
CITED = re.compile(r"\bD(\d{1,2})\b")
WRITTEN = {".md", ".py", ".sh", ".service", ".toml", ".yaml", ".yml", ""}


def test_headings_are_in_the_order_of_their_numbers() -> None:
    assert len(SECTIONS) == TEXT.count("\n## ")
    assert list(SECTIONS) == sorted(SECTIONS)


def test_a_decision_says_why_and_what_else_there_was_in_a_few_lines() -> None:
    for number, text in SECTIONS.items():
        assert re.findall(r"^\* \*\*(\w+)\.\*\* ", text, re.MULTILINE) == PARTS, f"D{number}"
        assert len(text.strip().splitlines()) <= 14, f"D{number}"


def test_each_cited_decision_is_there() -> None:
    cited = {
        (int(number), str(path))
        for path in project_files()
        if path.suffix in WRITTEN and path.parts[0] != "debian"
        for number in CITED.findall((ROOT / path).read_text())
    }
    assert len(cited) > len(SECTIONS)
    assert sorted(one for one in cited if one[0] not in SECTIONS) == []
