"""The state file: what is written is read back, and nothing that was cut, damaged or written by a later version is believed."""

import hashlib
import json
import re
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletContainer, KubeletPod
from nodeagent.core.model.nri import HugepageLimit, NriResources
from nodeagent.core.model.pod import ContainerKind, Pod, QosClass, ResourceRequirements, Resources
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, Hint, PodPromises, Promises, UnrecoveredPod
from nodeagent.core.model.runtime_containers import (
    Asked,
    ContainerKey,
    KeyEntry,
    KnownSandbox,
    MadeContainer,
    RefusedKey,
    Registry,
    Stage,
)
from nodeagent.core.model.state import (
    MANIFEST_DIRECTORY,
    ContainerStatus,
    Exit,
    Idle,
    NodeState,
    Origin,
    Phase,
    PodEntry,
    RefusedChange,
)
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, CpuReuse
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import (
    Block,
    MemoryBooks,
    MemoryHoldings,
    MemoryNode,
    MemoryReuse,
    MemoryTable,
)
from nodeagent.formats.checkpoint.node_state import (
    VERSION,
    NodeStateError,
    StateEncoder,
    decode_state,
    encode_state,
    policies_of,
    state_document,
    state_from_document,
)
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest, pod_from_document, pod_to_document
from nodeagent.formats.manifest.pod_schema import NUMA_NODE
from tests.support.node_model import Unit, started
from tests.support.pods import amounts, app, burstable, cgroup_only, exclusive, init, job, pod, sidecar, unit
from tests.support.shares import share_of
from tests.support.world import node

