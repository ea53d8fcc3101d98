"""The short form of the fuzzing (`make soak` has the long one), and the inputs by which it found something, each by its name.

What the mutations of fuzz.py start from is well formed; Hypothesis builds its inputs from nothing, and makes what breaks a rule small.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.support import fuzz_targets
from tests.support.figures import Recorder, keep, report
from tests.support.fuzz import MOST_BYTES, Campaign, Failure, figures
from tests.support.fuzz_targets import TARGETS, Target

EXECUTIONS = 300
"""Of each target; the same ones in every run."""
BY_NAME = {target.name: target for target in TARGETS}


def test_damaged_input_draws_an_answer_and_breaks_nothing(record_property: Recorder) -> None:
    campaigns = [Campaign(target) for target in TARGETS]
    for campaign in campaigns:
        campaign.begin()
        campaign.run(EXECUTIONS)
    report(record_property, figures(campaigns).splitlines()[0])
    assert all(len(campaign.corpus) > len(campaign.target.seeds) for campaign in campaigns)


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Any bytes, the target's words in any order, and what is well formed with something else in one place."""
    pieces = st.one_of(
        st.sampled_from(target.words or target.seeds), st.binary(max_size=4), st.sampled_from(b" \n,:{}")
    )
    words = st.lists(pieces.map(lambda piece: bytes([piece]) if isinstance(piece, int) else piece), max_size=40)
    spliced = st.tuples(st.sampled_from(target.seeds), st.integers(0, MOST_BYTES), st.integers(0, 64), words).map(
        lambda four: four[0][: four[1]] + b"".join(four[3]) + four[0][four[1] + four[2] :]
    )
    return st.one_of(st.binary(), words.map(b"".join), spliced).map(lambda content: content[:MOST_BYTES])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_that_is_built_of_anything_breaks_a_rule(record_property: Recorder, target: Target) -> None:
    executions = 0

    @given(inputs(target))
    def draws_an_answer(content: bytes) -> None:
        nonlocal executions
        executions += 1
        target.read(content)

    draws_an_answer()
    report(record_property, f"Hypothesis: {executions} inputs of {target.name}")
    keep("inputs built by Hypothesis", target.name, executions=executions)


def test_hypothesis_finds_what_is_there_to_find() -> None:
    @settings(max_examples=10_000)  # it ends with the first; which inputs come early rests on what else is imported
    @given(inputs(Target("picky", picky, (b"harmless",))))
    def draws_an_answer(content: bytes) -> None:
        picky(content)

    with pytest.raises(AssertionError):
        draws_an_answer()


FOUND = {
    "half a character in a set of kubelet's CPU file": (
        "cpu-checkpoint-summed",
        rb'{"policyName":"static","defaultCpuSet":"\ud800","checksum":62170464}',
    ),
    "half a character in a name of kubelet's CPU file": (
        "any-checkpoint",
        rb'{"policyName":"static","defaultCpuSet":"7-9","entries":{"pod":{"con\ud800er2":"1-0"}},"checksum":1692845551}',
    ),
    "half a character in kubelet's memory file": (
        "memory-checkpoint-summed",
        rb'{"policyName":"Static","machineState":{},"entries":{"a":{"b\udfff":[]}},"checksum":3756130336}',
    ),
    "a number of too many digits in kubelet's CPU file": (
        "cpu-checkpoint",
        b'{"policyName":"static","defaultCpuSet":"","checksum":' + b"9" * 5000 + b"}",
    ),
    "a NUL in a name that is shown": (
        "any-checkpoint",
        rb'{"policyName":"static","defaultCpuSet":"7-9","entries":{"pod":{"cont\u0000ainer1":"1-3"}},"checksum":1692845551}',
    ),
    "a change of direction in a field's name": (
        "manifest",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: a, r\u202eesources: {}}]\n".encode(),
    ),
    "a tab in a field's name": ("configuration", b"full\t-pcpus-only: 1\n"),
    "a field's name of a thousand characters": ("configuration", b"x" * 1000 + b": 1\n"),
    "half a character in a field of a machine": ("machine-document", rb'{"topology":{"cpus":[{"numa\ud800":0}]}}'),
    "half a character in a state whose sum is right": (
        "truth-summed",
        rb'{"entries":[],"generation":0,"policies":{"a\ud800":""},"promises":{"default":"","pods":{}}}',
    ),
    "a change of direction in a kind": ("manifest", "kind: P\u202eod".encode()),
    "half a character in a field of a scenario": ("scenario", rb'{"topology":{"\ud800cpus":[]}}'),
    "a record with half a pid": ("launcher-record", fuzz_targets.RUN.replace(b'"pid":7', b'"pid":0.5')),
    "a record with a pid beyond all": (
        "launcher-record",
        fuzz_targets.RUN.replace(b'"pid":7', b'"pid":9223372036854775808'),
    ),
    "a record nested too deeply": ("launcher-record", b"[" * 100_000),
}


def test_a_cgroup_of_ninety_thousand_parts_is_refused_without_a_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "resolve", lambda path: pytest.fail(f"looked up {len(str(path))} characters"))
    order = json.loads(fuzz_targets.START) | {"cgroup": "/sys/fs/cgroup/pods" + "/a" * 90_000}
    assert fuzz_targets.launcher_request(json.dumps(order).encode())[0] == "outside_cgroup"


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_mended(name: str) -> None:
    target, content = FOUND[name]
    BY_NAME[target].read(content)


def test_half_a_character_is_read_as_go_reads_it() -> None:
    text = rb'{"policyName":"%s","defaultCpuSet":"","checksum":0}'
    assert fuzz_targets.read_cpu_contents((text % rb"a\uD800b\udc00\\ud800\ud83d\ude00").decode()).policy == (
        "a\ufffdb\ufffd\\ud800\U0001f600"
    )


def picky(content: bytes) -> int:
    assert b"\0" not in content
    return len(content)


def test_the_fuzzer_finds_what_is_there_to_find() -> None:
    campaign = Campaign(Target("picky", picky, (b"harmless",)))
    campaign.begin()
    with pytest.raises(Failure) as caught:
        campaign.run(10_000)
    assert b"\0" in caught.value.content
    assert "picky: AssertionError" in str(caught.value)
