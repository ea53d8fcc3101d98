"""`nodeagent explain`: its answer for pods that are tried out, in words and as a document, and its errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.core.explain.remedies import BUDGETS
from nodeagent.core.explain.remedy import RequestChange
from nodeagent.views.explain import document as explanation
from tests.support import json_schema
from tests.support.described_nodes import CONFIG, MACHINE, RunCommand, container, golden, manifest, pod, run

__all__ = ["run"]


def explained(
    run: RunCommand, *pods: dict[str, Any], options: tuple[str, ...] = (), ignored: str = ""
) -> tuple[int, list[dict[str, Any]]]:
    """The documents of pods that come one after the other. `ignored` is what stderr says of their manifest."""
    file = manifest("pods.yaml", *pods)
    status, out, err = run(
        "explain", "-f", file, "--topology", MACHINE, "--config", "config.yaml", "-o", "json", *options
    )
    assert err == ignored
    document = json.loads(out)
    json_schema.check(document, "explanation")
    return status, document["pods"]


def test_the_words_of_an_admission_and_of_refusals(run: RunCommand) -> None:
    file = manifest(
        "pods.yaml",
        pod("web", container("app", "4", "6Gi")),
        pod("odd", container("app", "3", "1Gi")),
        pod("wide", container("app", "10", "1Gi")),
        pod("split", container("app", "4", "7Gi")),
        pod("last", container("app", "8", "1Gi")),
        pod("full", container("app", "4", "1Gi")),
    )
    status, out, err = run("explain", "-f", file, "--topology", MACHINE, "--config", "config.yaml")
    assert (status, err) == (4, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("explain-pods.txt", out)


def test_options_with_values_are_among_the_rules(run: RunCommand) -> None:
    options = "numa-allocation-strategy: least-allocated, numa-score-weights: 'cpu=3', max-allowable-numa-nodes: '9'"
    Path("strategy.yaml").write_text(
        "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: restricted\n"
        f"topologyManagerPolicyOptions: {{{options}, prefer-closest-numa-nodes: 'true'}}\n"
        "featureGates: {TopologyManagerPolicyAlphaOptions: true}\n"
    )
    file = manifest("pods.yaml", pod("web", container("app", "2", "1Gi")))
    status, out, _ = run("explain", "-f", file, "--topology", MACHINE, "--config", "strategy.yaml")
    assert status == 0
    rules = " ".join(" ".join(out.split("\n\n")[0].split()).partition("rules ")[2].split())
    assert rules == (
        "cpu static, memory None, topology restricted prefer-closest-numa-nodes max-allowable-numa-nodes=9 "
        "numa-allocation-strategy=least-allocated numa-score-weights=cpu=3 per container"
    )


def test_a_long_name_is_broken_and_not_lost(run: RunCommand) -> None:
    name = "-".join(["a-very-long-name"] * 12)
    file = manifest("pods.yaml", pod(name, container("app", "4", "6Gi")))
    status, out, _ = run("explain", "-f", file, "--topology", MACHINE, "--config", "config.yaml")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert f"pod default/{name} (Guaranteed): admitted".replace(" ", "") in "".join(out.split())


def test_every_kind_of_document_is_as_its_schema_says(run: RunCommand) -> None:
    Path("config.yaml").write_text(
        CONFIG + "topologyManagerScope: pod\nfeatureGates: {PodLevelResourceManagers: true}\n"
    )
    _, documents = explained(
        run,
        pod("mixed", container("app", "2", "1Gi"), {"name": "log", "command": ["x"]}, **whole("4", "2Gi")),
        pod("lending", container("app", "2", "1Gi"), initContainers=[container("first", "2", "1Gi")]),
        pod("big", container("app", "12", "1Gi")),
        pod("odd", container("app", "1", "1Gi")),
    )
    assert {step["step"] for document in documents for step in document["steps"]} == {"merge", "cpus", "memory"}
    assert {r["change"] for document in documents for r in document["remedies"]} >= {"request", "configuration"}


def whole(cpu: str, memory: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}}


def test_the_words_of_pods_with_amounts_of_their_own_of_init_containers_and_of_huge_pages(run: RunCommand) -> None:
    Path("config.yaml").write_text(
        CONFIG.replace("full-pcpus-only", "distribute-cpus-across-numa").replace("single-numa-node", "restricted")
        + "topologyManagerScope: pod\nfeatureGates: {PodLevelResourceManagers: true}\n"
    )
    sharing = {"name": "log", "command": ["x"]}
    file = manifest(
        "pods.yaml",
        pod("budget", container("app", "2", "1Gi"), sharing, **whole("2", "1Gi")),
        pod("mixed", container("app", "2", "1Gi"), sharing, **whole("4", "2Gi")),
        pod("lending", container("app", "2", "1Gi"), initContainers=[container("first", "3", "2Gi")]),
        pod(
            "pages",
            {
                "name": "app",
                "command": ["x"],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "1Gi"}},
            },
        ),
        pod("spread", container("app", "5", "8500Mi")),
        pod("plain", sharing),
    )
    status, out, err = run(
        "explain", "-f", file, "--topology", f"{MACHINE},hugepages-2Mi=512Mi", "--config", "config.yaml"
    )
    assert (status, err) == (4, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("explain-more-pods.txt", out)


def test_an_admitted_pod_is_exit_status_0(run: RunCommand) -> None:
    status, (document,) = explained(run, pod("web", container("app", "4", "1Gi")))
    assert (status, document["decision"], document["reason"]) == (0, "admitted", None)
    assert document["why"] == document["remedies"] == []
    assert [step["step"] for step in document["steps"]] == ["merge", "cpus", "memory"]


def test_yaml_says_what_json_says(run: RunCommand) -> None:
    words = ("explain", "-f", manifest("p.yaml", pod("web", container("app", "4", "1Gi"))), "--topology", MACHINE)
    as_json = run(*words, "--config", "config.yaml", "-o", "json")[1]
    as_yaml = run(*words, "--config", "config.yaml", "-o", "yaml")[1]
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_the_words_need_no_list_of_all_that_each_node_has_left(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        pytest.fail("of n pods these are n² holders")

    monkeypatch.setattr(explanation, "headroom", never)
    file = manifest("pods.yaml", *(pod(name, container("app", "2", "1Gi")) for name in ("a", "b")))
    assert run("explain", "-f", file, "--topology", MACHINE, "--config", "config.yaml")[0] == 0


@pytest.mark.parametrize(("cpus", "first"), [("3", "0-1 loses: several nodes"), ("23", "0 loses: no room")])
def test_above_eight_nodes_the_smallest_sets_are_reported_and_that_there_are_others(
    run: RunCommand, cpus: str, first: str
) -> None:
    Path("config.yaml").write_text(
        "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: single-numa-node\n"
        "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '64'}\ncheckAllocatable: false\n"
    )
    words = ("explain", "-f", manifest("p.yaml", pod("wide", container("app", cpus, "1Gi"))), "--topology", "12n.2c")
    (document,) = json.loads(run(*words, "--config", "config.yaml", "-o", "json")[1])["pods"]
    (step,) = document["steps"]
    assert not step["allSets"]
    assert f"{step['candidates'][0]['nodes']} loses: {step['candidates'][0]['verdict']}" == first
    out = run(*words, "--config", "config.yaml")[1]
    assert "not all sets of so many NUMA nodes are listed" in out
    assert "loses: " in out


def test_sets_that_lose_alike_are_one_line(run: RunCommand) -> None:
    Path("config.yaml").write_text(
        "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: restricted\nmemoryManagerPolicy: Static\n"
        "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"
    )
    words = ("explain", "-f", manifest("p.yaml", pod("web", container("app", "5", "64Mi"))))
    words += ("--topology", "4s.2n.2c.2t,memory=8Gi", "--config", "config.yaml")
    (document,) = json.loads(run(*words, "-o", "json")[1])["pods"]
    assert len(document["steps"][0]["candidates"]) == 247
    _, _, steps = run(*words)[1].partition("Step by step\n")
    rows = [line.split() for line in steps.splitlines()]
    assert ["0", "and", "7", "more", "sets", "no", "preferred", "loses:", "not", "enough", "cpu"] in rows
    assert ["0-1", "preferred", "possible", "best,", "but", "refused"] in rows
    assert steps.count("loses: ") == 3
    assert "(-o json lists every set)" in steps
    said = " ".join(document["why"])
    assert "cpu would be on 0-1 and 27 more sets; memory would be on 0 and 7 more sets" in said


def test_no_heading_of_the_candidates_is_broken_at_80_columns(run: RunCommand) -> None:
    Path("config.yaml").write_text(WITH_MEMORY + RESTRICTED)
    amounts = {"cpu": "20", "memory": "12Gi", "hugepages-1Gi": "3Gi", "hugepages-2Mi": "4Mi"}
    pods = manifest("p.yaml", pod("web", {"name": "app", "command": ["x"], "resources": {"limits": amounts}}))
    machine = "4n.4c.2t,memory=8Gi,hugepages-1Gi=1Gi,hugepages-2Mi=64Mi"
    lines = run("explain", "-f", pods, "--topology", machine, "--config", "config.yaml")[1].splitlines()
    (heading,) = [line for line in lines if line.split()[:2] == ["NUMA", "cpu"]]
    assert heading.split() == ["NUMA", "cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]
    verdicts = [line for line in lines[lines.index(heading) :] if "loses: " in line or "best, " in line]
    assert len(verdicts) > 1
    assert all(line.startswith(" " * 7) and "  " not in line.strip() for line in verdicts), "each has a line of its own"


def test_a_manifest_that_is_wrong_is_named_with_its_line(run: RunCommand) -> None:
    Path("p.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{nme: app}]}\n")
    status, out, err = run("explain", "-f", "p.yaml", "--topology", MACHINE, "--config", "config.yaml")
    assert (status, out) == (1, "")
    assert "p.yaml:4: spec.containers[0].nme" in err
    assert "hint: " in err


def test_devices_that_no_plugin_has_are_given_up_together_with_what_else_is_short(run: RunCommand) -> None:
    Path("config.yaml").write_text(CONFIG.replace("checkAllocatable: false", "checkAllocatable: true"))
    one = container("app", "2", "9Ti")
    one["resources"]["limits"] |= {"nvidia.com/gpu": "2", "hugepages-2Mi": "2Mi"}
    _, (document,) = explained(run, pod("big", one))
    (remedy,) = document["remedies"]
    assert "hugepages-2Mi 0 instead of 2Mi" in remedy["text"]
    assert "nvidia.com/gpu 0 instead of 2" in remedy["text"]


def test_it_says_that_not_everything_was_tried(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in RequestChange:
        monkeypatch.setitem(BUDGETS, change, 0)
    big = pod("big", container("app", "100", "1Gi"))
    _, (document,) = explained(run, big)
    assert (document["allTried"], document["remedies"]) == (False, [])
    out = run("explain", "-f", manifest("p.yaml", big), "--topology", MACHINE, "--config", "config.yaml")[1]
    assert "not everything was tried" in out
    assert "no single change" not in out


@pytest.mark.parametrize("checked", ["true", "false"])
def test_what_is_missing_of_much_memory_is_rounded(run: RunCommand, checked: str) -> None:
    Path("config.yaml").write_text(CONFIG.replace("checkAllocatable: false", f"checkAllocatable: {checked}"))
    _, (document,) = explained(run, pod("big", container("app", "2", "2796518349Ki")))
    assert [line.rpartition(": ")[2] for line in document["why"] if line.endswith(" short")][:1] == ["2.6Ti short"]


def test_it_says_which_smaller_requests_were_tried(run: RunCommand) -> None:
    Path("config.yaml").write_text("cpuManagerPolicy: static\nreservedSystemCPUs: 0-2\n" + CONFIG.splitlines()[1])
    node = ("--topology", "1s.2c.2t,memory=8Gi", "--config", "config.yaml", "-o", "json")
    name = manifest("p.yaml", pod("p", container("c", "2", "1Gi")))
    status, out, _ = run("explain", "-f", name, *node)
    (document,) = json.loads(out)["pods"]
    assert (status, document["allTried"], document["remedies"]) == (4, True, [])
    assert run("explain", "-f", manifest("half.yaml", pod("p", container("c", "500m", "1Gi"))), *node)[0] == 0
    told = " ".join(run("explain", "-f", name, *node[:-2])[1].split())
    assert "neither a smaller request (for exclusive CPUs, a smaller whole number of them), nor another rule" in told


def test_every_container_that_asks_for_parts_of_cores_is_named_with_its_own_amounts(run: RunCommand) -> None:
    Path("config.yaml").write_text(CONFIG.replace("single-numa-node", "none"))
    _, (document,) = explained(run, pod("odd", container("a", "3", "1Gi"), container("b", "5", "1Gi")))
    assert document["why"][1] == "3 is not a multiple of 2, nor is 5 (container b)"
    below = document["remedies"][0]
    assert below["text"] == "let container a request cpu 2 instead of 3, and container b request cpu 4 instead of 5"
    assert below["amounts"] == [
        {"after": "2", "before": "3", "container": "a", "resource": "cpu"},
        {"after": "4", "before": "5", "container": "b", "resource": "cpu"},
    ]


SPREAD = CONFIG.replace("single-numa-node", "restricted").replace("full-pcpus-only", "distribute-cpus-across-numa")
"""CPUs 0 and 8 are reserved: NUMA 0 has 6 of its 8 CPUs and 8092Mi, NUMA 1 has 8 CPUs and 8Gi."""


@pytest.mark.parametrize(
    ("there", "refused", "why"),
    [
        (
            [],
            container("app", "15", "1Gi"),
            [
                "container app wants 15 CPUs and 1Gi of memory each on the fewest NUMA nodes that could hold it: CPUs on 2, memory on 1",
                "14 CPUs can still be allocated in total: 1 short",
                "NUMA 0: 6 CPUs free of 8 (reserved 0,8)",
            ],
        ),
        (
            [container("app", "1", "2Gi")],
            container("app", "9", "15Gi"),
            [
                "container app wants 15Gi of memory: first on NUMA 0-1 of the hint, or also on other nodes",
                "14236Mi of memory can still be allocated in total: 1124Mi short",
                "NUMA 0: 6044Mi of memory free",
                "NUMA 1: 8Gi of memory free",
            ],
        ),
    ],
    ids=["CPUs", "memory"],
)
def test_of_several_numa_nodes_it_is_reported_what_all_have_too_little_of(
    there: list[dict[str, Any]], refused: dict[str, Any], why: list[str], run: RunCommand
) -> None:
    Path("config.yaml").write_text(SPREAD)
    pods = [pod(f"there-{number}", each) for number, each in enumerate(there)]
    _, documents = explained(run, *pods, pod("refused", refused))
    found = [line.replace(" (topologyManagerPolicy restricted)", "") for line in documents[-1]["why"]]
    assert found == why


def whys(run: RunCommand, machine: str, config: str, *pods: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is missing for the last pod, and what would admit it."""
    Path("config.yaml").write_text(config)
    words = ("explain", "-f", manifest("pods.yaml", *pods), "--topology", machine, "--config", "config.yaml")
    document = json.loads(run(*words, "-o", "json")[1])["pods"][-1]
    assert document["decision"] == "refused"
    return document["why"], [each["text"] for each in document["remedies"]]


