"""`nodeagent simulate` of scenarios: told to people and to programs, on another machine, under other rules; input of any kind."""

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cli.commands import simulate_scenarios as under_test
from nodeagent.formats.scenario.scenario import Scenario, scenario_from_text
from nodeagent.views.simulate.scenario_replay import ReplayResult, replay_to_end
from nodeagent.views.simulate.scenario_text import render_line, render_scenario
from tests.cli.test_selected_node import root
from tests.support import json_schema
from tests.support.decision_vectors import FILES, vectors
from tests.support.described_nodes import CONFIG, ROOT, RunCommand, container, golden, run

__all__ = ["root", "run"]
EXAMPLE = str(ROOT / "examples/scenario.jsonl")
CPUS = [{"id": c, "core": c % 4, "socket": 0, "numa": c % 4 // 2} for c in range(8)]
"""Two NUMA nodes of two cores; siblings are c and c+4."""
RULES = {
    "errata": "fixed",
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    "topologyManagerPolicy": "single-numa-node",
}


def adding(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    metadata = {"uid": f"{name}-uid", "name": name}
    return {"op": "add", "pod": {"metadata": metadata, "spec": {"containers": list(containers), **spec}}}


def on(op: str, name: str, **more: str) -> dict[str, Any]:
    return {"op": op, "podUID": f"{name}-uid", **more}


EVERYTHING = {
    "id": "a day",
    "topology": {"cpus": CPUS},
    "config": RULES,
    "steps": [
        adding("web", container("app", "2", "1Gi"), initContainers=[container("first", "1", "1Gi")]),
        on("start", "web"),
        on("removeContainer", "web", container="first"),
        adding("idle", {"name": "app"}),
        adding("big", container("app", "4", "1Gi")),
        on("start", "big"),
        adding("gone", container("app", "1", "64Gi")),
        on("removePod", "gone"),
        {"op": "restart"},
    ],
}
STRANGE = {"id": "\x1b[31m\u202e" + "x" * 200, "topology": {"cpus": CPUS}, "steps": [on("removePod", "\nnobody")]}
FOREIGN = {
    "id": "another's files",
    "topology": {"cpus": CPUS},
    "config": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"},
    "files": {"cpu_manager_state": "{"},
}


def scenarios(*documents: object, name: str = "scenarios.jsonl") -> str:
    Path(name).write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    return name


def results(run: RunCommand, *words: str) -> list[dict[str, Any]]:
    status, out, err = run("simulate", *words, "-o", "json")
    assert (status, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    for each in found:
        json_schema.check(each, "scenario-result")
    return found


def cpus_of(result: dict[str, Any]) -> str:
    """What the example's pod got."""
    cpus: str = result["steps"][0]["pods"]["u1"]["containers"]["app"]["cpuset"]
    return cpus


def test_the_words_of_scenarios(run: RunCommand) -> None:
    status, out, err = run("simulate", scenarios(EVERYTHING, STRANGE, FOREIGN))
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("simulate-scenarios.txt", out)


def test_of_many_scenarios_the_later_ones_have_a_line_each(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "IN_FULL", 1)
    status, out, err = run("simulate", scenarios(FOREIGN, EVERYTHING, STRANGE, FOREIGN))
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    golden("simulate-many-scenarios.txt", out)


def test_what_the_words_say_to_type_shows_that_scenario_in_full(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scenarios(FOREIGN, EVERYTHING, name="two of them.jsonl")
    monkeypatch.setattr(under_test, "IN_FULL", 1)
    out = run("simulate", file)[1]
    assert "  sed -n 2p 'two of them.jsonl' | nodeagent simulate -\n" in out
    (alone,) = Path(file).read_text().splitlines()[1:]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(alone.encode())))
    assert "STEP  EVENT" in run("simulate", "-")[1]


def test_who_is_known_of_files_alone_is_shown_where_it_is(run: RunCommand) -> None:
    kept = {"policyName": "static", "defaultCpuSet": "0-1,3-7", "entries": {"old": {"app": "2"}}, "checksum": 0}
    rules = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    files = {"cpu_manager_state": json.dumps(kept)}
    out = run("simulate", scenarios({"topology": {"cpus": CPUS}, "config": rules, "files": files}))[1]
    assert "\nold (from the files)  app        exclusive 2  NUMA 1\n" in out
    assert "free 0: 3 (33%), 1: 3 (33%)" in render_line(*both(Path("scenarios.jsonl").read_text()), 1)


def test_without_a_policy_everybody_shares_all(run: RunCommand) -> None:
    out = run(
        "simulate", scenarios({"topology": {"cpus": CPUS}, "steps": [adding("web", container("app", "2", "1Gi"))]})
    )[1]
    assert "\ndefault/web  app        shared 0-7\n" in out


def test_a_restart_that_is_refused_ends_a_scenario(run: RunCommand) -> None:
    """A reproduced erratum: under strict reservation the last exclusive CPU keeps kubelet from starting again."""
    options = {"strict-cpu-reservation": "true"}
    rules = {"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": options, "reservedSystemCPUs": "0-2,4-6"}
    steps = [adding("all", container("app", "2", "1Gi")), {"op": "restart"}, on("removePod", "all")]
    file = scenarios({"topology": {"cpus": CPUS}, "config": rules, "steps": steps})
    out = run("simulate", file)[1]
    last = "2     restart               the managers did not start: default cpuset cannot be"
    assert out.splitlines()[-2:] == [last, f"{' ' * 30}empty"]
    line = render_line(*both(Path(file).read_text()), 1)
    assert line.endswith(": 1 admitted, 0 refused, then the managers did not start\n")
    assert [len(each["steps"]) for each in results(run, file)] == [2]


def both(text: str) -> tuple[Scenario, ReplayResult]:
    scenario = scenario_from_text(text, "f:1")
    return scenario, replay_to_end(scenario)


@pytest.mark.parametrize("name", FILES)
def test_any_scenario_has_words_and_a_document(name: str) -> None:
    """A few of every family of the reference's, among them such as refuse to start."""
    for vector in list(vectors(name))[::40]:
        scenario = scenario_from_text(json.dumps(vector["scenario"]), name)
        found = replay_to_end(scenario)
        json_schema.check(json.loads(json.dumps(found.result)), "scenario-result")
        text = render_scenario(scenario, found, 7, "the scenario's own")
        assert text.startswith(f"scenario 7: {scenario.id}\n")
        refused = [step["reason"] for step in found.result["steps"] if step["reason"]]
        for line in (text, render_line(scenario, found, 7)):
            assert f"{len(refused)} refused" in line or "did not start: " in line
        assert all(f"refused: {reason[:8]}" in text for reason in refused)
        assert ("Free for exclusive use" in text) == (found.end is not None)


def test_programs_get_a_line_or_a_document_for_each(run: RunCommand) -> None:
    file = scenarios(EVERYTHING, FOREIGN)
    found = results(run, file)
    assert [each["id"] for each in found] == ["a day", "another's files"]
    status, out, err = run("simulate", file, "-o", "yaml")
    assert (status, err) == (0, "")
    assert out.startswith("---\n")
    assert list(yaml.safe_load_all(out)) == found


HALF = "a\ud800"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"id": HALF}, "id"),
        ({"files": {"cpu_manager_state": HALF}}, "files.cpu_manager_state"),
        ({"steps": [{"op": "add", "pod": {"metadata": {"name": "a", "uid": HALF}}}]}, "steps[0].pod.metadata.uid"),
        ({"steps": [adding("web", container(HALF, "1", "1Gi"))]}, "steps[0].pod.spec.containers[0].name"),
        ({"steps": [{"op": "removePod", "podUID": HALF}]}, "steps[0].podUID"),
        ({"initialContainers": {HALF: {}}}, "initialContainers"),
    ],
)
def test_half_a_character_is_refused_with_its_place(change: dict[str, Any], place: str, run: RunCommand) -> None:
    status, out, err = run("simulate", scenarios({**STRANGE, **change}))
    assert (status, out) == (1, "")
    assert f'nodeagent: scenarios.jsonl:1: {place}: "a\\ud800": must not have half of a surrogate pair' in err


