"""Pods that are ended by hand although their manifests are there: in order, with their grace period, and so that they stay ended."""

import io
import json
import os
from argparse import Namespace
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.cli.commands import release as command
from nodeagent.cli.main import main
from nodeagent.cli.support.exit_status import EXIT_AWAY
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.core.host.settings import Change, Setting, SettingKind
from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Config
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.refusals import RELEASED
from nodeagent.core.model.state import Phase
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.host.host_settings import HOST_SETTINGS
from nodeagent.daemon.reports.publisher import API_SOCKET, Publisher
from nodeagent.daemon.start import node_builder, releasing
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.daemon.turn.runs import Runner
from nodeagent.edge.systemd import units
from nodeagent.edge.transport.local_api_client import ApiError, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.host_record import encode_record
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state, policies_of
from nodeagent.formats.kernel.unit_properties import LOADED, UnitProperties
from nodeagent.views.wording.refusal_advice import advise_next_step
from tests.support import json_schema
from tests.support.daemon_model import Client, Daemon, Steps, Tree, answered, daemon_node, watched
from tests.support.inspected_nodes import World
from tests.support.machine_tree import Machine as MachineTree
from tests.support.node_model import Agent, CrashError, Group, Machine, Process, started
from tests.support.pods import app, job, pod, sidecar
from tests.support.world import SMALL, node

NODE = node(SMALL)
WEB = pod("web", sidecar("proxy", "1"), app(cpu="2"))
OTHER = pod("other", app(cpu="1"))


def begin() -> tuple[Machine, Agent]:
    return started(NODE, WEB, OTHER)


def release(agent: Agent, *uids: str) -> None:
    agent.released = frozenset(uids or (e.pod.uid for e in agent.state.entries))
    agent.turn()


def phases(agent: Agent) -> dict[str, str]:
    return {e.pod.name: e.refusal.reason if e.refusal else e.phase.value for e in agent.state.entries}


# The decision


def test_a_released_pod_ends_in_order_and_is_refused_though_its_manifest_is_there() -> None:
    machine, agent = begin()
    release(agent, "uid-web")
    assert phases(agent) == {"web": "Terminating", "other": "Running"}
    assert [run.split("/")[:2] for run in agent.signalled] == [["uid-web", "app"]], "sidecars go last"
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": "Running"}
    assert [name for event, name in agent.event_names() if event in {"pod_ending", "pod_released"}] == ["web", "web"]
    ended = [name for event, name in agent.event_names() if event == "container_exited"]
    assert ended == ["app", "proxy"]
    assert [run.split("/")[0] for run in machine.running()] == ["uid-other"]
    assert agent.state.promises.of_pod("uid-web").is_nothing
    assert not [path for path in machine.groups if "uid-web" in path]


def test_it_keeps_its_cpus_until_its_last_process_has_gone() -> None:
    machine, agent = begin()
    machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    release(agent, "uid-web")
    agent.rest()
    assert phases(agent)["web"] == "Terminating"
    assert not agent.state.promises.of_pod("uid-web").is_nothing
    agent.settle()
    assert phases(agent)["web"] == RELEASED


def test_it_stays_ended_over_restarts_until_retry_or_another_manifest() -> None:
    machine, agent = begin()
    release(agent)
    agent.settle()
    machine.now_ms += 1
    agent.restart()
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": RELEASED}
    agent.retried = frozenset({"uid-other"})
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": "Running"}
    agent.want(replace(WEB, termination_grace_seconds=7), OTHER)
    agent.settle()
    assert phases(agent) == {"web": "Running", "other": "Running"}


def test_a_restart_in_the_middle_of_its_end_forgets_nothing() -> None:
    machine, agent = begin()
    machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    release(agent, "uid-web")
    agent.restart()
    agent.settle()
    assert phases(agent)["web"] == RELEASED


def test_with_its_manifest_gone_or_changed_meanwhile_it_is_forgotten() -> None:
    for wanted, left in (((OTHER,), None), ((replace(WEB, uid="uid-new"), OTHER), "Running")):
        _, agent = begin()
        release(agent, "uid-web")
        agent.want(*wanted)
        agent.settle()
        assert phases(agent).get("web") == left


