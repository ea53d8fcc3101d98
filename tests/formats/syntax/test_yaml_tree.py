import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from nodeagent.formats.syntax.documents import read_documents
from nodeagent.formats.syntax.findings import Finding, Findings
from nodeagent.formats.syntax.tree import ListNode, MapEntry, MapNode, Number, Scalar, TreeNode, line_at, tree_of
from nodeagent.formats.syntax.yaml_tree import MAX_ALIASES, MAX_BYTES, MAX_NODES, read_yaml

EXAMPLES = Path(__file__).parents[3] / "examples"


def parse_yaml(content: bytes) -> tuple[TreeNode, ...]:
    findings = Findings("f")
    documents = read_yaml(content, findings)
    assert documents is not None
    assert not findings
    return documents


def plain(node: TreeNode) -> object:
    match node:
        case MapNode():
            return {entry.key: plain(entry.value) for entry in node}
        case ListNode():
            return [plain(item) for item in node.items]
        case Scalar():
            return node.value


def read(text: str | bytes) -> list[object]:
    content = text.encode() if isinstance(text, str) else text
    documents, findings = read_all(content)
    assert not findings
    return [plain(document) for document in documents]


def read_all(content: bytes) -> tuple[tuple[TreeNode, ...], tuple[Finding, ...]]:
    findings = Findings("f")
    return read_documents(content, findings) or (), findings.all()


def refusal(text: str | bytes) -> list[str]:
    return [str(finding) for finding in findings_of(text.encode() if isinstance(text, str) else text)]


def findings_of(content: bytes) -> tuple[Finding, ...]:
    return read_all(content)[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # go-yaml v2's resolver, which Kubernetes has: YAML 1.1's booleans and Go's integer prefixes.
        ("yes", True), ("On", True), ("y", True), ("TRUE", True), ("no", False), ("off", False), ("N", False), ("tRUE", "tRUE"),
        ("~", None), ("null", None), ("", None), ("nULL", "nULL"),
        ("12", 12), ("+12", 12), ("-12", -12), ("1_000", 1000), ("010", 8), ("0o10", 8), ("0x1F", 31), ("0b101", 5), ("-0x10", -16),
        ("08", 8), ("0", 0), ("1e3", 1000), ("1E3", 1000), ("1.0", 1), ("0.5", Number("0.5")), (".5", Number("0.5")),
        ("-1.5", Number("-1.5")),
        ("1e-7", Number("1e-7")), ("1.5e-9", Number("1.5e-9")), ("1e21", Number("1e+21")), ("1e400", "1e400"),
        ("1:30", "1:30"), ("2001-12-14", "2001-12-14"), ("1.2.3", "1.2.3"), ("1Gi", "1Gi"), ("500m", "500m"),
        ("0-3,8", "0-3,8"), ("+", "+"), (".", "."),
        ("'1'", "1"), ('"yes"', "yes"), ("!!str 5", "5"), ("!!int '5'", 5), ("!!bool yes", True), ("! 5", 5),
    ],
)  # fmt: skip
def test_scalars_mean_what_they_mean_to_kubernetes(text: str, value: object) -> None:
    [root] = parse_yaml(f"a: {text}\n".encode())
    assert isinstance(root, MapNode)
    node = root.get("a")
    assert isinstance(node, Scalar)
    assert node.value == value
    assert type(node.value) is type(value)


