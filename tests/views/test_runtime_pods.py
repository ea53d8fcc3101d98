"""Of a container runtime's pod, what is exact is told from what is estimated, and from what: in `explain` and in `inspect`."""

from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.domains.runtime.pod_model import Known, ToldBy
from nodeagent.core.explain.replay_decision import replay_decision
from nodeagent.core.model.pod import OWN, ResourceRequirements
from nodeagent.core.model.state import PodEntry
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state
from nodeagent.formats.node_view import NodeView
from nodeagent.views.explain.document import ExplainedPod, describe_explanation
from nodeagent.views.explain.text import render_explanation
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render_in_full
from nodeagent.views.wording.runtime_pods import describe_known_amounts, find_known_amounts, format_known_amount
from tests.core.turn.test_containers import NODE, WEB, Runtime
from tests.support import json_schema
from tests.support.pods import amounts, app, pod
from tests.support.runtime_pods import kubelets

GIB_REQUESTED = ResourceRequirements(amounts("500m", "1Gi"))
SHARING = pod("sharing", app("main", resources=GIB_REQUESTED))
SETUP = NodeSetup(NODE.config, NODE.managers.topology, NODE.managers, NODE.allocatable, NODE.managers.reserved)
STATED = {"nodeagent.io/containers": "main", "requests.nodeagent.io/main": "cpu=500m, memory=1Gi"}


def entry_of(runtime: Runtime) -> PodEntry:
    (entry,) = runtime.state.entries
    return entry


def known(runtime: Runtime) -> dict[tuple[str | None, str], tuple[str, str, bool]]:
    found = describe_known_amounts(
        find_known_amounts(entry_of(runtime), runtime.state, NODE.managers.topology.memory_bytes)
    )
    return {(one["container"], one["what"]): (one["value"], one["from"], one["exact"]) for one in found}


def test_what_follows_from_what_the_runtime_is_told_is_exact_and_the_rest_estimated() -> None:
    runtime = Runtime()
    runtime.run(SHARING, "main", "c1")
    found = known(runtime)
    assert found[None, "qosClass"] == ("Burstable", "cgroupParent", True)
    assert found["main", "requests.cpu"] == ("500m", "cpuShares", True)
    assert found[None, "containers"] == ("main", "seen", False)
    assert found["main", "kind"] == ("app", "seen", False)
    value, by, is_exact = found["main", "requests.memory"]
    assert (by, is_exact) == ("oomScoreAdj", False)
    assert entry_of(runtime).pod.container("main").resources.requests.get("memory") is not None
    assert str(entry_of(runtime).pod.container("main").resources.requests.get("memory")) == value


def test_what_its_annotations_say_is_exact() -> None:
    runtime = Runtime()
    runtime.run(SHARING, "main", "c1", **STATED)
    found = known(runtime)
    assert found["main", "requests.memory"] == ("1Gi", "annotation", True)
    assert all(is_exact for _, _, is_exact in found.values()), found


def test_what_kubelet_says_is_exact_and_shown_as_its_word() -> None:
    runtime = Runtime()
    whole = replace(SHARING, resources=ResourceRequirements(amounts("1", "2Gi"), amounts("2", "2Gi")))
    runtime.says[whole.uid] = kubelets(whole)
    told_with_the_pods_limits = replace(
        whole, containers=(app("main", resources=ResourceRequirements(GIB_REQUESTED.requests, amounts("2", "2Gi"))),)
    )
    runtime.run(told_with_the_pods_limits, "main", "c1", **STATED)
    found = known(runtime)
    assert found["main", "requests.memory"] == ("1Gi", "podsApi", True)
    assert found[None, "limits.cpu"] == ("2", "podsApi", True)
    assert all(is_exact for _, _, is_exact in found.values()), found
    before = known(runtime)
    runtime.state = decode_state(encode_state(runtime.state, {})).state
    assert known(runtime) == before, "nobody has to be asked again"
    text = explained(runtime)
    assert "main requests.memory 1Gi kubelet's pods API" in text
    assert "the pod limits.cpu 2 kubelet's pods API" in text
    document = inspect_node(NodeView(node=SETUP, state=runtime.state))
    json_schema.check(document, "inspection")
    (shown,) = document["pods"]
    assert shown["estimates"] == []


def test_there_are_words_for_every_source() -> None:
    for by in ToldBy:
        (document,) = describe_known_amounts([Known("kind", "app", by, is_exact=True, container="main")])
        assert format_known_amount(document)[-1]


def explained(runtime: Runtime) -> str:
    entry = entry_of(runtime)
    what_if = WhatIf.of(NODE.managers, runtime.state.promises, tuple(runtime.state.holding_pods()))
    again = replay_decision(what_if, runtime.state, entry)
    assert again.reproduced
    all_known = find_known_amounts(entry, runtime.state, NODE.managers.topology.memory_bytes)
    found = ExplainedPod(again.before, again.trace, entry=entry, reproduced=True, known=all_known)
    document = describe_explanation([found], config=NODE.config, what_if=what_if, where="here")
    json_schema.check(document, "explanation")
    return " ".join(render_explanation(document).split())


def test_a_refused_pod_and_one_whose_state_was_saved_are_known_as_well() -> None:
    runtime = Runtime()
    large = pod("large", app("main", "14"))
    runtime.create(large, "main", "c1")
    assert entry_of(runtime).refusal is not None
    assert known(runtime)["main", "requests.cpu"] == ("14", "cpuShares", True)
    runtime = Runtime()
    runtime.run(SHARING, "main", "c1")
    before = known(runtime)
    runtime.state = decode_state(encode_state(runtime.state, {})).state
    assert known(runtime) == before


def test_a_pod_that_is_no_runtimes_has_none_of_it() -> None:
    runtime = Runtime()
    runtime.run(WEB, "main", "c1")
    entry = replace(entry_of(runtime), origin=replace(entry_of(runtime).origin, source="manifests", domain=OWN))
    assert find_known_amounts(entry, runtime.state, 1) == ()


def test_explain_shows_all_of_it_and_inspect_the_estimates() -> None:
    runtime = Runtime()
    runtime.run(SHARING, "main", "c1")
    text = explained(runtime)
    assert "main requests.cpu 500m its CPU shares" in text
    assert "requests.memory" in text
    assert "123Mi estimated from its oom_score_adj (123Mi to 131Mi)" in text
    assert "the pod qosClass Burstable the cgroup's name" in text

    document = inspect_node(NodeView(node=SETUP, state=runtime.state))
    (shown,) = document["pods"]
    assert {(one["container"], one["what"]) for one in shown["estimates"]} == {
        (None, "containers"),
        ("main", "kind"),
        ("main", "requests.memory"),
    }
    text = " ".join(render_in_full(document).split())
    assert "container main, requests.memory" in text
    assert "estimated from its oom_score_adj" in text
    assert "requests.cpu" not in text