NODE = node()
POLICIES = {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"}

# Any state

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
CPUS = st.integers(0, 2**70 - 1).map(CpuSet)
NODES = st.integers(0, 2**9 - 1).map(NumaSet)
AMOUNTS = st.integers(0, 2**62)
LEFT = st.integers(-(2**62), 2**62)
"""More may be promised than there is."""
TIMES = st.integers(0, 2**45)
TEXTS = st.text(max_size=20)
BLOCKS = st.lists(st.builds(Block, NODES, st.sampled_from(["memory", "hugepages-2Mi"]), AMOUNTS), max_size=2).map(tuple)


def by_name(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, values, max_size=3).map(lambda found: tuple(sorted(found.items())))


DEVICES = st.builds(HeldDevice, TEXTS, TEXTS, NODES, TEXTS, st.lists(TEXTS, max_size=2).map(tuple), TEXTS)
POD_PROMISES = st.builds(
    lambda hints, *parts: PodPromises(hints).having(*parts),
    by_name(st.builds(Hint, st.none() | NODES, st.booleans())),
    st.builds(CpuHoldings, by_name(CPUS), st.none() | CPUS, by_name(CPUS)),
    st.builds(MemoryHoldings, by_name(BLOCKS), st.none() | BLOCKS),
    st.builds(
        DeviceHoldings,
        by_name(st.lists(DEVICES, max_size=2).map(tuple)),
        by_name(by_name(st.binary(max_size=9))),
    ),
)
TABLES = st.builds(MemoryTable, AMOUNTS, AMOUNTS, LEFT, AMOUNTS, LEFT)
MEMORY_NODES = st.builds(MemoryNode, st.integers(0, 20), st.integers(0, 20), NODES, by_name(TABLES))


def pod_map(pods: dict[str, PodPromises]) -> PodMap[PodPromises]:
    result: PodMap[PodPromises] = PodMap()
    for uid, held in pods.items():
        result = result.put(uid, held)
    return result


PROMISES = st.builds(
    lambda pods, unrecovered, *books: Promises(pods, unrecovered).having(*books),
    st.dictionaries(NAMES, POD_PROMISES, max_size=3).map(pod_map),
    st.lists(st.builds(UnrecoveredPod, NAMES, POD_PROMISES, NAMES), max_size=2).map(tuple),
    st.builds(CpuBooks, CPUS, st.none() | st.builds(CpuReuse, NAMES, CPUS)),
    st.builds(
        MemoryBooks,
        st.lists(MEMORY_NODES, max_size=2).map(tuple),
        st.none()
        | st.builds(MemoryReuse, NAMES, st.lists(st.tuples(st.tuples(NODES, NAMES), AMOUNTS), max_size=2).map(tuple)),
    ),
)
EXITS = st.builds(
    Exit,
    TIMES,
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    is_oom_kill=st.booleans(),
    start_error=st.none() | TEXTS,
)


def statuses(name: str) -> st.SearchStrategy[ContainerStatus]:
    return st.builds(
        ContainerStatus,
        st.just(name),
        attempt=st.integers(0, 10**6),
        started_at_ms=st.none() | TIMES,
        exit=st.none() | EXITS,
        last_exit=st.none() | EXITS,
        backoff_step=st.integers(0, 6),
        stop_by_ms=st.none() | TIMES,
        oom_kills_seen=st.integers(0, 10),
        had_cpus=st.none() | CPUS,
        cgroup=st.none() | TEXTS,
        unit_before=st.none() | st.builds(UnitSettings, CPUS, st.integers(0, 15).map(NumaSet)),
    )


SIGNED = st.integers(-(2**62), 2**62)
RESOURCES = st.builds(
    NriResources,
    cpu_shares=st.none() | AMOUNTS,
    cpu_quota_us=st.none() | SIGNED,
    cpu_period_us=st.none() | AMOUNTS,
    memory_limit_bytes=st.none() | SIGNED,
    hugepage_limits=st.lists(st.builds(HugepageLimit, TEXTS, AMOUNTS), max_size=2).map(tuple),
)
ASKED = st.tuples(RESOURCES, st.none() | SIGNED, TEXTS, by_name(TEXTS)).map(lambda fields: Asked(*fields))
KEYS = st.builds(ContainerKey, TEXTS, NAMES)
MADE = st.builds(MadeContainer, TEXTS, TEXTS, st.sampled_from(Stage), ASKED, st.booleans(), TEXTS)
REQUIREMENTS = st.sampled_from([ResourceRequirements(), exclusive("1500m", "1Gi"), burstable("3", "4")])
KUBELETS = st.builds(
    KubeletPod,
    TEXTS,
    st.lists(st.builds(KubeletContainer, TEXTS, st.sampled_from(ContainerKind), REQUIREMENTS), max_size=2).map(tuple),
    st.none() | REQUIREMENTS,
    st.sampled_from([Resources(), amounts("250m", "120Mi")]),
)
REGISTRIES = st.tuples(
    st.lists(st.builds(KnownSandbox, TEXTS, TEXTS, st.booleans()), max_size=2).map(tuple),
    st.lists(
        st.builds(KeyEntry, KEYS, st.lists(MADE, max_size=2).map(tuple), st.booleans(), st.none() | ASKED), max_size=2
    ).map(tuple),
    st.lists(st.builds(RefusedKey, KEYS, ASKED, TEXTS), max_size=2).map(tuple),
    st.lists(KUBELETS, max_size=2).map(tuple),
).map(lambda fields: Registry(*fields))


PODS = st.sampled_from(
    [
        pod("plain"),
        pod("twins", app("x", cpu="2"), app("y", cpu="1500m", env=(("A", "é\n\x01\U0001f600"),), working_dir="/tmp")),
        job("chain", init(cpu="2"), sidecar(cpu="1"), app(run_as_user=0, args=("", " ")), cgroup_only()),
        pod("classed", given_qos=QosClass.BURSTABLE, termination_grace_seconds=0),
    ]
)


@st.composite
def entries(draw: st.DrawFn) -> PodEntry:
    of = draw(PODS)
    refusal = draw(st.none() | st.builds(Waiting, TEXTS, TEXTS, TIMES))
    change = st.builds(RefusedChange, PODS, st.builds(Waiting, TEXTS, TEXTS, TIMES))
    return PodEntry(
        of,
        refused_change=draw(st.none() | change),
        idle=draw(st.none() | st.builds(Idle, st.none() | st.builds(Waiting, TEXTS, TEXTS, TIMES))),
        qos=draw(st.sampled_from(QosClass)),
        origin=draw(st.builds(Origin, TEXTS, st.just(MANIFEST_DIRECTORY) | TEXTS)),
        decided_at_ms=draw(TIMES),
        refusal=refusal,
        containers=() if refusal else tuple(draw(statuses(c.name)) for c in of.containers),
        deleting_since_ms=draw(st.none() | TIMES),
        is_released=draw(st.booleans()),
        outcome=draw(st.none() | st.sampled_from([Phase.SUCCEEDED, Phase.FAILED])),
    )


STATES = st.builds(
    NodeState,
    PROMISES,
    st.lists(entries(), max_size=3).map(tuple),
    st.integers(0, 10**9),
    REGISTRIES | st.just(Registry()),
)


@given(STATES)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_is_written_is_read_back(state: NodeState) -> None:
    content = encode_state(state, POLICIES)
    saved = decode_state(content)
    assert saved.state == state
    assert saved.policies == POLICIES
    assert encode_state(saved.state, saved.policies) == content, "equal states are equal bytes"
    pods = [entry.pod for entry in state.entries]
    again = decode_state(content, pods=pods)
    assert again == saved
    assert all(any(entry.pod is known for known in pods) for entry in again.state.entries), (
        "known pods are not read again"
    )


def test_a_manifest_that_has_changed_meanwhile_is_not_taken_for_the_pod_of_the_state() -> None:
    entry = PodEntry(pod("a"), QosClass.BURSTABLE, Origin("a"), 1, containers=(ContainerStatus("app"),))
    content = encode_state(NodeState(Promises(), (entry,)), POLICIES)
    changed = replace(entry.pod, termination_grace_seconds=entry.pod.termination_grace_seconds + 1)
    assert decode_state(content, pods=[changed]).state.entries == (entry,)


@pytest.mark.parametrize(("source", "written"), [(MANIFEST_DIRECTORY, None), ("units", "units")])
def test_a_pods_source_is_written_if_it_is_not_the_manifest_directory(source: str, written: str | None) -> None:
    entry = PodEntry(pod("a"), QosClass.BURSTABLE, Origin("a", source), 1, containers=(ContainerStatus("app"),))
    document = state_document(NodeState(Promises(), (entry,)), POLICIES)
    assert (document["entries"][0]["source"], document["entries"][0].get("podSource")) == ("a", written)
    assert state_from_document(document).state.entries == (entry,)


@given(STATES)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=share_of(30))
def test_the_document_goes_through_any_json(state: NodeState) -> None:
    """The local API sends it."""
    document = json.loads(json.dumps(state_document(state, POLICIES)))
    assert state_from_document(document).state == state