def test_every_value_and_every_key_knows_its_line() -> None:
    [root] = parse_yaml(b"a: 1\nb:\n  - x\n  - c: 2\n    z:\n      w\n")
    assert root == MapNode(
        (
            MapEntry("a", Scalar(1, 1), 1),
            MapEntry(
                "b",
                ListNode(
                    (Scalar("x", 3), MapNode((MapEntry("c", Scalar(2, 4), 4), MapEntry("z", Scalar("w", 6), 5)), 4)), 3
                ),
                2,
            ),
        ),
        1,
    )
    assert line_at(root, ("b", 1, "z")) == 5
    assert line_at(root, ("b", 7)) == 2
    assert line_at(root, ("b", 1, "nothing", "below")) == 4


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("", []),
        ("# only a comment\n", []),
        ("---\n---\n...\n", []),
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\n- 1\n--- x\n", [[1], "x"]),
        ("\ufeffa: 1\n", [{"a": 1}]),
        ("a: 1\r\nb: 2\r\n", [{"a": 1, "b": 2}]),
        ("%YAML 1.1\n---\na: 1\n", [{"a": 1}]),
        ("a: &x [1]\nb: *x\n", [{"a": [1], "b": [1]}]),
        ("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\n", [{"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}]),
        (
            "a: &x {p: 1}\nb: &y {p: 2, q: 2}\nc: {<<: [*x, *y]}\n",
            [{"a": {"p": 1}, "b": {"p": 2, "q": 2}, "c": {"p": 1, "q": 2}}],
        ),
        ("? a\n: 1\n", [{"a": 1}]),
        ("1: a\ntrue: b\n", [{"1": "a", "true": "b"}]),
        ("a: |\n  x\n  y\n", [{"a": "x\ny\n"}]),
        ('"a\\u00e9": 1\n', [{"aé": 1}]),
    ],
)
def test_reads_yaml(text: str, documents: list[object]) -> None:
    assert read(text) == documents


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ('{"a": [1, -2.5, true, null, "x", {}]}', [{"a": [1, Number("-2.5"), True, None, "x", {}]}]),
        ('{"a":1,\n\t"b":"\\ud83d\\ude00"}\n', [{"a": 1, "b": "😀"}]),
        ('{"a":"\\/"}{"b":2}', [{"a": "/"}, {"b": 2}]),
        ('{"a": yes}', None),
        ("{a: 1}", None),
        ('{"a": 1,}', None),
        ('{"a": 01}', None),
        ('{"a": "x\ny"}', None),
        ('{"a"', None),
        ('{"a": 1', None),
        ('{"a": [1 2]}', None),
        ('{"a": "x', None),
        ('{"a": 1e99999}', None),
        ('{"a": 1} x', None),
    ],
)
def test_text_that_starts_with_a_brace_is_json(text: str, documents: list[object] | None) -> None:
    if documents is None:
        assert refusal(text)[0].startswith("f:")
    else:
        assert read(text) == documents


def test_several_documents_in_braces_are_yaml() -> None:
    assert read('{"a": 1}\n---\n{b: yes}\n') == [{"a": 1}, {"b": True}]
    assert read('{"a": "x---y"}') == [{"a": "x---y"}]


def test_json_and_yaml_give_the_same_lines() -> None:
    text = b'{\n "a": [\n  1,\n  {"b":\n   2}\n ]\n}\n'
    assert read_all(text) == (parse_yaml(text), ())


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("a: 1\nb: 2\na: 3\n", 'f:3: "a": is given twice, first in line 1'),
        ('{"a": 1,\n"a": 2}', 'f:2: "a": is given twice, first in line 1'),
        ("a: 'x\n", "f:1: is not valid YAML: found unexpected end of stream"),
        ("a:\n  - b\n c: 1\n", "f:3: is not valid YAML: did not find expected key"),
        ("a: @x\n", "f:1: is not valid YAML: found character that cannot start any token"),
        (b"a: 1\nb: \xff\n", "f:2: is not UTF-8 here"),
        ("a: 1\nb: \0\n", "f:2: U+0000: control characters are not allowed"),
        ("a: \x1b[31m\n", "f:1: U+001B: control characters are not allowed"),
        ("a: \ufffe\n", "f:1: U+FFFE: control characters are not allowed"),
        ('a: "x\\0"\n', "f:1: a NUL character is not allowed"),
        ('{"a":\n"\\u0000"}', "f:2: NUL characters and unpaired surrogates are not allowed"),
        ('{"a": "\\ud800"}', "f:1: NUL characters and unpaired surrogates are not allowed"),
        ("a: .inf\n", 'f:1: ".inf": is not a finite number (quote it if it is meant as text)'),
        ("a: .NaN\n", 'f:1: ".NaN": is not a finite number (quote it if it is meant as text)'),
        ("a: *x\n", "f:1: refers to an anchor that doesn't exist (quote it if * is meant as text)"),
        ("a: &x 1\n---\nb: *x\n", "f:3: refers to an anchor that doesn't exist (quote it if * is meant as text)"),
        ("a: &x [*x]\n", 'f:1: "x": contains itself'),
        ("a: &x\n  b: {c: *x}\n", 'f:2: "x": contains itself'),
        ("a: !!python/object/apply:os.system [id]\n",
         'f:1: "tag:yaml.org,2002:python/object/apply:os.system": tags are not supported (quote it if ! is meant as text)'),
        ("a: !secret x\n", "f:1: tags are not supported (quote it if ! is meant as text)"),
        ("a: !!int x\n", "f:1: is not a int"),
        ("? [a]\n: b\n", "f:1: a key must be a plain value"),
        ("~: a\n", "f:1: a key must be a string"),
        ("b: {<<: 1}\n", "f:1: << needs a map, or a list of maps"),
    ],
)  # fmt: skip
def test_names_the_line_and_what_is_wrong(text: str | bytes, finding: str) -> None:
    assert refusal(text) == [finding]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_without_libyaml_everything_is_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    fast = parse_yaml(content)
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert parse_yaml(content) == fast
    assert refusal("[" * 100_000) == ["f:1: is nested deeper than 64 levels"]
    assert refusal("a: 'x\n")[0].startswith("f:1: is not valid YAML")


