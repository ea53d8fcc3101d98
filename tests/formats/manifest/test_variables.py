"""`$(NAME)` in command, args and env: Kubernetes' syntax, kubelet's order."""

import time

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.pod import Container
from nodeagent.formats.manifest.variables import MAX_PROCESS_BYTES, Process, expand, expand_process

KNOWN = {"A": "one", "B": "two words", "EMPTY": "", "MONEY": "$$ $(A)", "a.b-c": "dotted", "A)": "never"}

# The rows are those that Kubernetes documents (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/,
# `command`), and the corners of its syntax.
TEXTS = [
    ("nothing to do", "plain", "plain"),
    ("empty", "", ""),
    ("a reference", "$(A)", "one"),
    ("within a word", "x$(A)y", "xoney"),
    ("two, side by side", "$(A)$(B)", "onetwo words"),
    ("empty value", "<$(EMPTY)>", "<>"),
    ("a name with punctuation", "$(a.b-c)", "dotted"),
    ("unknown name", "$(NOPE)", "$(NOPE)"),
    ("no name", "$()", "$()"),
    ("blanks are part of the name", "$( A )", "$( A )"),
    ("escaped", "$$(A)", "$(A)"),
    ("escaped, then a reference", "$$$(A)", "$one"),
    ("escaped twice", "$$$$(A)", "$$(A)"),
    ("two dollars", "$$", "$"),
    ("one dollar at the end", "cost: 5$", "cost: 5$"),
    ("a shell's variable", "$A ${A}", "$A ${A}"),
    ("a shell's command substitution of an unknown name", "$(date +%s)", "$(date +%s)"),
    ("not closed", "$(A", "$(A"),
    ("not closed, escape behind it", "$(A $$B", "$(A $B"),
    ("nested: the first bracket closes", "$($(A))", "$($(A))"),
    ("bracket without a dollar", "(A)", "(A)"),
    ("a value is not expanded again", "$(MONEY)", "$$ $(A)"),
    ("over lines", "$(A\n)", "$(A\n)"),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_texts(text: str, expected: str) -> None:
    assert expand(text, KNOWN, 100) == expected


ENVIRONMENTS = [
    ("an earlier variable", [("A", "1"), ("B", "$(A)2")], [("A", "1"), ("B", "12")], "$(B)", "12"),
    ("a later variable isn't there yet", [("B", "$(A)2"), ("A", "1")], [("B", "$(A)2"), ("A", "1")], "$(B)", "$(A)2"),
    ("not itself", [("A", "$(A)")], [("A", "$(A)")], "$(A)", "$(A)"),
    ("of two with one name each sees those before it", [("A", "1"), ("A", "$(A)2")], [("A", "1"), ("A", "12")], "$(A)", "12"),
    ("escaped in the environment", [("A", "$$(X)")], [("A", "$(X)")], "$(A)", "$(X)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("env", "expected", "word", "expected_word"),
    [row[1:] for row in ENVIRONMENTS],
    ids=[row[0] for row in ENVIRONMENTS],
)
def test_environments(
    env: list[tuple[str, str]], expected: list[tuple[str, str]], word: str, expected_word: str
) -> None:
    container = Container("a", command=("sh", word), args=(word,), env=tuple(env))
    assert expand_process(container) == Process(("sh", expected_word, expected_word), tuple(expected))


def test_what_is_given_comes_first_and_is_referred_to_as_all_others() -> None:
    container = Container("a", command=("run", "-l", "$(CPUS)"), env=(("HALF", "$(CPUS),$(LATER)"), ("LATER", "x")))
    process = expand_process(container, (("CPUS", "2-3"), ("NODES", "")))
    assert process == Process(
        ("run", "-l", "2-3"), (("CPUS", "2-3"), ("NODES", ""), ("HALF", "2-3,$(LATER)"), ("LATER", "x"))
    )


def test_what_is_given_takes_no_room_from_what_a_manifest_may_have() -> None:
    container = Container("a", command=("run",), env=(("A", "x" * (MAX_PROCESS_BYTES - 30)),))
    given = (("CPUS", "0-1," * 1000),)
    assert expand_process(container) is not None
    assert expand_process(container, given) is not None
    assert expand_process(Container("a", command=("run", *["$(CPUS)"] * 1000)), given) is None, (
        "but each reference does"
    )


def reference_expand(text: str, variables: dict[str, str]) -> str:
    """One character at a time, as the rules are told."""
    out, i = "", 0
    while i < len(text):
        close = text.find(")", i)
        if text.startswith("$$", i):
            out, i = out + "$", i + 2
        elif text.startswith("$(", i) and close > 0:
            out, i = out + variables.get(text[i + 2 : close], text[i : close + 1]), close + 1
        else:
            out, i = out + text[i], i + 1
    return out


@given(st.text("$()AB x", max_size=40))
def test_any_text_as_the_rules_say(text: str) -> None:
    expected = reference_expand(text, KNOWN)
    assert expand(text, KNOWN, len(expected)) == expected
    assert expand(text, KNOWN, len(expected) - 1) is None


def test_references_to_references_are_not_built() -> None:
    doubling = tuple((f"V{n}", f"$(V{n - 1})" * 50 if n else "x") for n in range(60))
    assert expand_process(Container("a", command=("sh",), env=doubling)) is None


@pytest.mark.parametrize("hostile", ["$(" * 60_000, "$(" * 60_000 + ")", "$" * 120_000, "$(A)" * 30_000, ")" * 120_000])
def test_time_is_linear_in_the_text(hostile: str) -> None:
    spent = []
    for part in (hostile[: len(hostile) // 4], hostile):
        start = time.process_time()
        assert expand(part, {}, MAX_PROCESS_BYTES) is not None
        spent.append(time.process_time() - start)
    assert spent[1] < 10 * max(spent[0], 0.02)