STATIC = 'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\ncheckAllocatable: false\n'
WITH_MEMORY = (
    STATIC + "memoryManagerPolicy: Static\nevictionHard: {memory.available: 100Mi}\n"
    "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"
)
RESTRICTED = "topologyManagerPolicy: restricted\n"


def test_what_the_pods_other_containers_have_got_is_not_free(run: RunCommand) -> None:
    pair = pod("pair", container("c0", "5", "1Mi"), container("c1", "3", "1Mi"))
    assert whys(run, "4c.2t", STATIC, pair)[0] == [
        "container c1 wants 3 CPUs exclusively, and 2 can still be allocated: 1 short",
        "NUMA 0: 2 of 8 free (default/pair c0 has 1-2,4-6; reserved 0)",
    ]
    pair = pod("pair", container("c0", "1", "5Gi"), container("c1", "1", "5Gi"))
    assert whys(run, "4c.2t,memory=8Gi", WITH_MEMORY, pair)[0] == [
        "container c1 wants 5Gi of memory",
        "2972Mi of memory can still be allocated in total: 2148Mi short",
        "NUMA 0: 2972Mi of memory free",
    ]


def test_what_init_containers_leave_is_reported(run: RunCommand) -> None:
    lending = pod("lending", container("c0", "500m", "3Gi"), initContainers=[container("i0", "500m", "5Gi")])
    why, _ = whys(run, "4n.2c,memory=2Gi", WITH_MEMORY + RESTRICTED, lending)
    assert "NUMA 1: 0 of memory free, of 2Gi; its memory is allocated only together with that of NUMA 0-2" in why
    assert (
        why[-1]
        == "5Gi of memory of its init containers on NUMA 0-2 counts as free only if the pod gets exactly these nodes"
    )
    lending = pod("lending", container("c0", "6", "1Mi"), initContainers=[container("i0", "2", "1Mi")])
    busy = pod("busy", container("c0", "2", "1Mi"))
    why, _ = whys(run, "2n.4c.1t", STATIC + "topologyManagerPolicy: restricted\n", busy, lending)
    assert (
        why[-1] == "CPUs 4-5 of the pod's init containers, on NUMA 1, count as free for the pod, which must run there"
    )