def test_one_that_is_ending_already_only_does_not_come_back() -> None:
    machine, agent = begin()
    machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    agent.want(OTHER)
    agent.turn()
    since = next(e.deleting_since_ms for e in agent.state.entries if e.pod.name == "web")
    agent.want(WEB, OTHER)
    machine.now_ms += 1000
    release(agent, "uid-web")
    assert next(e.deleting_since_ms for e in agent.state.entries if e.pod.name == "web") == since
    agent.settle()
    assert phases(agent)["web"] == RELEASED


def test_it_needs_no_readable_manifest_directory() -> None:
    _, agent = begin()
    agent.is_blind = True
    release(agent, "uid-web")
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": "Running"}


def test_pods_that_hold_nothing_stay_as_they_are() -> None:
    machine, agent = started(NODE, job("done", app(cpu="1")), pod("big", app(cpu="50")))
    machine.exit(machine.running()[0], 0)
    agent.settle()
    before = agent.state
    release(agent)
    assert agent.state == before
    assert phases(agent) == {"done": Phase.SUCCEEDED.value, "big": "OutOfcpu"}


def test_what_brings_it_back_is_said() -> None:
    assert advise_next_step(RELEASED, "default/web").endswith("nodeagent retry default/web")


# The daemon


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    machine = Machine(NODE)
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (WEB, OTHER)
        daemon.start()
        daemon.rest()
        config: Any = SimpleNamespace(runtime_directory=str(tmp_path), metrics_bind_address="", pod_resources_socket="")
        with Publisher(daemon.agent, config, daemon.agent.edges.log):
            yield daemon


def ask(daemon: Daemon, **arguments: Any) -> Any:
    return answered(daemon, lambda: call(f"{daemon.directory}/{API_SOCKET}", "release", **arguments))


def test_a_request_is_saved_before_anything_is_signalled(daemon: Daemon) -> None:
    before = len(daemon.steps.done)
    assert ask(daemon, pods=["web"]) == {"released": ["uid-web"]}
    steps = daemon.steps.done[before:]
    assert steps.index(f"replace {STATE_FILE}") < min(i for i, step in enumerate(steps) if step.startswith("signal "))
    entry = decode_state((daemon.directory / STATE_FILE).read_bytes()).state.entry("uid-web")
    assert entry is not None
    assert entry.is_released
    daemon.rest()
    lines = [line["event"] for line in daemon.said() if line.get("pod") == "default/web"]
    assert lines[-1] == "pod_released"


def test_all_is_all_that_hold_something_and_twice_is_nothing_new(daemon: Daemon) -> None:
    assert ask(daemon, all=True) == {"released": ["uid-web", "uid-other"]}
    daemon.rest()
    assert ask(daemon, all=True) == {"released": []}
    assert ask(daemon, pods=["web", "default/other"]) == {"released": []}


@pytest.mark.parametrize("arguments", [{}, {"pods": []}, {"pods": "web"}, {"all": "yes"}])
def test_a_request_that_names_nobody_is_refused(daemon: Daemon, arguments: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="no pods were named"):
        ask(daemon, **arguments)


def test_one_wrong_name_releases_nobody(daemon: Daemon) -> None:
    with pytest.raises(ApiError, match="no pod is named 'wep'"):
        ask(daemon, pods=["web", "wep"])
    assert daemon.agent.requests.take() == ()


def test_a_full_disk_keeps_no_pod_from_ending_and_is_reported(daemon: Daemon) -> None:
    daemon.steps.fails = lambda _number, _call: 28
    ask(daemon, pods=["web"])
    daemon.turn()
    daemon.turn()
    entry = daemon.agent.state.entry("uid-web")
    assert entry is not None
    assert (entry.deleting_since_ms is not None, entry.is_released) == (True, True)
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert {e.pod.name: e.refusal and e.refusal.reason for e in daemon.agent.state.entries}["web"] == RELEASED