def test_equal_promises_are_equal_bytes_however_they_came_about() -> None:
    ways = []
    for order in (("a", "b"), ("b", "a")):
        promises = Promises(
            pods=pod_map({uid: NOTHING.having(CpuHoldings(cpus=(("c", CpuSet.of(1)),))) for uid in order})
        ).having(CpuBooks(default=CpuSet.of(0)))
        ways.append(encode_state(NodeState(promises), POLICIES))
    assert ways[0] == ways[1]


def lived_in() -> bytes:
    """A state with a bit of everything, as a node would have it."""
    machine, agent = started(
        NODE,
        pod("a", init(cpu="2"), sidecar(cpu="1"), app(cpu="2")),
        job("b"),
        pod("refused", app(cpu="500")),
        pod("ending", app("stubborn")),
    )
    machine.exit(machine.run_of("poduid-b/app"), 3)
    machine.groups["shared/pool/payload/besteffort/poduid-ending/stubborn"].processes[0].is_stubborn = True
    agent.wanted = agent.wanted[:3]
    agent.rest()
    return agent.saved


CONTENT = lived_in()


def test_a_state_from_before_units_knows_nothing_of_what_they_had() -> None:
    _, agent = started(node(), pod("db", unit(cpu="2")), units={"db.service": Unit(UnitSettings(CpuSet.of(3)))})
    document = state_document(agent.state, POLICIES)
    (entry,) = document["entries"]
    (status,) = entry["containers"]
    assert status.pop("unitBefore") == {"cpus": "3", "mems": ""}
    older = state_from_document(document).state
    assert [status.unit_before for entry in older.entries for status in entry.containers] == [None]