def test_halves_of_cores_are_not_free_where_whole_ones_are_given(run: RunCommand) -> None:
    whole = STATIC.replace('"0"', "0-1") + 'cpuManagerPolicyOptions: {full-pcpus-only: "true"}\n'
    app = pod("app", container("c0", "6", "1Mi"))
    assert whys(run, "4c.2t", whole + "topologyManagerPolicy: single-numa-node\n", app) == (
        [
            "container c0 wants 6 CPUs on a single NUMA node (topologyManagerPolicy single-numa-node)",
            "NUMA 0: 4 CPUs in whole cores free of 8 (4-5 are in partly used cores), 2 short (reserved 0-1)",
        ],
        ["let container c0 request cpu 4 instead of 6", "set cpuManagerPolicyOptions without full-pcpus-only"],
    )


@pytest.mark.parametrize(
    ("cpus", "remedy"),
    [
        (("34", "3"), "let container c0 request cpu 28 instead of 34, and container c1 request cpu 2 instead of 3"),
        (("3", "34"), "let container c0 request cpu 2 instead of 3, and container c1 request cpu 28 instead of 34"),
        (("34", "1"), "let container c0 request cpu 28 instead of 34, and container c1 request cpu 2 instead of 1"),
        (("34", "2"), "let container c0 request cpu 28 instead of 34"),
        (("33", "35"), "let container c0 request cpu 14 instead of 33, and container c1 request cpu 14 instead of 35"),
        (("5", "3"), "let container c0 request cpu 4 instead of 5, and container c1 request cpu 2 instead of 3"),
    ],
)
def test_a_container_on_parts_of_cores_takes_no_more_from_another_than_is_short(
    cpus: tuple[str, str], remedy: str, run: RunCommand
) -> None:
    whole = STATIC + 'cpuManagerPolicyOptions: {full-pcpus-only: "true"}\n'
    app = pod("app", *(container(f"c{i}", count, "1Mi") for i, count in enumerate(cpus)))
    _, remedies = whys(run, "2s.2n.4c.2t", whole, app)
    assert remedies[0] == remedy


