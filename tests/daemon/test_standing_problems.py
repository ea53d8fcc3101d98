"""What is wrong for the time being is in the view as long as it lasts, and in the log once."""

import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, build, initial
from nodeagent.core.metrics.agent_metrics import CHANGE_REFUSALS, MANIFEST_PROBLEMS, PROBLEMS, WAITING
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import Origin, latest_ms
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn.pod_sources import Manifest, ManifestProblem, PodSource
from nodeagent.daemon.reports.publisher import Publisher
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.start.startup import StartError
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.manifest_watch import ManifestWatch
from tests.support.daemon_model import Daemon
from tests.support.node_model import Unit
from tests.support.pods import app, job, manifests, pod, unit

WEB = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: app, command: [run], resources: {limits: {cpu: 1, memory: 64Mi}}}
"""


def events(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    return [line for line in daemon.said() if line["event"] == event]


def test_what_is_wrong_with_a_manifest_is_logged_from_the_first_turn_on_and_once_while_it_lasts(daemon: Daemon) -> None:
    wrong = PodSource(problems=tuple(ManifestProblem("web.yaml", text) for text in ("cpus: unknown", "no name")))
    for source, lines in ((wrong, 1), (wrong, 1), (PodSource(), 1), (wrong, 2)):
        daemon.files.look_again = source
        if not events(daemon, "manifest_refused"):
            daemon.start()
        daemon.rest()
        assert len(events(daemon, "manifest_refused")) == lines
    line = events(daemon, "manifest_refused")[0]
    assert (line["source"], line["problems"]) == ("web.yaml", ["cpus: unknown", "no name"])


def test_a_manifest_that_does_not_count_is_shown_until_it_goes(daemon: Daemon) -> None:
    one = pod("a", app(cpu="1"))
    (first,) = manifests(one)
    daemon.files.look_again = PodSource((first, Manifest(one, Origin("z.yaml"))))
    daemon.rest()
    assert daemon.agent.view.problems == (
        "manifest z.yaml: pod default/a has the same name as a pod in a.yaml, which is used: remove one of the two manifests",
    )
    assert f"{MANIFEST_PROBLEMS} 1.0" in daemon.agent.metrics.exposition.text().decode()
    assert len(events(daemon, "manifest_shadowed")) == 1
    daemon.files.look_again = PodSource((first,))
    daemon.rest()
    assert daemon.agent.view.problems == ()
    assert f"{MANIFEST_PROBLEMS} 0.0" in daemon.agent.metrics.exposition.text().decode()


def test_a_problem_that_several_containers_meet_is_one(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.files.pods = tuple(pod(name, app(cpu="1")) for name in ("a", "b"))
    monkeypatch.setattr(daemon.agent.edges.runner, "launch", lambda *_: Problem("the launcher has died"))
    daemon.turn()
    assert daemon.agent.view.problems == ("the launcher has died",)
    assert [line["problem"] for line in events(daemon, "trouble")] == ["the launcher has died"]


def test_a_change_that_is_refused_is_shown_counted_and_reported_once(daemon: Daemon) -> None:
    daemon.files.pods = (pod("a", app(cpu="1")),)
    daemon.rest()
    before = daemon.agent.metrics.exposition.text().decode()
    daemon.files.pods = (pod("a", app(cpu="400"), uid="other"),)
    daemon.rest()
    daemon.turn()
    short = "Node didn't have enough resource: cpu, requested: 400000, used: 0, capacity: 8000"
    (problem,) = daemon.agent.view.problems
    assert problem == (
        f"manifest a.yaml: the change is refused, and pod default/a keeps running unchanged: OutOfcpu: {short} "
        "(undo the change, or make room, then: nodeagent retry default/a)"
    )
    assert daemon.agent.view.is_ready
    (line,) = events(daemon, "change_refused")
    expected = ("default/a", "uid-a", "a.yaml", "OutOfcpu", short, "warning")
    assert tuple(line[key] for key in ("pod", "pod_uid", "source", "reason", "message", "level")) == expected
    after = daemon.agent.metrics.exposition.text().decode()
    moved = set(after.splitlines()) - set(before.splitlines())
    counts = {
        line
        for line in moved
        if not line.startswith(
            ("nodeagent_event_dur", "nodeagent_reconcile_dur", "nodeagent_state_gen", "process_", "python_")
        )
    }
    assert counts == {
        f"{MANIFEST_PROBLEMS} 1.0",
        f'{CHANGE_REFUSALS}{{reason="OutOfcpu"}} 1.0',
        f'{WAITING}{{asked="change"}} 1.0',
        f'{PROBLEMS}{{kind="manifest"}} 1.0',
    }, "kubelet's counters don't move"
    daemon.files.pods = (pod("a", app(cpu="1")),)
    daemon.rest()
    assert daemon.agent.view.problems == ()
    assert daemon.machine.signals == []


def test_a_refused_change_is_shown_with_the_new_name_of_its_file_and_a_mistake_there_ends_no_pod(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, renamed = tmp_path / "manifests" / "web.yaml", tmp_path / "manifests" / "w2.yaml"
    path.parent.mkdir()
    read = ManifestList(str(path.parent), ManifestWatch(str(path.parent), lambda: None), 20)
    with closing(read):
        monkeypatch.setattr(daemon.files, "look", read.look)
        path.write_text(WEB)
        daemon.rest()
        path.write_text(WEB.replace("cpu: 1", "cpu: 400"))
        daemon.rest()
        path.rename(renamed)
        daemon.rest()
        (problem,) = daemon.agent.view.problems
        assert problem.startswith("manifest w2.yaml: the change is refused, and pod default/web keeps running")
        renamed.write_text(WEB + "\t oops\n")
        daemon.rest()
    assert {problem.split()[1] for problem in daemon.agent.view.problems} == {"w2.yaml:"}
    assert len(events(daemon, "change_refused")) == 1
    assert daemon.machine.signals == []


def test_a_taken_metrics_port_keeps_no_pod_from_running(daemon: Daemon, tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    config: Any = SimpleNamespace(
        runtime_directory=str(tmp_path), metrics_bind_address=f"127.0.0.1:{port}", pod_resources_socket=""
    )
    with Publisher(daemon.agent, config, daemon.agent.edges.log) as publisher:
        daemon.standing = publisher.listen()
        daemon.files.pods = (pod("a", app(cpu="1")),)
        daemon.rest()
        assert daemon.machine.running_containers() == ("poduid-a/app",)
        (problem,) = daemon.agent.view.problems
        assert problem.startswith("metrics: ")
        assert str(port) in problem
        assert len(events(daemon, "not_served")) == 1, "told once"
        taken.close()
        daemon.standing = publisher.listen()
        daemon.turn()
        assert daemon.agent.view.problems == ()
        with socket.create_connection(("127.0.0.1", port), timeout=20):
            pass
    assert len(events(daemon, "served_again")) == 1


def changed(daemon: Daemon, **placement: Any) -> Any:
    before = daemon.agent.node
    managers = build(before.topology, replace(before.config.placement, **placement))
    assert isinstance(managers, Managers)
    return replace(before, config=replace(before.config, placement=managers.placement), managers=managers)


def test_another_policy_is_taken_over_while_nobody_holds_anything(daemon: Daemon) -> None:
    daemon.agent.change_node(changed(daemon, cpu_manager_policy="none"))
    daemon.rest()
    assert daemon.agent.state.promises == initial(daemon.agent.node.managers)
    daemon.agent.change_node(changed(daemon, cpu_manager_policy="static"))
    daemon.files.pods = (pod("a", app(cpu="2")),)
    daemon.rest()
    assert own_set_of(daemon.agent.state.promises, "uid-a", "app") == CpuSet.of(1, 5)
    with pytest.raises(StartError, match="the policies change") as refused:
        daemon.agent.change_node(changed(daemon, cpu_manager_policy="none"))
    assert "drain the node" in str(refused.value.hint)


def test_a_unit_that_systemd_does_not_know_is_told_of_and_looked_for_in_each_period(daemon: Daemon) -> None:
    daemon.files.pods = (pod("db", unit("db.service", "2")),)
    daemon.rest()
    problem = "unit db.service is not-found: it gets its CPUs once systemd knows it (`systemctl status db.service`)"
    assert problem in daemon.agent.view.problems
    assert daemon.turn(WakeUpReason.TIMER) == daemon.agent.node.config.rescan_period_ms / 1000
    daemon.machine.systemd_answers = False
    daemon.start()
    assert daemon.turn(WakeUpReason.START) == 1.0, "where the unit is, is not known"
    daemon.machine.systemd_answers = True
    daemon.machine.units["db.service"] = Unit()
    daemon.turn(WakeUpReason.TIMER)
    assert problem not in daemon.agent.view.problems
    assert next(line["problem"] for line in events(daemon, "trouble")) == problem


HOUR_MS = 3_600_000
A, CRASHES = "poduid-a/app", "poduid-b/crashes"


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_clock_that_is_set_is_reported_and_changes_no_grace_period(daemon: Daemon, by_ms: int) -> None:
    machine = daemon.machine
    machine.stubborn = {"app"}
    daemon.files.pods = (pod("a", app(cpu="1"), termination_grace_seconds=30),)
    daemon.rest()
    daemon.files.pods = ()
    daemon.rest()
    started, kept = list(machine.starts), daemon.agent.state.promises
    machine.set_clock(by_ms)
    machine.now_ms += 29_000
    daemon.rest()
    assert [line["by_ms"] for line in events(daemon, "clock_stepped")] == [by_ms]
    assert machine.running_containers() == ("poduid-a/app",)
    assert (machine.starts, daemon.agent.state.promises) == (started, kept)
    daemon.start()
    daemon.rest()
    assert machine.running_containers() == ("poduid-a/app",), "it was saved"
    machine.now_ms += 1_000
    daemon.rest()
    assert machine.running_containers() == ()
    assert daemon.agent.state.entries == ()


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_pod_that_runs_does_not_notice_that_the_clock_is_set(daemon: Daemon, by_ms: int) -> None:
    machine = daemon.machine
    daemon.files.pods = (pod("a", app(cpu="1")),)
    daemon.rest()
    machine.set_clock(by_ms)
    daemon.rest()
    assert (len(machine.starts), machine.signals) == (1, [])
    assert machine.running_containers() == ("poduid-a/app",)


def test_a_clock_that_is_adjusted_by_little_is_none_that_was_set(daemon: Daemon) -> None:
    for by_ms in (600, -600, 1_000, -1_000):
        daemon.machine.set_clock(by_ms)
        daemon.turn()
    assert events(daemon, "clock_stepped") == []
    for _ in range(2):
        daemon.machine.set_clock(600)
        daemon.turn()
    assert [line["by_ms"] for line in events(daemon, "clock_stepped")] == [1_200], "little adds up"


def test_a_clock_that_is_set_back_while_the_agent_is_away_makes_nobody_wait(daemon: Daemon) -> None:
    """Nothing that the state remembers can lie ahead."""
    machine = daemon.machine
    machine.stubborn = {"app"}
    daemon.files.pods = (pod("a", app(cpu="1"), termination_grace_seconds=30), pod("b", app("crashes")))
    daemon.rest()
    for _ in range(2):
        machine.exit(machine.run_of("crashes"), 1)
        daemon.rest()
        machine.now_ms += 10_000
        daemon.rest()
    machine.exit(machine.run_of("crashes"), 1)
    daemon.files.pods = daemon.files.pods[1:]
    daemon.rest()
    machine.set_clock(-HOUR_MS)
    daemon.start()
    daemon.rest()
    assert [line["by_ms"] for line in events(daemon, "clock_stepped")] == [-HOUR_MS]
    daemon.start()
    daemon.rest()
    assert len(events(daemon, "clock_stepped")) == 1, "it was saved"
    for by_ms, expected in ((19_000, [A]), (1_000, [A, CRASHES]), (9_000, [A, CRASHES]), (1_000, [CRASHES])):
        machine.now_ms += by_ms
        daemon.rest()
        assert list(machine.running_containers()) == expected


def test_what_the_launcher_saw_before_the_clock_was_set_back_does_not_lie_ahead(daemon: Daemon) -> None:
    machine = daemon.machine
    daemon.files.pods = (job("a", app(cpu="1")),)
    daemon.turn()
    assert latest_ms(daemon.agent.state) == 0, "it is started, and not seen yet"
    machine.set_clock(-HOUR_MS)
    daemon.rest()
    assert latest_ms(daemon.agent.state) == machine.now_ms
    daemon.start()
    daemon.rest()
    assert [line["by_ms"] for line in events(daemon, "clock_stepped")] == [-HOUR_MS], "it was not set again"


def test_what_a_manifest_hardly_means_is_logged_when_its_pod_is_decided_on_and_not_again(daemon: Daemon) -> None:
    notes = ("spec.nodeSelector: no effect here: …", "spec.containers[0].resources.limits[memory]: 64 is 64 bytes")
    wanted = (
        Manifest(pod("a", app(cpu="1")), Origin("a.yaml"), notes=notes),
        Manifest(pod("b", app(cpu="50")), Origin("b.yaml"), notes=notes[:1]),
    )
    daemon.files.look_again = PodSource(wanted)
    daemon.rest()
    daemon.rest()
    lines = events(daemon, "manifest_note")
    assert [(line["pod"], line["source"], line["problem"], line["level"]) for line in lines] == [
        ("default/a", "a.yaml", notes[0], "warning"),
        ("default/a", "a.yaml", notes[1], "warning"),
        ("default/b", "b.yaml", notes[0], "warning"),
    ]
    assert len(events(daemon, "pod_admitted")) == len(events(daemon, "pod_refused")) == 1
