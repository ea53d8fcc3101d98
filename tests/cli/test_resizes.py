"""`explain -f` and `simulate -f` of a running pod's changed amounts tell the resize, and not another pod in its place."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE
from nodeagent.core.model.state import RefusedChange
from nodeagent.core.model.waiting import Waiting
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from tests.cli.test_cli_inspect import Host, host, run
from tests.support import json_schema
from tests.support.described_nodes import RunCommand, container, of_unit, pod
from tests.support.inspected_nodes import World
from tests.support.world import SMALL

__all__ = ["host", "run"]


class Node:
    """One with an agent; 8 CPUs, of which CPU 0 is reserved, and one pod, which has two."""

    def __init__(self, host: Host, run: RunCommand, runs: dict[str, Any]) -> None:
        self._socket, self._run = str(host.socket), run
        (found,) = parse_manifest(yaml.safe_dump(runs).encode(), "web.yaml")
        assert isinstance(found, ManifestPod)
        host.world = World(SMALL, Placement("static", reserved_system_cpus=CpuSet.of(0))).add(found.pod)
        host.start_daemon()

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self._run(*words, "--socket", self._socket)


def web(cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    return pod("web", container("app", cpu, memory))


@pytest.fixture
def running(host: Host, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.chdir(tmp_path)
    return Node(host, run, web("2"))


def db(cpu: str) -> dict[str, Any]:
    return of_unit("db", "db.service", cpu)


@pytest.fixture
def pinned(host: Host, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.chdir(tmp_path)
    return Node(host, run, db("2"))


def asked(node: Node, command: str, changed: dict[str, Any], *words: str) -> tuple[int, str]:
    Path("web.yaml").write_text(yaml.safe_dump(changed))
    status, out, err = node(command, "-f", "web.yaml", *words)
    assert err == ""
    return status, out


def test_more_cpus_come_beside_those_that_it_has(running: Node) -> None:
    status, out = asked(running, "explain", web("4", "2Gi"))
    assert status == 0
    assert "pod default/web (Guaranteed): is resized while it runs\n" in out
    assert "  app: CPUs 1,5 → 1-2,5-6, memory 1Gi → 2Gi\n" in out
    found = json.loads(asked(running, "explain", web("4"), "-o", "json")[1])
    json_schema.check(found, "explanation")
    (one,) = found["pods"]
    assert one["decision"] == "admitted"
    assert [(c["cpusBefore"], c["cpus"]) for c in one["resize"]["changes"]] == [("1,5", "1-2,5-6")]
    status, out = asked(running, "simulate", web("4"))
    assert "exclusive 1-2,5-6" in out
    assert "ended" not in out


def test_what_others_have_is_deferred_with_whose_end_would_help(running: Node) -> None:
    Path("others.yaml").write_text(yaml.safe_dump(pod("other", container("app", "4", "1Gi"))))
    Path("web.yaml").write_text(yaml.safe_dump(web("6")))
    status, out, err = running("explain", "-f", "others.yaml", "-f", "web.yaml")
    assert err == ""
    assert status != 0
    flat = " ".join(out.split())
    assert "pod default/web (Guaranteed): is not resized ResizeDeferred: " in flat
    assert "retried before new pods in each sync" in flat
    assert "the resize will succeed once one of these pods ends: default/other" in flat


def test_what_can_never_be_is_said(running: Node) -> None:
    status, out = asked(running, "explain", web("1"))
    assert status != 0
    flat = " ".join(out.split())
    assert "is not resized ResizeInfeasible: " in flat
    assert "the pod keeps running unchanged" in flat
    status, out = asked(running, "simulate", web("1"))
    assert "ResizeInfeasible" in out


def test_a_unit_is_resized_and_where_that_can_not_be_it_moves(pinned: Node) -> None:
    for cpu, has in (("4", "1,5 → 1-2,5-6"), ("1", "1,5 → 1")):
        assert f"  unit: CPUs {has}\n" in asked(pinned, "explain", db(cpu))[1]
        assert f"Resized while they run\n  default/db: unit: CPUs {has}" in asked(pinned, "simulate", db(cpu))[1]
    status, out = asked(pinned, "explain", db("500m"))
    assert status == 0
    assert "The decision assumes that this pod has ended, as after a change of its manifest" in " ".join(out.split())
    _, out = asked(pinned, "simulate", db("500m"))
    assert "Resized" not in out
    assert "default/db  unit       shared" in out
    assert asked(pinned, "explain", db("8"))[0] == 4, "neither is there room for it"


def test_a_pod_as_a_whole_is_resized(
    host: Host, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(cpu: str) -> dict[str, Any]:
        made = pod("web", container("app", "100m", "16Mi"))
        made["spec"]["resources"] = {"limits": {"cpu": cpu, "memory": "64Mi"}}
        return made

    monkeypatch.chdir(tmp_path)
    node = Node(host, run, whole("1"))
    status, out = asked(node, "explain", whole("2"))
    assert status == 0
    assert "is resized while it runs\n  the pod as a whole: cpu 1, memory 64Mi → cpu 2, memory 64Mi\n" in out
    found = json.loads(asked(node, "explain", whole("2"), "-o", "json")[1])
    json_schema.check(found, "explanation")
    assert found["pods"][0]["resize"]["changes"] == []
    _, out = asked(node, "simulate", whole("2"))
    assert "default/web: the pod as a whole: cpu 1, memory 64Mi → cpu 2" in out


def test_another_change_is_decided_as_another_pod(running: Node) -> None:
    changed = web("4")
    changed["spec"]["containers"][0]["command"] = ["sleep", "1"]
    _, out = asked(running, "explain", changed)
    assert "The decision assumes that this pod has ended, as after a change of its manifest" in " ".join(out.split())
    assert "resized" not in out


def test_simulate_tells_what_changes_and_what_would_let_it_through(running: Node) -> None:
    status, out = asked(running, "simulate", web("4", "2Gi"))
    assert status == 0
    assert "Resized while they run\n  default/web: app: CPUs 1,5 → 1-2,5-6, memory 1Gi → 2Gi\n" in out
    found = json.loads(asked(running, "simulate", web("4"), "-o", "json")[1])
    json_schema.check(found, "simulation")
    (one,) = found["pods"]
    assert [(c["cpusBefore"], c["cpus"]) for c in one["resize"]["changes"]] == [("1,5", "1-2,5-6")]
    Path("others.yaml").write_text(yaml.safe_dump(pod("other", container("app", "4", "1Gi"))))
    Path("web.yaml").write_text(yaml.safe_dump(web("6")))
    status, out, _ = running("simulate", "-f", "others.yaml", "-f", "web.yaml")
    flat = " ".join(out.split())
    assert "default/web: ResizeDeferred: " in flat
    assert "the resize will succeed once one of these pods ends: default/other" in flat


@pytest.mark.parametrize(
    ("cpu", "reason", "said"),
    [
        ("8", RESIZE_INFEASIBLE, "the pod keeps running unchanged"),
        ("6", RESIZE_DEFERRED, "the resize will succeed once one of these pods ends: default/other"),
        ("3", RESIZE_DEFERRED, "it would succeed now: app: CPUs 1,5 → "),
    ],
    ids=["never", "later", "by now"],
)
def test_a_running_pod_is_explained_with_its_refused_change(
    host: Host, running: Node, cpu: str, reason: str, said: str
) -> None:
    def parsed(manifest: dict[str, Any]) -> Pod:
        (found,) = parse_manifest(yaml.safe_dump(manifest).encode(), "web.yaml")
        assert isinstance(found, ManifestPod)
        return found.pod

    world = host.world.add(parsed(pod("other", container("app", "4", "1Gi"))))
    first, *others = world.state.entries
    change = RefusedChange(replace(parsed(web(cpu)), uid=first.pod.uid), Waiting(reason, "as it was then", 1))
    world.state = replace(world.state, entries=(replace(first, refused_change=change), *others))
    status, out, err = running("explain", "web")
    assert (status, err) == (0, "")
    flat = " ".join(out.split())
    assert f"Its changed manifest was refused, so the pod keeps running unchanged: {reason}: as it was then" in flat
    assert said in flat
    by_itself = ["room"] if reason == RESIZE_DEFERRED else []
    assert ("or other pods release resources." in flat) is bool(by_itself)
    found = json.loads(running("explain", "web", "-o", "json")[1])
    json_schema.check(found, "explanation")
    (one,) = found["pods"]
    assert one["decision"] == "admitted"
    assert one["refusedResize"]["retries"] == ["manifest", "request", *by_itself]
    assert one["refusedResize"]["freeing"] == (["default/other"] if cpu == "6" else [])