@pytest.mark.parametrize(
    ("config", "remedies"),
    [
        (
            "topologyManagerPolicy: single-numa-node\n",
            [
                "let container app request cpu 8500m instead of 9500m and exclusive-cpus 8 instead of 9",
                "set topologyManagerPolicy: restricted (now single-numa-node)",
            ],
        ),
        (
            'cpuManagerPolicyOptions: {full-pcpus-only: "true"}\n',
            [
                "let container app request cpu 8500m instead of 9500m and exclusive-cpus 8 instead of 9",
                "let container app request cpu 10500m instead of 9500m and exclusive-cpus 10 instead of 9",
                "set cpuManagerPolicyOptions without full-pcpus-only",
            ],
        ),
    ],
)
def test_fewer_exclusive_cpus_beside_as_much_of_the_pool_are_an_annotation_and_a_request(
    config: str, remedies: list[str], run: RunCommand
) -> None:
    mixed = pod("mixed", container("app", "9500m", "1Mi"))
    mixed["metadata"]["annotations"] = {"exclusive-cpus.nodeagent.io/app": "9"}
    why, found = whys(run, "2s.4c.2t", STATIC.replace('"0"', '"0,8"') + config, mixed)
    assert why[0].startswith("container app wants 9 CPUs")
    assert found == remedies