def test_the_example_has_a_bit_of_everything() -> None:
    state = decode_state(CONTENT).state
    assert [e.phase for e in state.entries] == [Phase.PENDING, Phase.FAILED, Phase.FAILED, Phase.TERMINATING]
    assert len(CONTENT) > 1000


def test_every_truncation_is_refused() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(NodeStateError):
            decode_state(CONTENT[:length])


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_refused(bit: int) -> None:
    for position in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[position] ^= 1 << bit
        with pytest.raises(NodeStateError):
            decode_state(bytes(damaged))


@pytest.mark.parametrize("more", [b"\n", b"\0", b"x", CONTENT])
def test_whatever_follows_is_refused(more: bytes) -> None:
    with pytest.raises(NodeStateError):
        decode_state(CONTENT + more)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        pytest.param(CONTENT[:-1], "truncated or damaged", id="its last byte is missing"),
        pytest.param(CONTENT[: CONTENT.index(b"\n")], "truncated or damaged", id="a header alone"),
        pytest.param(CONTENT[:10], "not a nodeagent_state header", id="part of the header"),
    ],
)
def test_what_is_refused_is_named_with_the_next_step(cut: bytes, words: str) -> None:
    with pytest.raises(NodeStateError, match=words) as caught:
        decode_state(cut)
    assert caught.value.hint is not None
    assert "drain the node" in caught.value.hint


def headed(body: bytes, **header: object) -> bytes:
    fields: dict[str, object] = {"format": "nodeagent_state", "version": 1, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(fields | header, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body + b"\n"


@pytest.mark.parametrize("body", [b"{}", b"anything at all", b""])
def test_a_later_version_is_refused_by_its_number(body: bytes) -> None:
    with pytest.raises(NodeStateError, match=f"version {VERSION + 1} was written by a later nodeagent") as caught:
        decode_state(headed(body, version=VERSION + 1))
    assert caught.value.is_newer
    assert caught.value.hint.startswith("install the nodeagent that wrote it")


def test_a_later_versions_header_may_have_grown() -> None:
    with pytest.raises(NodeStateError) as caught:
        decode_state(headed(b"{}", version=VERSION + 1, more="fields"))
    assert caught.value.is_newer


@pytest.mark.parametrize("version", [0, -1, "1", None, 1.0, True, [1]])
def test_a_version_that_never_was_is_refused(version: object) -> None:
    body = CONTENT.split(b"\n")[1]
    with pytest.raises(NodeStateError) as caught:
        decode_state(headed(body, version=version))
    assert not caught.value.is_newer


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n\n", id="blank"),
        pytest.param(b"null\nnull\n", id="null"),
        pytest.param(b"[]\n{}\n", id="a list"),
        pytest.param(b"{}\n{}\n", id="no fields"),
        pytest.param(b"\xff\xfe\n{}\n", id="not UTF-8"),
        pytest.param(b"[" * 100_000 + b"\n", id="deeply nested"),
        pytest.param(b"9" * 100_000 + b"\n", id="a long number"),
        pytest.param(headed(b"{}", format="cpu_manager_state"), id="another format"),
        pytest.param(headed(b"{}", sha256=None), id="no checksum"),
        pytest.param(b'{"policyName":"static","defaultCpuSet":"0-15","checksum":4220024897}', id="kubelet's file"),
    ],
)
def test_what_is_no_state_file_is_refused(content: bytes) -> None:
    with pytest.raises(NodeStateError):
        decode_state(content)