def test_a_whole_pair_is_a_character(run: RunCommand) -> None:
    assert results(run, scenarios({**STRANGE, "id": "\N{GRINNING FACE}"}))[0]["id"] == "\N{GRINNING FACE}"


def test_times_are_reported_in_every_form(run: RunCommand) -> None:
    file = scenarios(EVERYTHING, FOREIGN)
    status, out, err = run("simulate", file, "--bench", "2")
    assert (status, err) == (0, "")
    first, *_, last = out.splitlines()
    assert first.startswith("scenario 1: a day: 4 admissions, of which half take at most ")
    assert last == "scenario 2: another's files: 0 admissions"
    out = run("simulate", file, "--bench", "2", "-o", "json")[1]
    documents = [json.loads(line) for line in out.splitlines()]
    for each in documents:
        json_schema.check(each, "scenario-times")
    assert [each["adds"] for each in documents] == [4, 0]


def test_another_machine_takes_the_place_of_the_scenarios_own(run: RunCommand, root: Path) -> None:
    assert cpus_of(results(run, EXAMPLE)[0]) == "1,5"
    assert cpus_of(results(run, EXAMPLE, "--topology", "16c.2t")[0]) == "1,17"
    assert cpus_of(results(run, EXAMPLE, "--root", str(root))[0]) == "1,5"
    document = json.loads(Path(EXAMPLE).read_text())
    del document["topology"], document["numa"]
    file = scenarios(document)
    assert cpus_of(results(run, file, "--topology", "16c.2t")[0]) == "1,17"
    Path("machine.json").write_text(run("topology", "--topology", "16c.2t", "-o", "json")[1])
    assert cpus_of(results(run, file, "--machine", "machine.json")[0]) == "1,17"
    status, _, err = run("simulate", file)
    assert (status, err.splitlines()[0]) == (1, "nodeagent: scenarios.jsonl:1: topology: is missing")