def test_memory_and_pages_are_wanted_on_as_many_nodes_as_hold_both(run: RunCommand) -> None:
    limits = {"cpu": "2", "memory": "10Gi", "hugepages-2Mi": "6Gi"}
    app = pod("app", {"name": "c0", "command": ["x"], "resources": {"limits": limits}})
    why, _ = whys(run, "2s.4c.2t,memory=64Gi,hugepages-2Mi=4Gi", WITH_MEMORY + RESTRICTED, app)
    assert why == [
        (
            "container c0 wants 2 CPUs and 6Gi of hugepages-2Mi and 10Gi of memory each on the fewest NUMA nodes that could hold it: "
            "CPUs on 1, hugepages-2Mi on 2, memory on 2 (topologyManagerPolicy restricted)"
        ),
        "no set of NUMA nodes suits all resources: cpu would be on 0 or 1; hugepages-2Mi would be on 0-1; memory would be on 0-1",
    ]


@pytest.mark.parametrize(
    ("machine", "limits", "remedy"),
    [
        ("2n.4c.2t,memory=8Gi", {"cpu": "12", "memory": "17Gi"}, "memory 16284Mi instead of 17Gi"),
        (
            "3n.2c.2t,memory=8Gi,hugepages-2Mi=1Gi",
            {"cpu": "6", "memory": "6Gi", "hugepages-2Mi": "2560Mi"},
            "hugepages-2Mi 2Gi instead of 2560Mi",
        ),
    ],
    ids=["memory", "pages"],
)
def test_less_memory_is_found_that_still_needs_as_many_nodes_as_the_cpus(
    machine: str, limits: dict[str, str], remedy: str, run: RunCommand
) -> None:
    app = pod("app", {"name": "c0", "command": ["x"], "resources": {"limits": limits}})
    _, found = whys(run, machine, WITH_MEMORY + RESTRICTED, app)
    assert f"let container c0 request {remedy}" in found