def body_with(change: Any) -> bytes:
    document = json.loads(CONTENT.split(b"\n")[1])
    change(document)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"null", "the document: must be an object, not null", id="null"),
        pytest.param(b"[]", "the document: must be an object, not list", id="a list"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="deeply nested"),
        pytest.param(b"{} {}", "it is not JSON", id="two documents"),
        pytest.param(body_with(lambda d: d.pop("promises")), "promises: is missing", id="no promises"),
        pytest.param(body_with(lambda d: d.pop("generation")), "generation: is missing", id="no generation"),
        pytest.param(
            body_with(lambda d: d.update(generation="7")),
            'generation: must be a whole number from 0, not "7"',
            id="a generation of letters",
        ),
        pytest.param(body_with(lambda d: d.update(generation=1.0)), "not 1.0", id="a generation with a fraction"),
        pytest.param(body_with(lambda d: d.update(generation=True)), "not true", id="a generation that is true"),
        pytest.param(body_with(lambda d: d.update(generation=-1)), "not -1", id="a generation below zero"),
        pytest.param(body_with(lambda d: d.update(generation=2**64)), "whole number", id="a generation out of bounds"),
        pytest.param(body_with(lambda d: d.pop("policies")), "policies: is missing", id="no policies"),
        pytest.param(
            body_with(lambda d: d["policies"].update(cpuManagerPolicy=1)),
            r"policies\[cpuManagerPolicy\]: must be a string, not 1",
            id="a policy that is a number",
        ),
        pytest.param(
            body_with(lambda d: d["promises"].update(default="5-1")), "promises.default: must be a set", id="no CPU set"
        ),
        pytest.param(body_with(lambda d: d["promises"].update(pods=[])), "promises.pods: must be", id="pods in a list"),
        pytest.param(
            body_with(lambda d: d["promises"]["pods"]["uid-a"]["cpus"].update(app=["1"])),
            r"promises.pods\[uid-a\].cpus\[app\]: must be a string, not list",
            id="CPUs in a list",
        ),
        pytest.param(
            body_with(lambda d: d["promises"]["pods"]["uid-a"].update(hints={"app": ["0"]})),
            r"hints\[app\]: must have 2 values, not 1",
            id="half a hint",
        ),
        pytest.param(
            body_with(lambda d: d["promises"].update(cpuReuse={})),
            "promises.cpuReuse.pod: is missing",
            id="empty reuse",
        ),
        pytest.param(
            body_with(
                lambda d: d["promises"].update(memory=[{"id": 0, "assignments": 0, "cells": "0", "tables": {"m": []}}])
            ),
            "must have 5 values",
            id="an empty memory table",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0].update(qos="Best")),
            "must be one of Guaranteed, Burstable, BestEffort",
            id="no QoS class",
        ),
        pytest.param(body_with(lambda d: d["entries"][0].update(pod=[])), "must be an object", id="a pod in a list"),
        pytest.param(
            body_with(lambda d: d["entries"][0].update(decidedAtMs=None)), "decidedAtMs: is missing", id="no time"
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["spec"].update(containers=3)),
            r"entries\[0\].pod: .*spec.containers",
            id="no containers",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["containers"][0].update(attempt="x")),
            r"containers\[0\].attempt: must be",
            id="attempt is text",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["containers"].append({})), "name: is missing", id="a nameless status"
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["metadata"].update(name="a\x1b]0;b\x07")),
            r'entries\[0\].pod: pod: metadata.name: "a\\u001b\]0;b\\u0007": must be a lowercase RFC 1123 subdomain',
            id="a name that a terminal acts on",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["metadata"].update(namespace="../a")),
            r'metadata.namespace: "../a": must be a lowercase RFC 1123 label',
            id="a namespace that is none",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["metadata"].update(uid="a\nb")),
            "metadata.uid: .*: must be at most",
            id="a UID of two lines",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["spec"]["containers"][0].update(name="\u202e")),
            r"spec.containers\[0\].name: .*: must be a lowercase RFC 1123 label",
            id="a container's name that turns the line around",
        ),
        pytest.param(
            body_with(
                lambda d: d["entries"][0]["pod"]["spec"]["containers"][0].update(resources={"requests": {"cpu": "-1"}})
            ),
            r"entries\[0\].pod: pod: spec.containers\[0\].resources.requests\[cpu\]: -1: must be greater than or equal to 0",
            id="a negative request",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["spec"].update(overhead={"memory": "-1Mi"})),
            r"spec.overhead\[memory\]: -1Mi: must be greater",
            id="a negative overhead",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["pod"]["spec"].update(resources={"limits": {"cpu": "-1"}})),
            r"spec.resources.limits\[cpu\]: -1: must be greater",
            id="a negative limit of a pod",
        ),
        pytest.param(
            body_with(lambda d: d["entries"][0]["containers"].pop()),
            "must be the statuses of the pod",
            id="a status too few",
        ),
        pytest.param(body_with(lambda d: d["entries"][1].update(outcome="Over")), "outcome: must be", id="no phase"),
        pytest.param(
            body_with(lambda d: d["entries"][1].update(outcome=["Failed"])), "must be one of", id="a listed phase"
        ),
        pytest.param(
            body_with(lambda d: d["entries"][2].update(refusal=["x"])), "must have 3 values", id="half a refusal"
        ),
    ],
)
def test_what_checks_out_and_does_not_fit_is_refused_with_its_place(body: bytes, words: str) -> None:
    with pytest.raises(NodeStateError, match="the content is invalid") as caught:
        decode_state(headed(body))
    assert re.search(words, caught.value.message), caught.value.message


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every value of a document, by its path."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(found for key, item in inner for found in places(item, (*path, key)))]