def test_the_words_name_the_machine_that_was_given(run: RunCommand) -> None:
    out = run("simulate", EXAMPLE, "--topology", "16c.2t")[1]
    assert "32 CPUs (reserved 0,4): as described, 16c.2t\n" in out


def test_this_nodes_machine_is_the_root(run: RunCommand) -> None:
    assert ": this one" in run("simulate", EXAMPLE, "--root", "/")[1]


def test_another_configuration_takes_the_place_of_the_scenarios_own(run: RunCommand) -> None:
    Path("config.yaml").write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "1,5"\n')
    (found,) = results(run, EXAMPLE, "--config", "config.yaml")
    assert (found["reservedCPUs"], cpus_of(found)) == ("1,5", "0,4")
    Path("config.yaml").write_text("cpuManagerPolicy: none\n")
    (found,) = results(run, EXAMPLE, "--config", "config.yaml")
    assert (found["reservedCPUs"], cpus_of(found)) == ("", "")


def test_another_configuration_leaves_whose_decisions_they_are(run: RunCommand) -> None:
    """Erratum 5: CPUs that an init container lends to the next one are not counted as whole cores."""
    Path("config.yaml").write_text(CONFIG.replace('"0,8"', '"0,3"'))
    lending = adding("web", container("app", "4", "1Gi"), initContainers=[container("first", "4", "1Gi")])
    kubelets = scenarios({"steps": [lending]})
    words = ("--topology", "3c.2t", "--config", "config.yaml")
    assert results(run, kubelets, *words)[0]["steps"][0]["reason"] == "SMTAlignmentError"
    assert results(run, kubelets, *words, "--errata", "fixed")[0]["steps"][0]["admitted"]
    fixed = scenarios({"config": {"errata": "fixed"}, "steps": [lending]})
    assert results(run, fixed, *words)[0]["steps"][0]["admitted"]
    assert not results(run, fixed, *words, "--errata", "kubelet-1.36")[0]["steps"][0]["admitted"]


def test_a_percentage_is_of_the_machine_that_counts(run: RunCommand) -> None:
    Path("config.yaml").write_text(CONFIG.replace("100Mi}\n", '"50%"}\n').replace("100Mi", "4Gi"))
    document = json.loads(Path(EXAMPLE).read_text())
    document["config"], document["numa"][0]["memory"] = {"errata": "fixed"}, 8 * 2**30
    Path("config.yaml").write_text(Path("config.yaml").read_text().replace('"0,8"', '"0,4"'))
    (found,) = results(run, scenarios(document), "--config", "config.yaml")
    assert "startError" not in found
    document["numa"][0]["memory"] *= 2
    (found,) = results(run, scenarios(document), "--config", "config.yaml")
    assert "is not equal to the value" in found["startError"]