def test_all_duplicate_keys_are_named_at_once() -> None:
    assert len(refusal("a: 1\na: 2\nb: {c: 1, c: 2}\n")) == 2


def bomb() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    return "\n".join(rows)


HOSTILE = [
    ("alias bomb", bomb(), "aliases counted in full"),
    ("many aliases", "a: &a x\nb: [" + "*a, " * (MAX_ALIASES + 1) + "]", "aliases"),
    ("too large", b"#" * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes"),
    ("deep flow", "[" * 500_000, "is nested deeper than 64 levels"),
    ("deep flow maps", "{a: " * 200_000, None),
    ("deep block", "- " * 300_000, "is nested deeper than 64 levels"),
    ("deep keys", "? " * 300_000, "a key must be a plain value"),
    (
        "deep by alias",
        "".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else ''}]\n" for i in range(100)),
        "is nested deeper than 64 levels",
    ),
    ("deep JSON", '{"a":' * 100_000, "is nested deeper than 64 levels"),
    ("many values", "[" + "1," * (MAX_NODES + 1) + "]", f"has more than {MAX_NODES} values"),
    ("many JSON values", '{"a":[' + "1," * (MAX_NODES + 1), f"has more than {MAX_NODES} values"),
    ("many keys", "".join(f"k{i}: 1\n" for i in range(60_000)), f"has more than {MAX_NODES} values"),
    ("same key many times", "a: 1\n" * 40_000, "more findings"),
    ("tag directives", "%TAG !a! b\n" * 90_000, "lines that start with %"),
    ("endless number in JSON", '{"a":' + "9" * 900_000, "is not valid JSON"),
    ("one long string", '{"a":"' + "\\\\" * 500_000, "a string has no end"),
]


@pytest.mark.parametrize(("text", "finding"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_texts_get_one_clear_refusal_in_bounded_time(text: str | bytes, finding: str | None) -> None:
    began = time.process_time()
    found = refusal(text)
    # Without its bound each of these takes minutes, or the memory of the machine.
    assert time.process_time() - began < 20
    assert len(found) <= 101
    assert finding is None or finding in found[-1]


def test_a_number_of_a_million_digits_is_text() -> None:
    digits = "9" * 1_000_000
    assert read(f"a: {digits}") == [{"a": digits}]


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"%@`#,? \n\t~<0.", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused_with_a_line(content: bytes) -> None:
    assert all(finding.line for finding in findings_of(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('abcé "\\', min_size=1), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.text("abc", min_size=1), json_values, max_size=4), st.booleans())
def test_json_reads_back(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    found = refusal(text)
    # Only what no editor writes raw may be refused.
    assert all("control characters" in finding for finding in found)
    assert not (found and ascii_only) or "\x7f" in text
    if not found:
        assert read(text) == [plain(tree_of(value))] == [value]


def test_tree_of_refuses_what_json_has_not() -> None:
    for value in (object(), float("nan"), b"x", {1, 2}):
        with pytest.raises(ValueError, match="no JSON form"):
            tree_of({"a": value})
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="deeper"):
        tree_of(deep)