BODY = json.loads(CONTENT.split(b"\n")[1])
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3) | CPUS.map(str)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=5)


@given(st.sampled_from(places(BODY)[1:]), VALUES)
@settings(deadline=None, max_examples=share_of(500))
def test_whatever_stands_in_whatever_place_is_taken_or_refused(path: tuple[str | int, ...], value: Any) -> None:
    document = json.loads(json.dumps(BODY))
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    try:
        saved = decode_state(headed(json.dumps(document).encode()))
    except NodeStateError:
        return
    violations(NODE.managers, saved.state)
    again = decode_state(encode_state(saved.state, saved.policies))
    assert replace(again.state, entries=()) == replace(saved.state, entries=())


@pytest.mark.parametrize("value", ["", "x", "../a", 1, True, None, [], {}], ids=json.dumps)
def test_a_pod_beside_a_similar_one_is_read_as_if_it_were_alone(value: object) -> None:
    first = json.loads(json.dumps(BODY["entries"][0]))
    first["pod"]["metadata"]["annotations"] = {NUMA_NODE: "1"}

    def read(*entries: object) -> PodEntry | None:
        try:
            return state_from_document({**BODY, "entries": [*entries]}).state.entries[-1]
        except NodeStateError:
            return None

    for path in places(first["pod"])[1:]:
        similar = json.loads(json.dumps(first))
        reduce(getitem, path[:-1], similar["pod"])[path[-1]] = value
        assert read(first, similar) == read(similar), path


@pytest.mark.parametrize("path", places(BODY)[1:], ids=lambda path: ".".join(map(str, path)))
def test_whatever_is_missing_is_refused_or_has_a_default(path: tuple[str | int, ...]) -> None:
    document = json.loads(json.dumps(BODY))
    at = document
    for step in path[:-1]:
        at = at[step]
    del at[path[-1]]
    try:
        saved = decode_state(headed(json.dumps(document).encode()))
    except NodeStateError:
        return
    violations(NODE.managers, saved.state)
    assert decode_state(encode_state(saved.state, saved.policies)) == saved


def test_the_policies_are_those_that_promises_depend_on() -> None:
    assert policies_of(NODE.config.placement) == POLICIES


# Pods: what is read back from the file must equal what the manifest says, or the pod would be ended at the next start

CPU_TEXTS = st.sampled_from(["1", "2", "2000m", "1500m", "0.5", "1e0", "100u", "2.0", "0", "1n"])
BYTE_TEXTS = st.sampled_from(
    [
        "64Mi",
        "1Gi",
        "1.5Gi",
        "1e6",
        "1E",
        "128974848",
        "129M",
        "0",
        "1k",
        "1024",
        "0.5Gi",
        "12345678901",
        "1Ki",
        "100Ti",
    ]
)
STRINGS = st.sampled_from(["", "a", "é", "\U0001f600", "\n\t", "a=b", "0", "null", "\x7f", "\u2028", "\ud800"])


