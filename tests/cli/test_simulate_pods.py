"""`nodeagent simulate` of pods: who gets what, what is left, how many more fit, and two configurations side by side."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.core.model.idset import CpuSet
from tests.cli.test_selected_node import root
from tests.support import json_schema
from tests.support.described_nodes import CONFIG, MACHINE, RunCommand, container, golden, manifest, pod, run

__all__ = ["root", "run"]
ON = ("--topology", MACHINE)
UNDER = ("--config", "config.yaml")
PODS = (
    pod("web", container("app", "4", "6Gi"), container("log", "500m", "64Mi")),
    pod("odd", container("app", "3", "1Gi")),
    pod("big", container("app", "6", "4Gi")),
    pod("more", container("app", "4", "4Gi")),
)


def simulated(run: RunCommand, *words: str) -> dict[str, Any]:
    status, out, err = run("simulate", *words, "-o", "json")
    document: dict[str, Any] = json.loads(out)
    if document["kind"] == "Comparison":
        expected = 2 if document["differing"] else 0
    elif document["capacity"] is not None:
        expected = 0 if document["capacity"]["copies"] else 4
    else:
        expected = 4 if document["summary"]["refused"] else 0
    assert (status, err) == (expected, "")
    json_schema.check(document, document["kind"].lower())
    return document


def test_the_words_of_decisions_and_of_what_is_left(run: RunCommand) -> None:
    status, out, err = run("simulate", "-f", manifest("pods.yaml", *PODS), *ON, *UNDER)
    assert (status, err) == (4, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("simulate-pods.txt", out)


def test_the_document_says_who_got_what_and_what_is_left(run: RunCommand) -> None:
    document = simulated(run, "-f", manifest("pods.yaml", *PODS), *ON, *UNDER)
    web, odd, *_ = document["pods"]
    assert [(c["name"], c["isolation"], c["cpus"], c["numaNodes"]) for c in web["containers"]] == [
        ("app", "container", "1-2,9-10", "0"),
        ("log", "host", "0,3,7-8,11,15", None),
    ], "those that share are shown where they run in the end"
    assert (odd["decision"], odd["reason"], odd["containers"]) == ("refused", "SMTAlignmentError", [])
    assert document["summary"] == {
        "admitted": 2, "before": 0, "freeCpus": 4, "largestFreeNode": 2, "refused": 2, "replaced": 0,
    }  # fmt: skip
    assert not any(pod["replaced"] for pod in document["pods"])
    first = document["nodes"][0]
    assert (first["free"], first["wholeCores"], first["splitCpus"], first["fragmentationPercent"]) == ("3,11", 1, "", 0)
    assert first["holders"] == [{"container": "app", "cpus": "1-2,9-10", "pod": "default/web"}]


WORKLOADS = """kind: Service
---
kind: Deployment
metadata: {name: web}
spec: {replicas: 2, template: {spec: {containers: [{name: app, volumeMounts: [{name: v}], resources: {limits: {cpu: 2, memory: 1Gi}}}], volumes: [{name: v}]}}}
---
kind: CronJob
metadata: {name: web}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: app, resources: {limits: {cpu: 4, memory: 1Gi}}}]}}}}}
"""  # noqa: E501 - one line is one document


def test_workloads_of_a_cluster_are_decided_on_and_told_in_one_line(run: RunCommand) -> None:
    Path("all.yaml").write_text(WORKLOADS)
    said = (
        "all.yaml: one pod is decided for each of: Deployment web (2 pods), CronJob web; documents without pods are ignored: "
        "Service; fields that `nodeagent apply` refuses are ignored: volumeMounts, volumes\n"
    )
    for words in (
        ("simulate", "-f", "all.yaml", *ON, *UNDER),
        ("simulate", "--capacity", "-f", "all.yaml", *ON, *UNDER),
        ("simulate", "-f", "all.yaml", *ON, "--compare", "config.yaml", "config.yaml"),
        ("explain", "-f", "all.yaml", *ON, *UNDER),
    ):
        status, out, err = run(*words)
        assert (status, err) == (0, said), words
        assert "default/web" in out
    document = json.loads(run("simulate", "-f", "all.yaml", *ON, *UNDER, "-o", "json")[1])
    assert [(pod["name"], pod["decision"]) for pod in document["pods"]] == [("web", "admitted"), ("web-2", "admitted")]
    Path("none.yaml").write_text("kind: Service\n")
    status, _, err = run("simulate", "-f", "none.yaml", *ON, *UNDER)
    assert status == 1
    assert "no pod in none.yaml" in err


@pytest.mark.parametrize("form", ["List", "documents"])
def test_pods_of_a_cluster_that_have_ended_take_no_cpus(run: RunCommand, form: str) -> None:
    pods: list[dict[str, Any]] = [pod(name, container("app", "6", "1Gi")) for name in ("done", "failed", "live")]
    for one, phase in zip(pods, ("Succeeded", "Failed", "Running"), strict=True):
        one["status"] = {"phase": phase}
    pods[1]["metadata"]["namespace"] = "shop"
    listed = {"apiVersion": "v1", "kind": "List", "items": pods}
    name = manifest("pods.yaml", *([listed] if form == "List" else pods))
    for words in (
        ("simulate", "-f", name, *ON, *UNDER, "-o", "json"),
        ("explain", "-f", name, *ON, *UNDER, "-o", "json"),
    ):
        status, out, err = run(*words)
        assert (status, err) == (0, "pods.yaml: pods that have ended are ignored: default/done, shop/failed\n"), words
        assert [(one["name"], one["decision"]) for one in json.loads(out)["pods"]] == [("live", "admitted")]


@pytest.mark.parametrize("order", [("web", "job", "pod"), ("pod", "web", "job"), ("job", "pod", "web")])
@pytest.mark.parametrize("in_one_file", [True, False])
def test_a_pod_with_the_name_of_workloads_replaces_none_of_their_pods(
    run: RunCommand, order: tuple[str, ...], in_one_file: bool
) -> None:
    template = pod("web", container("app", "2", "1Gi"))["spec"]
    documents = {
        "web": {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": template}}},
        "job": {"kind": "Job", "metadata": {"name": "web"}, "spec": {"template": {"spec": template}}},
        "pod": pod("web", container("app", "4", "1Gi")),
    }
    chosen = [documents[each] for each in order]
    files = [chosen] if in_one_file else [[each] for each in chosen]
    words = [word for number, each in enumerate(files) for word in ("-f", manifest(f"{number}.yaml", *each))]
    document = json.loads(run("simulate", *words, *ON, *UNDER, "-o", "json")[1])
    assert (document["summary"]["replaced"], document["summary"]["admitted"]) == (0, 3)
    assert document["summary"]["freeCpus"] == 6, "of 14"
    assert sorted(one["name"] for one in document["pods"]) == ["web", "web-2", "web-3"]
    (real,) = (one for one in document["pods"] if one["name"] == "web")
    assert len(CpuSet.parse(real["containers"][0]["cpus"])) == 4


ASKING_FOR_NONE = """kind: Deployment
metadata: {name: web}
spec: {replicas: 0, template: {spec: {nodeName: node-7, containers: [{name: app, resources: {limits: {cpu: 2, memory: 1Gi}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {nodeSelector: {disk: ssd}, containers: [{name: app, resources: {limits: {cpu: 2, memory: 1Gi}}}]}
"""


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", *UNDER),
        ("simulate", "--capacity", *UNDER),
        ("simulate", "--compare", "config.yaml", "config.yaml"),
        ("explain", *UNDER),
    ],
)
def test_what_asks_for_no_pod_or_for_another_node_is_told_in_one_line(run: RunCommand, words: tuple[str, ...]) -> None:
    Path("none.yaml").write_text(ASKING_FOR_NONE)
    status, out, err = run(*words, "-f", "none.yaml", *ON)
    said = (
        "none.yaml: one pod is decided for each of: Deployment web (asks for no pod); fields that choose a node are ignored: "
        "nodeSelector, nodeName\n"
    )
    assert (status, err) == (0, said)
    assert "default/web" in out


def test_the_picture_shows_the_end_of_the_run(run: RunCommand) -> None:
    words = ("-f", manifest("pods.yaml", *PODS), *ON, *UNDER, "-o", "svg")
    status, out, err = run("simulate", *words)
    assert (status, err) == (4, "")
    owners = {int(cpu): label for cpu, label in re.findall(r"<title>CPU (\d+): ([^<]*)</title>", out)}
    web, shared = CpuSet.parse("1-2,9-10"), CpuSet.parse("3,7,11,15")
    assert owners == {
        **dict.fromkeys((0, 8), "reserved"),
        **dict.fromkeys(web, "default/web app"),
        **dict.fromkeys(shared, "shared"),
        **dict.fromkeys(CpuSet.parse("4-6,12-14"), "default/big app"),
    }


def test_free_cpus_of_cores_in_use_are_fragmented(run: RunCommand) -> None:
    Path("config.yaml").write_text(CONFIG.replace("cpuManagerPolicyOptions", "#"))
    document = simulated(run, "-f", manifest("p.yaml", pod("odd", container("app", "3", "1Gi"))), *ON, *UNDER)
    assert [(n["free"], n["splitCpus"], n["fragmentationPercent"]) for n in document["nodes"]] == [
        ("3,10-11", "10", 33),
        ("4-7,12-15", "", 0),
    ]


def test_capacity_counts_what_more_fits_and_says_what_ends_it(run: RunCommand) -> None:
    file = manifest("p.yaml", pod("four", container("app", "4", "1Gi")))
    document = simulated(run, "--capacity", "-f", file, *ON, *UNDER)
    assert document["capacity"] == {
        "complete": True,
        "copies": 3,
        "message": "Resources cannot be allocated with Topology locality",
        "of": ["default/four"],
        "pod": "default/four-4",
        "reason": "TopologyAffinityError",
    }
    status, out, err = run("simulate", "--capacity", "-f", file, *ON, *UNDER)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("simulate-capacity.txt", out)


def test_capacity_of_several_pods_counts_them_together(run: RunCommand) -> None:
    file = manifest("p.yaml", pod("four", container("app", "4", "1Gi")), pod("two", container("app", "2", "1Gi")))
    capacity = simulated(run, "--capacity", "-f", file, *ON, *UNDER)["capacity"]
    assert (capacity["copies"], capacity["pod"]) == (2, "default/four-3")


def test_a_capacity_without_end_is_said_to_be_one(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.core.explain.capacity_search.MAX_COPIES", 5)
    file = manifest("p.yaml", pod("idle", {"name": "app", "command": ["x"]}))
    status, out, _ = run("simulate", "--capacity", "-f", file, *ON, *UNDER)
    assert status == 0
    assert "5 or more fit of: default/idle (no more were tried)" in out


def test_two_configurations_are_put_side_by_side(run: RunCommand) -> None:
    Path("lax.yaml").write_text(
        CONFIG.replace("single-numa-node", "best-effort").replace("full-pcpus-only", "align-by-socket")
        + "featureGates: {CPUManagerPolicyAlphaOptions: true}\n"
    )
    words = ("--compare", "config.yaml", "lax.yaml", "-f", manifest("pods.yaml", *PODS), *ON)
    document = simulated(run, *words)
    assert document["differing"] == ["default/odd", "default/big", "default/more"], (
        "who shares is where all who share are"
    )
    strict, lax = document["sides"]
    assert [side["configuration"]["file"] for side in (strict, lax)] == ["config.yaml", "lax.yaml"]
    assert [pod["decision"] for pod in strict["pods"]] == ["admitted", "refused", "admitted", "refused"]
    assert [pod["decision"] for pod in lax["pods"]][1] == "admitted"
    status, out, err = run("simulate", *words)
    assert (status, err) == (2, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("simulate-compare.txt", out)


def test_a_comparison_needs_no_configuration_of_the_nodes_own(run: RunCommand, root: Path) -> None:
    words = ("--compare", "config.yaml", "config.yaml", "-f", manifest("pods.yaml", PODS[1]))
    Path("config.yaml").write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
    with_own = simulated(run, *words, "--root", str(root))
    assert [pod["name"] for pod in with_own["sides"][0]["pods"]] == ["web", "odd"]
    (root / "etc/nodeagent/config.yaml").unlink()
    assert simulated(run, *words, "--root", str(root)) == with_own
    Path("machine.json").write_text(run("topology", "--root", str(root), "-o", "json")[1])
    assert len(simulated(run, *words, "--machine", "machine.json")["sides"][0]["pods"]) == 1


@pytest.mark.parametrize("command", ["explain", "simulate"])
@pytest.mark.parametrize("named", [(), ("--config", "none.yaml")], ids=["none named", "another named"])
def test_a_missing_configuration_is_to_be_named_with_config(
    command: str, named: tuple[str, ...], run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.cli.support.node.what_if.DEFAULT_CONFIG", "none.yaml")
    status, out, err = run(command, "-f", manifest("p.yaml", PODS[1]), *ON, *named)
    assert (status, out) == (1, "")
    assert err.startswith("nodeagent: no configuration at none.yaml\nhint: name one with --config FILE, for example ex")
    assert "examples/config.yaml" in err
    assert "--compare" not in err


@pytest.mark.parametrize("files", [("none.yaml", "config.yaml"), ("config.yaml", "none.yaml")], ids=" ".join)
@pytest.mark.parametrize("where", ["--topology", "--root"])
def test_a_missing_configuration_of_two_is_to_be_named_with_compare(
    files: tuple[str, str], where: str, run: RunCommand, root: Path
) -> None:
    Path("config.yaml").write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
    (root / "etc/nodeagent/config.yaml").unlink()
    on = ON if where == "--topology" else (where, str(root))
    assert run("simulate", "--compare", *files, "-f", manifest("p.yaml", PODS[1]), *on) == (
        1,
        "",
        "nodeagent: no configuration at none.yaml\nhint: name two files: --compare A.yaml B.yaml\n",
    )


def test_one_configuration_twice_decides_alike(run: RunCommand) -> None:
    words = ("--compare", "config.yaml", "config.yaml", "-f", manifest("pods.yaml", *PODS), *ON)
    assert simulated(run, *words)["differing"] == []
    assert run("simulate", *words)[1].endswith("Both make the same decision on every pod.\n")


def test_a_directory_is_read_as_the_daemon_reads_its_manifests(run: RunCommand) -> None:
    Path("pods").mkdir()
    manifest("pods/2.yaml", pod("second", container("app", "2", "1Gi")))
    manifest("pods/1.yaml", pod("first", container("app", "2", "1Gi")))
    Path("pods/.hidden.yaml").write_text("nonsense: [")
    document = simulated(run, "-f", "pods", *ON, *UNDER)
    assert [pod["name"] for pod in document["pods"]] == ["first", "second"]


def test_a_second_pod_of_one_name_replaces_the_first(run: RunCommand) -> None:
    document = simulated(
        run, "-f", manifest("p.yaml", pod("web", container("app", "4", "1Gi"))), "-f", "p.yaml", *ON, *UNDER
    )
    assert [pod["containers"][0]["cpus"] for pod in document["pods"]] == ["1-2,9-10", "1-2,9-10"]
    assert [pod["replaced"] for pod in document["pods"]] == [True, False]
    assert document["summary"]["freeCpus"] == 10


def counts(document: dict[str, Any]) -> tuple[int, ...]:
    return tuple(document["summary"][which] for which in ("admitted", "refused", "replaced"))


def test_a_replaced_pod_is_reported_as_it_was_and_is_not_among_those_that_are_there(run: RunCommand) -> None:
    four, two = (pod("web", container("app", cpus, "1Gi")) for cpus in ("4", "2"))
    words = ("-f", manifest("p.yaml", four, two), *ON, *UNDER)
    document = simulated(run, *words)
    assert counts(document) == (1, 0, 1)
    assert [(p["decision"], p["replaced"]) for p in document["pods"]] == [("admitted", True), ("admitted", False)]
    first, second = (p["containers"][0] for p in document["pods"])
    assert (first["isolation"], first["cpus"], first["memoryNodes"]) == ("container", "1-2,9-10", "0")
    assert (second["isolation"], second["cpus"], second["memoryNodes"]) == ("container", "1,9", "0")
    out = run("simulate", *words)[1]
    assert max(map(len, out.splitlines())) <= 80
    assert "1 pod admitted, 0 refused, 1 replaced\n" in out
    table, _, replaced = out.partition(
        "\nReplaced (a later pod of the same name ends it, as with a changed manifest)\n"
    )
    assert [" ".join(line.split()) for line in table.splitlines() if line.startswith("default/web")] == [
        "default/web app exclusive 1,9 NUMA 0 memory NUMA 0"
    ]
    assert replaced.startswith("  default/web: app exclusive 1-2,9-10 NUMA 0 memory NUMA 0\n\n")


def test_a_refused_pod_has_ended_the_one_of_its_name(run: RunCommand) -> None:
    four, odd = (pod("web", container("app", cpus, "1Gi")) for cpus in ("4", "3"))
    words = ("-f", manifest("p.yaml", four, odd, four), *ON, *UNDER)
    assert counts(simulated(run, *words)) == (1, 0, 2)
    assert "\n  default/web: refused: SMTAlignmentError\n" in run("simulate", *words)[1]
    words = ("-f", manifest("p.yaml", four, odd), *ON, *UNDER)
    document = simulated(run, *words)
    assert (counts(document), document["summary"]["freeCpus"]) == ((0, 1, 1), 14)
    out = run("simulate", *words)[1]
    assert "POD " not in out, "nobody is anywhere"
    assert "Refused (see nodeagent explain)\n  default/web: SMTAlignmentError: " in out


def test_replaced_pods_are_left_out_of_a_comparison(run: RunCommand) -> None:
    Path("lax.yaml").write_text(CONFIG.replace("cpuManagerPolicyOptions", "#"))
    odd, four = (pod("web", container("app", cpus, "1Gi")) for cpus in ("3", "4"))
    words = ("--compare", "config.yaml", "lax.yaml", "-f", manifest("p.yaml", odd, four, PODS[1]), *ON)
    document = simulated(run, *words)
    assert document["differing"] == ["default/odd"]
    assert [counts(side) for side in document["sides"]] == [(1, 1, 1), (2, 0, 1)]
    out = run("simulate", *words)[1]
    assert re.search(r"^admitted +1 of 2 +2 of 2$", out, re.MULTILINE)
    assert re.search(r"^default/web +replaced: refused: +replaced: app exclusive", out, re.MULTILINE)
    assert out.endswith("\n1 pod of 2, marked with *, is decided differently.\n")


def test_one_pod_twice_is_two_pods_of_a_capacity(run: RunCommand) -> None:
    file = manifest("p.yaml", pod("four", container("app", "4", "1Gi")))
    document = simulated(run, "--capacity", "-f", file, "-f", file, *ON, *UNDER)
    assert (document["capacity"]["copies"], document["capacity"]["of"]) == (1, ["default/four"] * 2)
    assert document["summary"]["freeCpus"] == 6


def test_kubelets_errata_are_reproduced_when_asked_for(run: RunCommand) -> None:
    """Erratum 5: CPUs that an init container lends to the next one are not counted as whole cores."""
    Path("config.yaml").write_text(CONFIG.replace('"0,8"', '"0,3"'))
    lending = pod("web", container("app", "4", "1Gi"), initContainers=[container("first", "4", "1Gi")])
    decisions = {}
    for errata in ("fixed", "kubelet-1.36"):
        words = ("-f", manifest("p.yaml", lending), "--topology", "3c.2t", *UNDER, "--errata", errata)
        document = simulated(run, *words)
        assert document["configuration"]["errata"] == errata
        decisions[errata] = document["pods"][0]["reason"]
    assert decisions == {"fixed": None, "kubelet-1.36": "SMTAlignmentError"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["scenarios.jsonl", "-f", "p.yaml"], "either scenarios, or pods"),
        (["scenarios.jsonl", "--compare", "a", "b"], "either scenarios, or pods"),
        (["--capacity", "--compare", "a", "b"], "--capacity needs pods with -f, and excludes --compare"),
        (["--capacity", "scenarios.jsonl"], "--capacity needs pods with -f"),
        (["--compare", "a", "b", "-o", "svg"], "-o svg draws the end of one run"),
        (["--capacity", "-f", "p.yaml", "-o", "svg"], "excludes --compare and --capacity"),
        (["scenarios.jsonl", "-o", "svg"], "-o svg draws the end of one run"),
        (["scenarios.jsonl", "--socket", "s"], "--socket s asks an agent about its pods"),
        (["scenarios.jsonl", "--empty"], "--empty leaves out a node's pods"),
        (["scenarios.jsonl", "--topology", "4c", "--root", "/"], "not allowed with argument"),
        (["-f", "p.yaml", "--bench", "2"], "--bench 2 times scenarios"),
        (["--compare", "a", "b", "--config", "c"], "leave out --config"),
        (["--topology", "4c", "--root", "/", "-f", "p.yaml"], "not allowed with argument"),
    ],
)
def test_arguments_that_contradict_each_other_are_exit_status_64(
    run: RunCommand, words: list[str], complaint: str
) -> None:
    status, out, err = run("simulate", *words)
    assert (status, out) == (64, "")
    assert complaint in err


def test_yaml_says_what_json_says(run: RunCommand) -> None:
    words = ("-f", manifest("pods.yaml", *PODS), *ON, *UNDER)
    assert yaml.safe_load(run("simulate", *words, "-o", "yaml")[1]) == simulated(run, *words)


def test_no_heading_is_broken_at_80_columns_with_all_columns_there_are(run: RunCommand) -> None:
    Path("config.yaml").write_text(CONFIG.replace("0,8", "0"))
    machine = "2s.2n.4l.8c.2t,memory=512Gi,hugepages-1Gi=64Gi,hugepages-2Mi=4094Mi"
    words = ("simulate", "-f", manifest("web.yaml", pod("web", container("app", "2", "100Mi"))))
    lines = run(*words, "--topology", machine, "--config", "config.yaml")[1].splitlines()
    assert "NUMA  CPUS  FREE  WHOLE CORES  SPLIT   CACHES" in lines
    at = lines.index("NUMA  HUGEPAGES-1GI FREE  HUGEPAGES-2MI FREE  MEMORY FREE")
    assert re.fullmatch("0     64Gi of 64Gi        4094Mi of 4094Mi    [0-9]{6}Mi of [0-9]{6}Mi", lines[at + 1])
