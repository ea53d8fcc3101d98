"""`nodeagent explain` and `simulate` on a node with an agent: whose pods, under which configuration, and what is said without one."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.support.exit_status import EXIT_AWAY
from nodeagent.core.model.state import Origin, PodEntry, QosClass
from nodeagent.core.model.waiting import Waiting
from tests.cli.test_cli_inspect import Host, host, live, run
from tests.cli.test_selected_node import described, root
from tests.support import json_schema
from tests.support.described_nodes import RunCommand, container as limited, manifest, pod as written
from tests.support.inspected_nodes import NOW_MS
from tests.support.pods import app, pod

__all__ = ["described", "host", "live", "root", "run"]
SHARING: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "new"},
    "spec": {"containers": [{"name": "app", "command": ["x"]}]},
}


@pytest.fixture
def new_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return manifest("new.yaml", SHARING)


def socket_of(live: Host) -> tuple[str, str]:
    return "--socket", str(live.socket)


def test_a_pod_of_the_node_is_explained_as_it_was_decided(live: Host, run: RunCommand) -> None:
    status, out, err = run("explain", "web", *socket_of(live))
    assert (status, err) == (0, "")
    uid = json.loads(run("inspect", *socket_of(live), "-o", "json")[1])["pods"][0]["uid"]
    assert f"pod default/web (BestEffort): admitted\n  uid {uid}\n" in out
    assert "  Decided again, the result is the same. The following steps led to it.\n" in out
    assert "the CPU manager's policy is none" in out.replace("\n", " ").replace("  ", " ")


def test_a_refused_pod_that_fits_by_now_is_reported_with_the_command_that_admits_it(
    live: Host, run: RunCommand
) -> None:
    refused = pod("late", app("app"))
    entry = PodEntry(
        refused, QosClass.BEST_EFFORT, Origin("late.yaml"), NOW_MS, Waiting("OutOfpods", "too many", NOW_MS)
    )
    live.world.state = replace(live.world.state, entries=(*live.world.state.entries, entry))
    status, out, err = run("explain", "late", *socket_of(live))
    assert (status, err) == (0, "")
    assert "It was refused: OutOfpods: too many\n" in out
    assert "It is tried again when its manifest changes or `nodeagent retry` requests it." in " ".join(out.split())
    assert "Now it would be admitted: nodeagent retry default/late\n" in out
    document = json.loads(run("explain", "late", *socket_of(live), "-o", "json")[1])
    recorded = document["pods"][0]["recorded"]
    assert (recorded["decision"], recorded["reason"], recorded["reproduced"]) == ("refused", "OutOfpods", False)
    assert recorded["retries"] == ["manifest", "request"]


def test_an_unknown_pod_is_exit_status_1_with_the_next_step(live: Host, run: RunCommand) -> None:
    status, out, err = run("explain", "wbe", *socket_of(live))
    assert (status, out) == (1, "")
    assert err == "nodeagent: no pod is named 'wbe'\nhint: did you mean web? `nodeagent inspect` lists the pods\n"


def test_a_manifest_is_tried_beside_the_pods_that_are_there(live: Host, run: RunCommand, new_pod: str) -> None:
    status, out, err = run("simulate", "-f", new_pod, *socket_of(live))
    assert (status, err) == (0, "")
    assert "1 pod admitted, 0 refused, 1 pod already on the node\n" in out
    assert "this one\n" in out
    out = run("simulate", "-f", new_pod, "--empty", "--config", str(live.config))[1]
    assert "1 pod admitted, 0 refused\n" in out
    assert "this one, without its pods" in out.replace("\n ", "")


def test_a_manifest_of_a_pod_that_is_there_takes_its_place(live: Host, run: RunCommand, new_pod: str) -> None:
    Path(new_pod).write_text(Path(new_pod).read_text().replace("name: new", "name: web"))
    status, out, err = run("explain", "-f", new_pod, *socket_of(live))
    assert (status, err) == (0, "")
    assert "A pod of this name exists already. The decision assumes that this pod has ended" in " ".join(out.split())


def test_pods_of_the_node_that_are_replaced_are_reported(live: Host, run: RunCommand, new_pod: str) -> None:
    Path(new_pod).write_text(Path(new_pod).read_text().replace("name: new", "name: web"))
    taken = "default/web already exists and is assumed ended, as with a changed manifest"
    config = str(live.config)
    for words in ((), ("--compare", config, config)):
        status, out, err = run("simulate", *words, "-f", new_pod, *socket_of(live))
        assert (status, err) == (0, "")
        assert taken in " ".join(out.split())
        assert "beside" not in out
        document = json.loads(run("simulate", *words, "-f", new_pod, *socket_of(live), "-o", "json")[1])
        json_schema.check(document, document["kind"].lower())
        for side in document.get("sides", [document]):
            assert (side["ended"], side["summary"]["admitted"], side["summary"]["replaced"]) == (["default/web"], 1, 0)


def test_of_many_pods_that_are_replaced_eight_are_named(live: Host, run: RunCommand, new_pod: str) -> None:
    names = [f"p{number}" for number in range(10)]
    for name in names:
        live.world.add(pod(name, app("app")))
    again = [written(name, limited("app", "10m", "1Mi")) for name in names]
    status, text, err = run("simulate", "-f", manifest(new_pod, *again), *socket_of(live))
    assert (status, err) == (0, "")
    out = " ".join(text.split())
    assert "10 pods admitted, 0 refused, 1 pod already on the node" in out
    assert "default/p7, and 2 more (-o json has all) already exist and are assumed ended" in out


def test_nothing_is_changed(live: Host, run: RunCommand, new_pod: str) -> None:
    before = live.world.state
    for words in (("explain", "-f", new_pod), ("explain", "web"), ("simulate", "--capacity", "-f", new_pod)):
        assert run(*words, *socket_of(live))[0] == 0
    assert live.world.state is before


def test_two_configurations_are_compared_on_the_nodes_own_pods(live: Host, run: RunCommand) -> None:
    config = str(live.config)
    document = json.loads(run("simulate", "--compare", config, config, *socket_of(live), "-o", "json")[1])
    assert [[p["name"] for p in side["pods"]] for side in document["sides"]] == [["web"], ["web"]]


def test_without_an_agent_and_a_configuration_other_machines_are_named(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.cli.support.node.selected.DEFAULT_CONFIG", str(tmp_path / "none.yaml"))
    status, out, err = run("explain", "web", "--socket", str(tmp_path / "none.sock"))
    assert (status, out) == (EXIT_AWAY, "")
    assert f"no configuration at {tmp_path}/none.yaml" in err
    assert "--topology 2s.2n.8c.2t" in err.splitlines()[-1]


# Other machines


def test_a_pod_of_a_copied_node_is_explained_with_its_saved_state(root: Path, run: RunCommand) -> None:
    status, out, err = run("explain", "web", "--root", str(root))
    assert (status, err) == (0, "")
    assert f"copied to {root}" in out.replace("\n  ", " ")
    assert "Decided again, the result is the same" in out
    assert "  app  exclusive 1,5  NUMA 0\n" in out


def test_a_captured_node_is_explained_as_the_node_itself(root: Path, run: RunCommand, tmp_path: Path) -> None:
    capture = tmp_path / "node.json"
    assert run("capture", "--root", str(root), "--out", str(capture))[0] == 0
    documents = [
        json.loads(run("explain", "web", *where, "-o", "json")[1])["pods"]
        for where in (("--root", str(root)), ("--machine", str(capture)))
    ]
    assert documents[0] == documents[1]


def test_pods_are_tried_beside_those_of_a_copied_node_or_without_them(
    root: Path, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    big = manifest("big.yaml", written("big", limited("app", "6", "1Mi")))
    status, out, _ = run("explain", "-f", big, "--root", str(root))
    assert status == 4
    assert "  * end pod default/web\n" in out
    config = str(root / "etc/nodeagent/config.yaml")
    assert run("explain", "-f", big, "--root", str(root), "--empty", "--config", config)[0] == 0


def test_a_described_machine_needs_a_configuration(
    root: Path, described: Path, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    web = manifest("web.yaml", written("web", limited("app", "2", "1Mi")))
    status, out, err = run("simulate", "-f", web, "--machine", str(described))
    assert (status, out) == (1, "")
    assert "contains no configuration" in err
    config = str(root / "etc/nodeagent/config.yaml")
    assert "exclusive 1,5" in run("simulate", "-f", web, "--machine", str(described), "--config", config)[1]


def test_another_configuration_takes_the_pods_over_or_says_why_not(root: Path, run: RunCommand, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: restricted\n")
    status, out, err = run("explain", "web", "--root", str(root), "--config", str(other))
    assert (status, err) == (0, "")
    assert "topology restricted per container" in out
    assert "which NUMA nodes? NUMA 0, preferred by all" in out
    other.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '1'\n")
    status, out, err = run("explain", "web", "--root", str(root), "--config", str(other))
    assert (status, out) == (1, "")
    assert "the resources allocated to the node's pods don't fit other.yaml" in err
    assert "leave the pods out with --empty" in err


def test_kubelets_decision_on_a_known_pod_can_be_asked_for(root: Path, run: RunCommand) -> None:
    document = json.loads(run("explain", "web", "--root", str(root), "--errata", "kubelet-1.36", "-o", "json")[1])
    assert document["configuration"]["errata"] == "kubelet-1.36"
    assert document["pods"][0]["recorded"]["reproduced"] is True