def test_several_amounts_of_several_containers_are_changed_where_nothing_less_does(run: RunCommand) -> None:
    config = WITH_MEMORY + "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n"
    pair = pod("pair", container("c0", "8", "9Gi"), container("c1", "8", "9Gi"))
    _, found = whys(run, "4c.2t,memory=8Gi", config, pair)
    assert found == [
        (
            "let container c0 request cpu 3 instead of 8 and memory 4046Mi instead of 9Gi, and container c1 request cpu 3 instead of 8 and "
            "memory 4046Mi instead of 9Gi"
        )
    ]


def test_an_amount_beyond_all_bounds_is_refused_and_lessened(run: RunCommand) -> None:
    app = pod("app", container("c0", "999999", "1Pi"))
    _, found = whys(run, "4c.2t,memory=8Gi", WITH_MEMORY + "topologyManagerPolicy: single-numa-node\n", app)
    assert found == ["let container c0 request cpu 7 instead of 999999 and memory 8092Mi instead of 1Pi"]


def test_pods_that_hold_nothing_of_it_are_in_nobodys_way(run: RunCommand) -> None:
    idle = [pod(f"idle-{number:03}", {"name": "c", "command": ["x"]}) for number in range(450)]
    big, target = pod("big", container("c", "6", "1Mi")), pod("target", container("c", "4", "1Mi"))
    _, found = whys(run, "4c.2t", STATIC, big, *idle, target)
    assert found == ["let container c request cpu 1 instead of 4", "end pod default/big"]