def amounts() -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional={"cpu": CPU_TEXTS, "memory": BYTE_TEXTS})


def requirements() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={"requests": amounts(), "limits": amounts()})


def container_documents(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"name": st.just(name), "command": st.lists(STRINGS, min_size=1, max_size=2).map(lambda c: ["run", *c])},
        optional={
            "resources": requirements(),
            "args": st.lists(STRINGS, max_size=2),
            "env": st.lists(st.fixed_dictionaries({"name": st.just("A"), "value": STRINGS}), max_size=2),
            "workingDir": st.sampled_from(["/", "/tmp/é"]),
            "securityContext": st.fixed_dictionaries(
                {}, optional={"runAsUser": st.sampled_from([0, 65534]), "runAsGroup": st.just(7)}
            ),
        },
    )


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [draw(container_documents(n)) for n in ("a", "b")[: draw(st.integers(1, 2))]]}
    if draw(st.booleans()):
        start = draw(container_documents("i"))
        if draw(st.booleans()):
            start["restartPolicy"] = "Always"
        spec["initContainers"] = [start]
    if draw(st.booleans()):
        spec["resources"] = draw(requirements())
    if draw(st.booleans()):
        spec["overhead"] = draw(amounts())
    if draw(st.booleans()):
        spec["restartPolicy"] = draw(st.sampled_from(["Always", "OnFailure", "Never"]))
    if draw(st.booleans()):
        spec["terminationGracePeriodSeconds"] = draw(st.integers(0, 60))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


@given(documents())
@settings(deadline=None, max_examples=share_of(300), suppress_health_check=[HealthCheck.too_slow])
def test_every_pod_of_a_manifest_comes_back_as_it_was(document: dict[str, Any]) -> None:
    (found,) = parse_manifest(json.dumps(document).encode(), "p.json")
    if isinstance(found, ManifestPod):
        assert_kept(found.pod)


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"cpu": "2000m", "memory": "1.5Gi"}},
        {"limits": {"cpu": "2.0", "memory": "0Ki"}},
        {"limits": {"memory": "1e9"}, "requests": {"cpu": "0.5"}},
        {"limits": {"memory": "100Ti"}},
    ],
)
@pytest.mark.parametrize("pod_level", [False, True])
def test_quantities_however_written_come_back_as_they_were(resources: dict[str, Any], *, pod_level: bool) -> None:
    containers = [
        {"name": "a", "command": ["x"], "resources": {"requests": {"memory": "1Gi"}}},
        {"name": "b", "command": ["x"], "resources": {"requests": {"memory": "1k"}}},
    ]
    spec: dict[str, Any] = {"containers": containers}
    if pod_level:
        spec["resources"] = {"limits": {"memory": "100Ti", "cpu": "10"} | resources["limits"]}
    else:
        containers[0]["resources"] = resources
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (found,) = parse_manifest(json.dumps(document).encode(), "p.json")
    if isinstance(found, ManifestPod):
        assert_kept(found.pod)


def assert_kept(of: Pod) -> None:
    assert pod_from_document(pod_to_document(of)) == of
    entry = PodEntry(
        of, QosClass.BURSTABLE, Origin("p.json"), 1, containers=tuple(ContainerStatus(c.name) for c in of.containers)
    )
    state = NodeState(Promises(), (entry,))
    assert decode_state(encode_state(state, POLICIES)).state == state
    assert replace(state, generation=1) != state


@given(st.lists(STATES, min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=share_of(30))
def test_what_was_spelt_before_changes_nothing(several: list[NodeState]) -> None:
    encoder = StateEncoder()
    for state in several:
        body = json.dumps(state_document(state, POLICIES), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert encoder.encode(state, POLICIES).split(b"\n")[1].decode() == body
        changed = replace(state, entries=state.entries[1:], generation=state.generation + 1)
        assert encoder.encode(changed, POLICIES) == encode_state(changed, POLICIES)
        assert encoder.encode(state, POLICIES) == encode_state(state, POLICIES)