def test_a_process_that_dies_after_the_save_goes_on_where_it_was(daemon: Daemon) -> None:
    ask(daemon, pods=["web"])
    daemon.steps.dies_at = len(daemon.steps.done) + 12
    with pytest.raises(CrashError):
        daemon.rest()
    daemon.steps.dies_at = None
    daemon.start()
    daemon.rest()
    entry = daemon.agent.state.entry("uid-web")
    assert entry is not None
    assert entry.refusal is not None
    assert entry.refusal.reason == RELEASED


# The command, asking the agent


@pytest.fixture
def asking(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Whenever the command waits, a second passes and the agent does a turn."""

    def second(_: float) -> None:
        daemon.machine.now_ms += 1000
        daemon.turn()

    def known(*_: Any) -> Any:
        agent = daemon.agent
        config = SimpleNamespace(runtime_directory=str(daemon.directory))
        return SimpleNamespace(state=agent.view.state, is_live=True, node=SimpleNamespace(config=config))

    seconds = SimpleNamespace(
        sleep=second,
        monotonic=lambda: daemon.machine.now_ms / 1000,
        time_ns=lambda: daemon.machine.now_ms * 1_000_000,
    )
    monkeypatch.setattr(command, "time", seconds)
    monkeypatch.setattr(command, "read_node", known)
    monkeypatch.setattr(command, "call", lambda *words, **more: answered(daemon, lambda: call(*words, **more)))
    return daemon


def test_it_reports_each_step_until_the_last_process_has_gone(
    asking: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    asking.machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    assert main(["release", "web"]) == 0
    assert (
        capsys.readouterr().out
        == """\
default/web app: SIGTERM; SIGKILL if it still runs in 30 seconds
default/web proxy: SIGTERM; SIGKILL if it still runs in 2 seconds
default/web app: ended, by signal 9
default/web: ended; CPUs 1,4-5 are free again
1 pod released; to start one again: nodeagent retry POD, or change its manifest
"""
    )
    assert main(["release", "web"]) == 0
    assert capsys.readouterr().out == "default/web: holds nothing (refused: Released)\nnothing to release\n"


def test_a_dry_run_says_the_same_and_does_nothing(asking: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    before = asking.agent.state
    assert main(["release", "--all", "--dry-run"]) == 0
    asking.turn()
    assert asking.agent.state == before
    assert (
        capsys.readouterr().out
        == """\
would be done (dry run):
default/web: ends
  SIGTERM to app; then to proxy; SIGKILL after 30 s
  after its last process has ended: CPUs 1,4-5 are free again; cgroup poduid-web is removed
default/other: ends
  SIGTERM to app; SIGKILL after 30 s
  after its last process has ended: CPUs 2 are free again; cgroup poduid-other is removed
"""
    )


def document(text: str) -> Any:
    """What was printed, as its schema has it."""
    found = json.loads(text)
    json_schema.check(found, "release")
    return found


def test_as_json_the_answer_comes_at_the_end_and_each_step_goes_to_stderr(
    asking: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "web", "-o", "json"]) == 0
    reported = capsys.readouterr()
    assert document(reported.out) == {
        "kind": "Release",
        "version": 1,
        "dryRun": False,
        "byAgent": True,
        "pods": [
            {
                "namespace": "default",
                "name": "web",
                "uid": "uid-web",
                "phase": "Running",
                "refusal": None,
                "outcome": "released",
                "order": [["app"], ["proxy"]],
                "terminationGracePeriodSeconds": 30,
                "cpus": "1,4-5",
                "memoryNodes": "",
                "cgroup": "poduid-web",
                "units": [],
            }
        ],
        "removed": {"cgroups": None, "files": []},
        "problem": None,
    }
    assert "default/web: ended; CPUs 1,4-5 are free again\n1 pod released" in reported.err
    assert main(["release", "web", "-o", "yaml"]) == 0
    again = yaml.safe_load(capsys.readouterr().out)
    json_schema.check(again, "release")
    (pod_again,) = again["pods"]
    assert (pod_again["outcome"], pod_again["phase"], pod_again["refusal"]) == ("nothing", "Refused", RELEASED)


def test_a_dry_run_as_json_says_what_would_come_back(asking: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "--all", "--dry-run", "-o", "json"]) == 0
    reported = capsys.readouterr()
    found = document(reported.out)
    assert (found["dryRun"], reported.err) == (True, "")
    assert [(pod["name"], pod["outcome"], pod["cpus"]) for pod in found["pods"]] == [
        ("web", "planned", "1,4-5"),
        ("other", "planned", "2"),
    ]
    assert asking.agent.requests.take() == ()


def test_what_does_not_end_in_time_is_named(asking: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    asking.machine.groups["poduid-web/app"].is_unkillable = True
    asking.machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    assert main(["release", "--all"]) == 1
    reported = capsys.readouterr()
    assert "default/other: ended" in reported.out
    assert reported.err.startswith(
        "nodeagent: some pods have not ended yet: default/web\nhint: the agent keeps ending these pods"
    )
    assert main(["release", "--all", "--timeout", "0", "-o", "json"]) == 1
    reported = capsys.readouterr()
    assert [(pod["name"], pod["outcome"]) for pod in document(reported.out)["pods"]] == [
        ("web", "left"),
        ("other", "nothing"),
    ]
    assert "nodeagent: some pods have not ended yet: default/web\n" in reported.err


@pytest.mark.parametrize(("words", "seconds"), [(["--timeout", "5"], 5.0), ([], 52.0)])
def test_the_wait_for_a_turn_is_part_of_the_timeout(
    asking: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: Any, words: list[str], seconds: float
) -> None:
    """No turn comes: the agent answers when the time is up, and the command waits no longer."""
    waits: list[float] = []

    def slow(path: str, op: str, **more: Any) -> Any:
        if op == "state":
            return call(path, op)
        waits.append(more.pop("waitSeconds"))
        asking.machine.now_ms += round(waits[-1] * 1000)
        return call(path, op, waitSeconds=0, **more)

    monkeypatch.setattr(command, "call", slow)
    began_ms = asking.machine.now_ms
    assert main(["release", "web", *words]) == 1
    assert "some pods have not ended yet: default/web" in capsys.readouterr().err
    assert waits == [seconds]
    assert asking.machine.now_ms - began_ms <= (seconds + 1) * 1000
    asking.rest()


def test_an_agent_that_goes_meanwhile_is_reported(asking: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def gone(path: str, op: str, **more: Any) -> Any:
        if op == "state":
            return call(f"{path}.gone", op)
        return answered(asking, lambda: call(path, op, **more))

    monkeypatch.setattr(command, "call", gone)
    assert main(["release", "web"]) == 3
    assert "the agent then continues to end the pods" in capsys.readouterr().err
    asking.rest()


def test_files_are_not_purged_under_a_running_agent(asking: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "--all", "--purge"]) == 1
    assert "systemctl stop nodeagent" in capsys.readouterr().err
    assert asking.agent.requests.take() == ()


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["web", "--host-settings"], "--host-settings can be combined only with --config"),
        (["--host-settings", "--all"], "--host-settings can be combined only with --config"),
        (["--host-settings", "-o", "json"], "--host-settings can be combined only with --config"),
        (["web", "--purge"], "--purge"),
        (["web", "--timeout", "-1"], "-1"),
        (["x", "--timeout", "nan"], "nan"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["release", *words])
    assert ended.value.code == 64
    complaint = capsys.readouterr().err.splitlines()[-2]
    assert value in complaint


# Without an agent


def test_a_dry_run_without_a_state_names_the_file_and_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    config = tmp_path / "config.yaml"
    config.write_text(f"stateDirectory: {tmp_path}\nruntimeDirectory: {tmp_path}/run\n")
    assert main(["release", "--all", "--dry-run", "--config", f"{config}.none"]) == EXIT_AWAY
    assert capsys.readouterr().err.startswith(f"nodeagent: no configuration at {config}.none\nhint: ")
    assert main(["release", "--all", "--dry-run", "--config", str(config)]) == 0
    problem, step = capsys.readouterr().out.splitlines()
    assert problem.startswith("no saved state can be used: ")
    assert f"{tmp_path}/{STATE_FILE}" in problem
    assert "systemctl start nodeagent" in step
    assert main(["release", "--all", "--dry-run", "--purge", "--config", str(config), "-o", "json"]) == 0
    found = document(capsys.readouterr().out)
    assert (found["byAgent"], found["pods"], found["removed"]) == (False, [], {"cgroups": None, "files": []})
    assert problem.endswith(found["problem"]["message"])
    assert step == f"next: {found['problem']['nextStep']}"


def test_a_configuration_comes_through_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    places = {"stateDirectory": "", "runtimeDirectory": "run", "cgroupRoot": "none", "launcherSocket": "launcher.sock"}
    config = json.dumps({name: str(tmp_path / place) for name, place in places.items()})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(config.encode())))
    assert main(["release", "--all", "--config", "-", "--socket", f"{tmp_path}/s"]) == 0
    assert capsys.readouterr().out.startswith("no pod runs: ")


def test_settings_of_an_earlier_boot_are_not_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"stateDirectory: {tmp_path}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["release", "--host-settings", "--config", str(config)]) == 1
    assert "sudo nodeagent release --host-settings" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    record = tmp_path / HOST_SETTINGS
    record.write_bytes(encode_record("an earlier one", {Setting(SettingKind.IRQ, "1"): Change(CpuSet(), (CpuSet(),))}))
    assert main(["release", "--host-settings", "--config", str(config)]) == 0
    assert capsys.readouterr().out == "nothing to restore\n"
    record.write_bytes(b"damaged")
    assert main(["release", "--host-settings", "--config", str(config)]) == 1
    assert "/proc/irq" in capsys.readouterr().err


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, UnitSettings]]:
    """Inactive units as systemd has them, two of which an agent that has stopped has pinned."""
    there = {name: UnitSettings(CpuSet.of(3)) for name in ("db.service", "own.service", "other.service")}

    def show(names: Collection[str]) -> dict[str, UnitProperties]:
        return {name: UnitProperties(name, LOADED, f"none.slice/{name}", there[name], is_down=True) for name in names}

    def change(unit: str, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        was = there[unit]
        there[unit] = UnitSettings(
            was.allowed_cpus if cpus is None else cpus,
            was.allowed_memory_nodes if memory_nodes is None else memory_nodes,
        )

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(units, "show_units", show)
    monkeypatch.setattr(units, "set_unit", change)
    (tmp_path / "run").mkdir()
    config = Config(runtime_directory=f"{tmp_path}/run")
    (tmp_path / "config.yaml").write_text(f"stateDirectory: {tmp_path}\nruntimeDirectory: {tmp_path}/run\n")
    UnitRecords(config).keep({"db.service": UnitSettings(), "own.service": UnitSettings(CpuSet.parse("0-7"))})
    yield there
    assert there["other.service"] == UnitSettings(CpuSet.of(3)), "nobody has recorded it"


GIVEN_BACK = {"db.service": UnitSettings(), "own.service": UnitSettings(CpuSet.parse("0-7"))}


def test_without_an_agent_pinned_units_go_back_although_they_are_inactive(
    pinned: dict[str, UnitSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = ["release", "--host-settings", "--config", f"{tmp_path}/config.yaml"]
    assert main(command_line) == 0
    assert capsys.readouterr() == ("restored 2 settings of the host\n", "")
    assert {name: pinned[name] for name in GIVEN_BACK} == GIVEN_BACK
    assert not list(tmp_path.glob("run/units/*"))
    assert main(command_line) == 0
    assert capsys.readouterr().out == "nothing to restore\n"


def test_what_systemd_refuses_or_does_not_answer_stays_recorded_and_the_next_release_goes_on(
    pinned: dict[str, UnitSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change, show = units.set_unit, units.show_units
    command_line = ["release", "--host-settings", "--config", f"{tmp_path}/config.yaml"]

    def refuse(unit: str, **settings: Any) -> None:
        if unit == "db.service":
            raise units.UnitsError("cannot set AllowedCPUs= of db.service: no", hint="try it yourself")
        change(unit, **settings)

    def hang(_: Collection[str]) -> dict[str, UnitProperties]:
        raise units.UnitsError("systemd has not answered", hint="see it")

    for name, stand_in, reason in (("set_unit", refuse, "of db.service: no"), ("show_units", hang, "not answered")):
        with monkeypatch.context() as patched:
            patched.setattr(units, name, stand_in)
            assert main(command_line) == 1
        assert reason in capsys.readouterr().err
        assert [path.name for path in tmp_path.glob("run/units/*")] == ["db.service"]
    assert pinned["own.service"] == GIVEN_BACK["own.service"]
    assert units.show_units is show
    assert main(command_line) == 0
    assert {name: pinned[name] for name in GIVEN_BACK} == GIVEN_BACK


def test_with_an_agent_pinned_units_stay_as_its_pods_have_them(
    pinned: dict[str, UnitSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "call", lambda *_: {})
    assert main(["release", "--host-settings", "--config", f"{tmp_path}/config.yaml"]) == 0
    assert set(pinned.values()) == {UnitSettings(CpuSet.of(3))}


# Of another node


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copied root with what an agent has saved."""
    root = MachineTree(("0,4", "1,5", "2,6", "3,7"), ("0-1,4-5", "2-3,6-7"), ((0, "0-1,4-5"), (1, "2-3,6-7"))).grow(
        tmp_path
    )
    config = root / DEFAULT_CONFIG.lstrip("/")
    config.parent.mkdir(parents=True)
    config.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    world = World().add(pod("web", app("app", "2", "1Gi")))
    state = root / Config().state_directory.lstrip("/") / STATE_FILE
    state.parent.mkdir(parents=True)
    state.write_bytes(encode_state(world.state, policies_of(world.config.placement)))
    return root


PLANNED = """\
would be done (dry run):
default/web: ends
  SIGTERM to app; SIGKILL after 30 s
  after its last process has ended: CPUs 1,5 are free again; cgroup poduid-web is removed
"""


def test_the_steps_have_the_terminals_width(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["release", "--all", "--dry-run", "--root", str(copied)]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= columns
        assert shown.split() == PLANNED.split(), "nothing is left out"
    assert shown == PLANNED


def test_of_a_copied_node_it_is_reported_what_would_be_given_back(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = str(tmp_path / "node.json")
    assert main(["capture", "--root", str(copied), "--out", taken]) == 0
    for node_options in (["--root", str(copied)], ["--machine", taken]):
        for pods in (["--all"], ["web"]):
            assert main(["release", *pods, "--dry-run", *node_options]) == 0
            assert capsys.readouterr().out == PLANNED
        assert main(["release", "web", "--dry-run", *node_options, "-o", "json"]) == 0
        (planned,) = document(capsys.readouterr().out)["pods"]
        assert (planned["outcome"], planned["cpus"]) == ("planned", "1,5")
        assert main(["release", "wep", "--dry-run", *node_options]) == 1
        assert "no pod is named 'wep'" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--dry-run", "--purge"]])
def test_another_node_is_only_planned_for(more: list[str], copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["release", "--all", "--root", str(copied), *more])
    assert ended.value.code == 64
    assert "another node's pods can't be released from here" in capsys.readouterr().err


@pytest.fixture
def stopped(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> releasing.Pods:
    """Pods run, the agent doesn't; time passes as the command waits."""
    machine = daemon.machine

    def pause(seconds: float) -> None:
        machine.now_ms += int(1000 * seconds) + 1

    clock = SimpleNamespace(
        sleep=pause, monotonic=lambda: machine.now_ms / 1000, time_ns=lambda: machine.now_ms * 1_000_000
    )
    for module in (releasing, command):
        monkeypatch.setattr(module, "time", clock)
    tree: Any = Tree(machine, daemon.steps, lambda: None)
    client: Any = Client(machine, daemon.steps)
    return releasing.Pods(tree, Runner(client))


def agent_of(daemon: Daemon, pods: releasing.Pods, monkeypatch: pytest.MonkeyPatch) -> Any:
    manifests = daemon.directory / "manifests"
    manifests.mkdir(exist_ok=True)
    made = daemon_node(NODE, daemon.directory, static_pod_path=str(manifests))
    same: Any = SimpleNamespace(look=lambda known: known, devices=lambda _topology: PlacedDevices())
    monkeypatch.setattr(releasing, "Machine", lambda: same)
    return releasing.load_agent(made, pods)


def test_without_an_agent_all_pods_end_the_same_way_and_nothing_is_left(
    daemon: Daemon, stopped: releasing.Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(daemon, stopped, monkeypatch)
    starts = len(daemon.machine.starts)
    states = []
    releasing.drain(agent, states.append, deadline=float("inf"))
    assert len(daemon.machine.starts) == starts, "nothing is started on the way"
    assert {e.refusal.reason for e in states[-1].entries if e.refusal} == {RELEASED}
    assert exclusive_cpus(states[-1].promises) == CpuSet()
    saved = decode_state((daemon.directory / STATE_FILE).read_bytes()).state
    assert saved == states[-1]
    assert releasing.remove_cgroups(stopped.tree) == ()
    assert [path for path in daemon.machine.groups if path] == []


def test_without_an_agent_the_hosts_settings_go_back_although_a_process_runs_that_no_pod_owns(
    daemon: Daemon, stopped: releasing.Pods, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = agent_of(daemon, stopped, monkeypatch)
    daemon.machine.groups |= {"podghost": Group(), "podghost/app": Group(processes=[Process(None)])}
    put_back = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(command, "read_node", lambda _: NodeAgentError("no agent runs", hint="start it"))
    monkeypatch.setattr(node_builder, "discover", lambda *_: agent.node)
    monkeypatch.setattr(releasing, "find_pods_cgroup", lambda *_: stopped)
    monkeypatch.setattr(releasing, "load_agent", lambda *_: agent)
    monkeypatch.setattr(releasing, "restore_host_settings", lambda *_, **more: put_back.append(more) or 3)
    config = daemon.directory / "config.yaml"
    config.write_text("cpuManagerPolicy: none\n")
    assert main(["release", "--all", "--config", str(config)]) == 1
    told = capsys.readouterr()
    assert put_back == [{"forget": True}]
    assert "restored the CPUs of the host's interrupts, work queues and units\n" in told.out
    assert "processes run in cgroups that no pod owns: podghost/app" in told.err
    assert "podghost/app/cgroup.kill`, then run this again" in told.err
    daemon.machine.groups["podghost/app"].processes.clear()  # they are ended, as that file does
    assert main(["release", "--all", "--config", str(config)]) == 0


def test_an_agent_that_starts_afterwards_leaves_them_ended(
    daemon: Daemon, stopped: releasing.Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    releasing.drain(agent_of(daemon, stopped, monkeypatch), lambda _: None, deadline=float("inf"))
    daemon.start()
    daemon.rest()
    assert {e.refusal and e.refusal.reason for e in daemon.agent.state.entries} == {RELEASED}


def test_without_an_agent_a_process_that_stays_is_an_error_and_keeps_its_cpus(
    daemon: Daemon, stopped: releasing.Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = daemon.machine.groups["poduid-web/app"]
    group.is_unkillable, group.processes[0].is_stubborn = True, True
    agent = agent_of(daemon, stopped, monkeypatch)
    with pytest.raises(releasing.DrainError, match="some pods have not ended yet: default/web"):
        releasing.drain(agent, lambda _: None, deadline=daemon.machine.now_ms / 1000 + 60)
    assert not agent.state.promises.of_pod("uid-web").is_nothing
    assert releasing.remove_cgroups(stopped.tree) == ("poduid-web/app", "poduid-web/proxy")


def test_the_agents_own_files_are_named_and_no_other(tmp_path: Path) -> None:
    config: Any = Namespace(
        state_directory=str(tmp_path),
        runtime_directory=str(tmp_path),
        metrics_bind_address=f"unix:{tmp_path}/m.sock",
        pod_resources_socket=f"{tmp_path}/p.sock",
    )
    ours = {
        "nodeagent_state", "nodeagent_state.aside-2", ".nodeagent_state.new", "cpu_manager_state", "memory_manager_state", ".lock",
        "last_config.yaml", "agent.sock", "jobs.sock", "m.sock", "p.sock", "host_settings", "host_settings_put_back", "parsed_manifests",
    }  # fmt: skip
    for name in (*ours, "notes", "nodeagent_state.bak"):
        (tmp_path / name).write_text("")
    assert {os.path.basename(path) for path in releasing.find_own_files(config)} == ours  # noqa: PTH119 - a text
