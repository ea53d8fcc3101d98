"""The published schemas, judged by the validator that readers have, and not by the tests' own, which is stricter and knows fewer words."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.support.json_schema import SCHEMAS
from tests.support.run_tree import RunTree


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_each_is_a_schema(path: Path) -> None:
    Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_a_report_is_what_its_schema_says(tmp_path: Path) -> None:
    tree = RunTree(tmp_path)
    rules = Draft202012Validator(json.loads((SCHEMAS / "run-report.json").read_text()))
    document = json.loads(json.dumps(tree.report(lambda: tree.run(10))))
    assert list(rules.iter_errors(document)) == []
    assert [one.message for one in rules.iter_errors(document | {"verdict": "good"})] == [
        "'good' is not one of ['clean', 'disturbed', 'unknown']"
    ]
