"""A container's variables may hold secrets: they are in its manifest, its process and the state file, and nowhere else."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.core.turn.pod_sources import ManifestProblem, PodSource
from nodeagent.daemon.reports.publisher import API_SOCKET, Publisher
from nodeagent.edge.transport.local_api_client import call
from nodeagent.formats.checkpoint.checkpoint_versions import checkpoint_document, read_checkpoint
from nodeagent.formats.checkpoint.node_state import encode_state, state_from_document
from nodeagent.formats.manifest.pod_manifest import RefusedPod, parse_manifest
from nodeagent.formats.wire.launcher_protocol import StartFailed
from nodeagent.views.checkpoint_text import render_checkpoint
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render, render_in_full, render_wide
from tests.edge.test_metrics import get
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.inspected_nodes import World
from tests.support.launcher_process import LauncherProcess
from tests.support.node_model import Machine
from tests.support.pods import app, manifests, pod
from tests.support.world import SMALL, node

SECRET = "hunter2"
ENV = (("PASSWORD", SECRET), ("URL", "https://user:$(PASSWORD)@host"))


def with_secret(name: str, **more: Any) -> Any:
    return app(name, command=("run", "$(URL)"), args=("--as", "$(PASSWORD)"), env=ENV, **more)


def test_nothing_that_the_running_agent_says_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(node(SMALL))
    machine.unstartable.add("broken")
    daemon = Daemon(machine, tmp_path, steps=Steps())
    metrics = f"unix:{tmp_path}/metrics.sock"
    config: Any = SimpleNamespace(
        runtime_directory=str(tmp_path), metrics_bind_address=metrics, pod_resources_socket=""
    )
    said: list[str] = []

    def listen_to_all() -> None:
        with Publisher(daemon.agent, config, daemon.agent.edges.log):
            answer = call(f"{tmp_path}/{API_SOCKET}", "state")
            said.append(json.dumps(answer))
            assert state_from_document(answer["state"]).state.entries, "readers understand it all the same"
            said.extend(str(get(metrics, page)) for page in ("/metrics", "/readyz"))
        said.append(repr(daemon.agent.view.problems))

    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.files.pods = (
            pod("web", with_secret("app", cpu="2"), with_secret("broken")),
            pod("big", with_secret("app", cpu="99")),
        )
        daemon.rest()
        listen_to_all()
        machine.exit(machine.run_of("app"), code=1)
        daemon.rest()
        wrong = parse_manifest(b"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{env: [PASSWORD=hunter2]}]}", "a")
        refused = [str(f) for result in wrong if isinstance(result, RefusedPod) for f in result.findings]
        problems = tuple(ManifestProblem("a", text) for text in refused)
        daemon.files.look_again = PodSource(manifests(*daemon.files.pods), problems=problems)
        daemon.rest()
        listen_to_all()

        truth = tmp_path / "nodeagent_state"
        saved = truth.read_text()
        truth.write_text(saved[:-10])
        daemon.start()
        daemon.rest()
        listen_to_all()

    assert SECRET in saved, "the truth has it, so there was something to be found"
    files = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    for path, mode in files.items():
        for_everybody = "placement" in path.parts
        assert mode == (0o644 if for_everybody else 0o600), path
        assert not for_everybody or SECRET not in path.read_text()
    assert 0o644 in files.values()
    assert len(said) == 12
    assert daemon.said()
    assert [text for text in (*said, daemon.log.getvalue()) if SECRET in text] == []


FORMS: dict[str, Callable[[Any], str]] = {
    "text": render,
    "in full": render_in_full,
    "wide": render_wide,
    "json": json.dumps,
}


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_inspect_has_a_secret(form: str) -> None:
    world = World().add(pod("web", app("app", "2", command=("run", "$(URL)"), env=ENV)))
    text = FORMS[form](inspect_node(world.view()))
    assert "web" in text
    assert SECRET not in text


def test_what_checkpoint_shows_of_a_state_has_no_secret() -> None:
    world = World().add(pod("web", app("app", "2", env=ENV)))
    found = read_checkpoint(encode_state(world.state, {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"}))
    assert found.problem is None
    text = json.dumps(checkpoint_document(found)) + "\n".join(render_checkpoint(found))
    assert "default/web" in text
    assert SECRET not in text


MISTAKES = [
    "env: PASSWORD=hunter2",
    "env: [PASSWORD=hunter2]",
    "env: {PASSWORD: hunter2}",
    "env: [{name: PASSWORD=hunter2}]",
    "env: [{name: PASSWORD, value: 5, x: hunter2}]",
    "env: [{name: PASSWORD, value: a, hunter2}]",
    "env: [{name: PASSWORD, value: {hunter2: 1}}]",
    "env: [{name: PASSWORD, value: [hunter2]}]",
    "env: [{name: PASSWORD, value: *hunter2}]",
    "env: [{name: PASSWORD, value: !hunter2 }]",
    "env: [{name: PASSWORD, value: !!int hunter2}]",
    "env: [{name: PASSWORD, value: @hunter2}]",
    "env: [{name: PASSWORD, value: 'hunter2}]",
    'env: [{name: PASSWORD, value: "\\\\hunter2"}, {name: PASSWORD, value: "\\hunter2"}]',
    "env: [{name: hunter2, value: a}], args: [hunter2]",
    "env: [{name: A, value: hunter2}, {name: B, value: " + "$(A)" * 40_000 + "}]",
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake[:60] for mistake in MISTAKES])
def test_a_mistake_around_a_secret_is_reported_without_it(mistake: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: [{{name: a, command: [x], {mistake}}}]\n"
    text = text.replace("command: [x], ", "") if "args" in mistake else text
    [result] = parse_manifest(text.encode(), "web.yaml")
    assert isinstance(result, RefusedPod)
    assert all(SECRET not in str(finding) for finding in result.findings)
    assert all(finding.line is not None for finding in result.findings)


@pytest.mark.parametrize("program", ["true", "/no/such/program"])
def test_the_launcher_neither_logs_nor_records_a_secret(tmp_path: Path, program: str) -> None:
    launcher = LauncherProcess(tmp_path, None)
    try:
        launcher.run()
        answer = launcher.client.start(
            launcher.request("u/app/0", program, "--quiet", env=(("PATH", "/bin:/usr/bin"), *ENV))
        )
        if not isinstance(answer, StartFailed):
            launcher.end_of("u/app/0")
        records = [path.read_text() for path in launcher.state.iterdir()]
        log = launcher.errors.read_text()
        assert "u/app/0" in log
        assert [text for text in (repr(answer), log, *records) if SECRET in text] == []
    finally:
        launcher.clean_up()