def test_of_enough_in_all_it_is_reported_how_much_as_few_nodes_as_are_wanted_have(run: RunCommand) -> None:
    Path("config.yaml").write_text(
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0,2\ntopologyManagerPolicy: restricted\n"
    )
    words = ("explain", "-f", manifest("p.yaml", pod("refused", container("app", "4", "1Gi"))))
    _, out, _ = run(*words, "--topology", "3s.2c", "--config", "config.yaml", "-o", "json")
    assert json.loads(out)["pods"][0]["why"] == [
        "container app wants 4 CPUs on 2 NUMA nodes, the fewest that could hold it (topologyManagerPolicy restricted)",
        "no 2 NUMA nodes together have more than 3 CPUs free: 1 short",
        "NUMA 0: 1 CPU free of 2 (reserved 0)",
        "NUMA 1: 1 CPU free of 2 (reserved 2)",
    ]


def test_of_all_that_no_numa_node_could_ever_hold_the_largest_is_reported(run: RunCommand) -> None:
    _, [refused] = explained(run, pod("wide", container("app", "10", "9Gi")))
    assert refused["why"][1:] == [
        "no NUMA node is large enough: the largest has 8 CPUs",
        "no NUMA node is large enough: the largest has 8Gi of memory",
    ]


def test_of_many_pods_that_hold_as_much_some_are_named(run: RunCommand) -> None:
    pods = [pod(f"there-{number:02}", container("app", "1", "1Mi")) for number in range(14)]
    Path("config.yaml").write_text(SPREAD)
    status, documents = explained(run, *pods, pod("refused", container("app", "1", "1Mi")))
    assert status == 4
    removals = [remedy["subject"] for remedy in documents[-1]["remedies"] if remedy["change"] == "removal"]
    assert removals == [[f"default/there-{number:02}"] for number in range(8)]
    assert documents[-1]["allTried"] is True, "those that aren't named hold as much"


@pytest.mark.parametrize(
    ("bounds", "remedy"),
    [
        ("podsPerCore: 1", ["set podsPerCore: 2 (now 1)"]),
        ("podsPerCore: 1\nmaxPods: 3", ["set podsPerCore: 2 (now 1)"]),
        ("podsPerCore: 2\nmaxPods: 2", ["set maxPods: 3 (now 2)"]),
        ("podsPerCore: 1\nmaxPods: 2", []),
    ],
)
def test_the_bound_on_pods_that_is_in_the_way_is_named(bounds: str, remedy: list[str], run: RunCommand) -> None:
    idle = [pod(name, {"name": "c", "command": ["x"]}) for name in "abc"]
    _, found = whys(run, "2c", f"{bounds}\n", *idle)
    assert [text for text in found if text.startswith("set ")] == remedy