def test_what_suits_only_some_scenarios_is_reported_with_the_others(run: RunCommand) -> None:
    small = {"id": "small", "topology": {"cpus": CPUS[:1]}, "steps": []}
    Path("config.yaml").write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "1"\n')
    status, out, err = run("simulate", scenarios(small, EVERYTHING), "--config", "config.yaml")
    assert (status, err) == (0, "")
    assert "the managers did not start: reserved-cpus: 1 is not a subset of online-cpus: 0\n" in out
    assert out.endswith("; the managers did not start in 1\n")


def test_a_machine_and_a_configuration_that_do_not_go_together_are_an_error(run: RunCommand) -> None:
    status, out, err = run("simulate", EXAMPLE, "--topology", "2c", "--config", "config.yaml")
    assert (status, out) == (1, "")
    assert "config.yaml: reservedSystemCPUs: " in err
    assert "hint: name a configuration that is valid for this machine with --config" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--topology", "2x"), '"2x"'),
        (("--machine", "none.json"), "none.json"),
        (("--root", "none"), "none"),
        (("--config", "none.yaml"), "none.yaml"),
    ],
)
def test_what_cannot_be_read_is_an_error_before_any_scenario(
    words: tuple[str, str], named: str, run: RunCommand
) -> None:
    status, out, err = run("simulate", EXAMPLE, *words)
    assert (status, out) == (64 if words[0] == "--topology" else 1, "")
    assert named in err.splitlines()[0]
    assert err.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\n \n", "cannot read scenarios from odd: it contains no scenario"),
        (b"\n{\n", "odd:2: must be JSON: expecting property name enclosed in double quotes, at character 2"),
        (b"\n\xff\n", "odd:2: must be JSON: "),
        (b"[" * 100_000, "odd:1: is nested too deeply"),
        (b"7", "odd:1: must be a JSON object, not 7"),
        (
            b'\n{"id": "d", "steps": [{"op": "restart"}], "steps": []}',
            'odd:2: must be JSON: "steps" is given twice in one object',
        ),
        (
            b'{"id": "d", "steps": [{"op": "add", "\\u001b": 1, "\\u001b": 2}]}',
            'odd:1: must be JSON: "\\u001b" is given twice in one',
        ),
        (b"\n" + b"x" * 101, "cannot read scenarios from odd: line 2 has more than 100 bytes"),
    ],
)
def test_what_is_no_scenario_is_an_error_with_file_and_line(
    content: bytes, why: str, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    if b"x" in content:
        monkeypatch.setattr(under_test, "MAX_LINE_BYTES", 100)
    Path("odd").write_bytes(content)
    status, out, err = run("simulate", "odd")
    assert (status, out) == (1, "")
    message, hint = err.splitlines()
    assert message.startswith(f"nodeagent: {why}")
    assert "docs/simulate.md" in hint


ONE_CPU = {"topology": {"cpus": [{"id": 0, "core": 0, "socket": 0, "numa": 0}]}}


@pytest.mark.parametrize(
    ("more", "findings"),
    [
        ({"step": []}, ["step: unknown field, did you mean steps?"]),
        (
            {"steps": [{"op": "add"}, {}]},
            ["steps[0].pod: is required: a v1 Pod", "steps[1].op: is required: one of add, start"],
        ),
        ({"steps": [{"op": "add", "pod": 7}]}, ["steps[0].pod: 7: must be an object, not a number"]),
        (
            {"steps": [{"op": "restart"}, {"op": "add", "pod": {}}]},
            ["steps[1].pod: metadata: is required, with a name", "steps[1].pod: spec: is required, with containers"],
        ),
        (
            {"steps": [{"op": "removePod", "poduid": "a"}, {"op": "removeContainer", "podUID": "a"}]},
            [
                "steps[0].podUID: is required: the pod's metadata.uid",
                "steps[0].poduid: unknown field, did you mean podUID?",
                "steps[1].container: is required: its name",
            ],
        ),
        (
            {"steps": [{"op": "jump", "where": 7}, 3]},
            ["steps[1]: 3: must be an object", 'steps[0].op: "jump": must be one of add, start'],
        ),
        (
            {"steps": [{"op": "removePod", "podUID": "a", "container": "b"}]},
            ["steps[0].container: unknown field"],
        ),
        ({"steps": [{"op": ""}]}, ['steps[0].op: "": must be one of add, start']),
        ({"steps": [{"op": 7, "what": ""}]}, ["steps[0].op: 7: must be a string"]),
        ({"id": [float("nan")]}, ["nan has no JSON form"]),
        ({"config": {"a": [float("nan")]}}, ["config: nan has no JSON form"]),
        (
            {"steps": {}, "config": [], "id": 7},
            ["id: 7: must be a string", "config: must be an object", "steps: must be a list"],
        ),
        (
            {"files": {"cpu_manager_stat": ""}},
            ["files[cpu_manager_stat]: unknown field, did you mean cpu_manager_state?"],
        ),
        ({"files": {"cpu_manager_state": {}}}, ["files[cpu_manager_state]: must be a string, not an object"]),
        ({"initialContainers": {"id": {"podUID": "a"}}}, ["initialContainers[id].container: is required: its name"]),
        (
            {"initialContainers": {"id": {"podUID": "a", "container": "b", "name": "c"}, "other": 3}},
            ["initialContainers[id].name: unknown field", "initialContainers[other]: 3: must be an object"],
        ),
        ({"config": {"maxPods": 3}}, ["config: maxPods: unknown field"]),
        (
            {"config": {"maxPods": 3}, "numa": 3, "steps": [{"op": "add", "pod": {"metadata": 1}}] * 2},
            [
                *(
                    f"steps[{i}].pod: {what}"
                    for i in (0, 1)
                    for what in ("metadata: 1: must be", "metadata: is req", "spec: is req")
                ),
                "config: maxPods: unknown field",
                "numa: must be a list",
            ],
        ),
        ({"numa": 3}, ["numa: must be a list"]),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_all_that_is_wrong_with_a_scenario_is_reported_with_its_place(
    more: dict[str, object], findings: list[str], run: RunCommand
) -> None:
    status, out, err = run("simulate", scenarios(ONE_CPU, ONE_CPU | more))
    assert status == 1
    assert out.startswith("scenario 1")
    said = err.removeprefix("nodeagent: ").splitlines()
    assert len(said) == len(findings) + 1, "a line for each, and the hint"
    for line, finding in zip(said, findings, strict=False):
        assert line.startswith(f"scenarios.jsonl:2: {finding}")


def test_initial_containers_are_in_their_ids_order() -> None:
    given = {name: {"podUID": f"{name}-uid", "container": "app"} for name in ("b", "a")}
    read = scenario_from_text(json.dumps(ONE_CPU | {"initialContainers": given}), "f:1")
    assert read.initial_containers == (("a", ("a-uid", "app")), ("b", ("b-uid", "app")))


def test_a_described_machine_with_steps_is_a_scenario(run: RunCommand) -> None:
    _, described, _ = run("topology", "--topology", "2s.2n.8c.2t,hugepages-2Mi=1Gi", "-o", "json")
    steps = [adding("idle", {"name": "app"})]
    status, out, err = run("simulate", scenarios(json.loads(described) | {"steps": steps}))
    assert (status, err) == (0, "")
    assert "1 pod admitted" in out


@pytest.mark.parametrize("content", [b"\xff", b"{}" * 60])
def test_stdin_is_read_as_a_file_is(content: bytes, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    status, out, err = run("simulate", "-")
    assert (status, out) == (1, "")
    assert "from /dev/stdin: line 1 has more than 100 bytes" in err or "/dev/stdin:1: must be JSON" in err


def test_a_device_without_end_is_an_error(run: RunCommand) -> None:
    status, out, err = run("simulate", "/dev/zero")
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: cannot read scenarios from /dev/zero: line 1 has more than {16 * 2**20} bytes\n")
    assert "jq -c ." in err


def test_a_directory_is_an_error(run: RunCommand) -> None:
    status, out, err = run("simulate", ".")
    assert (status, out) == (1, "")
    assert err.startswith("nodeagent: cannot read scenarios from .: Is a directory\nhint: ")


def test_a_fifo_is_answered_line_by_line(run: RunCommand) -> None:
    os.mkfifo("fifo")
    writer = threading.Thread(target=lambda: Path("fifo").write_bytes(Path(EXAMPLE).read_bytes()))
    writer.start()
    status, out, _ = run("simulate", "fifo")
    writer.join()
    assert status == 0
    assert out == run("simulate", EXAMPLE)[1]