def test_pods_are_ended_that_hold_what_comes_to_be_short_next(run: RunCommand) -> None:
    pods = [pod("a", container("c", "6", "1Gi")), pod("b", container("c", "1", "24Gi"))]
    why, found = whys(run, "8c,memory=32Gi", "maxPods: 9\n", *pods, pod("c", container("c", "6", "24Gi")))
    assert why[0].startswith("the pod requests 6 cpu")
    assert "end 2 pods: default/a, default/b" in found


def test_containers_that_are_in_nobodys_way_keep_what_they_ask_for(run: RunCommand) -> None:
    there = pod("there", container("c", "4", "1Gi"))
    three = pod(
        "three",
        *(container(name, "3", "1Mi") for name in ("x", "z")),
        initContainers=[container("i", "1500m", "1Mi")],
    )
    _, found = whys(run, "2n.4c", STATIC, there, three)
    assert found == [
        "let container x request cpu 1 instead of 3, and container z request cpu 1 instead of 3",
        "end pod default/there",
    ]


def test_of_many_pods_the_fewest_that_are_enough_are_found_and_few_holders_named(run: RunCommand) -> None:
    pods = [pod(f"there-{number:02}", container("c", "1", "1Mi")) for number in range(60)]
    why, found = whys(run, "64c", STATIC, *pods, pod("new", container("c0", "1", "1Mi"), container("c1", "40", "1Mi")))
    assert why[-1].endswith("default/there-06 c has 7, and 53 more (-o json has all); reserved 0)")
    (ends,) = [text for text in found if text.startswith("end ")]
    assert re.fullmatch(r"end 38 pods: (default/there-\d\d, ){8}and 30 more \(-o json has all\)", ends)


def test_what_a_manifest_hardly_means_is_said(run: RunCommand) -> None:
    written = pod("web", container("app", "2", "64"), nodeSelector={"disk": "ssd"})
    ignored = "pods.yaml: fields that choose a node are ignored: nodeSelector\n"
    (document,) = explained(run, written, ignored=ignored)[1]
    (note,) = document["notes"]  # not of the field that the line above names
    assert note.startswith("spec.containers[0].resources.limits[memory]: ")
    out = run("explain", "-f", manifest("pods.yaml", written), "--topology", MACHINE, "--config", "config.yaml")[1]
    assert "64 is 64 bytes: is 64Mi meant?" in " ".join(out.split())


@pytest.mark.parametrize(
    ("cpu", "memory", "meant"),
    [
        ("2", "500m", ["500Mi"]),
        ("2", "1500m", ["1500Mi"]),
        ("2", "0.5", ["500Mi"]),
        ("2", "0.1Ki", ["1Mi"]),
        ("2", "0.1Gi", ["103Mi"]),
        ("40", "500m", ["500Mi"]),  # and fewer CPUs
        ("2", "9999m", ["9999Mi", "8092Mi"]),  # which are more than there are
    ],
)
def test_a_screen_suggests_one_amount_instead_of_a_fraction_of_a_byte(
    run: RunCommand, cpu: str, memory: str, meant: list[str]
) -> None:
    manifest("pods.yaml", pod("web", container("app", cpu, memory)))
    Path("config.yaml").write_text(WITH_MEMORY)
    out = run("explain", "-f", "pods.yaml", "--topology", "4c.2t,memory=8Gi", "--config", "config.yaml")[1]
    words = " ".join(out.split())
    suggested = re.findall(r"is (\S+) meant|write (\S+)|memory (\S+) instead", words)
    assert {amount for found in suggested for amount in found if amount} == set(meant), words


def test_unknown_fields_are_ignored_with_one_line(run: RunCommand) -> None:
    written = pod("web", container("app", "2", "100Mi") | {"future": 1, "lifecycles": {}}, future=1)
    fields = "future (line 9), lifecycles (line 10, did you mean lifecycle?), future (line 16)"
    ignored = f"pods.yaml: unknown fields are ignored: {fields}\n"
    assert explained(run, written, ignored=ignored)[0] == 0
